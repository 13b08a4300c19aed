"""Measures what a round costs by its length, before a run with `-k auto` or a hybrid draft: a few of each are timed."""

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round
from speclab.drafts.lengths import LONGEST, RoundCosts
from speclab.drafts.oracle import ConstantDrafter
from speclab.lab.instruments import LoopFunctions, VariedLength, with_phases
from speclab.models.cached import CachedModel

ROUNDS_OF_EACH = 6  # timed, of every length
OTHER_SEED = 2**50  # more than the seeds of all texts: what is measured here must not depend on their random numbers


def measure_costs(
    functions: LoopFunctions, target: CachedModel, drafter: Drafter, prompts: Sequence[Tensor], settings: DecodeSettings
) -> None:
    """Give `drafter` the costs of rounds at the temperature of `settings`; those of a hybrid are measured with its
    model. prompts: (1, prompt length) ids each.

    A lookup often finds nothing, so a drafter that always drafts shows what the rest of a round costs. The texts have a
    length of their own, which no end token ends: a run may be too short to show what a round costs.
    """
    part, looked_up = drafter.parts[-1], None
    # The drafter is asked after each token whether it drafts another one, as the run will do; it then draws one by one.
    asked = drafter.chooses_length and part.asks_to_go_on and target.device.type == "cpu"
    timed: list[tuple[Round, bool]] = []  # and whether the drafter itself drafted
    most = ROUNDS_OF_EACH * (LONGEST + 1) // len(prompts) + 2  # the prompt's pass and the first round are left out
    for seed, (ids, own) in enumerate(itertools.product(prompts, (True, False))):
        n_tokens = most * (LONGEST + 1)
        if target.max_length is not None:
            n_tokens = min(n_tokens, target.max_length - target.room.length_after(ids.shape[1]))
        own_settings = DecodeSettings(n_tokens, settings.sampling, seed=settings.seed + OTHER_SEED)
        proposing = copy.deepcopy(part) if own else ConstantDrafter()
        proposing.keep_drafting = (lambda probability: True) if asked and own else None
        varied = VariedLength(proposing, [*range(LONGEST + 1)], seed)
        rounds = with_phases(functions, target.with_own_cache(), varied, ids, LONGEST, own_settings)
        timed += [(round_, own) for round_ in itertools.islice(rounds, 2, most)]
    longest = min(LONGEST, part.longest_draft)
    if part.pass_share < 1:  # a part of the target runs in the draft: a lookup's rounds cost something else
        looked_up = costs_of([(round_, own) for round_, own in timed if not own], longest)
        timed = [(round_, own) for round_, own in timed if own]
    if costs := costs_of(timed, longest):
        assert drafter.costs is not None
        drafter.costs[settings.sampling.temperature] = replace(costs, looked_up=looked_up.rest if looked_up else ())


def costs_of(rounds: Iterable[tuple[Round, bool]], longest: int = LONGEST) -> RoundCosts | None:
    """Return the median seconds of rounds by draft length, made non-decreasing; linear between the lengths that were
    seen. None where no round without a draft was seen, or none with one.

    rounds: each says whether the drafter itself drafted in it. longest: tokens of the drafter's own drafts at most.
    """
    drafting: dict[int, list[float]] = {0: []}
    rest: dict[int, list[float]] = {}
    for round_, own in rounds:
        seconds = dict(round_.seconds or {})
        draft_seconds = seconds.pop("draft")
        rest.setdefault(round_.n_drafted, []).append(sum(seconds.values()))
        if own:
            drafting.setdefault(round_.n_drafted, []).append(draft_seconds)
    if 0 not in rest or len(rest) == 1:
        return None
    return RoundCosts(_curve(drafting, longest), _curve(rest, LONGEST))


def _curve(seconds: dict[int, list[float]], longest: int) -> tuple[float, ...]:
    seen = sorted(n for n, values in seconds.items() if values)
    medians = np.maximum.accumulate([float(np.median(seconds[n])) for n in seen] or [0.0])
    return tuple(np.interp(range(longest + 1), seen or [0], medians).tolist())
