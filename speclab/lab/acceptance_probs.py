"""What a round costs here, and how likely its drafts are to be accepted: the two inputs of every prediction."""

import functools
from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from draft_models import ModelDrafter, draft_room
from speclab.core.sampling import Sampling
from speclab.drafts.heads.drafter import HeadDrafter
from speclab.drafts.hybrid import LookupDrafter, parts
from speclab.drafts.intersect import IntersectDrafter
from speclab.drafts.oracle import OracleDraft
from speclab.drafts.retokenized import RetokenizedDrafter
from speclab.lab.bench import Bench
from speclab.lab.harness import Measurement
from speclab.lab.output_checks import draft_distribution, followed, lookups
from speclab.models.prompts import Prompt
from speclab.theory import losslessness
from speclab.theory.costs import Costs
from speclab.theory.fitting import fit
from speclab.theory.forecast import AcceptProbs, ByLength, model_accept_probs

CostTable = dict[tuple[str, float], Costs]  # by draft and temperature
ProbsOfText = Callable[[str, float, int, tuple[int, ...]], AcceptProbs]  # (draft, temperature, prompt index, text)


def calibrated(measured: Measurement) -> CostTable:
    """Costs from the instrumented decodings; empty where there are none."""
    return fit(measured.rounds, measured.steps) if measured.rounds and measured.steps else {}


def accept_probs(
    bench: Bench, draft: str, prompt: Prompt, text: list[int], sampling: Sampling, longest: int
) -> AcceptProbs:
    """The acceptance probabilities of a draft along a text of the target, for drafts of up to `longest` tokens.

    It costs one teacher-forced pass of each model over the text; nothing is decoded.
    """
    drafter = parts(bench.drafters[draft])[-1]
    if isinstance(drafter, HeadDrafter):
        return _of_chains(bench, drafter, prompt.id_list, text, sampling, longest)
    if isinstance(drafter, LookupDrafter):
        return _of_lookups(drafter, prompt.id_list, text, longest)
    if isinstance(drafter, OracleDraft):
        rows = model_accept_probs([drafter.accuracy] * len(text))
    else:
        setup = bench.setup
        target_probs = losslessness.distributions(
            setup.target.model, prompt.id_list, text, sampling, setup.target.vocab_size
        )
        draft_probs = draft_distribution(bench, draft, prompt.id_list, text, sampling)
        rows = model_accept_probs(_ratios(target_probs, draft_probs, text))
    if not isinstance(drafter, ModelDrafter):
        return rows
    # Near the end of its context a model drafts fewer tokens.
    n_before = drafter.draft.room.length_after(prompt.ids.shape[1])
    read: Iterable[int] = range(n_before, n_before + len(text))
    if isinstance(drafter, IntersectDrafter):  # it reads the text in tokens of its own
        read = drafter.n_read(prompt.id_list, text)
    return [row[: draft_room(drafter.draft, n)] for row, n in zip(rows, read, strict=True)]


def _of_lookups(drafter: LookupDrafter, prompt: list[int], text: list[int], longest: int) -> AcceptProbs:
    """Of a draft that the text alone decides: 1 where it proposes the text's own token, else 0."""

    def right(t: int, tokens: list[int]) -> list[float]:
        return [float(token == own) for token, own in zip(tokens, text[t:], strict=False)]

    if not isinstance(drafter, RetokenizedDrafter):
        return [right(t, tokens) for t, tokens in enumerate(lookups(drafter, prompt, text, longest))]
    places = enumerate(followed(drafter, prompt, text))
    return [ByLength([right(t, at_place.lookup(k)) for k in range(longest + 1)]) for t, at_place in places]


def _ratios(target_probs: Tensor, draft_probs: Tensor, text: list[int]) -> np.ndarray:
    """How likely each token of the text is accepted, (n,); both distributions at its place (n, vocab)"""
    of_target, of_draft = (probs.double().numpy()[np.arange(len(text)), text] for probs in (target_probs, draft_probs))
    # Where rounding gives the target's own token no mass, the draft's belief decides.
    ratio = of_draft / np.where(of_target > 0, of_target, 1.0)
    return np.where(of_target > 0, np.minimum(1.0, ratio), of_draft > 0)


def _of_chains(
    bench: Bench, drafter: HeadDrafter, prompt: list[int], text: list[int], sampling: Sampling, longest: int
) -> AcceptProbs:
    """Of a draft that reads the target's states: what it proposes for a token depends on where the round began."""
    model, vocab = bench.setup.target.model, bench.setup.target.vocab_size
    target_probs = losslessness.distributions(model, prompt, text, sampling, vocab)
    rows: list[list[float]] = [[] for _ in text]
    for depth, probs in enumerate(drafter.chain_probs(model, prompt, text, sampling, longest, vocab)):
        n = len(text) - depth  # rounds that begin this far before the end, or further
        for t, ratio in enumerate(_ratios(target_probs[depth:], probs[:n], text[depth:])):
            rows[t].append(float(ratio))
    return rows


def note_outside(measured: Measurement) -> None:
    """Put into every sample of a draft by shared tokens what both models gave to other tokens.

    Two sums of probabilities over the places of the decoded tokens, of the draft's distribution before it is
    restricted and of the target's, both as sampled from, from uncached passes. The draft's are 0 beyond its context.
    """
    bench = measured.bench

    @functools.cache
    def masses(draft: str, temperature: float, prompt_index: int, text: tuple[int, ...]) -> tuple[float, float]:
        prompt, sampling = measured.prompts[prompt_index].id_list, bench.setup.sampling_at(temperature)
        drafter, vocab = _by_shared_tokens(bench, draft), bench.setup.target.vocab_size
        assert drafter is not None
        target_probs = losslessness.distributions(bench.setup.target.model, prompt, list(text), sampling, vocab)
        of_target = 1 - target_probs.double()[:, drafter.shared.target_ids].sum(-1)  # (n,)
        of_draft = drafter.probs(prompt, list(text), sampling, vocab)[1].double()
        # The first token came with the prompt's own pass.
        return of_draft.clamp(0, 1)[1:].sum().item(), of_target.clamp(0, 1)[1:].sum().item()

    for sample in measured.samples:
        if sample.arm.speculative and _by_shared_tokens(bench, sample.arm.draft):
            place = (sample.arm.draft, sample.temperature, sample.prompt_index)
            of_draft, of_target = zip(*(masses(*place, tuple(text)) for text in sample.texts), strict=True)
            sample.outside = sum(of_draft), sum(of_target)


def _by_shared_tokens(bench: Bench, draft: str) -> IntersectDrafter | None:
    """The part of a draft that drafts shared tokens; None where there is none."""
    return next((part for part in parts(bench.drafters[draft]) if isinstance(part, IntersectDrafter)), None)


def probs_of_texts(measured: Measurement, longest: int) -> ProbsOfText:
    """`accept_probs` of a measurement's own texts, each computed once: every draft length asks for the same ones."""

    @functools.cache
    def probs(draft: str, temperature: float, prompt_index: int, text: tuple[int, ...]) -> AcceptProbs:
        sampling = measured.bench.setup.sampling_at(temperature)
        return accept_probs(measured.bench, draft, measured.prompts[prompt_index], list(text), sampling, longest)

    return probs
