"""What a draft would have done along a known text: the probabilities that its tokens are accepted.

They follow from one teacher-forced pass of each model over the text, for drafts whose proposals follow from the text
alone. Those of drafts that learn while they draft, or are made of others, hang on the rounds before and have none.
"""

import functools
from collections.abc import Callable

from speclab.core.sampling import Sampling
from speclab.lab.bench import Bench
from speclab.lab.harness import Measurement
from speclab.models.cached import distributions
from speclab.models.prompts import Prompt
from speclab.theory.costs import Costs, fit
from speclab.theory.forecast import AcceptProbs

CostTable = dict[tuple[str, float], Costs]  # by draft and temperature
ProbsOfText = Callable[[str, float, int, tuple[int, ...]], AcceptProbs]  # (draft, temperature, prompt index, text)


def calibrated(measured: Measurement) -> CostTable:
    """Return the costs from the instrumented decodings; empty where there are none."""
    return fit(measured.rounds, measured.steps) if measured.rounds and measured.steps else {}


def accept_probs(
    bench: Bench, draft: str, prompt: Prompt, text: list[int], sampling: Sampling, longest: int
) -> AcceptProbs:
    """Return the acceptance probabilities of a draft along a text of the target, for drafts of up to `longest`
    tokens."""
    target, prompt_ids = bench.setup.target, prompt.id_list
    law = bench.drafters[draft].law(target, prompt_ids, text, sampling, longest)
    target_probs = functools.partial(distributions, target.model, prompt_ids, text, sampling, target.vocab_size)
    return law.accept_probs(target_probs, text)


def probs_of_texts(measured: Measurement, longest: int) -> ProbsOfText:
    """Compute `accept_probs` of a measurement's own texts, each once: every draft length asks for the same ones."""

    @functools.cache
    def probs(draft: str, temperature: float, prompt_index: int, text: tuple[int, ...]) -> AcceptProbs:
        sampling = measured.bench.setup.sampling_at(temperature)
        return accept_probs(measured.bench, draft, measured.prompts[prompt_index], list(text), sampling, longest)

    return probs
