"""Other ways to make plain decoding fast, for comparison with the baseline: experiments, each of which may fail.

    eager             our loop on the model as its library runs it
    static generate   model.generate(cache_implementation="static"), which compiles what it can
    compiled step     one torch.compile of the whole step over a StaticCache, mode reduce-overhead, full graph

What comes out: tokens per second of each, or the reason why there are none.

    python -m benchmarks.gpu.plain --target lab --device cpu --dtype float32
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache

from baseline_autoregressive import autoregressive_decode
from benchmarks import common
from speclab.cli import flags, parsing
from speclab.core.clock import synchronize
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.lab.decodings import library_generate
from speclab.lab.harness import kept_when_stopped
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Lines, Table
from speclab.records.rows import Amount, Count, Part
from speclab.system.errors import first_line, reports_problems
from speclab.system.terminal import note

REPEATS = 2  # after one decoding that compiles and warms up
Decode = Callable[[Setup, Tensor, int], list[int]]


@dataclass(kw_only=True)
class Way(Part):
    """One way to decode a prompt, with everything that its first decoding met."""

    name: str
    n_tokens: Count
    first_seconds: Amount | None  # compiling included
    seconds: list[Amount]  # end to end, the prompt's own pass included
    n_same: Count | None  # tokens before the first that is not the eager one
    problem: str | None  # why it cannot be had


@dataclass(kw_only=True)
class PlainRun(common.BenchmarkRun):
    """`python -m benchmarks.gpu.plain`."""

    ways: list[Way]


def eager(setup: Setup, ids: Tensor, n_tokens: int) -> list[int]:
    """Our loop."""
    return tokens_of(autoregressive_decode(setup.target, ids, DecodeSettings(n_tokens), setup.chunk))


def static_generate(setup: Setup, ids: Tensor, n_tokens: int) -> list[int]:
    """The library's loop over a cache of fixed size."""
    return library_generate(setup.target.model, ids, n_tokens, cache_implementation="static")[1]


class CompiledStep:
    """A whole decode step in one compiled function, as gpt-fast has it."""

    def __init__(self) -> None:
        self._cache: StaticCache | None = None
        self._step: Callable | None = None

    @torch.inference_mode()
    def __call__(self, setup: Setup, ids: Tensor, n_tokens: int) -> list[int]:
        """Decode. The first call compiles; all calls must be for a prompt of one length."""
        model, n_prompt = setup.target.model, ids.shape[1]
        if self._cache is None or self._step is None:
            self._cache = StaticCache(config=model.config, max_cache_len=n_prompt + n_tokens)
            self._step = torch.compile(self._one_step, mode="reduce-overhead", fullgraph=True)
        self._cache.reset()
        positions = torch.arange(n_prompt, device=ids.device)[None]
        logits = model(ids, position_ids=positions, past_key_values=self._cache, use_cache=True).logits
        token, position = logits[:, -1:].argmax(-1), torch.full((1, 1), n_prompt, device=ids.device)
        tokens = [token]
        for _ in range(n_tokens - 1):
            token = self._step(model, token, position).clone()  # the next replay writes to the same place
            tokens.append(token)
            position = position + 1
        return torch.cat(tokens, dim=1)[0].tolist()

    def _one_step(self, model: PreTrainedModel, token: Tensor, position: Tensor) -> Tensor:
        logits = model(token, position_ids=position, past_key_values=self._cache, use_cache=True).logits
        return logits[:, -1:].argmax(-1)


def ways() -> dict[str, Decode]:
    """By the names of the module's docstring."""
    return {"eager": eager, "static generate": static_generate, "compiled step": CompiledStep()}


def timed(
    name: str, decode: Decode, setup: Setup, ids: Tensor, n_tokens: int, right: list[int]
) -> tuple[Way, list[int]]:
    """One way, or why it failed, and its text. right: the eager text, empty where there is none"""
    tokens: list[int] = []
    way = Way(name=name, n_tokens=n_tokens, first_seconds=None, seconds=[], n_same=None, problem=None)
    try:
        for repeat in range(1 + REPEATS):
            synchronize(ids.device)
            start = time.perf_counter()
            tokens = decode(setup, ids, n_tokens)
            seconds = time.perf_counter() - start
            if repeat == 0:
                way.first_seconds, pairs = seconds, zip(tokens, right, strict=False)
                if right:
                    way.n_same = next((i for i, (one, other) in enumerate(pairs) if one != other), n_tokens)
            else:
                way.seconds.append(seconds)
    except Exception as error:  # a compiler can raise anything, and the other ways are wanted all the same
        way.problem = f"{type(error).__name__}: {first_line(error)}"
        note(f"{name}: {way.problem}")
    return way, tokens


def page(run: PlainRun) -> list[Block]:
    """Everything a reader gets, from the record alone."""
    cells: dict[str, Cell] = {
        "plain decoding": lambda way: way.name,
        "tok/s": lambda way: f"{way.n_tokens / min(way.seconds):.1f}" if way.seconds else "not measured",
        "first s": lambda way: "-" if way.first_seconds is None else f"{way.first_seconds:.1f}",
        "same tokens": lambda way: "-" if way.n_same is None else f"{way.n_same} of {way.n_tokens}",
        "why not": lambda way: way.problem or "-",
    }
    return [
        *common.begin(f"Plain decoding of {run.settings['target']} in other ways", run),
        Table(run.ways, cells),
        Lines(["tok/s: end to end, greedy; first s: of the first decoding; same tokens: before the first other one"]),
    ]


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    common.add_result_flags(parser, "plain")
    parser.set_defaults(limit=1, max_new_tokens=64, engine="eager")
    return parser


def measure_ways(args: argparse.Namespace, setup: Setup, ids: Tensor) -> int:
    """All of them, the record written after each.  -> exit code"""
    run = PlainRun(**common.head_of(args, setup), ways=[])
    right: list[int] = []
    for name, decode in ways().items():
        with kept_when_stopped(lambda: "the ways before it are written" if run.ways else "") as stops:
            way, tokens = timed(name, decode, setup, ids, args.max_new_tokens, right)
            run.ways.append(way)
            right = right or tokens
        run.interrupted = bool(stops)
        common.write(args, run, page)
        if stops:
            raise stops[0]
    return common.finish(args, run, page)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    args.target = common.target_name(args.target)
    common.check_result_flags(args)
    setup, prompts = flags.load(args)
    note(setup.describe())
    return measure_ways(args, setup, prompts[0].ids.to(setup.device))


if __name__ == "__main__":
    sys.exit(main())
