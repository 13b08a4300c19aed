"""The choice of the engine that runs a model, the same for both arms: `eager`, `c` on a CPU, `graphs` on CUDA.

`eager` is the model as its library runs it, and right for every model. `c` (speclab/engines/c_pass.py) needs a C
compiler and a family that it knows. `auto` takes the one of the device where it can be had, else `eager`. No clock has
a say in it, so two runs on one machine are comparable. Each engine is first held against the model's uncached logits.
"""

import torch
from transformers import PreTrainedModel

from speclab.engines.c_pass import CModel
from speclab.engines.cuda import cuda_graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.engines.parts import parts_of
from speclab.models import checks
from speclab.models.cached import CachedModel
from speclab.models.family import NoFastBackend, family_of
from speclab.models.memory import USABLE, free_memory, why_eager
from speclab.system.errors import first_line

ENGINES = ("auto", "c", "graphs", "eager")
ASKED_FOR = "asked for"
FastModel = CModel | GraphedModel


def choose(model: PreTrainedModel, wish: str) -> tuple[FastModel | None, str]:
    """Return the form of a model for the engine that is wished for, None for `eager`; and why, in a few words. Where an
    engine cannot run the model, it runs eagerly."""
    if wish == "eager":
        return None, ASKED_FOR
    if wish != "auto" and runs_on_graphs(model) != (wish == "graphs"):
        return None, f"the engine {wish} is for {'CUDA' if wish == 'graphs' else 'a CPU'}"
    fast, why = build(model)
    usual = "CUDA graphs of the library's own pass" if runs_on_graphs(model) else "a whole pass in C"
    return fast, why or (usual if wish == "auto" else ASKED_FOR)


def runs_on_graphs(model: PreTrainedModel) -> bool:
    return model.device.type == "cuda"


def build(model: PreTrainedModel) -> tuple[FastModel | None, str]:
    """Return a model in the form of its device's engine, checked; or None and why there is none."""
    if why := family_of(model).why_eager or why_eager(model):
        return None, f"{model.config.model_type} runs eagerly: {why}"
    try:
        fast: FastModel = GraphedModel(model) if runs_on_graphs(model) else on_c(model)
        check(model, fast)
    except Exception as error:  # a model's code or a kernel library may raise any; the eager engine is still there
        why = str(error) if isinstance(error, NoFastBackend) else f"{type(error).__name__}: {first_line(error)}"
        return None, f"{model.config.model_type} runs eagerly: {why}"
    return fast, ""


def on_c(model: PreTrainedModel) -> CModel:
    parts, free = parts_of(model), free_memory(model.device)
    # Weights that bfloat16 does not hold are copied as they are.
    needed = sum(p.nbytes / (2 if torch.equal(p[:1].bfloat16(), p[:1]) else 1) for p in model.parameters())
    if free is not None and needed > USABLE * free:
        raise NoFastBackend(f"its copy of the weights takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
    return CModel(parts)


def check(model: PreTrainedModel, fast: FastModel) -> None:
    """Decode a few tokens through the engine, past a page or a bucket, with rejected ones that are rolled back. Raises
    NoFastBackend where the logits are not the model's uncached ones. No text here reaches a window of thousands."""
    n_last = sum(checks.WIDTHS)
    text = checks.random_text(model, fast.page + n_last if isinstance(fast, CModel) else cuda_graphs.BUCKET + 8)
    right = checks.uncached_logits(model, text)[:, -n_last:]
    for how in checks.AS_ROUNDS, checks.AS_STEPS:
        found = checks.cached_logits(CachedModel(model, fast=fast), text, **how)
        if difference := checks.unexplained(model, found, right):
            raise NoFastBackend(f"its logits are off by {difference}")
    if isinstance(fast, GraphedModel):
        fast.forget()  # the widths of checks are not those of the run
