"""What a round costs here, and how likely its drafts are to be accepted: the two inputs of every prediction."""

from collections.abc import Callable

import numpy as np

from draft_models import ModelDrafter, draft_room
from speclab.core.rounds import Drafter
from speclab.core.sampling import Sampling
from speclab.drafts.oracle import OracleDraft
from speclab.lab.harness import Bench, Measurement
from speclab.lab.output_checks import both_distributions, lookups
from speclab.models.prompts import Prompt
from speclab.theory.costs import Costs, fit
from speclab.theory.forecast import Chances, model_chances

CostTable = dict[tuple[str, float], Costs]  # by draft and temperature


def calibrated(found: Measurement) -> CostTable:
    """Costs from the instrumented decodings; empty where there are none."""
    return fit(found.rounds, found.steps) if found.rounds and found.steps else {}


def chances(bench: Bench, draft: str, prompt: Prompt, sampling: Sampling, longest: int) -> Callable[..., Chances]:
    """For one draft and prompt: a function from a text of the target to its acceptance chances, state by state.

    It costs one teacher-forced pass of each model over the text; nothing is decoded.
    """
    drafter = bench.drafters[draft]

    def of(text: list[int]) -> Chances:
        if isinstance(drafter, OracleDraft):
            return _drafted(model_chances([drafter.accuracy] * len(text)), drafter, prompt)
        if isinstance(drafter, ModelDrafter):
            target_probs, draft_probs = both_distributions(bench, draft, prompt.id_list, text, sampling)
            here = np.arange(len(text))
            p, q = (probs.double().numpy()[here, text] for probs in (target_probs, draft_probs))
            # Where rounding gives the target's own token no mass, the draft's belief decides.
            rows = model_chances(np.where(p > 0, np.minimum(1.0, q / np.where(p > 0, p, 1.0)), q > 0))
            return _drafted(rows, drafter, prompt)
        proposals = lookups(prompt.id_list, text, longest)
        return [
            [float(token == right) for token, right in zip(proposal, text[t:], strict=False)]
            for t, proposal in enumerate(proposals)
        ]

    return _remembered(of)


def _drafted(rows: Chances, drafter: Drafter, prompt: Prompt) -> Chances:
    """The chances of what is really drafted: a model drafts fewer tokens near the end of its context."""
    if not isinstance(drafter, ModelDrafter):
        return rows
    n_prompt = len(prompt.id_list)
    return [row[: draft_room(drafter.draft, n_prompt + t)] for t, row in enumerate(rows)]


def _remembered(of: Callable[[list[int]], Chances]) -> Callable[[list[int]], Chances]:
    """The same text is asked for at every draft length."""
    found: dict[tuple[int, ...], Chances] = {}

    def remembered(text: list[int]) -> Chances:
        key = tuple(text)
        if key not in found:
            found[key] = of(text)
        return found[key]

    return remembered
