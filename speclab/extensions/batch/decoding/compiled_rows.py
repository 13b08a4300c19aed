"""Compiled passes over several texts: each is made for a number of texts and of tokens of each.

They are cut and compiled as passes over one text are (speclab/models/backends/compiled.py), checked against the
uncached logits, and timed against the kernels that are called one by one. It is decided for each number of texts: all
passes of the target over so many are compiled, or none, because plain and speculative decoding run on the same engine.
A draft's passes may stay on the kernels where the target's are compiled; the head of the run says so.
"""

import functools
import itertools
import math
import time
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

MOST_TOKENS = 40  # of a compiled pass, those of all texts together; each is one more sum in the loops of products
TOO_MANY = f"not compiled: the widest pass has more than {MOST_TOKENS} tokens in all"


def compile_for(
    setup: Setup, drafters: Iterable[Drafter], sizes: Collection[int], widths: Collection[int], as_one: bool = False
) -> Programs:
    """Compile the passes that a run makes over several texts, where the target's passes over one text are compiled.

    sizes: numbers of texts. widths: the tokens of each text in the target's passes. as_one: as in `compile_rows`.

    -> the compiled passes of each model; the head of the run says which numbers of texts have some, and why others have
    none. Where the target has some, those of draft models over as many texts are compiled, too. With `auto` nothing is
    compiled for the target, and functions that are in the cache folder already are taken.
    """
    if not engine_choice.is_compiled(setup.target.fast):
        return {}
    not_built = f"some functions are not in the cache folder; {engine_choice.to_compile()}"
    never = "" if setup.wish == "compiled" else not_built
    programs, words = compile_rows(setup.target, set(itertools.product(sizes, widths)), as_one, never)
    setup.reasons["engine"] += f"; texts side by side: {words}"
    if taken := sizes_of(programs):
        shapes = set(itertools.product(taken, range(1, MOST_TO_CATCH_UP + 1)))
        for draft in filter(None, map(shared_model, drafters)):
            found, words = compile_rows(draft, shapes, as_one)
            setup.reasons["engine"] += f"; those of the draft model: {words}"
            programs = {**programs, **found}
    return programs


def sizes_of(programs: Programs) -> set[int]:
    """Return the numbers of texts over which there are compiled passes."""
    return {n for shapes in programs.values() for n, _ in shapes}


def compile_rows(
    model: CachedModel, shapes: Collection[Shape], as_one: bool = False, never: str = ""
) -> tuple[Programs, str]:
    """Compile passes of these shapes; those over n texts are kept where they are faster, by the mean of their ratios.

    as_one: compile passes over one text of as many tokens, too; the costs of the others are predicted from them. They
    are not timed, because no decoding runs them. never: where this is given, nothing is built, and this says why a
    function is missing.
    -> for each number of texts all passes or none, and in a few words which numbers have some and why others have none
    """
    taken: dict[Shape, Compiled] = {}
    patience = engine_choice.PATIENCE / len(shapes)
    words: dict[str, list[str]] = {}  # the numbers of texts of which they are true
    for n in sorted({n for n, _ in shapes}):
        widths = sorted(width for of_texts, width in shapes if of_texts == n)
        found, why = _rows_of(model, n, widths, as_one, never, patience)
        # A pass over one text that only predicts is no reason to run a decoding of one text on compiled functions.
        taken |= {shape: run for shape, run in found.items() if shape[0] == n or 1 in {one for one, _ in taken}}
        words.setdefault(why, []).append(str(n))
    if not taken and engine_choice.can_compile(model.fast) and not engine_choice.is_compiled(model.fast):
        model.fast.forget_cut()
    in_words = "; ".join(f"{', '.join(numbers)} {why}" for why, numbers in words.items())
    return {model.fast: taken} if taken and model.fast else {}, in_words


def _rows_of(
    model: CachedModel, n_texts: int, widths: list[int], as_one: bool, never: str, patience: float
) -> tuple[dict[Shape, Compiled], str]:
    """Return the compiled passes over so many texts, none where they are no faster, and why in a few words.

    patience: seconds for the timing of each pass. The others are as in `compile_rows`.
    """
    if n_texts * widths[-1] > MOST_TOKENS:
        return {}, TOO_MANY
    shapes = [(n_texts, width) for width in widths]
    try:
        wanted = {*shapes, *((1, n_texts * width) for width in widths)} if as_one else shapes
        programs = checked_rows(model, wanted, never)
        [found] = programs.values()
        run = sorted({_padded_to(model, shape) for shape in shapes})
        times = [time_rows(model, programs, shape, patience=patience) for shape in run]
    except Exception as error:  # a compiler, or a model's own code, may raise any exception
        return {}, engine_choice.why_not_compiled(error)
    ratios = [min(ours) / min(theirs) for ours, theirs in times]
    if math.prod(ratios) ** (1 / len(ratios)) > engine_choice.WORTH_IT:
        return {}, engine_choice.AS_FAST_AS_KERNELS
    return dict(found), f"compiled for passes over {', '.join(str(width) for _, width in run)} tokens of each"


def _padded_to(model: CachedModel, shape: Shape) -> Shape:
    """Return the shape of the compiled pass: over one text, that of a pass that the engine has already, if any."""
    n, width = shape
    known = sorted(getattr(model.fast, "programs", ()))
    return n, next((wider for wider in known if n == 1 and wider >= width), width)


def checked_rows(model: CachedModel, shapes: Iterable[Shape], never: str = "") -> Programs:
    """Return compiled passes of these shapes; a pass over one text is padded to one that the engine has already.

    never: as in `compile_rows`. Raises NoFastBackend where there are none, EnvironmentProblem where one is wrong.
    """
    fast = model.fast
    if not engine_choice.can_compile(fast):
        raise NoFastBackend("that is made for float32 on a CPU")
    wanted = sorted({_padded_to(model, shape) for shape in shapes})
    rows = compiled.cut(rewrites.copied(exported_rows(fast)), fast.cut.blocks) if wanted[-1][0] > 1 else None
    found = engine_choice.found_or_built(functools.partial(_made, fast, rows, wanted), never)
    for shape, run in found.items():
        check_batch(model, shape[0], shape[1], {fast: {shape: run}})
    return {fast: found}


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
    model: CachedModel,
    programs: Programs,
    shape: Shape,
    passes: int = engine_choice.PASSES,
    patience: float = math.inf,
) -> tuple[list[float], list[float]]:
    """Return the seconds of passes of this shape after a short text, compiled and on the kernels, which take turns.

    After two turns it ends early where `patience` seconds have passed.
    """
    n_texts, width = shape
    batches = [BatchedModel(model, n_texts, programs=given) for given in (programs, None)]
    for batch in batches:
        batch.start(engine_choice.CONTEXT + width)
        batch.fill(seed=0)
    tokens = torch.zeros(n_texts, width, dtype=torch.long)
    times: tuple[list[float], list[float]] = [], []
    end = time.perf_counter() + patience
    for turn in range(passes):
        if turn >= 2 and time.perf_counter() > end:
            break
        for batch, taken in zip(batches, times, strict=True):
            batch.lengths = [engine_choice.CONTEXT] * n_texts
            taken.append(seconds(functools.partial(batch.forward, tokens), model.device))
    return times
