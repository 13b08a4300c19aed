"""The flags all scripts share, and what they become: a target, sampling settings, prompts. Bad input is one line."""

import argparse
import functools
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.cli.parsing import Parser, at_least, make_parser, seed, some_name  # noqa: F401 - every script asks for its flags here
from speclab.core.sampling import Sampling
from speclab.models import loading, prompts, select
from speclab.models.backends.exported import can_prepack
from speclab.models.cached import CachedModel
from speclab.models.rounding import bound_in_words
from speclab.system.errors import UsageProblem
from speclab.system.terminal import harmless, note
from speclab.theory.losslessness import Reference

MOST_THREADS = 1024


def add_shared_flags(parser: argparse.ArgumentParser) -> None:
    """Models, device, prompts, length, randomness: the same words in every script."""
    group = parser.add_argument_group("models and machine")
    group.add_argument(
        "--target",
        type=some_name,
        default=loading.LAB_TARGET,
        help="folder, hub name, or lab:SIZE: the lab's target padded, as in lab:200m",
    )
    group.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="auto: cuda, else cpu")
    group.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="auto: bfloat16 on cuda"
    )
    group.add_argument(
        "--engine",
        choices=select.ENGINES,
        default="auto",
        help="how models run; auto: a short race (see speclab/models/select.py)",
    )
    group.add_argument("--threads", type=at_least(1, MOST_THREADS), help="CPU threads (default: one per core)")
    group = parser.add_argument_group("text")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--prompt", action="append", help="a text to continue; may be given several times")
    where.add_argument(
        "--prompts",
        type=some_name,
        metavar="FILE",
        help="file of prompts with lines of %%%% between them; - for stdin",
    )
    group.add_argument(
        "--limit", type=at_least(0), metavar="N", help="of the standard prompts, at most N of each kind; 0: all"
    )
    group.add_argument(
        "--max-new-tokens", type=at_least(1), default=128, help="tokens per prompt (default: 128; compare.py: 64)"
    )
    group.add_argument("--top-k", type=at_least(0), default=0, help="keep the k most probable tokens; 0: all")
    group.add_argument("--top-p", type=float, default=1.0, help="keep the smallest set of this mass (default: 1)")
    group.add_argument("--seed", type=seed, default=0, help="randomness of sampling (default: 0)")


def add_verbose_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verbose", action="store_true", help="print bytes read by a step and a round, and peak memory"
    )


def add_impl_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--impl",
        metavar="WHOSE",
        help="exercises or solutions: your functions, as far as their checks pass, decide; some of them: exercises:2,3",
    )


def add_decoding_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the two scripts that decode once and print the text."""
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    parser.add_argument("--stream", action="store_true", help="print the text as it is committed")
    add_verbose_flag(parser)
    parser.add_argument("--ignore-eos", action="store_true", help="go on to --max-new-tokens whatever is said")
    parser.set_defaults(limit=1)


@dataclass
class Setup:
    """Everything both arms share: one target, one tokenizer, one machine."""

    target: CachedModel
    tokenizer: PreTrainedTokenizerBase
    target_name: str
    sampling: Sampling
    device: torch.device
    dtype: torch.dtype
    reasons: dict[str, str] = field(default_factory=dict)  # why this device, dtype, thread count

    @property
    def eos(self) -> frozenset[int]:
        """The ids that end the target's texts."""
        return loading.eos_ids(self.target.model.generation_config)

    @functools.cached_property
    def reference(self) -> Reference:
        """The target's uncached logits, in its own and in the next higher precision."""
        return Reference(self.target.model)

    @property
    def unapplied(self) -> str:
        """The checkpoint's generation settings that the lab leaves out, "" where there are none."""
        settings = loading.unapplied_settings(self.target.model.generation_config)
        return ", ".join(f"{key} {value}" for key, value in settings.items())

    @property
    def chunk(self) -> int:
        """Tokens the baseline fetches at once: a GPU should not wait for the host after every token."""
        return 1 if self.device.type == "cpu" else 16

    @property
    def engine(self) -> str:
        return self.target.engine

    @property
    def graphed(self) -> bool:
        """Whether passes run as CUDA graphs, which have to be captured before anything is timed."""
        return self.target.flat is not None and self.target.flat.graphed

    def cached(self, model: PreTrainedModel, vocab_size: int) -> CachedModel:
        """Another model in the target's gear: both arms run on the same engine."""
        flat, why = select.choose(model, "fast") if self.target.flat else (None, "")
        if self.target.flat and flat is None:
            note(f"this draft runs on the eager engine: {why}")
        return CachedModel(model, vocab_size, flat)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def describe(self) -> str:
        machine = f"{self.device.type} ({self.reasons['device']}), {self.dtype_name} ({self.reasons['dtype']})"
        threads = (
            f", {torch.get_num_threads()} threads ({self.reasons['threads']})" if self.device.type == "cpu" else ""
        )
        return (
            f"target  {loading.describe_model(self.target_name, self.target.model)}\n"
            f"on      {machine}{threads}\nengine  {self.engine} ({self.reasons['engine']})\n"
            f"checks  passed on a short random text: causal, cached passes as uncached ones, exact rollback; tolerance "
            f"{bound_in_words(self.dtype)}"
            + (f"\nunused  the checkpoint's generation settings {self.unapplied}" if self.unapplied else "")
        )


def load(args: argparse.Namespace) -> Setup:
    """Target, tokenizer and machine from the flags."""
    try:
        sampling = Sampling(getattr(args, "temperature", 0.0), args.top_k, args.top_p)
    except ValueError as error:
        raise UsageProblem(f"{error}; see --help") from None
    device, why_device = loading.choose_device(args.device)
    if args.dtype == "auto":
        on_gpu = device.type == "cuda"
        dtype = torch.bfloat16 if on_gpu else torch.float32
        why_dtype = "half the bytes to read" if on_gpu else "exact comparisons"
    else:
        dtype, why_dtype = getattr(torch, args.dtype), "asked for"
    if args.threads:
        torch.set_num_threads(args.threads)
    tokenizer = loading.load_tokenizer(args.target)
    copies = 2 if args.engine != "eager" and can_prepack(device, dtype) else 1  # the fast engine packs a second one
    model = loading.load_model(args.target, device, dtype, "target", copies)
    known = max(tokenizer.get_vocab().values()) + 1
    flat, why_engine = select.choose(model, args.engine)
    target = CachedModel(model, known, flat)
    reasons = {
        "device": why_device,
        "dtype": why_dtype,
        "threads": "asked for" if args.threads else "one per core",
        "engine": why_engine,
    }
    return Setup(target, tokenizer, loading.short_name(args.target), sampling, device, dtype, reasons)


def load_draft(name: str, setup: Setup) -> CachedModel:
    """A draft model for this target. Ids that it lacks are never drafted; the target keeps them all."""
    tokenizer = loading.load_tokenizer(name)
    loading.check_same_tokenizer(setup.tokenizer, tokenizer, setup.target_name, loading.short_name(name))
    copies = 2 if setup.target.flat and setup.target.flat.packed else 1
    model = loading.load_model(name, setup.device, setup.dtype, "draft", copies)
    return setup.cached(model, setup.target.vocab_size)


def read_prompts(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> list[prompts.Prompt]:
    """--prompt, --prompts, or the standard set, tokenised."""
    if args.prompt:
        return prompts.encode(prompts.from_words(args.prompt), tokenizer)
    pairs = prompts.from_file(args.prompts) if args.prompts else prompts.standard()
    limit = 0 if args.prompts else args.limit or 0
    return prompts.first_of_each_kind(prompts.encode(pairs, tokenizer), limit)


def rate(n_tokens: int, seconds: float) -> str:
    return f"{n_tokens / seconds:.1f} tok/s" if seconds > 0 and n_tokens else "no decoding to time"


class TextWriter:
    """Prints a prompt and its continuation: at the end, or piece by piece as it is committed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: prompts.Prompt, stream: bool):
        self.tokenizer, self.stream = tokenizer, stream
        self.tokens: list[int] = []  # added so far
        self._shown = 0
        head = f"\n=== {prompt.kind} " + "=" * 60 + "\n"
        print(harmless(head + prompt.text), end="", flush=stream)

    def add(self, tokens: list[int]) -> None:
        self.tokens += tokens
        if self.stream:
            self._show(final=False)

    def close(self) -> None:
        self._show(final=True)
        print(flush=True)

    def _show(self, final: bool) -> None:
        text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        # A token may end inside a character: wait for the rest of it.
        if final or not text.endswith("\ufffd"):
            print(harmless(text[self._shown :]), end="", flush=self.stream)
            self._shown = len(text)
