"""Correctness before speed: do the timed texts agree with the baseline, or with the target's own distributions?"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from speclab.lab.harness import Measurement
from speclab.records.rows import BASELINE, Arm
from speclab.theory import losslessness


def exit_code(measured: Measurement) -> int:
    """Return 1 where a judged text is wrong, else 0. Raises what ended the measurement, but for Ctrl-C."""
    if measured.stop and not isinstance(measured.stop, KeyboardInterrupt):
        raise measured.stop
    return int(not all(entry["passed"] for entry in measured.correctness))


def judge(measured: Measurement, asked: Iterable[tuple[Arm, float]] | None = None) -> None:
    """Check every text that a speculative arm made in a timed turn. asked: arms and temperatures; None: all of them."""
    speculative = dict.fromkeys((line.arm, line.temperature) for line in measured.lines if line.arm.speculative)
    for arm, temperature in speculative if asked is None else asked:
        check = _judge_sampled if temperature else judge_greedy
        measured.correctness.append(check(measured, arm, temperature))


def judge_greedy(measured: Measurement, arm: Arm, temperature: float = 0.0) -> dict[str, Any]:
    """Say whether an arm's texts equal the baseline's, or where each differs first and why; `passed`: none is wrong."""
    setup, lines = measured.bench.setup, measured.of(arm, temperature)
    baseline = {line.prompt_index: line.texts[0] for line in measured.of(BASELINE, temperature)}
    differences = []
    for line in lines:
        expected, asked = baseline[line.prompt_index], measured.prompts[line.prompt_index]
        found = [  # repeats of a greedy decoding may differ, where lengths choose themselves and on a server
            losslessness.judge_divergence(setup.reference, asked.id_list, expected, [*text], setup.target.vocab_size)
            for text in dict.fromkeys(map(tuple, line.texts))
            if [*text] != expected
        ]
        # A wrong text comes before near-ties.
        if first := min(filter(None, found), key=lambda one: one.numerical, default=None):
            same, pair = expected[: first.position], (first.baseline_token, first.speculative_token)
            tokens = [setup.token_text(asked, same, t) if t >= 0 else "" for t in pair]
            said: dict[str, Any] = {"prompt": line.prompt_index, "position": first.position, "tokens": tokens}
            verdict = "near-tie" if first.numerical else "BUG"
            differences.append(said | {"gap": _finite(first.gap), "verdict": verdict})
    passed = all(one["verdict"] == "near-tie" for one in differences)
    entry = {"arm": arm.label, "temperature": temperature, "n_prompts": len(lines)}
    return entry | {"differences": differences, "passed": passed}


def _judge_sampled(measured: Measurement, arm: Arm, temperature: float) -> dict[str, Any]:
    """Return the z statistics of the emitted tokens under the target's own distributions.

    A lossy rule is not held to them, only to tokens that the target may emit; how far it is off is measured instead.
    """
    bench, setup, rule = measured.bench, measured.bench.setup, measured.bench.functions.rule
    sampling, n_ids = setup.sampling_at(temperature), setup.target.vocab_size
    lossy_rule = bench.lossy_rule(arm)

    def places() -> Iterator[losslessness.Places]:
        for line in measured.of(arm, temperature):
            prompt = measured.prompts[line.prompt_index].id_list
            for tokens in line.texts:
                law = bench.drafters[arm.draft].law(setup.target, prompt, tokens, sampling, 1)
                draft_probs = law.drawn_from([(start, 0, 1) for start in range(len(tokens))])
                yield from losslessness.known_law(setup.reference, prompt, tokens, sampling, n_ids, draft_probs)

    z = losslessness.z_statistics(places())
    off = rule.distance(measured, arm, temperature) if lossy_rule and rule.distance else None
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_tokens": z.n_tokens,
        "z_residual": _finite(z.residual),
        "z_surprise": _finite(z.surprise),  # None: an impossible token was emitted
        "n_uncertain": z.n_uncertain,
        "bound": losslessness.Z_BOUND,
        "passed": math.isfinite(z.surprise) if lossy_rule else z.passed,
        **({"lossy_rule": lossy_rule, "total_variation": off} if lossy_rule else {}),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
