"""Correctness before speed: do the timed texts agree with the baseline, or with the target's own distributions?"""

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from speclab.core.law import Place
from speclab.core.rules import Rule
from speclab.lab.harness import Measurement
from speclab.models.checking.uncached import distributions
from speclab.records.arms import BASELINE, Arm
from speclab.records.log import RoundCounts
from speclab.records.rows import as_written
from speclab.theory import losslessness


def to_judge(measured: Measurement) -> dict[str, tuple[Arm, float]]:
    """The arms and temperatures whose texts are to be checked, by what a record calls them."""
    pairs = dict.fromkeys((s.arm, s.temperature) for s in measured.lines if s.arm.speculative)
    return {f"{arm.label} at temperature {temperature:g}": (arm, temperature) for arm, temperature in pairs}


def exit_code(measured: Measurement) -> int:
    """1 where a judged text is wrong, else 0.

    Raises what ended the measurement early where that is a problem to mend, and Ctrl-C where texts are not judged.
    """
    if measured.stop and not isinstance(measured.stop, KeyboardInterrupt):
        raise measured.stop
    if not all(entry["passed"] for entry in measured.correctness):
        return 1
    if measured.stop and measured.unchecked:
        raise measured.stop
    return 0


def check(measured: Measurement, arm: Arm, temperature: float) -> dict:
    """Whether the texts of an arm are right; `passed` is false where one is wrong."""
    return (judge_greedy if temperature == 0 else _judge_sampled)(measured, arm, temperature)


def judge(
    measured: Measurement, waiting: Mapping[str, tuple] | None = None, check: Callable[..., dict] = check
) -> None:
    """Check every text that a speculative arm made in a timed turn.

    What ends the checks early leaves the other arms in `measured.unchecked`.

    waiting: name -> what `check` is called with after `measured`; as `to_judge` has them, unless told.
    """
    left = dict(to_judge(measured) if waiting is None else waiting)
    with measured.kept("the measurements are complete, their checks are not"):
        for name, asked in list(left.items()):
            measured.correctness.append(check(measured, *asked))
            del left[name]
    measured.unchecked = list(left)


def judge_greedy(measured: Measurement, arm: Arm, temperature: float = 0.0) -> dict:
    """An arm's texts equal the baseline's, or where each first differs and why."""
    setup, samples = measured.bench.setup, measured.of(arm, temperature)
    baseline = {s.prompt_index: s.texts[0] for s in measured.of(BASELINE, temperature)}
    differences = []
    for sample in samples:
        expected = baseline[sample.prompt_index]
        asked = measured.prompts[sample.prompt_index]
        prompt = asked.id_list
        found = [  # repeats of a greedy decoding may differ, where lengths choose themselves and on a server
            losslessness.judge_divergence(setup.reference, prompt, expected, [*text], setup.target.vocab_size)
            for text in dict.fromkeys(map(tuple, sample.texts))
        ]
        # A wrong text comes before near-ties.
        divergence = min(filter(None, found), key=lambda one: one.numerical, default=None)
        if divergence:
            same = expected[: divergence.position]
            pair = (divergence.baseline_token, divergence.speculative_token)
            differences.append(
                {
                    "prompt": sample.prompt_index,
                    "position": divergence.position,
                    "tokens": [setup.token_text(asked, same, t) if t >= 0 else "" for t in pair],
                    "gap": None if divergence.gap == float("inf") else divergence.gap,
                    "verdict": "near-tie" if divergence.numerical else "BUG",
                }
            )
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_prompts": len(samples),
        "differences": differences,
        "passed": all(difference["verdict"] == "near-tie" for difference in differences),
    }


def _judge_sampled(measured: Measurement, arm: Arm, temperature: float) -> dict:
    """The z statistics of the emitted tokens under the target's own distributions.

    A lossy rule is not held to them, only to tokens that the target may emit; how far it is off is measured instead.
    """
    bench, setup, samples = measured.bench, measured.bench.setup, measured.of(arm, temperature)
    sums, sampling, lossy_rule = losslessness.ZSums(), setup.sampling_at(temperature), bench.lossy_rule(arm)
    vocab = setup.target.vocab_size
    known = len(bench.drafters[arm.draft].parts) == 1  # of a hybrid it is not known which part drafted
    for sample in samples:
        prompt, distance = measured.prompts[sample.prompt_index].id_list, 0.0
        for tokens, rounds in zip(sample.texts, sample.rounds, strict=True):
            k = arm.draft_length if lossy_rule and known else 1
            law = bench.drafters[arm.draft].law(setup.target, prompt, tokens, sampling, k)
            draft_probs = law.drawn_from([(start, 0, 1) for start in range(len(tokens))])
            losslessness.judge_text(sums, setup.reference, prompt, tokens, sampling, vocab, draft_probs)
            if lossy_rule and known:
                target_probs = distributions(setup.target.model, prompt, tokens, sampling, vocab)
                tested = judged_places(rounds, len(tokens))
                proposed = law.drawn_from(asked_at(tested, k, max(bench.max_new_tokens, len(tokens))))
                judged_probs = target_probs[[start + depth for start, depth in tested]]
                distance += distances(bench.functions.rule, judged_probs, proposed).sum().item()
        sample.distance = as_written(distance) if lossy_rule and known else None
    z = sums.result()
    n_decoded = sum(sample.counts.n_emitted for sample in samples)
    lossy = {
        "lossy_rule": lossy_rule,
        "total_variation": sum(s.distance or 0.0 for s in samples) / max(1, n_decoded) if known else None,
    }
    if lossy_rule:
        return {**law_entry(arm, temperature, z), "passed": math.isfinite(z.surprise), **lossy}
    return law_entry(arm, temperature, z)


def law_entry(arm: Arm, temperature: float, z: losslessness.ZStatistics) -> dict:
    """What a record says of sampled texts under the target's own law."""
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_tokens": z.n_tokens,
        "z_residual": z.residual if math.isfinite(z.residual) else None,
        "z_surprise": z.surprise if math.isfinite(z.surprise) else None,  # an impossible token was emitted
        "n_uncertain": z.n_uncertain,
        "bound": losslessness.Z_BOUND,
        "passed": z.passed,
    }


def distances(rule: Rule, target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Total variation distance of the law of one tested token with this rule from the target's, place by place.

    (n, vocab) twice -> (n,); zeros for a lossless rule
    """
    p, q = target_probs.double(), draft_probs.double()
    return (rule.law(p, q) - p).abs().sum(-1) / 2 if rule.law else torch.zeros(len(p))


def judged_places(rounds: Iterable[RoundCounts], n_tokens: int) -> list[tuple[int, int]]:
    """The places of a text whose token a rule has tested: (place where the round began, place in its draft).

    rounds: those after the prefill, whose token is the first of the text. All other tokens are
    bonus tokens, or follow an empty draft: those are the target's own.
    """
    places, start = [], 1
    for n_drafted, n_accepted, _ in rounds:
        depths = range(min(n_drafted, n_accepted + 1, n_tokens - start))
        places += [(start, depth) for depth in depths]
        start += n_accepted + 1
    return places


def asked_at(places: Iterable[tuple[int, int]], k: int, most: int) -> list[Place]:
    """The same places with the number of tokens that the loop asks for there.

    k: of the arm. most: new tokens of the run; near their end a round asks for fewer.
    """
    return [(start, depth, max(0, min(k, most - start - 1))) for start, depth in places]
