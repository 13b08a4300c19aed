"""Training a model for so many minutes, with checkpoints to go on from."""

import contextlib
import io
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from speclab.lab.training.steps import optimizers
from speclab.system.errors import EnvironmentProblem, first_line
from speclab.system.files import write_whole
from speclab.system.terminal import note, progress_bar

# Of --minutes; the rest is the teacher's pass over the pool, and reports.
SHARES = {"target": 0.62, "continuations": 0.05, "draft": 0.21}


class Schedule:
    """Learning-rate factor by share of the time spent: short warm-up, flat, linear decay over the last half."""

    def __init__(self, seconds: float, spent: float = 0.0):
        self.seconds, self.started = seconds, time.monotonic() - spent

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.started

    @property
    def done(self) -> bool:
        """Whether the time is over."""
        return self.spent >= self.seconds

    @property
    def factor(self) -> float:
        """What the peak learning rate is multiplied by now."""
        share = min(1.0, self.spent / self.seconds)
        return min(1.0, share / 0.02 + 0.02, max(0.02, (1.0 - share) / 0.5))


def fit(
    model: LlamaForCausalLM,
    batches: Callable[[int], list],
    loss_of: Callable[[Any], Tensor],
    minutes: float,
    checkpoint: Path,
    rate: float,
    name: str,
) -> dict:
    """Train for `minutes`; `batches(step)` gives the micro-batches of a step. Resumes from `checkpoint`.

    Returns {"steps", "tokens", "seconds"}. `loss_of(micro_batch)` is the mean loss in nats per token.
    """
    steppers = optimizers(model, rate)
    step, tokens, spent, smooth = 0, 0, 0.0, None
    if checkpoint.exists():
        with readable(checkpoint):
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            for stepper, saved in zip(steppers, state["optimizers"], strict=True):
                stepper.load_state_dict(saved)
            step, tokens, spent, smooth = state["step"], state["tokens"], state["spent"], state.get("loss")
    schedule = Schedule(minutes * 60, spent)
    saved_at, model_device = time.monotonic(), next(model.parameters()).device

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizers": [s.state_dict() for s in steppers],
            "step": step,
            "tokens": tokens,
            "spent": schedule.spent,
            "loss": smooth,
        }
        save_tensors(checkpoint, state)
        if bar.disable and smooth is not None:  # no terminal: a line now and then
            note(f"{name}: step {step}, loss {smooth:.3f}, {schedule.spent / 60:.0f} of {minutes:.0f} min")

    model.train()
    bar = progress_bar(total=round(minutes * 60), initial=round(spent), unit="s", desc=name, mininterval=10)
    while not schedule.done:
        micro_batches = batches(step)
        total = 0.0
        for micro in micro_batches:
            with torch.autocast(model_device.type, dtype=torch.bfloat16):
                loss = loss_of(micro)
            (loss / len(micro_batches)).backward()
            total += loss.item() / len(micro_batches)
            tokens += (micro[0] if isinstance(micro, tuple) else micro).numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = group["initial_lr"] * schedule.factor
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        step += 1
        smooth = total if smooth is None else 0.95 * smooth + 0.05 * total
        bar.n = min(bar.total, round(schedule.spent))
        bar.set_postfix_str(f"step {step}, loss {smooth:.3f}, {tokens / schedule.spent:.0f} tok/s")
        if time.monotonic() - saved_at > 240:
            save()
            saved_at = time.monotonic()
    bar.close()
    save()
    return {
        "steps": step,
        "tokens": tokens,
        "seconds": round(schedule.spent, 1),
        "train_loss": smooth and round(smooth, 4),
    }


def save_tensors(path: Path, tensors: object) -> None:
    """torch.save, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    write_whole(path, buffer.getvalue())


@contextlib.contextmanager
def readable(checkpoint: Path) -> Iterator[None]:
    """What is wrong with a checkpoint is one line: damaged, or of a model of another shape."""
    try:
        yield
    except Exception as error:  # each layer below raises its own kinds
        raise EnvironmentProblem(
            f"cannot go on from {checkpoint}: {first_line(error)}; delete it, or use another --work-dir"
        ) from None


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compile each layer in place where a compiler is at hand; all layers share one compiled body per shape."""
    if shutil.which("g++") or shutil.which("clang++"):
        torch._dynamo.config.cache_size_limit = 64
        for layer in model.model.layers:
            layer.compile(dynamic=False)
