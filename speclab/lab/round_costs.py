"""What a round costs by its length, measured before a run with `-k auto` or a hybrid draft: a few of each are timed."""

import copy
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from speclab.core.rounds import DecodeSettings, Drafter, Round
from speclab.drafts.hybrid import HybridDrafter, parts
from speclab.drafts.lengths import LONGEST, AutoLength, RoundCosts
from speclab.drafts.oracle import ConstantDrafter
from speclab.lab.instruments import LoopFunctions, VariedLength, with_phases
from speclab.models.cached import CachedModel

ROUNDS_OF_EACH = 6  # timed, of every length


def measure_costs(
    functions: LoopFunctions,
    target: CachedModel,
    drafter: AutoLength | HybridDrafter,
    prompts: Sequence[Tensor],
    settings: DecodeSettings,
) -> None:
    """Give `drafter` what rounds cost at the temperature of `settings`, a hybrid's with its model. prompts: (1, prompt
    length) ids each."""
    rounds = _rounds(functions, target, parts(drafter)[-1], prompts, settings)
    drafter.costs[settings.sampling.temperature] = costs_of(rounds)


def _rounds(
    functions: LoopFunctions, target: CachedModel, drafter: Drafter, prompts: Sequence[Tensor], settings: DecodeSettings
) -> list[tuple[Round, bool]]:
    """Rounds with the seconds of their phases, and whether `drafter` drafted in them: a lookup often finds nothing, so
    one that always drafts shows what the rest of a round costs."""
    timed = []
    for seed, (ids, own) in enumerate(itertools.product(prompts, (True, False))):
        varied = VariedLength(copy.deepcopy(drafter) if own else ConstantDrafter(), [*range(LONGEST + 1)], seed)
        rounds = with_phases(functions, target.with_own_cache(), varied, ids, LONGEST, settings)
        most = ROUNDS_OF_EACH * (LONGEST + 1) // len(prompts) + 2  # the prompt's pass and a first round, left out
        timed += [(round_, own) for round_ in itertools.islice(rounds, 2, most)]
    return timed


def costs_of(rounds: Iterable[tuple[Round, bool]]) -> RoundCosts:
    """The medians of each length, never falling with it; between lengths that were not seen a straight line."""
    draft: dict[int, list[float]] = {0: []}
    rest: dict[int, list[float]] = {}
    for round_, own in rounds:
        seconds = dict(round_.seconds or {})
        drafting = seconds.pop("draft")
        rest.setdefault(round_.n_drafted, []).append(sum(seconds.values()))
        if own:
            draft.setdefault(round_.n_drafted, []).append(drafting)
    return RoundCosts(_curve(draft), _curve(rest))


def _curve(seconds: dict[int, list[float]]) -> tuple[float, ...]:
    seen = sorted(n for n, values in seconds.items() if values)
    medians = np.maximum.accumulate([float(np.median(seconds[n])) for n in seen] or [0.0])
    return tuple(np.interp(range(LONGEST + 1), seen or [0], medians).tolist())
