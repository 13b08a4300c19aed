"""The setup that both arms of a run share: one target, one tokenizer, one machine."""

import functools
import os
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.core.sampling import GREEDY, Sampling
from speclab.models import engine_choice, loading
from speclab.models.cached import CachedModel
from speclab.models.checking.rounding import Reference
from speclab.models.outside import generation
from speclab.models.pieces import Pieces, added, pieces
from speclab.models.prompts import Prompt
from speclab.system.terminal import note


@dataclass
class Setup:
    """A checked target, ready to decode. `reasons` say why this device, dtype, thread count and engine were taken."""

    target: CachedModel
    tokenizer: PreTrainedTokenizerBase
    target_name: str
    sampling: Sampling
    device: torch.device
    dtype: torch.dtype
    reasons: dict[str, str] = field(default_factory=dict)
    wish: str = "auto"  # the engine that was asked for

    @property
    def eos(self) -> frozenset[int]:
        """Return the ids that end the target's texts."""
        return generation.eos_ids(self.target.model.generation_config)

    @functools.cached_property
    def reference(self) -> Reference:
        return Reference(self.target.model)

    @property
    def unapplied(self) -> str:
        """Return the checkpoint's generation settings that the lab leaves out, "" where there are none."""
        settings = generation.unapplied_settings(self.target.model.generation_config)
        return ", ".join(f"{key} {value}" for key, value in settings.items())

    def sampling_at(self, temperature: float) -> Sampling:
        """Return the run's filters at another temperature."""
        return replace(self.sampling, temperature=temperature)

    @property
    def chunk(self) -> int:
        """Return the number of tokens that the baseline fetches at once: a GPU should not wait for the host after
        every token."""
        return 1 if self.device.type == "cpu" else 16

    @property
    def engine(self) -> str:
        return self.target.engine

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def recorded(self) -> dict[str, Any]:
        """Return the settings of every record that say what decodes: the target, and what it runs on."""
        where = {"device": self.device.type, "dtype": self.dtype_name, "engine": self.engine}
        return {"target": self.target_name, **where, "threads": torch.get_num_threads()}

    def ids_before(self, prompt: Prompt) -> list[int]:
        """Return the ids that a new text continues: the prompt's, or none where the output is a text of its own."""
        return prompt.id_list if self.target.family.one_text else []

    def pieces(self, prompt: Prompt) -> Pieces:
        """Return the pieces that give the text of the ids made after a prompt."""
        return pieces(self.tokenizer, self.ids_before(prompt))

    def token_text(self, prompt: Prompt, text: list[int], token: int) -> str:
        """Return the text that a token adds after a prompt and the new ids `text`."""
        return added(self.tokenizer, self.ids_before(prompt) + text, [token])

    def cached(self, model: PreTrainedModel, vocab_size: int, graphs: bool = True) -> CachedModel:
        """Put another model on the target's engine, so that both arms run on the same one.

        graphs: whether its passes have few widths, so that they can be CUDA graphs.
        """
        fast, why = None, "its passes have any width, and CUDA graphs are recorded for few"
        if self.target.fast and (graphs or not self.target.graphed):
            fast, why = engine_choice.choose(model, self.target.engine)
        if self.target.fast and fast is None:
            note(f"this draft runs on the eager engine: {why}")
        return CachedModel(model, vocab_size, fast)

    def use_eager(self, why: str) -> None:
        """Run the target eagerly from now on, in both arms. why: the reason that the head of the run prints."""
        self.target.fast, self.reasons["engine"] = None, why

    def load_draft(self, name: str) -> CachedModel:
        """Load a draft model for this target. Ids that it lacks are never drafted; the target keeps them all."""
        tokenizer, short_name = loading.load_tokenizer(name), loading.short_name(name)
        n_ids = loading.check_same_tokenizer(self.tokenizer, tokenizer, self.target_name, short_name)
        if (missing := self.target.vocab_size - n_ids) > 0:
            note(f"{short_name}: its tokenizer lacks the target's last {missing} ids; they are never drafted")
        return self.cached(self.load_model(name), min(n_ids, self.target.vocab_size))

    def load_model(self, name: str) -> PreTrainedModel:
        """Load the model of a draft; the engine `c` has a copy of its weights."""
        copies = 2 if self.engine == "c" else 1
        return loading.load_model(name, self.device, self.dtype, "draft", copies)

    def describe(self) -> str:
        """Return the head of every run: what runs, on which device, and why."""
        model, n, why = self.target.model, torch.get_num_threads(), self.reasons
        on = f"{self.device.type} ({why['device']}), {self.dtype_name} ({why['dtype']})"
        on += f", {n} thread{'s' * (n != 1)} ({why['threads']})" * (self.device.type == "cpu")
        unused = f"unused  the checkpoint's generation settings {self.unapplied}" * bool(self.unapplied)
        lines = (
            f"target  {loading.describe_model(self.target_name, model)}",
            f"on      {on}",
            f"engine  {self.engine} ({why['engine']})",
            "checks  passed on a short random text: causal, cached passes as uncached ones, exact rollback",
            self.target.family.head(model),
            unused,
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
    """Load and check a target. Raises UsageProblem or EnvironmentProblem where that is not possible.

    target: folder, hub name or lab:SIZE. device: auto, cpu, cuda, mps. dtype: auto, float32, bfloat16. engine: auto,
    c, graphs, eager. threads: of the CPU, None for PyTorch's own number. tokenizer: the target's, where it is loaded
    already. device_map: the library's word for how weights are spread, None for all of them on the device.
    """
    where, why_device = loading.choose_device(device)
    on_gpu = where.type == "cuda"
    usual = (torch.bfloat16, "half the bytes to read") if on_gpu else (torch.float32, "exact comparisons")
    precision, why_dtype = usual if dtype == "auto" else (getattr(torch, dtype), "asked for")
    if threads:
        torch.set_num_threads(threads)
    if on_gpu:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every shape, and a text has many
    tokenizer = tokenizer or loading.load_tokenizer(target)
    copies = 2 if engine in ("auto", "c") and not on_gpu and precision == torch.float32 else 1  # `c` has its own
    model = loading.load_model(target, where, precision, "target", copies, device_map)
    why_threads = "from OMP_NUM_THREADS" if os.environ.get("OMP_NUM_THREADS") else "one per core"
    reasons = {"device": why_device, "dtype": why_dtype, "threads": "asked for" if threads else why_threads}
    return setup_of(model, tokenizer, loading.short_name(target), sampling, engine, reasons)


def setup_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    sampling: Sampling,
    engine: str,
    reasons: dict[str, str],
) -> Setup:
    """Put a loaded and checked target on the engine that is asked for, with its device and dtype as they are."""
    if model.device.type == "cuda":
        torch.cuda.set_device(model.device)  # graphs and the clock's marks are of the current device
    fast, why = engine_choice.choose(model, engine)
    target = CachedModel(model, max(tokenizer.get_vocab().values()) + 1, fast)
    return Setup(target, tokenizer, name, sampling, model.device, model.dtype, reasons | {"engine": why}, engine)
