"""Drafts that are ever less like the target, made from a good one, for the sweep that asks what a bad draft costs.

Every one of them has the shape of the draft it is made from, so its passes cost the same; only what it proposes gets
worse. In order of likeness: `noisy` moves the weights by a share of their own spread, `trained_on_the_spot` is a fresh
draft that saw seconds of text instead of half an hour, `random_like` has seen nothing.

All come back in eval mode, on the device and in the number format of the model they are made from, and none of them
touches a global seed.
"""

import copy
import functools
import random
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.lab.training import corpus
from speclab.lab.training.steps import TrainingFacts, crops, next_token_loss, train
from speclab.models.cached import embedded_ids
from speclab.system.errors import UsageProblem

RATE = 4e-3  # peak learning rate, the one the lab pair was trained with
BATCH_TOKENS = 2048  # a quarter of the lab pair's: with only seconds to spend, more steps beat steadier ones


def noisy(model: PreTrainedModel, amount: float, seed: int) -> PreTrainedModel:
    """Return a copy whose matrices are off by Gaussian noise of `amount` times each matrix's own standard deviation.

    One seed is one direction in weight space: a larger amount goes further the same way. amount 0 is the model itself.
    Norms and biases stay. Raises ValueError for a negative amount.
    """
    if not amount >= 0:
        raise ValueError(f"the amount of noise must not be negative, got {amount}")
    generator = torch.Generator().manual_seed(seed)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            if weight.ndim < 2 or not weight.is_floating_point():
                continue
            # On the CPU in double precision: the same noise on every device and in every number format.
            exact = weight.detach().cpu().double()
            noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64)
            weight.copy_(exact + amount * exact.std() * noise)
    return copied.eval()


def random_like(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Return a model of the same class and configuration with fresh weights, drawn by its own initialisation."""
    # Built on the CPU, where only the default generator is used: its state is put back, GPUs' are never touched.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    return fresh.to(device=model.device, dtype=model.dtype).eval()  # type: ignore[call-arg]


def trained_on_the_spot(
    source: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seconds: float, seed: int
) -> tuple[PreTrainedModel, TrainingFacts]:
    """Return a fresh draft of the source's shape after `seconds` of next-token training on Python's standard library.

    The clock is looked at after every step, so there is at least one. Raises UsageProblem if the tokenizer has ids that
    the model has no place for.
    """
    largest, room = max(tokenizer.get_vocab().values()), embedded_ids(source)
    if largest >= room:
        raise UsageProblem(
            f"cannot train a draft here: the tokenizer has ids up to {largest}, the draft only room for {room}; "
            "give a draft model that belongs to the target's tokenizer"
        )
    model = random_like(source, seed).float()
    batches = _batches(_documents(seed), tokenizer, seed, getattr(source.config, "max_position_embeddings", None))
    loss_of = functools.partial(next_token_loss, model)
    facts = train(model, batches, loss_of, seconds, RATE, "training a draft")
    return model.to(dtype=source.dtype).eval().requires_grad_(False), facts


def _documents(seed: int) -> list[str]:
    """Return the texts of the standard library that are not held out, shuffled: neighbours by name are alike."""
    documents = [d.text for d in corpus.standard_library() if not d.held_out]
    random.Random(seed).shuffle(documents)
    return documents


def _batches(
    documents: list[str], tokenizer: PreTrainedTokenizerBase, seed: int, positions: int | None
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
        return [(rows[:, :positions],) for rows in crops(stream, step, seed, BATCH_TOKENS)]

    return batches
