"""The training of a small causal language model: optimizers, batches, the loss, and the loop with its checkpoints."""

import contextlib
import functools
import io
import json
import math
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from speclab.records.files import parsed
from speclab.records.rows import Amount, Count, Part
from speclab.system.errors import EnvironmentProblem, UsageProblem, first_line, signals_at_the_end
from speclab.system.files import read_bytes, write_whole
from speclab.system.terminal import note, progress_bar

# Share of the training steps at each sequence length. Short ones are cheap, long ones keep long texts together.
LENGTHS = {256: 0.80, 512: 0.15, 2048: 0.05}
MICRO_BATCH_TOKENS = {"cuda": 32768}  # by device; what a pass trains on at once
MOST_SETTINGS = 2**20  # bytes of a settings.json
FEW_TOKENS = 4096  # the same elsewhere
BY_ROW = ("lm_head", "markov")  # matrices with a row for each id, as embeddings are
SECONDS_BETWEEN_CHECKPOINTS = 240
TRIES = 9  # of a product in each precision; the fastest counts
STEPS_PER_READING = {"cuda": 20}  # a loss is read when the device has done everything before it; elsewhere every step


def optimizers(model: nn.Module, rate: float, of_tables: float = 1.0) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, norms and an output layer of its own.

    rate: the peak learning rate. of_tables: of AdamW, as a share of it.
    """
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    tables |= {id(weight) for name, weight in trained if any(word in name for word in BY_ROW)}
    matrices = [weight for _, weight in trained if weight.ndim == 2 and id(weight) not in tables]
    others = [weight for _, weight in trained if not any(weight is matrix for matrix in matrices)]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=of_tables * rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def crops(stream: Tensor, step: int, seed: int, batch_tokens: int) -> list[Tensor]:
    """The micro-batches of one step: random crops of one length.  -> list of (batch, length)

    A function of (seed, step) alone, so a resumed run sees what it would have seen. The crops are where the stream is.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    pick = torch.multinomial(torch.tensor(list(LENGTHS.values())), 1, generator=generator)[0]
    length = list(LENGTHS)[int(pick)]
    starts = torch.randint(0, len(stream) - length, (batch_tokens // length,), generator=generator)
    starts = sent(starts, stream.device)
    rows = stream[starts[:, None] + torch.arange(length, device=stream.device)]  # (batch, length)
    return list(rows.split(max(1, MICRO_BATCH_TOKENS.get(stream.device.type, FEW_TOKENS) // length)))


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on `device`, without waiting for what is queued there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def next_token_loss(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, nats.  tokens: (batch, length), on any device"""
    tokens = tokens.to(model.device).long()
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()  # (batch, length - 1, vocab)
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@dataclass
class TrainingFacts(Part):
    """How far a training is. Losses are in nats per token; a draft's have shares of rejected samples in them. The last
    one is a running mean over some ten steps.

    products: the precision that they are made in.
    """

    steps: Count = 0
    tokens: Count = 0
    seconds: Amount = 0.0
    first_loss: float | None = None
    last_loss: float | None = None
    products: Literal["", "float32", "bfloat16"] = ""


def train(
    model: nn.Module,
    batches: Callable[[int], list[tuple[Tensor, ...]]],
    loss_of: Callable[..., Tensor],
    seconds: float,
    rate: float,
    name: str,
    checkpoint: Path | None = None,
    of_tables: float = 1.0,
) -> TrainingFacts:
    """Train for `seconds`, at least one step; go on from `checkpoint` where it exists, and save there now and then, and
    when Ctrl-C or a signal ends it.

    batches: step -> its micro-batches, tuples of tensors of which the first holds the tokens.
    loss_of: called with such a tuple's tensors, gives the mean loss in nats per token.
    rate, of_tables: as for `optimizers`. name: of the progress bar.
    Raises EnvironmentProblem for a checkpoint that cannot be read.
    """
    steppers, facts = optimizers(model, rate, of_tables), TrainingFacts()
    peaks = rate, of_tables * rate
    if checkpoint and checkpoint.exists():
        facts = _resumed(checkpoint, model, steppers)
    device = next(model.parameters()).device
    facts.products = facts.products or ("float32" if product_dtype(device) == torch.float32 else "bfloat16")
    precision = getattr(torch, facts.products)
    saved_at, start = time.monotonic(), time.monotonic() - facts.seconds

    def save() -> None:
        if checkpoint is None:
            return
        states = [stepper.state_dict() for stepper in steppers]
        save_tensors(checkpoint, {"model": model.state_dict(), "optimizers": states, "facts": asdict(facts)})
        if bar.disable:  # no terminal: a line now and then
            note(f"{name}: step {facts.steps}, loss {facts.last_loss:.3f}, {facts.seconds:.0f} of {seconds:.0f} s")

    every = STEPS_PER_READING.get(device.type, 1)
    unread: list[Tensor] = []  # losses that are still on the device

    def read() -> None:
        for loss in torch.stack(unread).tolist() if unread else []:
            _check_finite(loss, name, facts.steps)
            facts.first_loss = loss if facts.first_loss is None else facts.first_loss
            facts.last_loss = loss if facts.last_loss is None else 0.9 * facts.last_loss + 0.1 * loss
        unread.clear()

    updating = False
    model.train()
    bar = progress_bar(total=round(seconds), initial=round(facts.seconds), unit="s", desc=name, mininterval=1)
    with bar, torch.enable_grad():
        try:
            while facts.seconds < seconds:
                micro_batches = batches(facts.steps)
                factor = learning_rate_factor(facts.seconds / seconds)
                loss = _gradients(model, micro_batches, loss_of, precision)
                updating = True
                with signals_at_the_end():
                    _update(model, steppers, [peak * factor for peak in peaks])
                    unread.append(loss)
                    facts.steps, updating = facts.steps + 1, False
                    facts.tokens += sum(tokens.numel() for tokens, *_ in micro_batches)
                    facts.seconds = time.monotonic() - start
                if facts.steps % every == 0:
                    read()
                    bar.set_postfix_str(f"step {facts.steps}, loss {facts.last_loss:.3f}")
                    bar.update(min(bar.total, round(facts.seconds)) - bar.n)
                if time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                    read()
                    save()
                    saved_at = time.monotonic()
        finally:
            if facts.steps and not updating:  # an error inside an update may leave weights of two steps
                read()
                save()
    return facts


@functools.cache
def product_dtype(device: torch.device) -> torch.dtype:
    """What a training multiplies in: bfloat16; on a CPU float32 where that is faster, as on processors that have no
    products of bfloat16. Found out by timing, once for each device."""
    if device.type != "cpu":
        return torch.bfloat16
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        rows, weights = torch.ones(1024, 256, dtype=dtype), torch.ones(256, 1024, dtype=dtype)
        seconds[dtype] = min(timeit.repeat(functools.partial(torch.matmul, rows, weights), number=1, repeat=TRIES))
    return min(seconds, key=seconds.__getitem__)


def products_in(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """Inside, products of float32 are made in bfloat16, or as they are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == torch.bfloat16)


def skip_denormals() -> None:
    """Let a CPU take numbers below 1e-38 as 0. Gradients of an attention whose weights are nearly 0 and 1 are full of
    them, and a product of them is slow: on an Intel Xeon, with two threads, a step of a feature head took 2.1 s with
    them and 1.4 s without.

    To be called before a process computes anything: its threads take this over when they start.
    """
    torch.set_flush_denormal(True)


def learning_rate_factor(share: float) -> float:
    """By the share of the time that is spent: a short warm-up, flat, linear decay over the last half."""
    return min(1.0, share / 0.02 + 0.02, max(0.02, 2 * (1 - share)))


def _check_finite(loss: float, name: str, step: int) -> None:
    if not math.isfinite(loss):
        raise EnvironmentProblem(
            f"{name}: the loss is not finite at step {step}; type the command again with a smaller --rate and another "
            "--work-dir"
        )


def _resumed(checkpoint: Path, model: nn.Module, steppers: list[torch.optim.Optimizer]) -> TrainingFacts:
    """Set the model and its optimizers to where a checkpoint is.  -> how far that is"""
    with readable(checkpoint):
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for stepper, saved in zip(steppers, state["optimizers"], strict=True):
            _load_stepper(stepper, saved)
        facts = parsed(TrainingFacts, json.dumps(state["facts"]))
        if facts.first_loss is None or facts.last_loss is None:
            raise ValueError("it says nothing of the loss")
        return facts


def _load_stepper(stepper: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """An optimizer goes on where a saved one was. ValueError where its numbers do not belong to these weights.

    Its rates and decays are those of this run: a checkpoint says nothing about them.
    """
    own = [{name: value for name, value in group.items() if name != "params"} for group in stepper.param_groups]
    stepper.load_state_dict(saved)
    for group, settings in zip(stepper.param_groups, own, strict=True):
        group.update(settings)
    names = {"momentum_buffer"} if isinstance(stepper, torch.optim.Muon) else {"step", "exp_avg", "exp_avg_sq"}
    for weight, state in stepper.state.items():
        shapes = {name: getattr(value, "shape", None) for name, value in state.items()}
        if shapes != {name: torch.Size() if name == "step" else weight.shape for name in names}:
            raise ValueError(f"its optimizer's numbers are not those of weights of shape {tuple(weight.shape)}")


def _gradients(
    model: nn.Module, micro_batches: list[tuple[Tensor, ...]], loss_of: Callable[..., Tensor], precision: torch.dtype
) -> Tensor:
    """Of one step, from zero.  -> mean loss of the micro-batches, on the device"""
    device = next(model.parameters()).device
    total = torch.zeros((), device=device)
    n_tokens = sum(tokens.numel() for tokens, *_ in micro_batches)  # the last micro-batch may have fewer
    model.zero_grad(set_to_none=True)
    for micro_batch in micro_batches:
        with products_in(precision, device):
            loss = loss_of(*micro_batch) * (micro_batch[0].numel() / n_tokens)
        loss.backward()
        total += loss.detach()
    return total


def _update(model: nn.Module, steppers: list[torch.optim.Optimizer], rates: list[float]) -> None:
    """Change the weights by their gradients, with a rate for each optimizer."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for stepper, rate in zip(steppers, rates, strict=True):
        for group in stepper.param_groups:
            group["lr"] = rate
        stepper.step()


def save_tensors(path: Path, tensors: object) -> None:
    """torch.save, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    write_whole(path, buffer.getvalue())


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While this is open, no other training writes into the work folder. UsageProblem where one does."""
    lock = FileLock(folder / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageProblem(
            f"another training is writing into {folder}; wait until it has ended, or use another --work-dir"
        ) from None
    try:
        yield
    finally:
        lock.release()


def check_settings(folder: Path, settings: dict[str, object]) -> None:
    """Write a training's settings into its work folder. UsageProblem where the folder has texts or checkpoints of other
    settings, or of unknown ones.

    settings: flag -> value, of the flags that decide what is learned. How long it takes does not count: a finished
    training goes on with more minutes.
    """
    file, advice = folder / "settings.json", "use another --work-dir, or delete settings.json, *.pt and tokenizer in it"
    if any(folder.glob("*.pt")) or (folder / "tokenizer").exists():
        if not file.exists():
            raise UsageProblem(f"{folder} has a training, and no settings.json says of what; {advice}")
        with readable(file):
            earlier = dict(json.loads(read_bytes(file, MOST_SETTINGS)))
        for flag in settings | earlier:
            before, now = earlier.get(flag), settings.get(flag)
            if before != now:
                raise UsageProblem(f"{folder}: {flag} is {before} there, and not {now}; {advice}")
    write_whole(file, json.dumps(settings, indent=1) + "\n")


def check_ids(ids: Any, length: int, vocab: int, least: int = 1) -> None:
    """ValueError where this is not (n, length) ids below `vocab`, of at least `least` texts."""
    whole = isinstance(ids, Tensor) and not ids.is_floating_point() and not ids.is_complex() and ids.dtype != torch.bool
    if not whole or ids.ndim != 2 or ids.shape[1] != length or len(ids) < least:
        raise ValueError(f"it does not hold texts of {length} tokens")
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ValueError("it holds ids that the target does not have")


@contextlib.contextmanager
def readable(checkpoint: Path) -> Iterator[None]:
    """What is wrong with a checkpoint is one line: damaged, or of a model of another shape.

    Nothing but regular files is opened, alone or in a folder: a pipe would never end.
    """
    try:
        for path in checkpoint.iterdir() if checkpoint.is_dir() else [checkpoint]:
            if not path.is_file() and not path.is_dir():
                raise ValueError(f"{path.name} is a device or a pipe, no file")
        yield
    except Exception as error:  # each layer below raises its own kinds
        raise EnvironmentProblem(
            f"cannot go on from {checkpoint}: {first_line(error)}; delete it, or use another --work-dir"
        ) from None
