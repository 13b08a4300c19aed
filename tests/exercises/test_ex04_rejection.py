"""Checks of exercise 4: the two rules, the round, and its law, exactly."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType

import torch
from torch import Tensor

from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import draw as draw_rows
from tests.exercises.answers import asked, named, whole, wrong
from tests.test_exact import (
    Job,
    Law,
    Outcome,
    Pieces,
    Row,
    Tables,
    completed,
    play,
    random_tables,
    target_law,
    token_pieces,
)


def draw(probs: Tensor, uniform: float) -> int:
    """Inverse CDF, as in the lab."""
    return int(draw_rows(probs[None], torch.tensor([uniform], dtype=torch.float64)))


def rows(*lists: list[float]) -> Tensor:
    return torch.tensor(lists, dtype=torch.float64)


def shown(row: object) -> list[float]:
    """For comparing: nine digits."""
    return [round(x, 9) for x in torch.as_tensor(row).double().flatten().tolist()]


def pair(given: object, about: str) -> tuple[int, int]:
    """What a rule returned, as two ints; a list of two is as good as a tuple."""
    try:
        kept, token = map(whole, given)
    except (TypeError, ValueError):
        what = "return a pair of whole numbers, how many drafts are kept and the next token"
        wrong(f"{about}: {what}; yours returns {given!r}")
    return kept, token


RATIOS = [(0.3, 0.6), (0.1, 0.4), (0.6, 0.3), (0.5, 0.5), (1.0, 1.0), (0.2, 0.9), (0.9, 0.05)]


@asked(RATIOS, "p = {}, q = {}: kept of all uniforms", [round(min(1.0, p / q), 2) for p, q in RATIOS])
def test_a_draft_is_kept_with_probability_p_over_q(one, p, q):
    """is_accepted: kept below the ratio of the two probabilities, rejected above it."""
    return round(sum(bool(one.is_accepted(p, q, (i + 0.5) / 1000)) for i in range(1000)) / 1000, 2)


TESTED = [(0.0, q, u) for q in (0.5, 1.0, 0.0) for u in (0.0, 0.3)]
TESTED += [(0.25, 0.5, 0.0), (0.25, 0.5, 0.5), (0.25, 0.0, 0.99)]


@asked(TESTED, "target_prob {}, draft_prob {}, uniform {}: is it kept", [False] * 6 + [True, False, True])
def test_a_token_that_the_target_rules_out_is_never_kept(one, *case):
    """is_accepted: the product has to be strictly below target_prob, also at uniform 0, and nothing is divided."""
    try:
        return bool(one.is_accepted(*case))
    except ZeroDivisionError:
        return "a division by zero"


EQUAL = [([0.5, 0.5], [0.5, 0.5]), ([0.5, 0.5 - 2**-53], [0.5, 0.5]), ([0.0, 1.0], [0.0, 1.0])]
RESIDUALS = [
    ([0.5, 0.25, 0.25], [0.25, 0.75, 0.0]),
    ([0.5, 0.3, 0.2], [0.2, 0.7, 0.1]),
    ([0.0, 1.0, 0.0], [0.5, 0.25, 0.25]),
    ([0.25, 0.25, 0.5], [0.0, 0.0, 1.0]),
    ([0.5, 0.5, 0.0], [0.5 - 2**-30, 0.5 + 2**-30, 0.0]),
]
LEFT = [[0.5, 0.0, 0.5], [0.75, 0.0, 0.25], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], *(p for p, _ in EQUAL)]


@asked([*RESIDUALS, *EQUAL], "p = {}, q = {}: the residual", LEFT)
def test_the_correction_comes_from_what_the_draft_left_out(one, *case):
    """residual: max(0, p - q), divided by its sum, however small that is; where p is nowhere above q, nothing is
    missing, 0 / 0 is no number, and the answer is p itself."""
    p, q = (rows(row)[0] for row in case)
    found = torch.as_tensor(one.residual(p, q), dtype=torch.float64)
    if (p.tolist(), q.tolist()) != case:
        wrong("it looks as if yours changes the probabilities that it is given: work on new tensors")
    return found.tolist() if case in EQUAL else shown(found)


# A round of three drafts, or of none; p / q is 1/2, 1/4, 1/3 for tokens 1, 0, 1.
THREE = [1, 0, 1]
THREE_P = rows([7, 2, 4, 3], [2, 6, 4, 4], [4, 4, 4, 4], [1, 2, 3, 10]) / 16
THREE_Q = rows([10, 4, 1, 1], [8, 4, 2, 2], [1, 12, 2, 1]) / 16


def three(*tests: float) -> str:
    what = f"drafted {THREE}, uniforms of the tests {tests}, of the draw 0.77" if tests else "nothing drafted"
    return f"{what}: (how many are kept, what draw returned), and (row, uniform) of each call of draw"


@asked([(), *itertools.product((0.05, 0.2, 0.3, 0.4, 0.9), repeat=3)], three)
def test_the_first_rejection_ends_the_round(one, *tests):
    """verify_draft: after the first rejection one token comes from its residual, else from the target's last row."""
    seen, k = [], len(tests)

    def noted(probs: Tensor, uniform: float) -> int:
        seen.append((shown(probs), float(uniform)))
        return 3

    given = one.verify_draft(THREE[:k], THREE_Q[:k].clone(), THREE_P[: k + 1].clone(), [*tests, 0.77], noted)
    return pair(given, f"{k} drafts"), seen


def decided(rule: Callable, tokens: list[int], q: Tensor, p: Tensor, uniforms: list[float]) -> tuple[int, int]:
    """It is handed copies: a list emptied on the way and a step in place do no harm."""
    found = pair(rule(list(tokens), q.clone(), p.clone(), list(uniforms), draw), f"drafted {tokens}")
    if not 0 <= found[0] <= len(tokens):
        wrong(f"{len(tokens)} tokens were drafted, yours keeps {found[0]} of them")
    return found


def played(one: ModuleType, hole: str, tables: Tables, pieces: Pieces = token_pieces) -> Outcome:
    """All rounds there are of a reader's rule, by the enumerator of tests/test_exact.py."""

    def rule(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        rounds = zip(draft.tokens.tolist(), draft.probs, target_probs, uniforms.tolist(), strict=True)
        kept, following = zip(*(decided(getattr(one, hole), *round_) for round_ in rounds), strict=True)
        return AcceptResult(torch.tensor(kept), torch.tensor(following))

    return play([Job(tables, (), tables.k)], rule=rule, pieces=pieces)[0]


def rows_along(tables: Tables, tokens: tuple[int, ...]) -> str:
    """p and q at every position of a text: what its probability is made of, with any rule that stays in its rows."""
    positions = []
    for n in range(len(tokens)):
        after = f" after {', '.join(map(str, tokens[:n]))}" * bool(n)
        both = {"p": tables.target, "q": tables.draft if n < tables.k else {}}
        known = [f"{x} = ({', '.join(map(str, r[tokens[:n]]))})" for x, r in both.items() if tokens[:n] in r]
        positions.append(f"position {n}{after}: {', '.join(known)}")
    return "; ".join(positions)


def wrong_law(tables: Tables, found: Law) -> tuple[str, str] | None:
    """The tokens whose probability is wrong by most, and what that is made of; None where it is the target's law."""
    right = target_law(tables, (), tables.k + 1)
    if found == right:
        return None
    tokens = max(found.keys() | right.keys(), key=lambda tokens: abs(found.get(tokens, 0) - right.get(tokens, 0)))
    what = f"summed over all drafts, the next tokens {tokens} must come with probability {right.get(tokens, 0)}"
    return f"{what}, with yours it is {found.get(tokens, 0)}", rows_along(tables, tokens)


def exactly(learner: ModuleType, hole: str, tables: Tables, pieces: Pieces = token_pieces) -> Outcome:
    """The law of a reader's rounds has to be the target's."""
    outcome = played(learner, hole, tables, pieces)
    if found := wrong_law(tables, completed(outcome.law, tables, (), tables.k + 1)):
        name = named(learner, lambda one: played(one, hole, tables, pieces).law == outcome.law)
        wrong(f"{found[0]}{name}. {found[1]}")
    return outcome


def keeps_all_it_may(learner: ModuleType, tables: Tables) -> None:
    """The law is exact, and the first draft is kept as often as a rule for one token at a time can keep it."""
    law = exactly(learner, "verify_draft", tables).law
    most, kept = overlap(tables.target[()], tables.draft[()]), sum(law[tokens] for tokens in law if len(tokens) > 1)
    if kept != most:
        name = named(learner, lambda one: played(one, "verify_draft", tables).law == law)
        what = f"the first draft can be kept with probability {most}, the sum of min(p, q), yours with {kept}"
        wrong(f"{what}{name}. {rows_along(tables, (0,))}")


def overlap(p: Row, q: Row) -> Fraction:
    return sum(map(min, p, q), Fraction(0))


FAMILIES = ("dense", "zeros", "draft blind", "target forbids", "identical")  # of tables; zeros in one row or the other


def test_one_drafted_token_gives_exactly_the_targets_law(learner):
    """verify_draft: summed in fractions over every outcome, the next two tokens follow the target's law, at k = 1."""
    for family, seed in itertools.product(FAMILIES, range(3)):
        keeps_all_it_may(learner, random_tables(seed, 3, 1, 2, family))


def test_two_drafted_tokens_give_exactly_the_targets_joint_law(learner):
    """verify_draft: summed in fractions over every outcome, the next three tokens follow the target's law, at k = 2."""
    for family, (seed, vocab) in itertools.product(FAMILIES, [(0, 2), (1, 2), (2, 3)]):
        keeps_all_it_may(learner, random_tables(seed, vocab, 2, 3, family))
