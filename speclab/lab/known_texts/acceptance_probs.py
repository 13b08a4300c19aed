"""The two inputs of every prediction: the costs of a round here, and the probabilities that its drafts are accepted."""

import functools
from collections.abc import Callable

from speclab.core.sampling import Sampling
from speclab.lab.bench import Bench
from speclab.lab.harness import Measurement
from speclab.models.checking.uncached import distributions
from speclab.models.prompts import Prompt
from speclab.records.rows import as_written
from speclab.theory.costs import Costs
from speclab.theory.fitting import fit
from speclab.theory.forecast import AcceptProbs

CostTable = dict[tuple[str, float], Costs]  # by draft and temperature
ProbsOfText = Callable[[str, float, int, tuple[int, ...]], AcceptProbs]  # (draft, temperature, prompt index, text)


def calibrated(measured: Measurement) -> CostTable:
    """Return the costs from the instrumented decodings; empty where there are none."""
    return fit(measured.rounds, measured.steps) if measured.rounds and measured.steps else {}


def accept_probs(
    bench: Bench, draft: str, prompt: Prompt, text: list[int], sampling: Sampling, longest: int
) -> AcceptProbs:
    """Return the acceptance probabilities of a draft along a text of the target, for drafts of up to `longest` tokens.

    It costs one teacher-forced pass of each model over the text; nothing is decoded.
    """
    target, prompt_ids = bench.setup.target, prompt.id_list
    law = bench.drafters[draft].law(target, prompt_ids, text, sampling, longest)
    target_probs = functools.partial(distributions, target.model, prompt_ids, text, sampling, target.vocab_size)
    return law.accept_probs(target_probs, text)


def note_own_rates(measured: Measurement) -> None:
    """Put into every sample the shares that only its kind of draft has (`Drafter.own_rates`)."""
    bench = measured.bench

    @functools.cache
    def rates(draft: str, temperature: float, prompt_index: int, text: tuple[int, ...]) -> dict[str, float]:
        prompt, sampling = measured.prompts[prompt_index].id_list, bench.setup.sampling_at(temperature)
        found: dict[str, float] = {}
        for part in bench.drafters[draft].parts:
            found |= part.own_rates(bench.setup.target, prompt, list(text), sampling)
        return found

    for sample in measured.lines:
        if sample.arm.speculative and sample.arm.draft in bench.drafters:
            place = (sample.arm.draft, sample.temperature, sample.prompt_index)
            by_text = [rates(*place, tuple(text)) for text in sample.texts]
            sample.own_rates = {name: as_written(sum(found[name] for found in by_text)) for name in by_text[0]} or None


def probs_of_texts(measured: Measurement, longest: int) -> ProbsOfText:
    """Compute `accept_probs` of a measurement's own texts, each once: every draft length asks for the same ones."""

    @functools.cache
    def probs(draft: str, temperature: float, prompt_index: int, text: tuple[int, ...]) -> AcceptProbs:
        sampling = measured.bench.setup.sampling_at(temperature)
        return accept_probs(measured.bench, draft, measured.prompts[prompt_index], list(text), sampling, longest)

    return probs
