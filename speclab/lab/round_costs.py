"""What a round costs by its length, measured before a run with `-k auto` or a hybrid draft: a few of each are timed.

Of trees the draft's seconds are told by levels and the rest by tokens: a level is one pass, however wide.
"""

import copy
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from speclab.core.rounds import DecodeSettings, Draft, Drafter, Round, Target
from speclab.core.sampling import Sampling
from speclab.drafts.block import BlockDrafter
from speclab.drafts.exit import ExitDrafter
from speclab.drafts.hybrid import Choosing, parts
from speclab.drafts.lengths import LONGEST, RoundCosts
from speclab.drafts.oracle import ConstantDrafter
from speclab.drafts.trees.auto import LARGEST, RANKS, AutoTreeDrafter, TreeAcceptance, TreeCosts
from speclab.drafts.trees.fixed import StaticTreeDrafter
from speclab.lab.instruments import LoopFunctions, VariedLength, with_phases
from speclab.models.cached import CachedModel
from speclab.theory.trees import best_tree, fastest_tree

ROUNDS_OF_EACH = 6  # timed, of every length
SIZES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, LARGEST)  # of trees that are timed
OTHER_SEED = 2**50  # more than the seeds of all texts: what is learned here must not depend on their random numbers


def lengths_to_price(drafter: Choosing) -> Iterable[int]:
    """Tokens of the drafts that `measure_costs` times, or more."""
    return range((LARGEST if isinstance(drafter, AutoTreeDrafter | StaticTreeDrafter) else LONGEST) + 1)


def measure_costs(
    functions: LoopFunctions,
    target: CachedModel,
    drafter: Choosing,
    prompts: Sequence[Tensor],
    settings: DecodeSettings,
) -> None:
    """Give `drafter` what rounds cost at the temperature of `settings`, a hybrid's with its model. prompts: (1, prompt
    length) ids each."""
    if isinstance(drafter, AutoTreeDrafter | StaticTreeDrafter):
        _of_trees(functions, target, drafter, prompts, settings)
        return
    proposing = parts(drafter)[-1]
    longest, looked_up = _longest(proposing), None
    timed = _rounds(functions, target, proposing, prompts, settings)
    if isinstance(proposing, ExitDrafter):  # the first layers run in the draft: a lookup's rounds cost something else
        looked_up = costs_of([(round_, own) for round_, own in timed if not own], longest)
        timed = [(round_, own) for round_, own in timed if own]
    if costs := costs_of(timed, longest):
        drafter.costs[settings.sampling.temperature] = replace(costs, looked_up=looked_up.rest if looked_up else ())


def _longest(proposing: Drafter) -> int:
    """Tokens of its drafts, or of a branch, at most."""
    return min(LONGEST, proposing.longest) if isinstance(proposing, BlockDrafter) else LONGEST


def _rounds(
    functions: LoopFunctions, target: CachedModel, drafter: Drafter, prompts: Sequence[Tensor], settings: DecodeSettings
) -> list[tuple[Round, bool]]:
    """Rounds with the seconds of their phases, and whether `drafter` drafted in them: a lookup often finds nothing, so
    one that always drafts shows what the rest of a round costs."""
    timed: list[tuple[Round, bool]] = []
    most = ROUNDS_OF_EACH * (LONGEST + 1) // len(prompts)
    for seed, (ids, own) in enumerate(itertools.product(prompts, (True, False))):
        varied = VariedLength(copy.deepcopy(drafter) if own else ConstantDrafter(), [*range(LONGEST + 1)], seed)
        rounds = _timed(functions, target, varied, ids, LONGEST, settings, most)
        timed += [(round_, own) for round_ in rounds]
    return timed


def _timed(
    functions: LoopFunctions,
    target: CachedModel,
    drafter: Drafter,
    ids: Tensor,
    draft_length: int,
    settings: DecodeSettings,
    n_rounds: int,
) -> Iterable[Round]:
    """About so many rounds of a text of its own length, which no end token ends: a run may be too short to show what a
    round costs. The prompt's pass and the first round are left out."""
    most = n_rounds + 2
    room = (
        most * (LONGEST + 1)
        if target.max_length is None
        else target.max_length - target.room.length_after(ids.shape[1])
    )
    own_settings = DecodeSettings(min(most * (LONGEST + 1), room), settings.sampling, seed=settings.seed + OTHER_SEED)
    rounds = with_phases(functions, target.with_own_cache(), drafter, ids, draft_length, own_settings)
    return itertools.islice(rounds, 2, most)


def costs_of(rounds: Iterable[tuple[Round, bool]], longest: int = LONGEST) -> RoundCosts | None:
    """Median seconds of rounds by draft length, made non-decreasing; linear between the lengths that were seen.

    None where no round without a draft was seen, or none with one. rounds: each with whether the drafter itself
    drafted in it. longest: tokens of the drafter's own drafts at most.
    """
    curves = _curves(((round_, round_.n_drafted if own else None) for round_, own in rounds), longest, LONGEST)
    return RoundCosts(*curves) if curves else None


class VariedTree:
    """A drafter of the best trees whose size changes from round to round, and in other rounds how deep it is.

    n_levels: of the last tree.
    """

    def __init__(self, drafter: AutoTreeDrafter, seed: int):
        self.drafter, self.n_levels, self._random = drafter, 0, random.Random(seed)
        self._left: list[tuple[int, int]] = []

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter read the prompt."""
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """A tree of this round's size, or depth."""
        if not self._left:
            self._left = [(LONGEST, n) for n in SIZES] + [(depth, 2 * LONGEST) for depth in range(1, LONGEST + 1)]
            self._random.shuffle(self._left)
        depth, n = self._left.pop()
        draft = self.drafter.propose(min(k, depth), uniforms[:, :n])
        self.n_levels = self.drafter.n_levels
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Tell the drafter what was committed."""
        self.drafter.observe(n_accepted, committed)


def _of_trees(
    functions: LoopFunctions,
    target: CachedModel,
    drafter: AutoTreeDrafter | StaticTreeDrafter,
    prompts: Sequence[Tensor],
    settings: DecodeSettings,
) -> None:
    """Give `drafter` what rounds cost, and its shape where it has one: the best tree for how often the draft's first,
    second, ... choice was right in the same rounds; on auto of the size that pays most."""
    temperature, acceptance = settings.sampling.temperature, TreeAcceptance()
    if isinstance(drafter, StaticTreeDrafter):  # no timed text may choose a shape: half a prompt has another
        prompts = [ids[:, : (ids.shape[1] + 1) // 2] for ids in prompts]
    timed = _rounds_of_trees(functions, target, drafter, prompts, settings, acceptance)
    costs = tree_costs_of(timed, _longest(parts(drafter)[-1]))
    if costs:
        drafter.costs[temperature] = costs
    if isinstance(drafter, StaticTreeDrafter):
        by_rank = acceptance.by_rank(len(RANKS)).tolist()
        chosen = fastest_tree(by_rank, costs.levels, costs.rest) if costs and drafter.on_auto else None
        drafter.nodes[temperature] = chosen or best_tree(by_rank, LARGEST)


def _rounds_of_trees(
    functions: LoopFunctions,
    target: CachedModel,
    drafter: AutoTreeDrafter | StaticTreeDrafter,
    prompts: Sequence[Tensor],
    settings: DecodeSettings,
    acceptance: TreeAcceptance,
) -> list[tuple[Round, int]]:
    """Rounds with the seconds of their phases, and how many levels were drafted in each; what was right is counted in
    `acceptance`."""
    timed: list[tuple[Round, int]] = []
    most = ROUNDS_OF_EACH * (len(SIZES) + LONGEST) // len(prompts)
    for seed, ids in enumerate(prompts):
        tree = AutoTreeDrafter(copy.deepcopy(drafter.drafter))
        tree.seen[settings.sampling.temperature] = acceptance
        varied = VariedTree(tree, seed)
        for round_ in _timed(functions, target, varied, ids, LARGEST, settings, most):
            timed.append((round_, varied.n_levels))
    return timed


def tree_costs_of(rounds: Iterable[tuple[Round, int]], deepest: int = LONGEST) -> TreeCosts | None:
    """As `costs_of`, from rounds and the levels that were drafted in them, at most `deepest`."""
    curves = _curves(rounds, deepest, LARGEST)
    return TreeCosts(*curves) if curves else None


def _curves(
    rounds: Iterable[tuple[Round, int | None]], longest: int, largest: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Seconds of drafting and of the rest of a round. None where rounds without a draft, or with one, were not seen.

    rounds: and the number under which its drafting counts, from 0 to `longest`; None for drafting that does not count.
    The rest counts under the number of drafted tokens, from 0 to `largest`.
    """
    drafting: dict[int, list[float]] = {0: []}
    rest: dict[int, list[float]] = {}
    for round_, number in rounds:
        seconds = dict(round_.seconds or {})
        of_draft = seconds.pop("draft")
        rest.setdefault(round_.n_drafted, []).append(sum(seconds.values()))
        if number is not None:
            drafting.setdefault(number, []).append(of_draft)
    if 0 not in rest or len(rest) == 1:
        return None
    return _curve(drafting, longest), _curve(rest, largest)


def _curve(seconds: dict[int, list[float]], longest: int) -> tuple[float, ...]:
    seen = sorted(n for n, values in seconds.items() if values)
    medians = np.maximum.accumulate([float(np.median(seconds[n])) for n in seen] or [0.0])
    return tuple(np.interp(range(longest + 1), seen or [0], medians).tolist())
