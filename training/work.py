"""The work folder of a training: one training at a time writes there, with one set of settings, and goes on."""

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from speclab.records.files import parsed
from speclab.system.errors import EnvironmentProblem, UsageProblem, first_line
from speclab.system.files import read_bytes, write_whole
from training.steps import TrainingFacts

MOST_SETTINGS = 2**20  # bytes of a settings.json


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While this is open, no other training writes into the work folder. Raises UsageProblem where one does."""
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


def check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write a training's settings into its work folder. Raises UsageProblem where the folder has texts or checkpoints
    of other settings, or of unknown ones.

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


@contextlib.contextmanager
def readable(checkpoint: Path) -> Iterator[None]:
    """Turn an error in reading a checkpoint into one line: it is damaged, or of a model of another shape.

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


def save_tensors(path: Path, tensors: object) -> None:
    """Save tensors as torch.save does, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    write_whole(path, buffer.getvalue())


def check_ids(ids: Any, length: int, vocab: int, least: int = 1) -> None:
    """Raise ValueError where this is not (n, length) ids below `vocab`, of at least `least` texts."""
    whole = isinstance(ids, Tensor) and not ids.is_floating_point() and not ids.is_complex() and ids.dtype != torch.bool
    if not whole or ids.ndim != 2 or ids.shape[1] != length or len(ids) < least:
        raise ValueError(f"it does not hold texts of {length} tokens")
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ValueError("it holds ids that the target does not have")


class Checkpoint:
    """The state of a training in a file: weights, the optimizers' numbers, and how far it is."""

    def __init__(self, path: Path):
        self.path = path

    def save(self, model: nn.Module, steppers: list[torch.optim.Optimizer], facts: TrainingFacts) -> None:
        """Save all three, whole or not at all. Weights that do not learn are left out."""
        states = [stepper.state_dict() for stepper in steppers]
        save_tensors(self.path, {"model": _learning(model), "optimizers": states, "facts": asdict(facts)})

    def resume(self, model: nn.Module, steppers: list[torch.optim.Optimizer]) -> TrainingFacts:
        """Set the model and its optimizers to what was saved; without a file they stay.  -> how far that is

        Raises EnvironmentProblem for a file that cannot be read, or that is of another model.
        """
        if not self.path.exists():
            return TrainingFacts()
        with readable(self.path):
            state = torch.load(self.path, weights_only=True)
            if missing := sorted(_learning(model).keys() - state["model"].keys()):
                raise ValueError(f"{missing[0]} is missing")
            model.load_state_dict(state["model"], strict=False)
            for stepper, saved in zip(steppers, state["optimizers"], strict=True):
                _load_stepper(stepper, saved)
            facts = parsed(TrainingFacts, json.dumps(state["facts"]))
            if facts.first_loss is None or facts.last_loss is None:
                raise ValueError("it says nothing of the loss")
            return facts


def _learning(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def _load_stepper(stepper: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """An optimizer goes on where a saved one was. Raises ValueError where its numbers do not belong to these weights.

    Its rates and decays are those of this run: a checkpoint says nothing about them.
    """
    stepper.load_state_dict({"state": saved["state"], "param_groups": stepper.state_dict()["param_groups"]})
    names = {"momentum_buffer"} if isinstance(stepper, torch.optim.Muon) else {"step", "exp_avg", "exp_avg_sq"}
    for weight, state in stepper.state.items():
        shapes = {name: getattr(value, "shape", None) for name, value in state.items()}
        if shapes != {name: torch.Size() if name == "step" else weight.shape for name in names}:
            raise ValueError(f"its optimizer's numbers are not those of weights of shape {tuple(weight.shape)}")
