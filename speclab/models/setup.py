"""The setup that both arms of a run share: one target, one tokenizer, one machine."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.core.sampling import GREEDY, Sampling
from speclab.models import engine_choice, loading
from speclab.models.cached import CachedModel
from speclab.models.checks import Reference
from speclab.models.pieces import Pieces, added
from speclab.models.prompts import Prompt
from speclab.system.terminal import note


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

    @property
    def unapplied(self) -> str:
        return loading.unapplied_settings(self.target.model.generation_config)

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
            fast, why = engine_choice.choose(model, self.engine)
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
        lines = (
            f"target  {loading.describe_model(self.target_name, model)}",
            f"on      {self.device.type}, {self.dtype_name}{threads}",
            f"engine  {self.engine} ({self.why_engine})",
            "checks  passed on a short random text: causal, cached passes as uncached ones, exact rollback",
            self.target.family.head(model),
            f"unused  the checkpoint's generation settings {self.unapplied}" * bool(self.unapplied),
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
    fast, why = engine_choice.choose(model, engine)
    cached = CachedModel(model, max(tokenizer.get_vocab().values()) + 1, fast)
    return Setup(cached, tokenizer, loading.short_name(target), sampling, model.device, model.dtype, why, engine)
