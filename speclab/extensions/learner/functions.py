"""The parts of the lab's loops that exercises stand for: LoopFunctions in which these parts are the learner's."""

import functools
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.accept import accept_from_logits
from speclab.core.clock import old_objects_frozen, synchronize
from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import AcceptResult, DecodeSettings, Draft, Round, Target
from speclab.core.rules import TOKEN, Rule
from speclab.core.sampling import Sampling, draw, most_probable, to_host
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength
from speclab.extensions.learner.ask import Impossible, ask, each, finite, short, whole
from speclab.lab.instruments import Loop, LoopFunctions
from speclab.models.cached import tokens_to_keep
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem
from speclab.theory.losslessness import judge_divergence

ROLES = {  # what an exercise decides in a run
    0: "the baseline's rate",
    1: "the shapes",
    2: "greedy verification",
    3: "which tokens stay, and catch-up",
    4: "verification when sampling",
    5: "a prediction for every row",
    6: "the draft length",
    7: "the n-gram drafter",
    8: "the whole loop",
    9: "when a draft stops",
    10: "verification when sampling, all drafts together",
}
WHOLE_LOOP, BLOCK_RULE = 8, 10  # they take the places of all others, and of exercise 4
FIRST_LENGTH = 4  # tokens of the first draft, before the rule of exercise 6 has seen a round
# What a run says of BLOCK_RULE; a learner's function judges.
TOGETHER = Rule("block", accept_from_logits, "drafted tokens are judged together (block verification)")

Modules = dict[int, ModuleType]  # of the exercises in use, by their numbers


def learner_functions(loop: Loop, package: str, modules: Modules) -> LoopFunctions:
    return LoopFunctions(
        functools.partial(_whole_loop, modules[WHOLE_LOOP].decode) if WHOLE_LOOP in modules else loop,
        accept=functools.partial(accept, modules),
        keeps=functools.partial(keep_tokens, modules),
        adapt=functools.partial(adapt, modules),
        rule=TOGETHER if BLOCK_RULE in modules else TOKEN,
        shapes=functools.partial(ask, 1, modules[1].shapes) if 1 in modules else None,
        is_right=functools.partial(is_right, package, modules),
        about=f"from {package}/: " + ", ".join(f"{n} ({ROLES[n]})" for n in modules),
    )


def _whole_loop(decode: Callable[..., Iterator[Round]], *args, **_) -> Iterator[Round]:
    """Exercise 8's `decode`, called as the lab's loop is; every round is asked for by itself."""
    rounds = ask(8, decode, *args)

    def next_round(*_):
        return next(rounds, None)

    next_round.__qualname__ = "decode"  # as a Problem names it
    yield from iter(lambda: ask(8, next_round, *args, lab_inside=True), None)


# --- the accept rule, and what stays in a cache -----------------------------------------------------------------------


def accept(modules: Modules, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """An accept rule: exercise 2 on greedy rows, 4 or 10 on sampled ones, the lab's where it is not in use.

    logits: (1, n + 1, vocab). uniforms: (1, at least n + 1).
    """
    number = 2 if sampling.greedy else BLOCK_RULE if BLOCK_RULE in modules else 4
    if number not in modules:
        return accept_from_logits(draft, logits, sampling, uniforms)
    learner, drafted, vocab = modules[number], draft.tokens[0].tolist(), logits.shape[-1]
    a_count, an_id = whole(0, len(drafted)), whole(0, vocab - 1)
    if sampling.greedy:
        own = to_host(most_probable(logits)[0])  # n + 1
        n_accepted = ask(2, learner.count_accepted, drafted, own, check=a_count)
        return _result(logits, n_accepted, ask(2, learner.next_token, own, n_accepted, check=an_id))
    target_probs, draft_probs = sampling.probs(logits), draft.probs
    if draft_probs is None:  # prompt lookup is certain of what it proposes
        draft_probs = torch.nn.functional.one_hot(draft.tokens, vocab).to(target_probs.dtype)

    def draw_one(probs: Tensor, uniform: float) -> int:
        """(vocab,) probabilities and a number in [0, 1) -> an id"""
        return int(draw(probs[None], uniforms.new_tensor([uniform]))[0])

    rule = learner.verify_draft if number == 4 else learner.verify_block
    # Copies: the draft's were made in inference mode, where a learner's in-place step would be an error.
    args = drafted, draft_probs[0].clone(), target_probs[0].clone(), uniforms[0, : len(drafted) + 1].tolist(), draw_one
    return _result(logits, *ask(number, rule, *args, check=each("a pair (n_accepted, next token)", a_count, an_id)))


def _result(logits: Tensor, *numbers: int) -> AcceptResult:
    return AcceptResult(*(torch.tensor([number], device=logits.device) for number in numbers))


def keep_tokens(modules: Modules, n_cached: int, n_committed: int) -> int:
    """Exercise 3's rule for a cache of `n_cached` tokens, or the lab's."""
    if 3 not in modules:
        return tokens_to_keep(n_cached, n_committed)
    return ask(3, modules[3].tokens_to_keep, n_cached, n_committed, check=whole(0, n_cached))


# --- drafters ---------------------------------------------------------------------------------------------------------


def adapt(modules: Modules, drafter: Drafter, longest: int | None = None) -> Drafter:
    """The drafter of one decoding: exercise 7 in place of the n-grams, exercise 3 feeding a model, exercise 9 where a
    draft chooses its length, exercise 6 around any of them where `longest` says up to which it may choose. Exactly
    these classes: what is derived from one of them is no draft that an exercise writes.

    UsageProblem for a draft that runs a part of the target, with the loop of exercise 8, whose passes are whole.
    """
    if 8 in modules and drafter.runs_target:
        raise UsageProblem("the loop of exercise 8 verifies with whole passes; use another --draft")
    if type(drafter) is NgramDrafter and 7 in modules:
        drafter = CheckedDrafter(modules[7].MyDrafter)
    elif type(drafter) is ModelDrafter and 3 in modules:
        drafter = LearnerCatchUp(drafter, modules)
    elif type(drafter) in (HybridDrafter, AutoLength):
        wrapper: Any = drafter
        wrapper.drafter = adapt(modules, wrapper.drafter)
        if type(drafter) is AutoLength and drafter.chooses_length and 9 in modules and wrapper.drafter.asks_to_go_on:
            drafter = LearnerStop(drafter, modules[9].keep_drafting)
    if 6 in modules and longest is not None:
        drafter = LearnerLength(drafter, modules[6].next_draft_length, longest)
    return drafter


class LearnerCatchUp(ModelDrafter):
    """A draft model that is rolled back and fed as exercise 3 says. Too much or too little would never be seen in the
    text: only the draft would get worse. So the answer has to be what the draft's cache lacks."""

    def __init__(self, drafter: ModelDrafter, modules: Modules):
        super().__init__(drafter.draft)
        self._modules, self._committed = modules, list[int]()

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        # As many tokens as the cache holds; where it holds no prompt, they are never fed again.
        self._committed = prompt[0, : self.draft.length].tolist()

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._committed += committed
        self._n_committed = len(self._committed)
        kept = keep_tokens(self._modules, self.draft.length, self._n_committed)
        self.draft.crop(kept)
        self._not_fed = lacks = self._committed[kept:]
        exactly = each(f"what the draft's cache lacks: {short(lacks)}", *(whole(one, one) for one in lacks))
        ask(3, self._modules[3].catch_up, self._committed, kept, check=exactly)


class CheckedDrafter(Drafter):
    """Exercise 7's drafter; what it proposes is looked at before the target is fed with it."""

    def __init__(self, make: Callable[[], Drafter]):
        self._inner, self._vocab_size = ask(7, make), 0

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._vocab_size = target.vocab_size
        ask(7, self._inner.prefill, target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return ask(7, self._inner.propose, k, uniforms, check=functools.partial(self._checked, k))

    def _checked(self, k: int, draft: Any) -> Draft:
        """A lookup is certain of what it proposes: no probabilities are taken from it."""
        tokens: Any = getattr(draft, "tokens", None)
        last = self._vocab_size - 1
        found = tokens[0].tolist() if isinstance(tokens, Tensor) and tokens.shape[:1] == (1,) else [-1]
        if len(found) > k or not all(isinstance(one, int) and 0 <= one <= last for one in found):
            raise Impossible(f"{short(tokens)} as its tokens, not ids of shape (1, n), n <= {k}, from 0 to {last}")
        return Draft(tokens, torch.full((1,), len(found), device=tokens.device))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        ask(7, self._inner.observe, n_accepted, committed)


class LearnerLength(Wrapper):
    """Around any drafter: exercise 6's rule chooses how long the next draft may be."""

    def __init__(self, drafter: Drafter, rule: Callable[[int, int, int, int], int], longest: int):
        self.drafter, self._rule, self._longest = drafter, rule, longest

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._length = min(FIRST_LENGTH, self._longest)
        self._n_drafted: int | None = None  # None before the first round
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        length = min(k, self._length)
        draft = self.drafter.propose(length, uniforms[:, :length])
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
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
        costs, drawn = self.costs[self.temperature], [self.acceptance.given(one).rate for one in self._probabilities]
        if len(drawn) >= self._last:
            return False
        later, seconds = self._chain[len(drawn) : self._last], [costs.seconds(n) for n in range(self._last + 1)]
        return ask(9, self._rule, drawn, later, seconds, self._rate, check=bool)


# --- a text -----------------------------------------------------------------------------------------------------------


@old_objects_frozen()
def is_right(
    package: str, modules: Modules, setup: Setup, prompt: Prompt, settings: DecodeSettings, tokens: list[int]
) -> bool:
    """Print exercise 0's numbers of another decoding of the prompt; or hold a greedy text against the baseline's."""
    ids = prompt.ids.to(setup.device)

    def decode() -> Iterator[int]:
        rounds = autoregressive_decode(setup.target, ids, settings, setup.chunk)
        return (token for round_ in rounds for token in round_.tokens)

    if 0 in modules:
        print("yours, after a warm-up:", rate(modules[0], decode, functools.partial(synchronize, setup.device)))
        return True
    if not settings.sampling.greedy:
        print("a sampled text has no baseline to equal; compare.py with the same flags judges many of them")
        return True
    divergence = judge_divergence(setup.reference, prompt.id_list, list(decode()), tokens, setup.target.vocab_size)
    if divergence is None or divergence.numerical:
        print("the baseline's text:", "identical" if divergence is None else "identical but where logits are equal")
        return True
    print(f"WRONG TEXT: from new token {divergence.position} on it is not the baseline's;", end=" ")
    print(f"decided by {package} {', '.join(map(str, modules))}")
    return False


def rate(learner: ModuleType, decode: Callable[[], Iterator[int]], synchronize: Callable[[], None]) -> str:
    """Exercise 0 times one more decoding, after a warm-up.  -> its numbers in a line

    decode: starts a decoding of the same prompt. synchronize: waits for the device.
    """
    three, args = each("three numbers", finite, finite, finite), (decode, time.perf_counter, synchronize, 1)
    prefill, decoding, n_tokens = ask(0, learner.time_decoding, *args, check=three, lab_inside=True)
    speed = ask(0, learner.tokens_per_second, round(n_tokens), decoding, check=finite)
    return f"{n_tokens:g} tokens, prefill {prefill:.3f} s, decoding {decoding:.2f} s: {speed:.1f} tok/s"
