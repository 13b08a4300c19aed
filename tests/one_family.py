"""The examination of one family of models: built tiny, checked as at loading, and decoded in every way.

Every text is compared with `model.generate(do_sample=False)`. The draft is a noisy copy of the model, so that drafts
are accepted and rejected. What decodes is tried with trees and in a batch, too.
"""

import itertools
import tempfile
from dataclasses import dataclass, replace

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.core.counts import Counts
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.lab.instruments import noisy
from speclab.models import engine_choice, loading
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import OTHER_DRAFT, check_model
from speclab.models.checking.rounding import Reference, logits_after
from speclab.models.family import check_family, family_of
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.theory.losslessness import judge_divergence
from tests.tiny_families import VOCAB, tiny

BOTH, EAGER = "identical on both engines", "identical on eager"
REFUSED, CANNOT, BROKEN = "refused", "cannot be built", "broken"
PROMPTS = (6, 12)  # lengths: shorter and longer than a tiny model's sliding window
N_TOKENS = 40
SETTINGS = DecodeSettings(N_TOKENS)
DRAFT_LENGTHS = (1, 4)
SHAPE = (2, 1, 1)  # of trees
NOISES = (0.1, 0.03, 0.3, 0.01, 1.0)  # noises of the draft's weights, tried until drafts are both accepted and rejected


@dataclass(kw_only=True)
class FamilyRow:
    """The outcome of one family. no_trees, no_batches: why not; None where that was not tried, empty where it works."""

    outcome: str = BROKEN  # as long as nothing better is known
    reason: str = ""
    accepted: int = 0  # drafted tokens, over all decodings
    rejected: int = 0
    no_trees: str | None = None
    no_batches: str | None = None


class WrongText(Exception):
    """A text is not the library's."""


def examine(model_type: str) -> FamilyRow:
    """Build a tiny model of the family and decode with it.  -> its row"""
    row = FamilyRow()
    try:
        model = tiny(model_type)
        with torch.inference_mode():
            logits_after(model, prompt_of(PROMPTS[0]), prompt_of(2))
    except Exception as error:  # a library's constructors may raise any exception
        return replace(row, outcome=CANNOT, reason=str(error))
    try:
        model = loaded(model)
        on_c, why = engine_choice.build(model)
        engines = [None, on_c] if on_c else [None]
        expected = library_texts(model)
        counts, draft = compare(model, engines, expected)
        trees, batches = (
            next(filter(None, (why_not(model, one, draft, expected) for one in engines)), "")
            for why_not in (in_trees, in_a_batch)
        )
    except EnvironmentProblem as problem:
        return replace(row, outcome=REFUSED, reason=reason_of(problem, model))
    except Exception as error:
        return replace(row, reason=str(error))
    row = replace(row, accepted=counts.n_accepted, rejected=counts.n_rejected, no_trees=trees, no_batches=batches)
    why = why.removeprefix(f"{model.config.model_type} runs eagerly: ")
    return replace(row, outcome=BOTH) if on_c else replace(row, outcome=EAGER, reason=why)


def loaded(model: PreTrainedModel) -> PreTrainedModel:
    """The model as the scripts load and describe it, from a folder; raises EnvironmentProblem where they refuse it."""
    if model.config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            try:
                model = loading.load_model(folder, torch.device("cpu"), torch.float32)
            except EnvironmentProblem as problem:
                raise EnvironmentProblem(str(problem).replace(folder, "the folder")) from None
    else:  # the text part of a larger model: a folder with it alone cannot be loaded
        check_model(model)
    loading.describe_model("target", model)
    return model


def prompt_of(length: int) -> torch.Tensor:
    """The ids of a prompt, (1, length); 0 is the special token of the tiny models."""
    return torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(0))


Texts = dict[int, list[int]]  # by the length of the prompt


def compare(model: PreTrainedModel, engines: list, expected: Texts) -> tuple[Counts, CachedModel]:
    """Decode every prompt with and without drafts on these engines, or raise WrongText.  -> counts of the speculative
    rounds, and the draft"""
    counts = Counts()
    for fast, length in itertools.product(engines, PROMPTS):
        target = CachedModel(model, fast=fast)
        check_text(target, length, expected, tokens_of(autoregressive_decode(target, prompt_of(length), SETTINGS)))
    for noise in NOISES:
        draft = CachedModel(noisy(model, noise, seed=1))
        drafter = ModelDrafter(draft)
        for fast, length, k in itertools.product(engines, PROMPTS, DRAFT_LENGTHS):
            target = CachedModel(model, fast=fast)
            rounds = list(speculative_decode(target, drafter, prompt_of(length), k, SETTINGS))
            check_text(target, length, expected, tokens_of(rounds), f"k = {k}")
            for round_ in rounds:
                counts.add(round_)
        if counts.n_accepted and counts.n_rejected:
            break
    return counts, draft


def in_trees(model: PreTrainedModel, fast: object, draft: CachedModel, expected: Texts) -> str:
    """Decode every prompt with trees, or raise WrongText.  -> why the family cannot have them; empty if it can"""
    # Here: everything else runs without the extension.
    from speclab.extensions.trees.fixed import TreeDrafter
    from speclab.extensions.trees.register import check_tree

    target = CachedModel(model, fast=fast)
    try:
        for one in (target, draft):
            check_family(one.model, "a tree", OTHER_DRAFT, crops=False)
            check_tree(one)
    except (EnvironmentProblem, UsageProblem) as problem:
        return reason_of(problem, model)
    drafter = TreeDrafter(ModelDrafter(draft), SHAPE)
    for length in PROMPTS:
        rounds = speculative_decode(target, drafter, prompt_of(length), drafter.n_tokens, SETTINGS)
        check_text(target, length, expected, tokens_of(rounds), "trees")
    return ""


def in_a_batch(model: PreTrainedModel, fast: object, draft: CachedModel, expected: Texts) -> str:
    """Decode the prompts side by side, or raise WrongText.  -> why the family cannot do that; empty if it can"""
    # Here: everything else runs without the extension.
    from speclab.extensions.batch.decoding.batched_model import BatchedModel, check_batch
    from speclab.extensions.batch.decoding.drafters import BatchedModelDrafter
    from speclab.extensions.batch.decoding.loops import speculative_decode_batch
    from speclab.extensions.batch.decoding.texts import Request

    target = CachedModel(model, fast=fast)
    try:
        for one in (target, draft):
            check_batch(one)
    except (EnvironmentProblem, UsageProblem) as problem:
        return reason_of(problem, model)
    of_target, of_draft = (BatchedModel(one, len(PROMPTS)) for one in (target, draft))
    requests = [Request(prompt_of(length), SETTINGS) for length in PROMPTS]
    texts: list[list[int]] = [[] for _ in PROMPTS]
    for i, round_ in speculative_decode_batch(of_target, BatchedModelDrafter(of_draft), requests, DRAFT_LENGTHS[-1]):
        texts[i] += round_.tokens
    for length, text in zip(PROMPTS, texts, strict=True):
        check_text(target, length, expected, text, "a batch")
    return ""


def reason_of(problem: Exception, model: PreTrainedModel) -> str:
    """The reason that a check gives, without the model's name and the way out."""
    said = str(problem).removeprefix(f"{model.config.model_type} ")
    return said.rpartition("; ")[0] or said


def library_texts(model: PreTrainedModel) -> Texts:
    """The texts that the library's own greedy loop makes of each prompt."""
    model.generation_config = GenerationConfig()  # no ends of text, no forced tokens
    model.generation_config.decoder_start_token_id = family_of(model).start_id(model)
    return {length: library_text(model, prompt_of(length)) for length in PROMPTS}


def library_text(model: PreTrainedModel, prompt: torch.Tensor) -> list[int]:
    """The text that the library's own greedy loop makes of the prompt."""
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=N_TOKENS)  # type: ignore[operator]
    return ids[0, family_of(model).room(model).length_after(prompt.shape[1]) :].tolist()


def check_text(target: CachedModel, length: int, expected: Texts, text: list[int], way: str = "no drafts") -> None:
    """Raise WrongText unless the text is the expected one of this prompt, up to a near-tie."""
    prompt = prompt_of(length)[0].tolist()
    divergence = judge_divergence(Reference(target.model), prompt, expected[length], text, target.vocab_size)
    if divergence is not None and not divergence.numerical:
        raise WrongText(
            f"{target.engine} engine, prompt of {length} tokens, {way}: token {divergence.position} is "
            f"{divergence.speculative_token}, the library's is {divergence.baseline_token}"
        )
