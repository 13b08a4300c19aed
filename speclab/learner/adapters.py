"""A learner's pure functions in the shape of the parts that they stand for: a verify, a rollback, a drafter.

What a function answers is looked at before the loop gets it. An exception, an impossible answer and a loop without an
end are one line that names the function and what it was called with: the checks have passed, so only the run's own
data shows the mistake. A possible but wrong answer makes a wrong text, and the run's comparison with the baseline
reports that.
"""

import math
import operator
import reprlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from draft_models import ModelDrafter
from speclab.core.rounds import Draft, Drafter
from speclab.core.sampling import NOT_FINITE, Sampling, draw, to_host
from speclab.learner.guard import CLOCK, SECONDS, NeverEnds, at_most, in_one_line, never_ended, promises_a_value
from speclab.models.cached import CachedModel
from speclab.system.errors import Problem

FIRST_LENGTH = 4  # tokens of the first draft, before the rule of exercise 6 has seen a round


def ask(number: int, function: Callable, *args, lab_inside: bool = False) -> Any:
    """Call the learner's function; whatever goes wrong in it becomes one line.

    It may take as long as in its checks. `lab_inside`: the lab's own passes run within this call, on all threads; an
    argument of the kind `Steps` may then wind the alarm up again. Lists are handed over as copies: a function that uses
    one up misleads neither the run nor the line.
    """
    # A pass works on every thread, and the first one may read the weights from a slow disk.
    threads, patience = (torch.get_num_threads(), 10) if lab_inside else (1, 1)
    try:
        with at_most(SECONDS["call"] * threads, CLOCK["call"] * patience) as wind_up:
            for arg in args:
                if isinstance(arg, Steps):
                    arg.wind_up = wind_up
            answer = function(*(list(arg) if isinstance(arg, list) else arg for arg in args))
    except (Problem, KeyboardInterrupt):
        raise
    except NeverEnds as error:
        raise stopped(number, function, f"is {never_ended(error)}", args) from None
    except BaseException as error:  # SystemExit and a learner's own kinds too
        raise stopped(number, function, f"raised {in_one_line(error)}", args) from error
    if answer is None and promises_a_value(function):
        raise stopped(number, function, "returned None; did you forget `return`?", args)
    return answer


class Steps:
    """A decoding that a learner's function may start and walk through; the alarm is wound up again at every step."""

    def __init__(self, start: Callable):
        self._start = start
        self.wind_up: Callable[[], None] = lambda: None

    def __call__(self):
        for step in self._start():
            self.wind_up()
            yield step


def stopped(number: int, function: Callable, what: str, args: tuple) -> Problem:
    """One line: which function did what, with which arguments."""
    name = getattr(function, "__qualname__", str(function))
    given = ", ".join(map(short, args)) or "none"
    again = f"its arguments were {given}; call it with them to see it again"
    return Problem(f"exercise {number}: {name} {what} -- on real data; {again}")


class _Short(reprlib.Repr):
    """Arguments that a learner can type in again; a long text keeps its two ends, a tensor only its shape."""

    def __init__(self):
        super().__init__()
        self.maxlist = self.maxtuple = 24
        self.maxother = self.maxstring = 60

    def repr_list(self, x: list, level: int) -> str:
        if len(x) <= self.maxlist:
            return super().repr_list(x, level)
        ends = [", ".join(self.repr1(i, level - 1) for i in part) for part in (x[:8], x[-8:])]
        return f"[{ends[0]}, ..., {ends[1]}] ({len(x)} of them)"

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, Tensor):
            return f"a tensor of shape {tuple(x.shape)}"
        if callable(x):
            return f"the function {getattr(x, '__name__', type(x).__name__)}"
        if type(x).__repr__ is object.__repr__:
            return f"a {type(x).__name__}"
        return super().repr1(x, level)


short = _Short().repr


def in_range(number: int, function: Callable, smallest: int, largest: int, *args) -> int:
    """Ask a function whose answer must be a whole number between two others."""
    answer = ask(number, function, *args)
    return within(number, function, answer, smallest, largest, args)


def within(number: int, function: Callable, answer: Any, smallest: int, largest: int, args: tuple) -> int:
    """A whole number between two others, numpy's and torch's included, or a Problem."""
    try:
        whole = operator.index(answer)
    except Exception:  # TypeError, or whatever a learner's class raises
        whole = smallest - 1
    if not smallest <= whole <= largest:
        said = f"returned {short(answer)}, not a whole number from {smallest} to {largest}"
        raise stopped(number, function, said, args)
    return whole


def finite(number: int, function: Callable, *args) -> float:
    """Ask a function whose answer must be a finite number; a fraction or a tensor of one becomes a float."""
    answer = ask(number, function, *args)
    value = as_float(answer)
    if value is None:
        raise stopped(number, function, f"returned {short(answer)}, not a finite number", args)
    return value


def as_float(answer: Any) -> float | None:
    """None for text, and for whatever else is no finite number."""
    try:
        value = math.nan if isinstance(answer, str) else float(answer)
    except Exception:  # TypeError, RuntimeError of a tensor of several, or whatever a learner's class raises
        return None
    return value if math.isfinite(value) else None


# --- verification ----------------------------------------------------------------------------------------------------


def greedy_verdict(mine: ModuleType, draft: Draft, logits: Tensor) -> tuple[int, int]:
    """Exercise 2 on logits (1, n + 1, vocab).  -> n_accepted, next token"""
    highest, own = logits[0].max(-1)  # (n + 1,)
    own = to_host(torch.where(highest.isfinite(), own, NOT_FINITE))
    drafted = draft.tokens[0].tolist()
    n_accepted = in_range(2, mine.count_accepted, 0, len(drafted), drafted, own)
    return n_accepted, in_range(2, mine.next_token, 0, logits.shape[-1] - 1, own, n_accepted)


def sampled_verdict(mine: ModuleType, draft: Draft, target_probs: Tensor, uniforms: Tensor) -> tuple[int, int]:
    """Exercise 4 on probabilities (1, n + 1, vocab) and uniforms (1, n + 1).  -> n_accepted, next token"""
    drafted, vocab = draft.tokens[0], target_probs.shape[-1]
    draft_probs = draft.probs
    if draft_probs is None:  # prompt lookup is certain of what it proposes
        draft_probs = torch.nn.functional.one_hot(draft.tokens, vocab).to(target_probs.dtype)
    if not (target_probs.isfinite().all() and draft_probs.isfinite().all()):
        return 0, NOT_FINITE  # the loop says so in its own words

    def draw_one(probs: Tensor, uniform: float) -> int:
        """(vocab,) probabilities and a number in [0, 1) -> an id"""
        return int(draw(probs[None], uniforms.new_tensor([uniform]))[0])

    # Copies: the draft's were made in inference mode, where a learner's in-place step would be refused.
    args = (
        drafted.tolist(),
        draft_probs[0].clone(),
        target_probs[0].clone(),
        uniforms[0, : len(drafted) + 1].tolist(),
        draw_one,
    )
    rule = mine.verify_draft
    answer = ask(4, rule, *args)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise stopped(4, rule, f"returned {short(answer)}, not a pair (n_accepted, next token)", args)
    n_accepted, token = answer
    return within(4, rule, n_accepted, 0, len(drafted), args), within(4, rule, token, 0, vocab - 1, args)


# --- drafters --------------------------------------------------------------------------------------------------------


class TheirCatchUp(ModelDrafter):
    """A draft model that is rolled back and fed as exercise 3 says."""

    def __init__(self, drafter: ModelDrafter, keep: Callable[[int, int], int], catch_up: Callable):
        super().__init__(drafter.draft)
        self._keep, self._catch_up = keep, catch_up
        self._committed: list[int] = []

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._committed = prompt[0].tolist()

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._committed += committed
        self._n_committed = len(self._committed)
        kept = self._keep(self.draft.length, self._n_committed)
        self.draft.crop(kept)
        args, missing = (self._committed, kept), self._committed[kept:]
        answer = ask(3, self._catch_up, *args)
        # Too much or too little would be lossless and never seen in the text: only the draft would get worse.
        try:
            same = isinstance(answer, list | tuple) and list(map(operator.index, answer)) == missing
        except Exception:  # what is in it cannot be a whole number
            same = False
        if not same:
            said = f"returned {short(answer)}; missing in the draft's cache are {short(missing)}"
            raise stopped(3, self._catch_up, said, args)
        self._not_fed = missing


class TheirDrafter:
    """Exercise 7's drafter; what it proposes is looked at before the target is fed with it."""

    def __init__(self, kind: Callable[[], Drafter]):
        self._inner, self._vocab_size = ask(7, kind), 0

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._vocab_size = target.vocab_size
        ask(7, self._inner.prefill, target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        draft = ask(7, self._inner.propose, k, uniforms)
        tokens = getattr(draft, "tokens", None)
        fine = isinstance(tokens, Tensor) and tokens.dtype == torch.long and tokens.ndim == 2 and tokens.shape[0] == 1
        if not fine or tokens.shape[1] > k or not ((tokens >= 0) & (tokens < self._vocab_size)).all():
            what = f"ids of shape (1, n), n at most {k}, from 0 to {self._vocab_size - 1}"
            raise stopped(7, self._inner.propose, f"returned {short(tokens)} as its tokens, not {what}", (k, uniforms))
        n, probs = tokens.shape[1], getattr(draft, "probs", None)
        shape = (1, n, self._vocab_size)
        fine = isinstance(probs, Tensor) and probs.is_floating_point() and probs.shape == shape
        if probs is not None and not fine:
            got = f"{probs.dtype} of shape {tuple(probs.shape)}" if isinstance(probs, Tensor) else short(probs)
            said = f"returned {got} as its probs, not None or floats of shape {shape}"
            raise stopped(7, self._inner.propose, said, (k, uniforms))
        return Draft(tokens, torch.full((1,), n, device=tokens.device), probs)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        ask(7, self._inner.observe, n_accepted, committed)


class TheirLength:
    """Around any drafter: exercise 6's rule chooses how long the next draft may be."""

    def __init__(self, drafter: Drafter, rule: Callable[[int, int, int, int], int], longest: int):
        self._drafter, self._rule, self._longest = drafter, rule, longest
        self._length = min(FIRST_LENGTH, longest)
        self._n_drafted: int | None = None  # None before the first round

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._length, self._n_drafted = min(FIRST_LENGTH, self._longest), None
        self._drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        length = min(k, self._length)
        draft = self._drafter.propose(length, uniforms[:, :length])
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        if self._n_drafted is not None:
            went = (self._length, self._n_drafted, n_accepted, self._longest)
            self._length = in_range(6, self._rule, 0, self._longest, *went)
        self._drafter.observe(n_accepted, committed)
