"""Measures what a round costs by its length, before a run with `-k auto` or a hybrid draft: a few of each are timed."""

import copy
import itertools
from collections.abc import Sequence

from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings
from speclab.drafts.lengths import LONGEST, RoundCosts
from speclab.lab.instruments import ConstantDrafter, Decoding, LoopFunctions, VariedLength, with_phases
from speclab.models.cached import CachedModel
from speclab.records.rows import INSTRUMENT, Arm
from speclab.theory.costs import RoundTime, fit

ROUNDS_OF_EACH = 6  # timed, of every length
OTHER_SEED = 2**50  # more than the seeds of all texts: what is measured here must not depend on their random numbers
OWN, CONSTANT = "own", "constant"  # rounds of the drafter itself, and of one that always drafts


def measure_costs(
    functions: LoopFunctions, target: CachedModel, drafter: Drafter, prompts: Sequence[Tensor], settings: DecodeSettings
) -> None:
    """Give `drafter` the costs of rounds at this temperature, a hybrid those with its model. prompts: (1, n) ids each.

    A lookup often finds nothing, so a drafter that always drafts shows what passes cost. The texts have a length of
    their own, which no end token ends: a run may be too short to show what a round costs.
    """
    part, temperature = drafter.parts[-1], settings.sampling.temperature
    # The drafter is asked after each token whether it drafts another one, as the run will do; it then draws one by one.
    asked = drafter.chooses_length and part.asks_to_go_on and target.device.type == "cpu"
    times: list[RoundTime] = []
    n_rounds = ROUNDS_OF_EACH * (LONGEST + 1) // len(prompts)
    for seed, (ids, name) in enumerate(itertools.product(prompts, (OWN, CONSTANT))):
        n_tokens = (n_rounds + 2) * (LONGEST + 1)
        if target.room.text is not None:
            n_tokens = min(n_tokens, target.room.text - target.room.length_after(ids.shape[1]))
        own_settings = DecodeSettings(n_tokens, settings.sampling, seed=settings.seed + OTHER_SEED)
        proposing = copy.deepcopy(part) if name == OWN else ConstantDrafter()
        proposing.keep_drafting = (lambda probability: True) if asked and name == OWN else None
        varied = VariedLength(proposing, [*range(LONGEST + 1)], seed)
        rounds = with_phases(functions, target.with_own_cache(), varied, ids, LONGEST, own_settings)
        decoding = Decoding(Arm(INSTRUMENT, name), rounds, ids.shape[1], n_tokens)
        while not decoding.done and len(decoding.log) <= n_rounds:
            decoding.advance()
        times += decoding.times(temperature)[1:]  # the first round is left out
    if len({made.n_drafted for made in times if made.drafter == OWN}) > 1:
        costs, middle = fit(times, [])[OWN, temperature], sum(made.context for made in times) / len(times)
        draft = [costs.draft_seconds(n, middle) for n in range(min(LONGEST, part.longest_draft) + 1)]
        rest = [costs.verify_seconds(n + 1, middle) + costs.overhead_seconds(n) for n in range(LONGEST + 1)]
        assert drafter.costs is not None
        drafter.costs[temperature] = RoundCosts(tuple(draft), tuple(rest))
