"""The setup that both arms of a run share: one target on one engine, one tokenizer, one machine.

`eager` is the model as its library runs it, and right for every model. `c` (speclab/engines/c_pass.py) needs a C
compiler and a family that it knows. `auto` takes the one of the device where it can be had, else `eager`. No clock has
a say in it, so two runs on one machine are comparable. An engine must first find the model's own uncached logits.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.core.sampling import GREEDY, Sampling
from speclab.engines.c_pass import CModel
from speclab.engines.cuda import cuda_graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.engines.parts import parts_of
from speclab.models import checks, loading
from speclab.models.cached import CachedModel
from speclab.models.checks import Reference
from speclab.models.family import NoFastBackend, family_of
from speclab.models.memory import USABLE, free_memory, why_eager
from speclab.models.pieces import Pieces, added
from speclab.models.prompts import Prompt
from speclab.system.errors import first_line
from speclab.system.terminal import note

ENGINES = ("auto", "c", "graphs", "eager")
ASKED_FOR = "asked for"
FastModel = CModel | GraphedModel


@dataclass
class Setup:
    """A checked target, ready to decode. why_engine: why its engine was taken. wish: the engine that was asked for."""

    target: CachedModel
    tokenizer: PreTrainedTokenizerBase
    target_name: str
    sampling: Sampling
    device: torch.device
    dtype: torch.dtype
    why_engine: str = ""
    wish: str = "auto"

    @property
    def eos(self) -> frozenset[int]:
        return loading.eos_ids(self.target.model.generation_config)

    @functools.cached_property
    def reference(self) -> Reference:
        return Reference(self.target.model)

    def sampling_at(self, temperature: float) -> Sampling:
        return replace(self.sampling, temperature=temperature)

    @property
    def chunk(self) -> int:
        """Return the tokens that the baseline fetches at once: a GPU should not wait for the host after each."""
        return 1 if self.device.type == "cpu" else 16

    @property
    def engine(self) -> str:
        return self.target.engine

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def recorded(self) -> dict[str, Any]:
        """Return the settings of every record that say what decodes."""
        what = {"target": self.target_name, "device": self.device.type, "dtype": self.dtype_name}
        return {**what, "engine": self.engine, "threads": torch.get_num_threads()}

    def ids_before(self, prompt: Prompt) -> list[int]:
        """Return the ids that a new text continues: the prompt's, or none where the output is a text of its own."""
        return prompt.id_list if self.target.family.one_text else []

    def pieces(self, prompt: Prompt) -> Pieces:
        return Pieces(self.tokenizer, self.ids_before(prompt))

    def token_text(self, prompt: Prompt, text: list[int], token: int) -> str:
        return added(self.tokenizer, self.ids_before(prompt) + text, [token])

    def cached(self, model: PreTrainedModel, vocab_size: int, graphs: bool = True) -> CachedModel:
        """Put another model on the target's engine. graphs: whether its passes have few widths, as CUDA graphs need."""
        fast, why = None, "its passes have any width, and CUDA graphs are recorded for few"
        if self.target.fast and (graphs or self.engine != "graphs"):
            fast, why = choose_engine(model, self.engine)
        if self.target.fast and fast is None:
            note(f"this draft runs on the eager engine: {why}")
        return CachedModel(model, vocab_size, fast)

    def load_draft(self, name: str) -> CachedModel:
        """Load a draft model for this target. Ids that it lacks are never drafted; the target keeps them all."""
        tokenizer, short_name = loading.load_tokenizer(name), loading.short_name(name)
        n_ids = loading.check_same_tokenizer(self.tokenizer, tokenizer, self.target_name, short_name)
        if (missing := self.target.vocab_size - n_ids) > 0:
            note(f"{short_name}: its tokenizer lacks the target's last {missing} ids; they are never drafted")
        model = loading.load_model(name, self.device, self.dtype, "draft")
        return self.cached(model, min(n_ids, self.target.vocab_size))

    def describe(self) -> str:
        model, n = self.target.model, torch.get_num_threads()
        threads = f", {n} thread{'s' * (n != 1)}" * (self.device.type == "cpu")
        unapplied = loading.unapplied_settings(model.generation_config)
        lines = (
            f"target  {loading.describe_model(self.target_name, model)}",
            f"on      {self.device.type}, {self.dtype_name}{threads}",
            f"engine  {self.engine} ({self.why_engine})",
            "checks  passed on a short random text: causal, cached passes as uncached ones, exact rollback",
            self.target.family.head(model),
            f"unused  the checkpoint's generation settings {unapplied}" * bool(unapplied),
        )
        return "\n".join(filter(None, lines))


def load_setup(
    target: str,
    sampling: Sampling = GREEDY,
    device: str = "auto",
    dtype: str = "auto",
    engine: str = "auto",
    threads: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device_map: str | None = None,
) -> Setup:
    """Load and check a target: a folder, hub name or lab:SIZE. Raises UsageProblem or EnvironmentProblem.

    dtype auto is float32 on a CPU, where comparisons are exact. threads: of the CPU, None for PyTorch's own number.
    tokenizer: the target's, where it is loaded already. device_map: the library's word for how weights are spread.
    """
    where = loading.choose_device(device)
    on_gpu = where.type == "cuda"
    precision = getattr(torch, dtype if dtype != "auto" else "bfloat16" if on_gpu else "float32")
    if threads:
        torch.set_num_threads(threads)
    if on_gpu:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every shape, and a text has many
    tokenizer = tokenizer or loading.load_tokenizer(target)
    model = loading.load_model(target, where, precision, device_map=device_map)
    if model.device.type == "cuda":
        torch.cuda.set_device(model.device)  # graphs and the clock's marks are of the current device
    fast, why = choose_engine(model, engine)
    cached = CachedModel(model, max(tokenizer.get_vocab().values()) + 1, fast)
    return Setup(cached, tokenizer, loading.short_name(target), sampling, model.device, model.dtype, why, engine)


def choose_engine(model: PreTrainedModel, wish: str) -> tuple[FastModel | None, str]:
    """Return the form of a model for the engine that is wished for, None for `eager`; and why, in a few words. Where an
    engine cannot run the model, it runs eagerly."""
    if wish == "eager":
        return None, ASKED_FOR
    if wish != "auto" and runs_on_graphs(model) != (wish == "graphs"):
        return None, f"the engine {wish} is for {'CUDA' if wish == 'graphs' else 'a CPU'}"
    fast, why = build_engine(model)
    usual = "CUDA graphs of the library's own pass" if runs_on_graphs(model) else "a whole pass in C"
    return fast, why or (usual if wish == "auto" else ASKED_FOR)


def runs_on_graphs(model: PreTrainedModel) -> bool:
    return model.device.type == "cuda"


def build_engine(model: PreTrainedModel) -> tuple[FastModel | None, str]:
    """Return a model in the form of its device's engine, checked; or None and why there is none."""
    if why := family_of(model).why_eager or why_eager(model):
        return None, f"{model.config.model_type} runs eagerly: {why}"
    try:
        fast: FastModel = GraphedModel(model) if runs_on_graphs(model) else on_c(model)
        check_engine(model, fast)
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


def check_engine(model: PreTrainedModel, fast: FastModel) -> None:
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
