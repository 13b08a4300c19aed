"""How far the texts of a lossy rule are from the target's law: the mean total variation distance of a token."""

from collections.abc import Iterable

import torch
from torch import Tensor

from speclab.core.drafter import Place
from speclab.core.rules import Rule
from speclab.lab.harness import Measurement
from speclab.models.family import distributions
from speclab.records.rows import Arm, RoundCounts, as_written


def measure(measured: Measurement, arm: Arm, temperature: float) -> float | None:
    """Give every line of an arm its `distance`, the sum over its tested tokens.  -> the mean over all its tokens; None
    for a hybrid, of which it is not known which part drafted"""
    bench, setup, lines = measured.bench, measured.bench.setup, measured.of(arm, temperature)
    drafter, sampling, k = bench.drafters[arm.draft], setup.sampling_at(temperature), arm.draft_length
    if len(drafter.parts) > 1:
        return None
    for line in lines:
        prompt, total = measured.prompts[line.prompt_index].id_list, 0.0
        for tokens, rounds in zip(line.texts, line.rounds, strict=True):
            places = judged_places(rounds, len(tokens), k, max(bench.max_new_tokens, len(tokens)))
            drawn = drafter.law(setup.target, prompt, tokens, sampling, k).drawn_from(places)
            probs = distributions(setup.target, prompt, tokens, sampling, setup.target.vocab_size)
            here = probs[[start + depth for start, depth, _ in places]]
            total += distances(bench.functions.rule, here, drawn).sum().item()
        line.distance = as_written(total)
    return sum(line.distance or 0.0 for line in lines) / max(1, sum(line.n_emitted for line in lines))


def distances(rule: Rule, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Return the total variation distance of the law of one tested token with this rule from the target's, place by
    place.  (n, vocab) twice -> (n,); zeros for a lossless rule"""
    if not rule.law:
        return torch.zeros(len(target_probs))
    target_probs, draft_probs = target_probs.double(), draft_probs.double()
    return (rule.law(target_probs, draft_probs) - target_probs).abs().sum(-1) / 2


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
