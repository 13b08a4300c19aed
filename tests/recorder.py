"""A stand-in for recording CUDA graphs, which a CPU can do: at every replay it runs the step again.

What it gives back is overwritten by the next replay, as a graph's output is.
"""

from unittest import mock

import pytest

from speclab.core import sampling
from speclab.engines.cuda import cuda_graphs, graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.models.cached import CachedModel
from tests.tiny_models import perturbed, tiny


class Recorder:
    """Counts recordings and replays."""

    def __init__(self) -> None:
        self.n_replays, self.recording = 0, False

    def capture(self, step):
        self.recording = True
        for _ in range(graphs.WARM_UPS):
            step()
        outputs = tuple(output.clone() for output in step())
        self.recording = False
        graphs.captures.n += 1

        def replay():
            self.n_replays += 1
            self.recording = True
            for output, new in zip(outputs, step(), strict=True):
                output.copy_(new)
            self.recording = False

        return replay, outputs


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Short buckets, and the recording, of passes and of every function that a GPU would replay."""
    seen = Recorder()
    monkeypatch.setitem(sampling.ON_GRAPHS, "cpu", graphs.graphed)
    monkeypatch.setattr(graphs, "capture", seen.capture)
    monkeypatch.setattr(graphs, "on_graphs", lambda tensor: not seen.recording)
    monkeypatch.setattr(cuda_graphs, "BUCKET", 16)
    monkeypatch.setattr(cuda_graphs, "SPARE", 16)
    return seen


def graphed(family: str = "llama", noise: float = 0.0, **changes) -> CachedModel:
    """A tiny model on the backend for CUDA."""
    model = tiny(family, **changes)
    model = perturbed(model, noise) if noise else model
    return CachedModel(model, fast=not_compiled(model))


def not_compiled(model) -> GraphedModel:
    with mock.patch.object(cuda_graphs, "usable_compiler", return_value=None):
        return GraphedModel(model)
