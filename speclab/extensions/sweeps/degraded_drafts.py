"""Drafts that are ever less like the target, made from a good one, for the sweep that asks what a bad draft costs.

Every one of them has the shape of the draft it is made from, so its passes cost the same; only what it proposes gets
worse. In order of likeness: `noisy` (speclab/lab/noisy.py) moves the weights by a share of their own spread,
`trained_on_the_spot` is a fresh draft that saw seconds of text instead of half an hour, `random_like` has seen nothing.

All come back in eval mode, on the device and in the number format of the model they are made from, and none of them
touches a global seed.
"""

import copy
import functools
import random
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.models.cached import embedded_ids
from speclab.system.errors import EnvironmentProblem, UsageProblem

if TYPE_CHECKING:
    from training.steps import TrainingFacts

RATE = 4e-3  # peak learning rate, the one the lab pair was trained with
BATCH_TOKENS = 2048  # a quarter of the lab pair's: with only seconds to spend, more steps beat steadier ones


def random_like(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Return a model of the same class and configuration with fresh weights, drawn by its own initialisation."""
    # Built on the CPU, where only the default generator is used: its state is put back, GPUs' are never touched.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    return fresh.to(device=model.device, dtype=model.dtype).eval()  # type: ignore[call-arg]


def trained_on_the_spot(
    source: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seconds: float, seed: int
) -> tuple[PreTrainedModel, "TrainingFacts"]:
    """Return a fresh draft of the source's shape after `seconds` of next-token training on Python's standard library.

    The clock is looked at after every step, so there is at least one. Raises UsageProblem if the tokenizer has ids that
    the model has no place for, and EnvironmentProblem where the lab is installed without training/.
    """
    corpus, steps = _training()
    largest, room = max(tokenizer.get_vocab().values()), embedded_ids(source)
    if largest >= room:
        raise UsageProblem(
            f"cannot train a draft here: the tokenizer has ids up to {largest}, the draft only room for {room}; "
            "give a draft model that belongs to the target's tokenizer"
        )
    model = random_like(source, seed).float()
    documents = [d.text for d in corpus.standard_library() if not d.held_out]
    random.Random(seed).shuffle(documents)  # neighbours by name are alike
    positions = getattr(source.config, "max_position_embeddings", None)
    batches = _batches(documents, tokenizer, positions, functools.partial(steps.crops, seed=seed))
    loss_of = functools.partial(steps.next_token_loss, model)
    facts = steps.train(model, batches, loss_of, seconds, RATE, "training a draft")
    return model.to(dtype=source.dtype).eval().requires_grad_(False), facts


def _training() -> tuple[ModuleType, ModuleType]:
    """Return the modules corpus and steps of training/, which only a clone has."""
    try:
        from training import corpus, steps
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "this sweep trains a draft with the folder training/, which is not installed; run it in a clone of the lab"
        ) from None
    return corpus, steps


def _batches(
    documents: list[str], tokenizer: PreTrainedTokenizerBase, positions: int | None, crops: Callable[..., list[Tensor]]
) -> Callable[[int], list[tuple[Tensor, ...]]]:
    """Return a function that gives the micro-batches of a step. Documents are tokenised when their turn comes, so few
    steps need few of them.

    A function of documents, seed and the step's number: a slow machine sees the same batches, only fewer of them.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    stream = torch.zeros(0, dtype=torch.long)

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        nonlocal stream
        while documents and len(stream) < (step + 2) * BATCH_TOKENS:
            ids = tokenizer(documents.pop(), verbose=False).input_ids  # not verbose: longer than the model reads
            stream = torch.cat([stream, torch.tensor(ids + end, dtype=torch.long)])
        return [(rows[:, :positions],) for rows in crops(stream, step, batch_tokens=BATCH_TOKENS)]

    return batches
