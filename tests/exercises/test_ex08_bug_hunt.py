"""Checks of exercise 8: one for each of the five bugs, and one for everything that was right before."""

import hashlib
import inspect
import io
import itertools
import tokenize
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch

from exercises import Todo
from exercises.scenes import (
    DRAFT_ROW,
    INDEPENDENT,
    PROMPT,
    TARGET_ROW,
    TinyDrafter,
    TinyTarget,
    all_of_it,
    decisions,
    one_up,
    rounds,
    scene_a,
    scene_b,
    scene_c,
    scene_d,
    scene_e,
    twelfths,
)
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Draft, tokens_of
from speclab.core.sampling import Sampling
from speclab.system.errors import Problem
from tests.exercises.answers import agree, wrong

LAB = SimpleNamespace(decode=speculative_decode)


def test_every_target_pass_adds_a_token_of_its_own(learner):
    """A round commits what it accepts and one token more, a correction or a bonus."""
    untouched(learner)
    if (sizes := scene_a(learner)) != [5, 5, 5, 5]:
        wrong(f"k = 4 and every draft right: 20 tokens should come in rounds of 5 5 5 5, yours are {sizes}")
    for r in rounds(learner, TinyTarget(one_up), TinyDrafter(one_up, wrong_at=3), 4, 20):
        if not r.prefill and len(r.tokens) != r.n_accepted + 1:
            wrong(f"a round that accepts {r.n_accepted} of {r.n_drafted} commits {r.n_accepted + 1}, yours {r.tokens}")


def test_the_targets_cache_holds_the_text_but_its_last_token(learner):
    """After every round: length is prompt + committed - 1, and a greedy text is the target's own."""
    untouched(learner)
    for wrong_at in (0, 2, 3):
        target, text = TinyTarget(all_of_it), PROMPT[0].tolist()
        for r in rounds(learner, target, TinyDrafter(all_of_it, wrong_at), 3, 20):
            text += r.tokens
            if target.cache != text[:-1]:
                wrong(
                    f"{r.n_accepted} of {r.n_drafted} drafts kept, {len(text)} tokens of text, the last of which is fed"
                    f" in the next round: all others belong in the target's cache, and it holds {target.cache}"
                )
    own, theirs = scene_b(learner)
    if own != theirs:
        wrong(f"at temperature 0 the text must be {own}, yours is {theirs}")


# End of text, where the draft is wrong. The third: the end is the correction. The fourth and fifth: a draft after the
# accepted end is rejected. Then: it is the prefill's token; it is a rejected draft.
ENDS = [(4, 20), (6, 20), (6, 6), (5, 7), (5, 6), (3, 0), (6, 5)]


def ended(one: object, end: int, wrong_at: int) -> tuple[list[int], str | None, int, int]:
    """an end of text that is committed ends it there, and drafts after it are neither accepted nor rejected"""
    found = list(rounds(one, TinyTarget(one_up), TinyDrafter(one_up, wrong_at), 5, 12, frozenset({end})))
    return tokens_of(found), found[-1].finish, found[-1].n_accepted, found[-1].n_rejected


def test_nothing_follows_an_end_of_text(learner):
    """An end of text inside a block ends it there, and drafts after it are neither accepted nor rejected."""
    untouched(learner)
    if (text := scene_c(learner)) != [3, 4, 5, 6]:
        wrong(f"6 means end of text: 3 4 5 6 is all there is to say, with k = 4 yours says {text}")
    about = "{} means end of text, wrong drafts at multiples of {}: text, finish, accepted and rejected at last"
    agree(learner, ended, ENDS, about, [ended(LAB, *case) for case in ENDS])


def test_the_correction_makes_up_for_what_the_draft_left_out(learner):
    """The law of a token is the target's: a correction comes from norm(max(0, p - q))."""
    untouched(learner)
    draft = Draft(torch.tensor([[1]]), torch.tensor([1]), twelfths(DRAFT_ROW))
    rejected = [token for n, token in decisions(learner, draft, twelfths(TARGET_ROW, [4, 4, 4]), 12) if n == 0]
    if rejected.count(1):
        wrong(f"token 1 is rejected and then drawn again in {rejected.count(1)} of {len(rejected)} cases, see scene D")
    shares = torch.tensor(scene_d(learner), dtype=torch.float64)
    if not torch.allclose(shares, twelfths(TARGET_ROW)[0, 0], rtol=0, atol=1e-9):
        wrong(f"the tokens of scene D must have the target's shares {TARGET_ROW} / 12, yours are {shares.tolist()}")
    certain = decisions(learner, replace(draft, probs=None), twelfths(TARGET_ROW, [4, 4, 4]), 12)
    if (0, 1) in certain:
        wrong("a certain draft (probs None) was rejected and drawn again: its q is 1 for that token and 0 elsewhere")


def test_each_drafted_token_is_tested_by_itself(learner):
    """Two drafts that are each kept half of the time: none, one, both in 2, 1, 1 of 4 rounds."""
    untouched(learner)
    if (shares := scene_e(learner)) != INDEPENDENT:
        wrong(f"rounds keep 0, 1, 2 of these drafts with shares 0.5, 0.25, 0.25; yours {', '.join(map(str, shares))}")


class Noting(TinyDrafter):
    """Notes what it is told and given."""

    def __init__(self, *args):
        super().__init__(*args)
        self.told, self.uniforms = [], []

    def prefill(self, target: TinyTarget, prompt: torch.Tensor, sampling: Sampling) -> None:
        self.told.append(type(sampling).__name__)
        super().prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: torch.Tensor) -> Draft:
        self.uniforms.append(set(uniforms.flatten().tolist()))
        return super().propose(k, uniforms)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self.told.append((n_accepted, list(committed)))
        super().observe(n_accepted, committed)


def course(one: object, k: int, n: int, wrong_at: int, at_most: int, room: int | None) -> object:
    """texts, budgets, counts, one pass a round, and what the drafter is told are those of the lab's own loop"""
    target, drafter = TinyTarget(one_up), Noting(one_up, wrong_at, at_most)
    target.max_length = room
    try:
        found = list(rounds(one, target, drafter, k, n))
    except Problem:
        return "refused by check_prompt"
    told, n_drafted = [(r.n_accepted, r.tokens) for r in found], sum(r.n_drafted for r in found)
    return {
        "the text": tokens_of(found),
        "passes of the target, less the rounds": target.n_passes - len(found),
        "more than k are asked for": max(drafter.asked, default=0) > k,
        "all that is asked for and drafted is in n_drafted": sum(drafter.asked) == n_drafted,
        "the drafter is told the sampling": drafter.told[:1],
        "then it is told the rounds": drafter.told[1:] == told,
        "the first round is the prefill": [r.prefill for r in found[:1]],
        "why the text ends": [r.finish for r in found[-1:]],
        "n_rejected is 1 after a rejection, else 0": all(r.n_rejected == (r.n_accepted < r.n_drafted) for r in found),
    }


COURSES = [*itertools.product((0, 1, 3, 8), (0, 1, 2, 9, 30), [3], [99], [None])]
COURSES += [(3, 12, 4, 99, None), (4, 12, 0, 1, None), (3, 12, 0, 99, 8)]
COURSE = "k = {}, {} tokens, a wrong draft at each multiple of {}, at most {} drafted, room for {} positions"


def uniforms_are_used_once(learner: ModuleType) -> None:
    """The random numbers given to the drafter are others than those given to the learner's accept."""
    testing, drafting, own_accept = [], [], learner.accept

    def noted(draft: Draft, target_probs: torch.Tensor, uniforms: torch.Tensor):
        testing.append(set(uniforms.flatten().tolist()))
        return own_accept(draft, target_probs, uniforms)

    with mock.patch.object(learner, "accept", noted):
        for at_most in (99, 1):
            drafter = Noting(one_up, 3, at_most)
            list(learner.decode(TinyTarget(one_up), drafter, PROMPT, 4, DecodeSettings(20, Sampling(1.0), seed=5)))
            drafting += drafter.uniforms
    if any(drawn & tested for drawn, tested in zip(drafting, testing, strict=False)):
        why = "a token that was drawn with a small number would meet it again in its test, and be kept too often"
        wrong(f"random numbers given to accept have drawn the draft already: {why}; each needs numbers of its own")


HALVES = [0.5, 0.5]
NEARLY = 0.5 - 2**-53  # below 1/2 by one rounding
ODDS = [  # p of two rows, q of a draft of token 0 or None where it is certain, uniforms
    ([[0.25, 0.75], [0.0, 1.0]], HALVES, (0.49, 0.3)),
    ([[0.25, 0.75], [0.0, 1.0]], HALVES, (0.51, 0.3)),
    ([[0.0, 1.0], HALVES], None, (0.0, 0.0)),
    ([[NEARLY, 0.5], HALVES], HALVES, (1 - 2**-53, 0.75)),
]


def judged(one: object, p: list[list[float]], q: list[float] | None, u: tuple[float, float]) -> tuple[int, int]:
    """the test is u q < p, strictly, and where p - q leaves nothing the correction is from p"""
    p_, q_, u_ = (None if x is None else torch.tensor([x], dtype=torch.float64) for x in (p, q and [q], u))
    result = one.accept(Draft(torch.tensor([[0]]), torch.tensor([1]), q_), p_, u_)
    return int(result.n_accepted), int(result.next_token)


def test_nothing_else_is_broken(learner):
    """What held before the hunt: texts, budgets, one pass a round, plain decoding, the draft's own odds."""
    untouched(learner)
    agree(learner, course, COURSES, COURSE, [course(LAB, *one) for one in COURSES])
    about = "one draft of token 0, p = {}, q = {}, uniforms {}: (kept, what follows)"
    agree(learner, judged, ODDS, about, [(1, 1), (0, 1), (0, 1), (0, 1)])
    uniforms_are_used_once(learner)
    seen = [
        tokens_of(learner.decode(TinyTarget(one_up), TinyDrafter(one_up, 3), PROMPT, 3, settings))
        for settings in (DecodeSettings(12, Sampling(1.5), seed=seed) for seed in (1, 1, 2))
    ]
    if seen[0] != seen[1] or seen[0] == seen[2]:
        wrong("all randomness comes from `settings`: the same seed gives the same text, another seed another one")


# The fingerprint of exercises/ex08_bug_hunt.py as it came, stored: no check needs solutions/.
AS_IT_CAME = "2e0b8a7d31d440c0"


def is_untouched(learner: ModuleType) -> bool:
    """Does the module do what the exercise does as it came? Comments, docstrings and layout do not count."""
    return fingerprint(getattr(learner, "SOURCE", None) or inspect.getsource(learner)) == AS_IT_CAME


def fingerprint(source: str) -> str:
    """A hash of the source's names, signs and numbers, the same in every version of Python."""
    kinds = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
    words = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type in kinds]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def untouched(learner: ModuleType) -> None:
    """A hunt that has not begun is no failure: raise Todo as an open hole does."""
    if is_untouched(learner):
        raise Todo("ex08: find the five bugs in the loop")
