"""The parts of the lab's loops that exercises stand for: LoopFunctions in which these parts are the learner's.

A learner's function is asked on the run's own data, and what it answers is looked at before the loop gets it. Its
checks have passed, so only these data show a mistake. An exception, an impossible answer and a loop without an end
become one line that names the function and its arguments. A possible but wrong answer makes a wrong text.
"""

import contextlib
import math
import operator
import reprlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter, NgramDrafter
from exercises import guard
from exercises.guard import NeverEnds, at_most, in_one_line, promises_a_value
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.clock import old_objects_frozen, synchronize
from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import AcceptResult, DecodeSettings, Draft, Round, Target
from speclab.core.rules import TOKEN, Rule
from speclab.core.sampling import Sampling, draw, most_probable, to_host
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength
from speclab.lab.instruments import LoopFunctions
from speclab.models.cached import tokens_to_keep
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import Problem, UsageProblem
from speclab.theory.losslessness import judge_divergence

ROLES = {  # what an exercise decides in a run, and the field of LoopFunctions that says so
    0: ("the baseline's rate", "is_right"),
    1: ("the shapes", "shapes"),
    2: ("greedy verification", "accept"),
    3: ("which tokens stay, and catch-up", "keeps"),
    4: ("verification when sampling", "accept"),
    5: ("a prediction for every row", "look_at"),
    6: ("the draft length", "adapt"),
    7: ("the n-gram drafter", "adapt"),
    8: ("the whole loop", "decode"),
    9: ("when a draft stops", "adapt"),
    10: ("verification when sampling, all drafts together", "rule"),
}
WHOLE_LOOP, BLOCK_RULE = 8, 10  # they take the places of all others, and of exercise 4
TOGETHER = Rule("block", accept_from_logits, "drafted tokens are judged together (block verification)")
Check = Callable[[Any], Any]  # makes a value of the lab's own of an answer, or raises Impossible


class Impossible(Exception):
    """An answer that cannot be: what it was, and what was needed."""


def ask(number: int, function: Callable, *args, check: Check | None = None, lab_inside: bool = False) -> Any:
    """Call a function of exercise `number`, with copies of lists, which it may use up; whatever goes wrong in it is a
    Problem of one line. lab_inside: the lab's own passes run within this call, which may take ten times longer."""
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
    name, arguments = getattr(function, "__qualname__", str(function)), ", ".join(map(short, args)) or "none"
    again = f"its arguments were {arguments}; call it with them to see it again"
    raise Problem(f"exercise {number}: {name} {what} -- on real data; {again}")


def whole(smallest: int, largest: int) -> Check:
    """For `ask`: a whole number between two others, numpy's and torch's included."""

    def check(answer: Any) -> int:
        with contextlib.suppress(Exception):  # TypeError, or whatever a learner's class raises
            if smallest <= operator.index(answer) <= largest:
                return operator.index(answer)
        raise Impossible(f"{short(answer)}, not a whole number from {smallest} to {largest}")

    return check


def finite(answer: Any) -> float:
    """For `ask`: a finite number, a fraction and a tensor of one included; text is none."""
    with contextlib.suppress(Exception):
        if math.isfinite(answer):
            return float(answer)
    raise Impossible(f"{short(answer)}, not a finite number")


def each(what: str, *checks: Check) -> Check:
    """For `ask`: a tuple or a list, with a check for each of its items. `what` says in words what it should be."""

    def check(answer: Any) -> list:
        if not isinstance(answer, tuple | list) or len(answer) != len(checks):
            raise Impossible(f"{short(answer)}, not {what}")
        return [check_item(item) for check_item, item in zip(checks, answer, strict=True)]

    return check


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = 24
_SHORT.maxother = _SHORT.maxstring = 60


def short(x: Any) -> str:
    """Show an argument so that a learner can type it in again; a long text keeps its beginning, a tensor its shape."""
    if isinstance(x, Tensor):
        return f"a tensor of shape {tuple(x.shape)}"
    return f"the function {getattr(x, '__name__', type(x).__name__)}" if callable(x) else _SHORT.repr(x)


@dataclass(frozen=True)
class Learner:
    """The functions of somebody's exercises in place of the lab's. package: the folder of the modules, which have the
    numbers of the exercises that are in use."""

    package: str
    modules: dict[int, ModuleType]

    def functions(self) -> LoopFunctions:
        modules = self.modules
        return LoopFunctions(
            self.decode if WHOLE_LOOP in modules else speculative_decode,
            accept=self.accept,
            keeps=self.keeps if 3 in modules else tokens_to_keep,
            adapt=self.adapt,
            rule=TOGETHER if BLOCK_RULE in modules else TOKEN,  # what a run says of `accept`
            shapes=partial(ask, 1, modules[1].shapes) if 1 in modules else None,
            is_right=self.is_right,
            about=f"from {self.package}/: " + ", ".join(f"{n} ({ROLES[n][0]})" for n in modules),
        )

    def decode(self, *args, **_) -> Iterator[Round]:
        """Exercise 8's `decode`, called as the lab's loop is; every round is asked for by itself."""
        rounds = ask(8, self.modules[8].decode, *args)

        def next_round(*_):
            return next(rounds, None)

        next_round.__qualname__ = "decode"  # as a Problem names it
        yield from iter(lambda: ask(8, next_round, *args, lab_inside=True), None)

    def accept(self, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        """Judge by exercise 2 on greedy rows, 4 or 10 on sampled ones, the lab's rule where it is not in use. logits:
        (1, n + 1, vocab). uniforms: (1, at least n + 1)."""
        number = 2 if sampling.greedy else BLOCK_RULE if BLOCK_RULE in self.modules else 4
        if number not in self.modules:
            return accept_from_logits(draft, logits, sampling, uniforms)
        learner, drafted, vocab = self.modules[number], draft.tokens[0].tolist(), logits.shape[-1]
        a_count, an_id = whole(0, len(drafted)), whole(0, vocab - 1)
        if sampling.greedy:
            own = to_host(most_probable(logits)[0])  # n + 1
            n_accepted = ask(2, learner.count_accepted, drafted, own, check=a_count)
            found = [n_accepted, ask(2, learner.next_token, own, n_accepted, check=an_id)]
        else:
            target_probs, draft_probs = sampling.probs(logits), draft.probs
            if draft_probs is None:  # prompt lookup is certain of what it proposes
                draft_probs = torch.nn.functional.one_hot(draft.tokens, vocab).to(target_probs.dtype)

            def draw_one(probs: Tensor, uniform: float) -> int:
                return int(draw(probs[None], uniforms.new_tensor([uniform]))[0])

            rule = learner.verify_draft if number == 4 else learner.verify_block
            # Copies: the draft's were made in inference mode, where a learner's in-place step would be an error.
            probs, numbers = (draft_probs[0].clone(), target_probs[0].clone()), uniforms[0, : len(drafted) + 1].tolist()
            pair = each("a pair (n_accepted, next token)", a_count, an_id)
            found = ask(number, rule, drafted, *probs, numbers, draw_one, check=pair)
        return AcceptResult(*torch.tensor(found, device=logits.device)[:, None])

    def keeps(self, n_cached: int, n_committed: int) -> int:
        """Exercise 3's rule for a cache of `n_cached` tokens."""
        return ask(3, self.modules[3].tokens_to_keep, n_cached, n_committed, check=whole(0, n_cached))

    def adapt(self, drafter: Drafter, longest: int | None = None) -> Drafter:
        """The drafter of one decoding: exercise 7 in place of the n-grams, 3 feeding a model, 9 where a draft chooses
        its length, 6 around any of them where `longest` says up to which it may choose. Derived classes are others."""
        modules, kind = self.modules, type(drafter)
        if WHOLE_LOOP in modules and drafter.runs_target:
            raise UsageProblem("the loop of exercise 8 verifies with whole passes; use another --draft")
        if kind is NgramDrafter and 7 in modules:
            drafter = CheckedDrafter(modules[7].MyDrafter)
        elif kind is ModelDrafter and 3 in modules:
            drafter = LearnerCatchUp(drafter, self)
        elif kind in (HybridDrafter, AutoLength):
            wrapper: Any = drafter
            wrapper.drafter = self.adapt(wrapper.drafter)
            if 9 in modules and kind is AutoLength and wrapper.chooses_length and wrapper.drafter.asks_to_go_on:
                wrapper._pays = partial(pays, wrapper, modules[9].keep_drafting)
        if 6 in modules and longest is not None:
            drafter = LearnerLength(drafter, modules[6].next_draft_length, longest)
        return drafter

    @old_objects_frozen()
    def is_right(self, setup: Setup, prompt: Prompt, settings: DecodeSettings, tokens: list[int]) -> bool:
        """Print exercise 0's numbers of another decoding, or hold a greedy text against the baseline's."""

        def decode() -> Iterator[int]:
            rounds = autoregressive_decode(setup.target, prompt.ids.to(setup.device), settings, setup.chunk)
            return (token for round_ in rounds for token in round_.tokens)

        if 0 in self.modules:
            learner, three = self.modules[0], each("three numbers", finite, finite, finite)
            args = decode, time.perf_counter, partial(synchronize, setup.device), 1
            prefill, decoding, n = ask(0, learner.time_decoding, *args, check=three, lab_inside=True)
            speed = ask(0, learner.tokens_per_second, round(n), decoding, check=finite)
            took = f"prefill {prefill:.3f} s, decoding {decoding:.2f} s"
            print(f"yours, after a warm-up: {n:g} tokens, {took}: {speed:.1f} tok/s")
            return True
        if not settings.sampling.greedy:
            print("a sampled text has no baseline to equal; compare.py with the same flags judges many of them")
            return True
        found = judge_divergence(setup.reference, prompt.id_list, list(decode()), tokens, setup.target.vocab_size)
        if found and not found.numerical:
            whose = f"decided by {self.package} {', '.join(map(str, self.modules))}"
            print(f"WRONG TEXT: from new token {found.position} on it is not the baseline's; {whose}")
            return False
        print("the baseline's text: identical" + " but where logits are equal" * bool(found))
        return True


def pays(drafter: Any, rule: Callable[..., bool], probability: float) -> bool:
    """Exercise 9's rule in `-k auto`: after a token of this probability it says whether to draft another one."""
    drafter._probabilities.append(probability)
    costs, last = drafter.costs[drafter.temperature], drafter._last
    drawn = [drafter.acceptance.given(one).rate for one in drafter._probabilities]
    if len(drawn) >= last:
        return False
    later, seconds = drafter._chain[len(drawn) : last], [costs.seconds(n) for n in range(last + 1)]
    return ask(9, rule, drawn, later, seconds, drafter._rate, check=bool)


class LearnerCatchUp(ModelDrafter):
    """A draft model that is rolled back and fed as exercise 3 says. Too much or too little would never be seen in the
    text: only the draft would get worse. So the answer has to be what the draft's cache lacks."""

    def __init__(self, drafter: Any, learner: Learner):
        super().__init__(drafter.draft)
        self._learner, self._committed = learner, list[int]()

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        # As many tokens as the cache holds; where it holds no prompt, they are never fed again.
        self._committed = prompt[0, : self.draft.length].tolist()

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._committed += committed
        self._n_committed = len(self._committed)
        kept = self._learner.keeps(self.draft.length, self._n_committed)
        self.draft.crop(kept)
        self._not_fed = lacks = self._committed[kept:]
        exactly = each(f"what the draft's cache lacks: {short(lacks)}", *(whole(one, one) for one in lacks))
        ask(3, self._learner.modules[3].catch_up, self._committed, kept, check=exactly)


class CheckedDrafter(Drafter):
    """Exercise 7's drafter; what it proposes is looked at before the target is fed with it."""

    def __init__(self, make: Callable[[], Drafter]):
        self._inner, self._vocab_size = ask(7, make), 0

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._vocab_size = target.vocab_size
        ask(7, self._inner.prefill, target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        def checked(draft: Any) -> Draft:  # a lookup is certain of what it proposes: no probabilities are taken from it
            tokens: Any = getattr(draft, "tokens", None)
            last = self._vocab_size - 1
            found = tokens[0].tolist() if isinstance(tokens, Tensor) and tokens.shape[:1] == (1,) else [-1]
            if len(found) > k or not all(isinstance(one, int) and 0 <= one <= last for one in found):
                raise Impossible(f"{short(tokens)} as its tokens, not ids of shape (1, n), n <= {k}, from 0 to {last}")
            return Draft(tokens, torch.full((1,), len(found), device=tokens.device))

        return ask(7, self._inner.propose, k, uniforms, check=checked)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        ask(7, self._inner.observe, n_accepted, committed)


class LearnerLength(Wrapper):
    """Around any drafter: exercise 6's rule chooses how long the next draft may be."""

    def __init__(self, drafter: Drafter, rule: Callable[[int, int, int, int], int], longest: int):
        self.drafter, self._rule, self._longest = drafter, rule, longest

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._length, self._n_drafted = min(4, self._longest), -1  # before the rule has seen a round
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        length = min(k, self._length)
        draft = self.drafter.propose(length, uniforms[:, :length])
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        if self._n_drafted >= 0:
            args = (self._length, self._n_drafted, n_accepted, self._longest)
            self._length = ask(6, self._rule, *args, check=whole(0, self._longest))
        self.drafter.observe(n_accepted, committed)
