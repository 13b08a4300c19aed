"""Ask a learner's function on a run's own data, and look at what it answers before the loop gets it.

An exception, an impossible answer and a loop without an end are one line that names the function and what it was called
with: the checks have passed, so only the run's own data shows the mistake. A possible but wrong answer makes a wrong
text, and the run's comparison with the baseline reports that.
"""

import contextlib
import math
import operator
import reprlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

from exercises import guard
from exercises.guard import NeverEnds, at_most, in_one_line, promises_a_value
from speclab.system.errors import Problem

Check = Callable[[Any], Any]
"""makes a value of the lab's own of an answer, or raises Impossible"""


class Impossible(Exception):
    """An answer that cannot be: what it was, and what was needed."""


def ask(number: int, function: Callable, *args, check: Check | None = None, lab_inside: bool = False) -> Any:
    """Call a function of exercise `number`; whatever goes wrong in it is a Problem of one line.

    lab_inside: the lab's own passes run within this call, which may take ten times longer. Lists are handed over as
    copies: a function that uses one up misleads neither the run nor the line.
    """
    try:
        with at_most(guard.SECONDS * (10 if lab_inside else 1)):
            answer = function(*(list(arg) if isinstance(arg, list) else arg for arg in args))
            if answer is None and promises_a_value(function):
                raise Impossible("None; did you forget `return`?")
            return check(answer) if check else answer  # an answer's own methods are a learner's code too
    except (Problem, KeyboardInterrupt):
        raise
    except NeverEnds as error:
        what = f"is {in_one_line(error)}"
    except Impossible as error:
        what = f"returned {error}"
    except BaseException as error:  # SystemExit and a learner's own kinds too
        what = f"raised {in_one_line(error)}"
    name = getattr(function, "__qualname__", str(function))
    arguments = ", ".join(map(short, args)) or "none"
    raise Problem(
        f"exercise {number}: {name} {what} -- on real data; its arguments were {arguments}; "
        "call it with them to see it again"
    )


def _number(fits: Check, convert: Check, what: str) -> Check:
    def check(answer: Any) -> Any:
        with contextlib.suppress(Exception):  # TypeError, or whatever a learner's class raises
            if fits(answer):
                return convert(answer)
        raise Impossible(f"{short(answer)}, not {what}")

    return check


def whole(smallest: int, largest: int) -> Check:
    """For `ask`: a whole number between two others, numpy's and torch's included."""
    what = f"a whole number from {smallest} to {largest}"
    return _number(lambda answer: smallest <= operator.index(answer) <= largest, operator.index, what)


finite = _number(math.isfinite, float, "a finite number")  # a fraction and a tensor of one included; text is none


def each(what: str, *checks: Check) -> Check:
    """For `ask`: a tuple or a list, with a check for each of its items. `what` says in words what it should be."""

    def check(answer: Any) -> list:
        if not isinstance(answer, tuple | list) or len(answer) != len(checks):
            raise Impossible(f"{short(answer)}, not {what}")
        return [check_item(item) for check_item, item in zip(checks, answer, strict=True)]

    return check


class _Short(reprlib.Repr):
    """Arguments that a learner can type in again; a long text keeps its beginning, a tensor only its shape."""

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, Tensor):
            return f"a tensor of shape {tuple(x.shape)}"
        return f"the function {getattr(x, '__name__', type(x).__name__)}" if callable(x) else super().repr1(x, level)


_SHORT = _Short()
_SHORT.maxlist = _SHORT.maxtuple = 24
_SHORT.maxother = _SHORT.maxstring = 60
short = _SHORT.repr
