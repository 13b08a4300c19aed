"""Checks of exercise 8: one for each of the five bugs, and one for everything that was right before."""

import ast
import hashlib
from dataclasses import replace
from types import ModuleType

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
    plain,
    rounds,
    scene_a,
    scene_b,
    scene_c,
    scene_d,
    scene_e,
    twelfths,
)
from speclab.core.rounds import DecodeSettings, Draft, tokens_of
from speclab.core.sampling import Sampling
from speclab.system.errors import Problem
from tests.exercises.answers import wrong


def test_every_target_pass_adds_a_token_of_its_own(learner):
    """A round commits what it accepts and one token more, a correction or a bonus."""
    untouched(learner)
    sizes = scene_a(learner)
    if sizes != [5, 5, 5, 5]:
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
                extra = target.length - len(text) + 1
                what = f"{abs(extra)} too {'many' if extra > 0 else 'few'}" if extra else "not those of the text"
                wrong(
                    f"{r.n_accepted} of {r.n_drafted} drafts kept, {len(text)} tokens of text, the last of which is fed"
                    f" in the next round: the target's cache holds {target.length} tokens after the round, {what}"
                )
    own, theirs = scene_b(learner)
    if own != theirs:
        wrong(f"at temperature 0 the text must be {own}, yours is {theirs}")


def test_nothing_follows_an_end_of_text(learner):
    """An end of text inside a block ends it there, and drafts after it are not counted."""
    untouched(learner)
    if (text := scene_c(learner)) != [3, 4, 5, 6]:
        wrong(f"6 means end of text: 3 4 5 6 is all there is to say, with k = 4 yours says {text}")
    first = list(rounds(learner, TinyTarget(one_up), TinyDrafter(one_up), 4, 12, frozenset({3})))
    if tokens_of(first) != [3] or first[-1].finish != "eos":
        wrong(f"3 means end of text, and the prefill gives a 3: the text is that token alone, yours {tokens_of(first)}")
    # The third: the end is the correction. The last two: a draft after the accepted end is rejected.
    for end, wrong_at, n_accepted, n_rejected in [
        (4, 20, 1, 0),
        (6, 20, 3, 0),
        (6, 6, 2, 1),
        (5, 7, 2, 0),
        (5, 6, 2, 0),
    ]:
        found = list(rounds(learner, TinyTarget(one_up), TinyDrafter(one_up, wrong_at), 5, 12, frozenset({end})))
        last, text = found[-1], list(range(3, end + 1))
        if tokens_of(found) != text:
            wrong(f"{end} means end of text: the text is {text}, yours is {tokens_of(found)}")
        if last.finish != "eos":
            wrong(f"the last round has an end of text among its tokens; its finish must be 'eos', not {last.finish!r}")
        if (last.n_accepted, last.n_rejected) != (n_accepted, n_rejected):
            what = "drafts after an end of text are neither accepted nor rejected"
            if n_rejected:
                what = "the end of text is the correction here, so the rejected draft before it counts"
            wrong(
                f"a block with {n_accepted} right drafts up to its end of text: {what}. Expected {n_accepted} accepted "
                f"and {n_rejected} rejected, yours counts {last.n_accepted} and {last.n_rejected}"
            )
    # The draft says 6 where the target says 5.
    found = rounds(learner, TinyTarget(one_up), TinyDrafter(one_up, wrong_at=5), 4, 8, frozenset({6}))
    if tokens_of(found) != [3, 4, 5, 6]:
        wrong("a rejected token that means end of text is not emitted: only committed tokens end the text")


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
    shares = scene_e(learner)
    if shares != INDEPENDENT:
        wrong(
            "two drafts, each kept with probability 1/2: rounds keep 0, 1, 2 of them with shares 0.5, 0.25, 0.25; "
            f"yours {', '.join(map(str, shares))}"
        )


def calls(learner: ModuleType) -> None:
    """What the loop tells the target and the drafter, beside the tokens."""
    told: list[object] = []

    class Drafter(TinyDrafter):
        def prefill(self, target: TinyTarget, prompt: torch.Tensor, sampling: Sampling) -> None:
            told.append(isinstance(sampling, Sampling))
            super().prefill(target, prompt, sampling)

        def observe(self, n_accepted: int, committed: list[int]) -> None:
            told.append(n_accepted)
            super().observe(n_accepted, committed)

    found = list(rounds(learner, TinyTarget(one_up), Drafter(one_up, 4), 3, 12))
    if told[:1] != [True]:
        wrong("the drafter's prefill is told the sampling")
    if told[1:] != [r.n_accepted for r in found]:
        wrong(f"observe is told how many drafts were accepted, 0 for the prefill's token; yours tells {told[1:]}")
    short = TinyTarget(one_up)
    short.max_length = 8
    try:
        list(rounds(learner, short, TinyDrafter(one_up), 3, 12))
    except Problem:
        return
    wrong("a target built for 8 positions and 15 asked for: check_prompt refuses that before anything is decoded")


def uniforms_used(learner: ModuleType) -> list[tuple[list[float], list[float]]]:
    """The random numbers of every round: those given to the drafter, and those given to the learner's accept."""
    drafting, testing, own_accept = [], [], learner.accept

    class Noting(TinyDrafter):
        def propose(self, k: int, uniforms: torch.Tensor) -> Draft:
            drafting.append(uniforms.flatten().tolist())
            return super().propose(k, uniforms)

    def noted(draft: Draft, target_probs: torch.Tensor, uniforms: torch.Tensor):
        testing.append(uniforms.flatten().tolist())
        return own_accept(draft, target_probs, uniforms)

    learner.accept = noted
    try:
        settings = DecodeSettings(20, Sampling(1.0), seed=5)
        for at_most in (99, 1):
            list(learner.decode(TinyTarget(one_up), Noting(one_up, 3, at_most), PROMPT, 4, settings))
    finally:
        learner.accept = own_accept
    return list(zip(drafting, testing, strict=False))


def test_nothing_else_is_broken(learner):
    """What held before the hunt: texts, budgets, one pass a round, plain decoding, the draft's own odds."""
    untouched(learner)
    own = plain(one_up, 30)
    for k in (0, 1, 3, 8):
        for n in (0, 1, 2, 9, 30):
            target, drafter = TinyTarget(one_up), TinyDrafter(one_up, wrong_at=3)
            found = list(rounds(learner, target, drafter, k, n))
            text = tokens_of(found)
            if text != own[:n]:
                wrong(f"k = {k}, {n} tokens asked for: the text must be {own[:n]}, yours is {text}")
            if n and target.n_passes != len(found):
                wrong(f"the prompt's pass and one for every round: {len(found)} passes, yours makes {target.n_passes}")
            if any(asked > k for asked in drafter.asked) or sum(r.n_drafted for r in found) != sum(drafter.asked):
                wrong(f"k = {k}: a round may draft at most k tokens and reports how many, yours asked {drafter.asked}")
            if n and (drafter.text[3:] != text or found[-1].finish != "length" or not found[0].prefill):
                wrong("the first round is the prefill, the last says 'length', and the drafter is told every token")
            if any(r.n_rejected != (r.n_accepted < r.n_drafted) for r in found):
                wrong("n_rejected is 1 in a round that rejects a draft, else 0")
    few = list(rounds(learner, TinyTarget(one_up), TinyDrafter(one_up, at_most=1), 4, 12))
    if tokens_of(few) != own[:12]:
        wrong("a drafter that proposes fewer than k tokens changes the text")
    for u, kept in [(0.49, 1), (0.51, 0)]:  # u q < p with p = 3/12, q = 6/12
        draft = Draft(torch.tensor([[0]]), torch.tensor([1]), twelfths([6, 6]))
        result = learner.accept(draft, twelfths([3, 9], [0, 12]), torch.tensor([[u, 0.3]], dtype=torch.float64))
        given = int(result.n_accepted), int(result.next_token)
        if given != (kept, 1):
            wrong(
                f"p = 1/4, q = 1/2, u = {u} for the test, 0.3 for the draw: of one draft {kept} is kept, then token 1 "
                f"follows; yours keeps {given[0]}, then token {given[1]}"
            )
    calls(learner)
    for drafting, testing in uniforms_used(learner):
        if shared := set(drafting) & set(testing):
            wrong(
                f"{len(shared)} of the {len(testing)} random numbers given to accept have drawn the draft already: "
                "a token that was drawn with a small number would meet the same small number in its test, and be kept "
                "too often; drafting and testing need numbers of their own"
            )
    zero = learner.accept(
        Draft(torch.tensor([[0]]), torch.tensor([1])), twelfths([0, 12], [6, 6]), torch.zeros(1, 2, dtype=torch.float64)
    )
    if int(zero.n_accepted):
        wrong("a token of target probability 0 was kept at u = 0: the test is u q < p, strict")
    half = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)  # q; p is below it by one rounding, and nowhere above
    p = torch.tensor([[[0.5 - 2**-53, 0.5], [0.5, 0.5]]], dtype=torch.float64)
    u = torch.tensor([[1 - 2**-53, 0.75]], dtype=torch.float64)
    edge = learner.accept(Draft(torch.tensor([[0]]), torch.tensor([1]), half), p, u)
    if (int(edge.n_accepted), int(edge.next_token)) != (0, 1):
        wrong("where p - q leaves nothing above 0 the correction comes from p itself")
    seen = [
        tokens_of(learner.decode(TinyTarget(one_up), TinyDrafter(one_up, 3), PROMPT, 3, settings))
        for settings in (DecodeSettings(12, Sampling(1.5), seed=seed) for seed in (1, 1, 2))
    ]
    if seen[0] != seen[1] or seen[0] == seen[2]:
        wrong("all randomness comes from `settings`: the same seed gives the same text, another seed another one")


# --- has the hunt begun? ---------------------------------------------------------------------------------------------

# The fingerprint of exercises/ex08_bug_hunt.py as it came, stored: no check needs solutions/.
AS_IT_CAME = "b3886604a7dc2850"


def is_untouched(learner: ModuleType) -> bool:
    """Does the module do what the exercise does as it came? Comments, docstrings and layout do not count."""
    return fingerprint(learner.__spec__.loader.get_source(learner.__name__)) == AS_IT_CAME


def fingerprint(source: str) -> str:
    """A hash of what the source does. The same in every version of Python: fields without a value are left out, since
    versions differ in those."""

    def plain_form(node: object) -> object:
        if isinstance(node, list):
            return [plain_form(item) for item in node]
        if not isinstance(node, ast.AST):
            return repr(node)
        fields = [(name, plain_form(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, *sorted(fields)]

    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(repr(plain_form(tree)).encode()).hexdigest()[:16]


def untouched(learner: ModuleType) -> None:
    """A hunt that has not begun is no failure: raise Todo as an open hole does."""
    if is_untouched(learner):
        raise Todo("ex08: find the five bugs in the loop")
