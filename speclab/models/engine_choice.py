"""The choice of the backend that runs a model: the library's eager forward, or the fast one. Both arms get the same.

The fast one is the exported model on a CPU and CUDA graphs on a GPU. No backend wins everywhere, so `auto` builds it,
checks it against the model's own logits, and times both for a moment at the widths that decoding uses. Where the fast
one does not win at both widths, they race again: other work on the machine may be the reason. A model that has no fast
one runs eagerly, and the reason is printed. `compiled` asks for compiled passes of the exported model. Once a target's
are in the cache folder, `auto` takes them, too, and compiles what its drafts need.
"""

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeGuard, TypeVar

import torch
from transformers import PreTrainedModel

from speclab.core import graphs
from speclab.models.backends import compiled, cuda_graphs, packages
from speclab.models.backends.compiled import Program
from speclab.models.backends.cuda_graphs import GraphedModel
from speclab.models.backends.exported import ExportedModel
from speclab.models.backends.protocols import FastModel
from speclab.models.cached import CachedModel
from speclab.models.checking import checks
from speclab.models.family import NoFastBackend, family_of
from speclab.models.outside import placement
from speclab.models.timing import time_passes
from speclab.system.errors import EnvironmentProblem, first_line, is_out_of_memory, setting
from speclab.system.terminal import note

ASKED_FOR = "asked for"
AS_FAST_AS_KERNELS = "not compiled: the kernels one by one are as fast"
NARROW, WIDE = 1, 5  # a decode step, and the verification of four drafted tokens
WORTH_IT = 0.93  # a choice must save more than noise
AS_FAST = 0.97  # an engine with at least this share of the other's speed counts as equally fast: the rest is noise
SECONDS = 8  # that a function takes to compile on one core
PASSES_OF_TARGET = (1, 3, 5, 7, 9)  # tokens of the passes that are compiled; the others are padded to them
PASSES_OF_DRAFT = (1, 2)  # a draft model catches up with one token, or two
CONTEXT = 64
PASSES = 12  # of each backend at each width; the fastest counts, since whatever else runs can only slow a pass down
PATIENCE = 3.0  # seconds for all of these passes; large models get fewer passes
RACES = 3  # races at most
Key = TypeVar("Key")  # of a compiled pass
Pass = TypeVar("Pass")


class Race(NamedTuple):
    """The fast engine's speed over the eager one's, at both widths, and how many races that took."""

    narrow: float
    wide: float
    races: int

    @property
    def agrees(self) -> bool:
        """Tell whether one engine wins at both widths, or both are equally fast at the narrow one."""
        return (self.narrow > AS_FAST) == (self.wide > 1)

    @property
    def takes_fast(self) -> bool:
        """Tell whether the fast engine wins, by the product of both figures where they disagree. An engine that slows
        plain decoding down much is never taken."""
        return self.narrow > AS_FAST and self.narrow * self.wide > 1

    @property
    def reason(self) -> str:
        """Return the reason for this engine, in a few words."""
        speeds = f"{self.narrow:.2f}x the eager engine's speed at {NARROW} token, {self.wide:.2f}x at {WIDE}"
        if not self.agrees:
            return f"no clear winner after {self.races} races; fast: {speeds}"
        return speeds if self.takes_fast else f"the fast engine was no faster: {speeds}"


def choose(model: PreTrainedModel, wish: str, widths: Iterable[int] = PASSES_OF_TARGET) -> tuple[FastModel | None, str]:
    """Return the fast form of a model to decode with, or None for the eager backend; and why, in a few words.

    widths: tokens of the passes to compile, where that is the wish.
    """
    if wish == "eager":
        return None, ASKED_FOR
    fast, why = build(model)
    if fast is None or wish == "fast":
        return fast, why or ASKED_FOR
    if wish == "compiled":
        return fast, f"{ASKED_FOR}; {compile_passes(CachedModel(model, fast=fast), widths)}"
    if can_compile(fast):
        done = packages.is_done(fast.name_when_compiled(widths))
        never = f"some functions are not in the cache folder any more; {to_compile()}"
        words = (
            compile_passes(CachedModel(model, fast=fast), widths, never)
            if done
            else to_compile() * bool(packages.compiler())
        )
        why = "; ".join(filter(None, (why, words)))
    eager, other = CachedModel(model), CachedModel(model, fast=fast)
    result = race(lambda: fastest([(eager, NARROW), (other, NARROW), (eager, WIDE), (other, WIDE)]))
    _forget(fast)
    fast.one_token_gain = result.narrow
    return fast if result.takes_fast else None, f"{result.reason}; {why}" if why else result.reason


def to_compile() -> str:
    """Return the words of a reason that say how the passes are compiled."""
    return f"{setting('engine', 'compiled')} compiles the passes once, which may be faster"


def own_weights(fast: FastModel | None) -> str:
    """Return a few words about the choice of `choose_kernels`; empty where all passes run as usual."""
    if isinstance(fast, GraphedModel):
        return fast.kernels.in_words
    if not isinstance(fast, ExportedModel) or not fast.can_pack:
        return ""
    packs = fast.packs_one, fast.packs_several
    if all(packs):
        return ""
    return "weights not packed" + (f" for {'several tokens' if fast.packs_one else '1 token'}" if any(packs) else "")


def build(model: PreTrainedModel) -> tuple[FastModel | None, str]:
    """Return the fast form of a model, checked; or None and why there is none."""
    if why := family_of(model).why_eager:
        return None, f"no fast engine for {model.config.model_type}: {why}"
    if why := placement.why_eager(model):
        return None, f"no fast engine: {why}"
    makers: list[Callable[[PreTrainedModel], FastModel]] = [ExportedModel]
    if runs_on_graphs(model):  # parts that cannot be compiled are no reason to go without graphs
        makers = [GraphedModel, functools.partial(GraphedModel, compile_parts=False)]
    reason = ""
    fast: FastModel | None = None
    for make in makers:
        fast = None  # the one before has matrices of its own
        try:
            fast = make(model)
            check_kernels(model, fast)
            choose_kernels(fast)
        except Exception as error:  # a model's code or a kernel library may raise any; the eager engine is still there
            text = str(error) if isinstance(error, NoFastBackend) else f"{type(error).__name__}: {first_line(error)}"
            reason = reason or text
            if is_out_of_memory(error):
                break
            continue
        _forget(fast)
        return fast, f"without compiled parts: {reason}" if reason else ""
    return None, f"no fast engine for {model.config.model_type}: {reason}"


def check_kernels(model: PreTrainedModel, fast: FastModel) -> None:
    """Call `check` for both lists of kernels where there are two, because the choice between them comes later and may
    change."""
    if isinstance(fast, ExportedModel) and fast.can_pack:
        for packs in (False, True):
            fast.packs_one = fast.packs_several = packs
            check(model, fast)
    else:
        check(model, fast)


def _forget(fast: FastModel) -> None:
    """Make the fast model forget the widths of checks and races, because they are not those of the run."""
    if isinstance(fast, GraphedModel):
        fast.forget()


def choose_kernels(fast: FastModel) -> None:
    """Choose between kernels that do the same, by measuring."""
    if isinstance(fast, ExportedModel):
        choose_weights(fast)
    elif isinstance(fast, GraphedModel):
        choose_attention(fast)


def choose_attention(graphed: GraphedModel) -> None:
    """Choose between the library's kernel for attention and two products, which must pass the same check.

    Both are timed behind CONTEXT tokens. Raises what the check of the products raises where no graph can be recorded
    after it; any other error leaves the library's kernel.
    """
    if (other := graphed.with_two_products()) is None:
        return
    try:
        check(graphed.model, other)
    except Exception:  # a kernel library may raise any; the library's own kernel is still there
        if graphs.captures.failed:
            raise
        return
    ours, theirs = (CachedModel(graphed.model, fast=fast) for fast in (other, graphed))
    times = fastest([(model, width) for width in (NARROW, WIDE) for model in (ours, theirs)])
    if times[0] * times[2] < WORTH_IT * times[1] * times[3]:
        graphed.kernels = other.kernels
    graphed.forget()


def choose_weights(exported: ExportedModel) -> None:
    """Choose between packed weights and the model's own, for one token and for several.

    The faster way depends on the maker of the processor, the size of the weights and the number of threads.
    """
    exported.programs = {}  # they are compiled for a number of threads, too
    if not exported.can_pack:
        return
    exported.one_token_gain = None
    own, packed = copy.copy(exported), copy.copy(exported)
    own.packs_one = own.packs_several = False
    packed.packs_one = packed.packs_several = True
    of_own, of_packed = (CachedModel(exported.model, fast=fast) for fast in (own, packed))
    times = fastest([(model, width) for width in (NARROW, WIDE) for model in (of_own, of_packed)])
    exported.packs_one = times[0] >= WORTH_IT * times[1]
    exported.packs_several = times[2] >= WORTH_IT * times[3]


def compile_passes(cached: CachedModel, widths: Iterable[int], never: str = "") -> str:
    """Compile passes of these widths, and keep those that are faster.  -> the reason for the engine, in a few words

    Narrower passes are padded to the next of these widths. Where one is wrong or nothing can be compiled, none is
    kept, and the words say why. never: where this is given, nothing is built, and this says why something is missing.
    """
    fast = cached.fast
    if not can_compile(fast):
        return "not compiled: that is made for float32 on a CPU"
    try:
        fast.programs = _programs(fast, sorted(width for width in widths if width <= compiled.WIDEST), never)
    except Exception as error:  # a compiler, or a model's own code, may raise any exception
        return why_not_compiled(error)
    with contextlib.suppress(OSError, NoFastBackend):  # without the note, `auto` does not look for them
        packages.note_done(fast.name_when_compiled(widths))
    if not (faster := [width for width, program in fast.programs.items() if program]):
        fast.programs = {}
        fast.forget_cut()
        return AS_FAST_AS_KERNELS
    return f"compiled for passes over {', '.join(map(str, faster))} tokens"


def why_not_compiled(error: Exception) -> str:
    """Return the reason why nothing is compiled, in a few words."""
    is_said = isinstance(error, NoFastBackend | EnvironmentProblem)
    return f"not compiled: {error if is_said else f'{type(error).__name__}: {first_line(error)}'}"


def is_compiled(fast: FastModel | None) -> bool:
    """Tell whether some of its passes are compiled functions. Then those of its drafts are, too: what a drafted token
    costs is counted in steps of the target."""
    return can_compile(fast) and any(fast.programs.values())


def can_compile(fast: FastModel | None) -> TypeGuard[ExportedModel]:
    """Tell whether passes of this fast form can be compiled: they are made for float32 on a CPU."""
    return isinstance(fast, ExportedModel) and fast.model.dtype == torch.float32 and fast.model.device.type == "cpu"


def _programs(fast: ExportedModel, widths: list[int], never: str) -> dict[int, Program | None]:
    """Return the compiled passes by their tokens, None where the replayed one is as fast. NoFastBackend where one of
    them is wrong, cannot be loaded, or is missing and `never` says that it is not built."""
    whole, threads = fast.cut, torch.get_num_threads()
    programs = found_or_built(lambda find: {width: whole.program(width, threads, find) for width in widths}, never)
    twin = copy.copy(fast)
    for width, program in programs.items():  # each of them alone: whole, and padded behind a single token
        twin.programs = {width: program}
        check(fast.model, twin, (width, 1, width), (0, width - 1, 0))
    twin.programs = dict(programs)
    on_replayed, on_compiled = CachedModel(fast.model, fast=fast), CachedModel(fast.model, fast=twin)
    times = fastest([(model, width) for width in programs for model in (on_replayed, on_compiled)])
    pairs = zip(programs, times[::2], times[1::2], strict=True)
    return {width: programs[width] if seconds < WORTH_IT * replayed else None for width, replayed, seconds in pairs}


def found_or_built(make: Callable[[packages.Find], dict[Key, Pass | None]], never: str = "") -> dict[Key, Pass]:
    """Return compiled passes; functions that the cache folder lacks are compiled first.

    make: it takes what finds a function, and returns the passes, None where one lacks a function. never: where this is
    given, nothing is built, and this says why something is missing. Raises NoFastBackend where a function is missing
    and not built, cannot be built, or cannot be loaded.
    """
    missing = packages.Missing()
    made = make(missing)
    if missing and never:
        raise NoFastBackend(never)
    if missing:
        build_missing(missing)
        made = make(packages.in_folder)
    programs = {key: program for key, program in made.items() if program}
    if len(programs) < len(made):
        raise NoFastBackend("a compiled function cannot be loaded")
    return programs


def build_missing(missing: packages.Missing) -> None:
    """Compile these functions, and say how long it takes. Raises NoFastBackend where nothing can be compiled."""
    if packages.compiler() is None:
        raise NoFastBackend("there is no C++ compiler; install g++, on Debian: apt install g++")
    packages.make_folder()
    functions = f"{len(missing)} function{'s' * (len(missing) != 1)}"
    seconds = len(missing) * SECONDS / min(len(missing), os.cpu_count() or 1)
    note(f"compiling {functions}, about {seconds:.0f} s; the next run finds them")
    packages.build(missing)


def runs_on_graphs(model: PreTrainedModel) -> bool:
    """Tell whether the fast form uses CUDA graphs. CUDA has them; other devices have the exported model."""
    return model.device.type == "cuda"


def race(run: Callable[[], Sequence[float]]) -> Race:
    """Race until the fast engine wins at both widths, RACES times at most. Of all races, the fastest pass counts.

    It rarely loses at both, and then other work on the machine may be the reason.

    run: one race; seconds of eager and fast at NARROW, then at WIDE.
    """
    best: list[float] = []
    for n in range(1, RACES + 1):
        times = run()
        best = [min(pair) for pair in zip(best or times, times, strict=True)]
        result = Race(best[0] / best[1], best[2] / best[3], n)
        if result.agrees and result.takes_fast:
            break
    return result


def check(
    model: PreTrainedModel,
    fast: FastModel,
    widths: tuple[int, ...] = checks.WIDTHS,
    wrong: tuple[int, ...] = checks.WRONG,
) -> None:
    """Decode a few tokens through the backend itself and compare with the model's own uncached logits.

    Rejected tokens are fed and rolled back on the way, and with CUDA graphs the text outgrows a bucket, with sliding
    windows the window. Raises NoFastBackend where the logits differ by more than rounding explains.
    """
    n_tokens = max(checks.N_TOKENS, cuda_graphs.BUCKET + 8 if fast.graphed else 0)
    if isinstance(fast, ExportedModel) and fast.programs:
        n_tokens = compiled.BLOCK + 8  # the passes read a second block of rows
    part: dict[str, int] = {}
    if window := fast.window:
        n_tokens, part = n_tokens + window.size, {"n_last": sum(widths)}
        if not checks.is_quick(model, n_tokens):
            raise NoFastBackend(f"a check of its window of {window.size} tokens would take too long")
    text = checks.random_text(model, n_tokens)
    right = checks.uncached_logits(model, text, **part)[:, -sum(widths) :]
    logits = checks.cached_logits(CachedModel(model, fast=fast), text, widths=widths, wrong=wrong)
    if difference := checks.unexplained(model, [checks.in_two(model, text)], logits, right):
        raise NoFastBackend(f"its fast logits are off by {difference}")


def fastest(passes: list[tuple[CachedModel, int]]) -> list[float]:
    """Return the seconds of the fastest pass of each (model, width)."""
    widest = max(width for _, width in passes)
    context = max(1, min(CONTEXT, (passes[0][0].max_length or 2 * CONTEXT) - widest))
    return [min(times) for times in time_passes(passes, context, PASSES, patience=PATIENCE)]
