"""Correctness before speed: do the timed texts agree with the baseline, or with the target's own distributions?"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from speclab.core.law import Place
from speclab.core.rules import Rule
from speclab.lab.harness import Measurement
from speclab.models.cached import distributions
from speclab.records.rows import BASELINE, Arm, RoundCounts, as_written
from speclab.theory import losslessness


def exit_code(measured: Measurement) -> int:
    """Return 1 where a judged text is wrong, else 0.

    Raises what ended the measurement early where that is a problem to mend, and Ctrl-C where texts are not judged.
    """
    if measured.stop and not isinstance(measured.stop, KeyboardInterrupt):
        raise measured.stop
    if not all(entry["passed"] for entry in measured.correctness):
        return 1
    if measured.stop and measured.unchecked:
        raise measured.stop
    return 0


def judge(measured: Measurement, waiting: Mapping[str, tuple[Arm, float]] | None = None) -> None:
    """Check every text that a speculative arm made in a timed turn.

    What ends the checks early leaves the other arms in `measured.unchecked`. waiting: the arms and temperatures to
    check, by what a record calls them; None: all speculative ones.
    """
    if waiting is None:
        pairs = dict.fromkeys((line.arm, line.temperature) for line in measured.lines if line.arm.speculative)
        waiting = {f"{arm.label} at temperature {temperature:g}": (arm, temperature) for arm, temperature in pairs}
    left = dict(waiting)
    with measured.kept("the measurements are complete, their checks are not"):
        for name, (arm, temperature) in waiting.items():
            check = _judge_sampled if temperature else judge_greedy
            measured.correctness.append(check(measured, arm, temperature))
            del left[name]
    measured.unchecked = list(left)


def judge_greedy(measured: Measurement, arm: Arm, temperature: float = 0.0) -> dict[str, Any]:
    """Say whether an arm's texts equal the baseline's, or where each first differs and why; `passed` is false where one
    is wrong."""
    setup, lines = measured.bench.setup, measured.of(arm, temperature)
    baseline = {line.prompt_index: line.texts[0] for line in measured.of(BASELINE, temperature)}
    differences = []
    for line in lines:
        expected, asked = baseline[line.prompt_index], measured.prompts[line.prompt_index]
        found = [  # repeats of a greedy decoding may differ, where lengths choose themselves and on a server
            losslessness.judge_divergence(setup.reference, asked.id_list, expected, [*text], setup.target.vocab_size)
            for text in dict.fromkeys(map(tuple, line.texts))
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
    bench, setup, lines = measured.bench, measured.bench.setup, measured.of(arm, temperature)
    sums, sampling, lossy_rule = losslessness.ZSums(), setup.sampling_at(temperature), bench.lossy_rule(arm)
    vocab, drafter = setup.target.vocab_size, bench.drafters[arm.draft]
    is_measured = lossy_rule is not None and len(drafter.parts) == 1  # of a hybrid it is not known which part drafted
    k = arm.draft_length if is_measured else 1
    for line in lines:
        prompt, distance = measured.prompts[line.prompt_index].id_list, 0.0
        for tokens, rounds in zip(line.texts, line.rounds, strict=True):
            law = drafter.law(setup.target, prompt, tokens, sampling, k)
            draft_probs = law.drawn_from([(start, 0, 1) for start in range(len(tokens))])
            for part in losslessness.known_law(setup.reference, prompt, tokens, sampling, vocab, draft_probs):
                sums.add(*part)
            if is_measured:
                tested = judged_places(rounds, len(tokens), k, max(bench.max_new_tokens, len(tokens)))
                target_probs = distributions(setup.target.model, prompt, tokens, sampling, vocab)
                here = target_probs[[start + depth for start, depth, _ in tested]]
                distance += distances(bench.functions.rule, here, law.drawn_from(tested)).sum().item()
        line.distance = as_written(distance) if is_measured else None
    z, off = sums.result(), sum(line.distance or 0.0 for line in lines) / max(1, sum(line.n_emitted for line in lines))
    lossy = {"lossy_rule": lossy_rule, "total_variation": off if is_measured else None} if lossy_rule else {}
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_tokens": z.n_tokens,
        "z_residual": _finite(z.residual),
        "z_surprise": _finite(z.surprise),  # None: an impossible token was emitted
        "n_uncertain": z.n_uncertain,
        "bound": losslessness.Z_BOUND,
        "passed": math.isfinite(z.surprise) if lossy_rule else z.passed,
        **lossy,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def distances(rule: Rule, target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Return the total variation distance of the law of one tested token with this rule from the target's, place by
    place.

    (n, vocab) twice -> (n,); zeros for a lossless rule
    """
    p, q = target_probs.double(), draft_probs.double()
    return (rule.law(p, q) - p).abs().sum(-1) / 2 if rule.law else torch.zeros(len(p))


def judged_places(rounds: Iterable[RoundCounts], n_tokens: int, k: int, most: int) -> list[Place]:
    """Return the places of a text whose token a rule has tested: (tokens before the round, number in its draft, tokens
    that the loop asked for).

    rounds: those after the prefill, whose token is the first of the text. All other tokens are bonus tokens, or follow
    an empty draft: those are the target's own. k: of the arm. most: new tokens of the run; near their end a round asks
    for fewer.
    """
    places, start = [], 1
    for n_drafted, n_accepted, _ in rounds:
        asked = max(0, min(k, most - start - 1))
        places += [(start, depth, asked) for depth in range(min(n_drafted, n_accepted + 1, n_tokens - start))]
        start += n_accepted + 1
    return places
