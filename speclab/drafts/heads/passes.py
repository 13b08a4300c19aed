"""The passes of a head in a draft: its own functions, or the same ones compiled.

A compiled function serves a fixed number of tokens, and buffers of whole blocks of rows; fewer tokens are padded behind
the last one. No row reads the padding, and the next pass overwrites it.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from speclab.models.backends import packages
from speclab.models.backends.compile_functions import BLOCK
from speclab.models.backends.compiled import whole_function
from speclab.models.engine_choice import build_missing
from speclab.models.family import NoFastBackend
from speclab.system.errors import first_line

TOLERANCE = 1e-4  # of the largest number: sums in float32 in another order, over several products
NO_FASTER = "the kernels one by one are as fast"
TRIES = 9  # of each function; the fastest counts


class HeadPass(NamedTuple):
    """A function of the head for `width` tokens. block: the number of rows of which it reads a multiple."""

    run: Callable[..., Any]
    width: int
    block: int

    def n_rows(self, total: int) -> int:
        """Return the number of rows to hand over where the pass ends with token `total`."""
        return -(-total // self.block) * self.block

    @property
    def is_masked(self) -> bool:
        """Tell whether there may be rows that it must not read. A compiled function always takes a mask."""
        return self.block > 1

    def padded(self, x: Tensor) -> Tensor:
        """Pad (1, m, ...) to (1, width, ...)."""
        more = self.width - x.shape[1]
        return pad(x, (0, 0) * (x.ndim - 2) + (0, more)) if more else x

    def __call__(self, *inputs: Any) -> Any:
        """Run the pass."""
        return self.run(*inputs)


def head_pass(head: Any, step: str, n_tokens: int) -> HeadPass:
    """Return the function of that name for so many tokens: compiled for them or for a few more, or as it is."""
    compiled = [width for name, width in head.compiled if name == step and width >= n_tokens]
    if compiled:
        return HeadPass(head.compiled[step, min(compiled)], min(compiled), BLOCK)
    return HeadPass(getattr(head, step), n_tokens, 1)


class _Step(nn.Module):
    """A function of a head as a module."""

    def __init__(self, head: nn.Module, step: str):
        super().__init__()
        self.head, self.step = head, step

    def forward(self, *inputs: Tensor) -> Any:
        """Call the function."""
        return getattr(self.head, self.step)(*inputs)


def compile_steps(head: Any, widths: dict[str, tuple[int, ...]], find: packages.Find) -> dict | None:
    """Return the compiled functions of a head by (name, width); None where `find` lacks one.

    widths: of each function, the numbers of tokens to compile it for.
    """
    made = {}
    sizes_of_head = {size for part in head.state_dict().values() for size in part.shape}
    n_rows = next(n for n in itertools.count(2 * BLOCK, BLOCK) if n not in sizes_of_head)
    for step, numbers in widths.items():
        with torch.no_grad():
            getattr(head, step)(*head.example(step, 1, BLOCK))  # makes what is made at the first use
        for width in numbers:
            inputs = head.example(step, width, n_rows)
            sizes = [[i for i, size in enumerate(tensor.shape) if size == n_rows] for tensor in inputs]
            made[step, width] = whole_function(_Step(head, step), inputs, sizes, torch.get_num_threads(), find)
    return made if all(made.values()) else None


def use_compiled(head: Any, widths: dict[str, tuple[int, ...]]) -> str:
    """Compile functions of a frozen head, check each against the head's own, and keep those that are faster.

    widths: as in `compile_steps`.  -> why there are none, in a few words; "" where there are some
    """
    if head.norm.weight.dtype != torch.float32 or head.norm.weight.device.type != "cpu":
        return "that is made for float32 on a CPU"
    try:
        missing = packages.Missing()
        made = compile_steps(head, widths, missing)
        if missing:
            build_missing(missing)
            made = compile_steps(head, widths, packages.in_folder)
        if made is None:
            return "a compiled function cannot be loaded"
        own = {key: getattr(head, key[0]) for key in made}
        head.compiled = {key: run for key, run in made.items() if _is_right_and_faster(head, key, run, own[key])}
    except Exception as error:  # a compiler may raise any exception
        return str(error) if isinstance(error, NoFastBackend) else f"{type(error).__name__}: {first_line(error)}"
    return "" if head.compiled else NO_FASTER


@torch.inference_mode()
def _is_right_and_faster(head: Any, key: tuple[str, int], run: Callable, own: Callable) -> bool:
    """Compare a compiled function with the head's own, in what it gives and writes and in time.

    Raises NoFastBackend where they differ by more than rounding explains.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(x.shape, generator=generator) if x.is_floating_point() else x for x in head.example(*key, 2 * BLOCK)
    ]
    seconds: dict[Callable, list[float]] = {own: [], run: []}
    results = {}
    for function in (own, run):
        tensors = [x.clone() for x in inputs]
        given = function(*tensors)
        results[function] = [*(given if isinstance(given, list | tuple) else [given]), *tensors]
    for right, found in zip(results[own], results[run], strict=True):
        if not bool((right - found).abs().max() <= TOLERANCE * right.abs().max()):
            raise NoFastBackend("a compiled function gives other numbers")
    for _ in range(TRIES):
        for function, times in seconds.items():
            start = time.perf_counter()
            function(*inputs)
            times.append(time.perf_counter() - start)
    return min(seconds[run]) < min(seconds[own])
