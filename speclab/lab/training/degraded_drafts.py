"""Drafts that are ever less like the target, made from a good one, for the sweep that asks what a bad draft costs.

Every one of them has the shape of the draft it is made from, so its passes cost the same; only what it proposes gets
worse. In order of likeness: `noisy` moves the weights by a share of their own spread, `trained_on_the_spot` is a fresh
draft that saw seconds of text instead of half an hour, `random_like` has seen nothing.

All come back in eval mode, on the device and in the number format of the model they are made from, and none of them
touches a global seed.
"""

import copy
import random
import time
from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.lab.training import corpus
from speclab.lab.training.steps import crops, next_token_loss, optimizers
from speclab.models.limits import embedded_ids
from speclab.system.errors import UsageProblem
from speclab.system.terminal import progress_bar

RATE = 4e-3  # peak learning rate, the one the lab pair was trained with
BATCH_TOKENS = 2048  # a quarter of the lab pair's: with only seconds to spend, more steps beat steadier ones
LOSSES_AVERAGED = 10  # the last loss is a mean over this many steps


def noisy(model: PreTrainedModel, amount: float, seed: int) -> PreTrainedModel:
    """A copy whose matrices are off by Gaussian noise of `amount` times each matrix's own standard deviation.

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
    """A model of the same class and configuration with fresh weights, drawn by its own initialisation."""
    # Built on the CPU, where only the default generator is used: its state is put back, GPUs' are never touched.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    return fresh.to(device=model.device, dtype=model.dtype).eval()  # type: ignore[call-arg]


def trained_on_the_spot(
    source: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    seconds: float,
    seed: int,
    progress: bool = True,
    step_limit: int | None = None,
) -> tuple[PreTrainedModel, dict]:
    """A fresh draft of the source's shape after `seconds` of next-token training on Python's standard library.

    Returns the draft and {"steps", "tokens", "seconds", "first_loss", "last_loss"}, losses in nats per token. The clock
    is looked at after every step, so there is at least one. With `step_limit` the steps are counted instead and the
    result depends on the seed alone. `progress` shows a bar on stderr. Raises UsageProblem if the tokenizer has ids
    that the model has no place for.
    """
    _check_vocabulary(source, tokenizer)
    model = random_like(source, seed).float()
    steppers = optimizers(model, RATE)
    batches = _batches(_documents(seed), tokenizer, seed, getattr(source.config, "max_position_embeddings", None))
    losses: deque[float] = deque(maxlen=LOSSES_AVERAGED)
    step, tokens, share = 0, 0, 0.0
    first: float | None = None
    bar = progress_bar(total=100, unit="%", desc="training a draft", leave=False, mininterval=1, disable=not progress)
    start = time.monotonic()
    with bar, torch.enable_grad():
        while share < 1:
            loss, n = _step(model, steppers, next(batches), RATE * _factor(share))
            first = loss if first is None else first
            losses.append(loss)
            step, tokens = step + 1, tokens + n
            share = step / step_limit if step_limit else (time.monotonic() - start) / seconds
            bar.update(min(100, round(100 * share)) - bar.n)
            bar.set_postfix_str(f"step {step}, loss {loss:.2f}")
    facts = {
        "steps": step,
        "tokens": tokens,
        "seconds": round(time.monotonic() - start, 1),
        "first_loss": round(first or 0.0, 4),
        "last_loss": round(sum(losses) / len(losses), 4),
    }
    return model.to(dtype=source.dtype).eval().requires_grad_(False), facts


def _check_vocabulary(source: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    largest, room = max(tokenizer.get_vocab().values()), embedded_ids(source)
    if largest >= room:
        raise UsageProblem(
            f"cannot train a draft here: the tokenizer has ids up to {largest}, the draft only room for {room}; "
            "give --draft a model that belongs to the target's tokenizer"
        )


def _factor(share: float) -> float:
    """Learning-rate factor by the share of the training that is over: a short rise, flat, down to nothing."""
    return min(1.0, 0.1 + share / 0.05, 0.02 + 2 * (1 - share))


def _step(model: PreTrainedModel, steppers: list, micro_batches: list[Tensor], rate: float) -> tuple[float, int]:
    """One optimizer step.  -> mean loss, tokens seen"""
    total = 0.0
    for rows in micro_batches:
        with torch.autocast(model.device.type, dtype=torch.bfloat16):
            loss = next_token_loss(model, rows.to(model.device)) / len(micro_batches)
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for stepper in steppers:
        for group in stepper.param_groups:
            group["lr"] = rate
        stepper.step()
        stepper.zero_grad(set_to_none=True)
    return total, sum(rows.numel() for rows in micro_batches)


def _documents(seed: int) -> list[str]:
    """The texts of the standard library that are not held out, shuffled: neighbours by name are alike."""
    documents = [d.text for d in corpus.standard_library() if not d.held_out]
    random.Random(seed).shuffle(documents)
    return documents


def _batches(
    documents: list[str], tokenizer: PreTrainedTokenizerBase, seed: int, positions: int | None
) -> Iterator[list[Tensor]]:
    """Micro-batches for step after step. Documents are tokenised when their turn comes, so few steps need few of them.

    A function of documents, seed and the step's number: a slow machine sees the same batches, only fewer of them.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids: list[int] = []
    stream, step = torch.tensor(ids), 0
    while True:
        wanted = (step + 2) * BATCH_TOKENS
        while documents and len(ids) < wanted:
            ids += tokenizer(documents.pop(), verbose=False).input_ids + end  # not verbose: longer than the model reads
        if len(ids) > len(stream):
            stream = torch.tensor(ids)
        yield [rows[:, :positions] for rows in crops(stream, step, seed, BATCH_TOKENS)]
        step += 1
