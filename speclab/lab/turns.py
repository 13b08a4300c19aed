"""Arms take turns, so that a slow second of the machine meets all of them alike.

This knows neither texts nor batches nor servers. An arm at work advances by a step, which is a round of a text, a pass
over a batch or a request to a server, and says how far it is.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from speclab.core.clock import old_objects_frozen
from speclab.engines.cuda import graphs


class AtWork(Protocol):
    """An arm at work."""

    @property
    def done(self) -> bool:
        """Tell whether nothing is left to do."""
        ...

    @property
    def progress(self) -> float:
        """Tell how far it is, in a unit that all arms of a turn share: tokens of a text, for example."""
        ...

    def advance(self) -> None:
        """Do the next step, and book its seconds."""
        ...


Work = TypeVar("Work", bound=AtWork)
Turn = TypeVar("Turn")


def take_turns(arms: Sequence[Work], after_step: Callable[[Work], None] | None = None, stride: float = 0.0) -> None:
    """Finish them all; the one that is least far goes next, the first of the sequence among equals.

    after_step: what is called between two steps, with the arm that has advanced. stride: how far an arm goes, at least
    one step, before the next one is chosen.
    """
    while waiting := [arm for arm in arms if not arm.done]:
        moved = min(waiting, key=lambda arm: arm.progress)
        goal = moved.progress + stride
        while True:
            moved.advance()
            if after_step:
                after_step(moved)
            if moved.done or moved.progress >= goal:
                break


def once_or_twice(
    turns: Sequence[Turn], is_enough: Callable[[], bool], begin_again: Callable[[], None]
) -> Iterator[tuple[Turn, bool]]:
    """Give every turn once; and where what was measured is not enough, every turn once more in the same order.

    Whoever stops at the first good moment measures luck, so nobody asks in between. is_enough: what is asked after the
    last planned turn. begin_again: what is called before the first further one.

    -> each turn, and whether it is one that was there before
    """
    yield from ((turn, False) for turn in turns)
    if is_enough():
        return
    begin_again()
    yield from ((turn, True) for turn in turns)


@dataclass
class Recorded:
    """The number of CUDA graphs that were recorded before the first turn, and in turns, where there should be none."""

    before: int = 0
    in_turns: int = 0


@contextlib.contextmanager
def timed_turns(recorded: Recorded, warm_up: Callable[[], None]) -> Iterator[None]:
    """Warm up; inside, the clock may count: no long collection of garbage falls there.

    The graphs are counted in `recorded`, also where something ends the turns early.
    """
    n_before = graphs.captures.n
    warm_up()
    n_warm = graphs.captures.n
    recorded.before = n_warm - n_before
    with old_objects_frozen():
        try:
            yield
        finally:
            recorded.in_turns = graphs.captures.n - n_warm
