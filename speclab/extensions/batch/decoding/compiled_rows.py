"""Compiled passes over several texts: each is made for a number of texts and of tokens of each.

They are cut and compiled as passes over one text are (speclab/models/backends/compiled.py), checked against the
uncached logits, and timed against the kernels that are called one by one. A run takes all of its passes compiled, or
none: plain and speculative decoding run on the same engine.
"""

import functools
import itertools
import math
from collections.abc import Collection, Iterable
from typing import Any

import torch

from speclab.core.drafter import Drafter
from speclab.extensions.batch.decoding.batched_model import BatchedModel, check_batch
from speclab.extensions.batch.decoding.drafters import MOST_TO_CATCH_UP, shared_model
from speclab.extensions.batch.decoding.row_buffers import Compiled, Programs, Shape, exported_rows
from speclab.models import engine_choice
from speclab.models.backends import compiled, packages, rewrites
from speclab.models.backends.compiled import CutPass
from speclab.models.backends.exported import ExportedModel
from speclab.models.cached import CachedModel
from speclab.models.family import NoFastBackend
from speclab.models.setup import Setup
from speclab.models.timing import seconds
from speclab.system.terminal import note

MOST_TOKENS = 40  # of a compiled pass, those of all texts together; each is one more sum in the loops of products
NOT_BUILT = f"some functions are not in the cache folder; {engine_choice.COMPILE}"


def compile_for(
    setup: Setup, drafters: Iterable[Drafter], sizes: Collection[int], widths: Collection[int], as_one: bool = False
) -> Programs:
    """Compile the passes that a run makes over several texts, where the target's passes over one text are compiled.

    sizes: numbers of texts. widths: the tokens of each text in the target's passes. as_one: compile passes over one
    text of as many tokens, too; the costs of the others are predicted from them.

    -> the compiled passes of each model, empty where the target has none; the head of the run says which and why. Where
    the target has some, those of draft models are compiled, too. With `auto` nothing is compiled for the target, and
    functions that are in the cache folder already are taken.
    """
    if not engine_choice.is_compiled(setup.target.fast):
        return {}
    never = "" if setup.wish == "compiled" else NOT_BUILT
    found, words = compile_rows(setup.target, _shapes(sizes, widths, as_one), never)
    setup.reasons["engine"] += f"; several texts: {words}"
    programs = dict(found)
    for draft in filter(None, map(shared_model, drafters if found else ())):
        found, words = compile_rows(draft, _shapes(sizes, range(1, MOST_TO_CATCH_UP + 1), as_one))
        programs |= found
        if not found:
            note(f"the passes of this draft over several texts run on the kernels one by one: {words}")
    return programs


def _shapes(sizes: Collection[int], widths: Collection[int], as_one: bool) -> set[Shape]:
    """Return the (texts, tokens of each) of passes. All arguments are those of `compile_for`."""
    shapes = set(itertools.product(sizes, widths))
    return shapes | {(1, n * width) for n, width in shapes} if as_one else shapes


def compile_rows(model: CachedModel, shapes: Collection[Shape], never: str = "") -> tuple[Programs, str]:
    """Compile passes of these shapes, and keep them where they are faster together, by the mean of their ratios.

    never: where this is given, nothing is built, and this says why a function is missing.
    -> all passes or none, and in a few words which they are or why there are none
    """
    widest = max(shapes, key=math.prod)
    if math.prod(widest) > MOST_TOKENS:
        return {}, f"not compiled: a pass over {_named(widest)} tokens has more than {MOST_TOKENS} in all"
    try:
        programs = checked_rows(model, shapes, never)
        [found] = programs.values()
        ratios = [min(times) / min(others) for times, others in (time_rows(model, programs, one) for one in found)]
    except Exception as error:  # a compiler, or a model's own code, may raise any exception
        return {}, engine_choice.why_not_compiled(error)
    if math.prod(ratios) ** (1 / len(ratios)) > engine_choice.WORTH_IT:
        return {}, engine_choice.AS_FAST_AS_KERNELS
    return programs, f"compiled for {', '.join(map(_named, found))} tokens"


def checked_rows(model: CachedModel, shapes: Iterable[Shape], never: str = "") -> Programs:
    """Return compiled passes of these shapes; a pass over one text is padded to one that the engine has already.

    never: as in `compile_rows`. Raises NoFastBackend where there are none, EnvironmentProblem where one is wrong.
    """
    fast = model.fast
    if not engine_choice.can_compile(fast):
        raise NoFastBackend("that is made for float32 on a CPU")
    known = sorted(fast.programs)
    wanted = sorted({(n, next((w for w in known if n == 1 and w >= width), width)) for n, width in shapes})
    rows = compiled.cut(rewrites.copied(exported_rows(fast)), fast.cut.blocks) if wanted[-1][0] > 1 else None
    found = engine_choice.found_or_built(functools.partial(_made, fast, rows, wanted), never)
    for shape, run in found.items():
        check_batch(model, shape[0], shape[1], {fast: {shape: run}})
    return {fast: found}


def _named(shape: Shape) -> str:
    return f"{shape[0]} x {shape[1]}"


def _made(
    fast: ExportedModel, rows: CutPass | None, shapes: Iterable[Shape], find: packages.Find
) -> dict[Shape, Compiled | None]:
    """Return the passes by their shapes, None where `find` lacks a function. rows: the pass over several texts in
    parts; that over one text is the model's own. Raises NoFastBackend where a part cannot be compiled."""
    made: dict[Shape, Compiled | None] = {}
    for n, width in shapes:
        if n == 1 or rows is None:
            program = fast.cut.program(width, torch.get_num_threads(), find)
            made[n, width] = program and functools.partial(_over_one, program)
        else:
            made[n, width] = rows.program(width, torch.get_num_threads(), find, n)
    return made


def _over_one(program: Compiled, *arguments: Any) -> list[torch.Tensor]:
    """Run a compiled pass over one text, with the arguments of one over several."""
    ids, positions, mask, places, *buffers = arguments
    keys, values = ([buffer[:, 0] for buffer in side] for side in buffers)
    return program(ids, positions, mask, places[0], keys, values)


def time_rows(
    model: CachedModel, programs: Programs, shape: Shape, passes: int = engine_choice.PASSES
) -> tuple[list[float], list[float]]:
    """Return the seconds of passes of this shape after a short text, compiled and on the kernels, which take turns."""
    n_texts, width = shape
    batches = [BatchedModel(model, n_texts, programs=given) for given in (programs, None)]
    for batch in batches:
        batch.start(engine_choice.CONTEXT + width)
        batch.fill(seed=0)
    tokens = torch.zeros(n_texts, width, dtype=torch.long)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(passes):
        for batch, taken in zip(batches, times, strict=True):
            batch.lengths = [engine_choice.CONTEXT] * n_texts
            taken.append(seconds(functools.partial(batch.forward, tokens), model.device))
    return times
