"""A learner's pure functions in the shape of the parts that they stand for: an accept rule, a drafter, a loop."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from draft_models import ModelDrafter
from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import Draft, Round, Target
from speclab.core.sampling import NOT_FINITE, Sampling, draw, most_probable, to_host
from speclab.drafts.lengths import AutoLength
from speclab.extensions.learner.ask import Impossible, ask, each, short, whole

FIRST_LENGTH = 4  # tokens of the first draft, before the rule of exercise 6 has seen a round


# --- the accept rule --------------------------------------------------------------------------------------------------


def accept_greedy(learner: ModuleType, draft: Draft, logits: Tensor) -> tuple[int, int]:
    """Exercise 2 on logits (1, n + 1, vocab).  -> n_accepted, next token"""
    own = to_host(most_probable(logits)[0])  # n + 1
    drafted = draft.tokens[0].tolist()
    n_accepted = ask(2, learner.count_accepted, drafted, own, check=whole(0, len(drafted)))
    return n_accepted, ask(2, learner.next_token, own, n_accepted, check=whole(0, logits.shape[-1] - 1))


def accept_sampled(
    number: int, rule: Callable, draft: Draft, target_probs: Tensor, uniforms: Tensor
) -> tuple[int, int]:
    """The rule of exercise 4 or 10 on probabilities (1, n + 1, vocab) and uniforms (1, at least n + 1).

    -> n_accepted, next token
    """
    drafted, vocab = draft.tokens[0].tolist(), target_probs.shape[-1]
    draft_probs = draft.probs
    if draft_probs is None:  # prompt lookup is certain of what it proposes
        draft_probs = torch.nn.functional.one_hot(draft.tokens, vocab).to(target_probs.dtype)
    if not (target_probs.isfinite().all() and draft_probs.isfinite().all()):
        return 0, NOT_FINITE  # the loop reports it

    def draw_one(probs: Tensor, uniform: float) -> int:
        """(vocab,) probabilities and a number in [0, 1) -> an id"""
        return int(draw(probs[None], uniforms.new_tensor([uniform]))[0])

    # Copies: the draft's were made in inference mode, where a learner's in-place step would be an error.
    numbers = uniforms[0, : len(drafted) + 1].tolist()
    pair = each("a pair (n_accepted, next token)", whole(0, len(drafted)), whole(0, vocab - 1))
    probs = (draft_probs[0].clone(), target_probs[0].clone())
    n_accepted, token = ask(number, rule, drafted, *probs, numbers, draw_one, check=pair)
    return n_accepted, token


# --- drafters ---------------------------------------------------------------------------------------------------------


class LearnerCatchUp(ModelDrafter):
    """A draft model that is rolled back and fed as exercise 3 says."""

    def __init__(self, drafter: ModelDrafter, keep: Callable[[int, int], int], catch_up: Callable):
        super().__init__(drafter.draft)
        self._keep, self._catch_up = keep, catch_up
        self._committed: list[int] = []

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """As the lab's, and remember the text."""
        super().prefill(target, prompt, sampling)
        # As many tokens as the cache holds; where it holds no prompt, they are never fed again.
        self._committed = prompt[0, : self.draft.length].tolist()

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Crop the draft's cache and ask what it lacks. Raises Problem where the answer is another.

        Too much or too little would be lossless and never seen in the text: only the draft would get worse.
        """
        self._committed += committed
        self._n_committed = len(self._committed)
        kept = self._keep(self.draft.length, self._n_committed)
        self.draft.crop(kept)
        self._not_fed = self._committed[kept:]
        ask(3, self._catch_up, self._committed, kept, check=self._check)

    def _check(self, answer: Any) -> None:
        """Is this what the draft's cache lacks?"""
        with contextlib.suppress(Exception):  # what is in it cannot be a whole number
            if isinstance(answer, list | tuple) and list(map(operator.index, answer)) == self._not_fed:
                return
        raise Impossible(f"{short(answer)}; missing in the draft's cache are {short(self._not_fed)}")


class CheckedDrafter(Drafter):
    """Exercise 7's drafter; what it proposes is looked at before the target is fed with it."""

    def __init__(self, make: Callable[[], Drafter]):
        self._inner, self._vocab_size = ask(7, make), 0

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Hand the prompt to the learner's drafter."""
        self._vocab_size = target.vocab_size
        ask(7, self._inner.prefill, target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """The learner's draft. Raises Problem where it has other shapes, kinds or ids than a draft can have."""
        return ask(7, self._inner.propose, k, uniforms, check=functools.partial(self._checked, k))

    def _checked(self, k: int, draft: Any) -> Draft:
        """The same draft, its size counted."""
        tokens: Any = getattr(draft, "tokens", None)
        probs: Any = getattr(draft, "probs", None)
        fits = isinstance(tokens, Tensor) and tokens.dtype == torch.long and tokens.ndim == 2 and tokens.shape[0] == 1
        if not fits or tokens.shape[1] > k or not ((tokens >= 0) & (tokens < self._vocab_size)).all():
            needed = f"ids of shape (1, n), n at most {k}, from 0 to {self._vocab_size - 1}"
            raise Impossible(f"{short(tokens)} as its tokens, not {needed}")
        n = tokens.shape[1]
        shape = (1, n, self._vocab_size)
        if probs is not None and not (isinstance(probs, Tensor) and probs.is_floating_point() and probs.shape == shape):
            given = f"{probs.dtype} of shape {tuple(probs.shape)}" if isinstance(probs, Tensor) else short(probs)
            raise Impossible(f"{given} as its probs, not None or floats of shape {shape}")
        return Draft(tokens, torch.full((1,), n, device=tokens.device), probs)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Tell the learner's drafter what was committed."""
        ask(7, self._inner.observe, n_accepted, committed)


class LearnerLength(Wrapper):
    """Around any drafter: exercise 6's rule chooses how long the next draft may be."""

    def __init__(self, drafter: Drafter, rule: Callable[[int, int, int, int], int], longest: int):
        self.drafter, self._rule, self._longest = drafter, rule, longest
        self._length = min(FIRST_LENGTH, longest)
        self._n_drafted: int | None = None  # None before the first round

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Begin a text with the first length."""
        self._length, self._n_drafted = min(FIRST_LENGTH, self._longest), None
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens, and no more than the rule said."""
        length = min(k, self._length)
        draft = self.drafter.propose(length, uniforms[:, :length])
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Ask the rule for the next length."""
        if self._n_drafted is not None:
            args = (self._length, self._n_drafted, n_accepted, self._longest)
            self._length = ask(6, self._rule, *args, check=whole(0, self._longest))
        self.drafter.observe(n_accepted, committed)


class LearnerStop(AutoLength):
    """`-k auto` in which exercise 9's rule says after each token whether to draft another one."""

    def __init__(self, drafter: AutoLength, rule: Callable[[list[float], list[float], list[float], float], bool]):
        super().__init__(drafter.drafter)
        self.costs, self.seen, self._rule = drafter.costs, drafter.seen, rule

    def _pays(self, probability: float) -> bool:
        self._probabilities.append(probability)
        costs, drawn = self.costs[self._temperature], [self._acceptance.given(one) for one in self._probabilities]
        if len(drawn) >= self._last:
            return False
        later = self._chain[len(drawn) : self._last]
        seconds = [costs.seconds(n) for n in range(self._last + 1)]
        return ask(9, self._rule, drawn, later, seconds, self._rate, check=bool)


# --- the loop ---------------------------------------------------------------------------------------------------------


def whole_loop(decode: Callable[..., Iterator[Round]], *args, **_) -> Iterator[Round]:
    """Exercise 8's `decode`, called as the lab's loop is; every round is asked for by itself."""
    rounds = ask(8, decode, *args)

    def next_round(*_):
        return next(rounds, None)

    next_round.__qualname__ = "decode"  # as a Problem names it
    while (round_ := ask(8, next_round, *args, lab_inside=True)) is not None:
        yield round_
