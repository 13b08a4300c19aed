"""Checks of exercise 12: the price of a block, what slots that do not see each other lose, and the walk, exactly."""

import itertools
import re
from fractions import Fraction
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.exercises.answers import chapter, named, whole, with_wrong_answer, wrong
from tests.exercises.test_ex04_rejection import furthest, rows_along
from tests.exercises.test_ex09_stop_when_unsure import emitted
from tests.exercises.wrong.ex12_block_draft import BASE_DRAWN, BASE_HANDED, ONE_HOT, WRONG
from tests.test_exact import Law, Row, Tables, completed, floats, random_tables, target_law

STEM = "ex12_block_draft"
NEAR = 1e-9


def rows(*lists: list[float]) -> Tensor:
    return torch.tensor(lists, dtype=torch.float64)


# --- the price --------------------------------------------------------------------------------------------------------

ACCEPTANCE = [0.8, 0.75, 0.7, 0.65, 0.6, 0.6, 0.6]  # those of the chapter, and its costs
STEPWISE, ONE_PASS = [0.2 * k for k in range(8)], [0.0, *[0.3] * 7]
VERIFY, OVERHEAD = [1.0] * 6 + [1.3] * 2, 0.1
FREE = [1.0] * 8
PRICES = [  # acceptance, draft costs, verify costs, overhead, the best length
    (ACCEPTANCE, STEPWISE, VERIFY, OVERHEAD, 3),
    (ACCEPTANCE, ONE_PASS, VERIFY, OVERHEAD, 5),
    (ACCEPTANCE, ONE_PASS, FREE, OVERHEAD, 7),
    (ACCEPTANCE, ONE_PASS, [1 + 0.2 * k for k in range(8)], OVERHEAD, 3),
    ([0.9] * 7, ONE_PASS, [1.0] * 4 + [1.6] * 4, 0.0, 7),  # slower at 4, and faster than all at 7
    ([0.9, 0.3, 0.2], [0.0, 0.3, 0.3, 0.3], [1.0, 1.0, 1.25, 1.5], 0.1, 1),
    ([0.4, 0.4], [0.0, 0.3, 0.3], [1.0] * 3, 0.2, 2),
    ([0.3, 0.3], [0.0, 0.4, 0.4], [1.0] * 3, 0.1, 0),
    ([0.5, 0.5], [0.0, 0.5, 0.5], [1.0, 1.0, 1.25], 0.0, 0),  # equal to plain decoding
    ([0.5, 0.5, 0.0], [0.0, 0.25, 0.25, 0.25], [1.0] * 4, 0.0, 2),  # the third adds nothing
    ([0.6, 0.5], [0.0, 0.2, 0.35], [1.0, 1.05, 1.1], 0.15, 2),
    ([0.6, 0.9, 0.1], [0.0, 0.25, 0.25, 0.25], [1.0, 1.2, 1.2, 1.25], 0.0, 2),
    ([0.5], [0.0, 0.2], [1.0, 1.0], 0.35, 0),  # the overhead decides
    ([0.9], [0.0, 0.3], [1.0, 1.5], 0.0, 1),
    ([0.3, 0.9, 0.9], [0.0, 0.3, 0.3, 0.3], [1.0] * 4, 0.1, 3),  # a bad first slot, and better ones behind it
    ([], [0.0], [1.0], 0.1, 0),
    ([0.95] * 12, [0.0, *[0.3] * 12], [1.0] * 13, 0.1, 12),
    ([0.95] * 12, [0.0, *[0.3] * 12], [*[1.0] * 10, *[1.5] * 3], 0.1, 9),
    ([0.86, 0.84], [0.0, 0.38, 0.44], [1.0, 1.04, 1.13], 0.14, 2),
    ([0.34], [0.0, 0.16], [1.0, 1.04], 0.13, 1),
    ([0.34], [0.0, 0.16], [1.0, 1.04], 0.15, 0),
    ([0.34], [0.0, 0.16], [1.0, 1.14], 0.05, 0),
    ([0.26], [0.0, 0.14], [1.0, 1.04], 0.1, 0),
]


def speeds(acceptance: list[float], draft: list[float], verify: list[float], overhead: float) -> list[float]:
    """Tokens per step for each length from 0 on."""
    survival = list(itertools.accumulate(acceptance, lambda a, b: a * b))
    tokens = list(itertools.accumulate([1.0, *survival]))
    return [1.0, *(tokens[k] / (draft[k] + verify[k] + overhead) for k in range(1, len(tokens)))]


def all_lengths(learner: ModuleType) -> list[int | None]:
    return [whole(learner.best_length(list(a), list(d), list(v), o)) for a, d, v, o, _ in PRICES]


def test_the_best_length_for_prices_as_they_are(learner):
    """best_length: tokens of a round are divided by its measured costs, for each k; 0 where nothing pays."""
    found = all_lengths(learner)
    for (acceptance, draft, verify, overhead, right), given in zip(PRICES, found, strict=True):
        if given != right:
            draft, verify = ([round(cost, 3) for cost in costs] for costs in (draft, verify))
            by_length = [round(speed, 3) for speed in speeds(acceptance, draft, verify, overhead)]
            wrong(
                f"acceptance {acceptance}, draft costs {draft}, verify costs {verify}, overhead {overhead}: tokens per "
                f"step are {by_length} for k from 0 on, so the best k is {right}, yours says {given}"
                f"{named(STEM, all_lengths, found)}"
            )


# --- two slots --------------------------------------------------------------------------------------------------------

HALF = Fraction(1, 2)
COIN = [HALF, HALF]
SEVEN = [Fraction(n, 28) for n in range(1, 8)]
OF_COURSE = [[Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]]  # "of course", "no problem"


def overlap(p: Row, q: Row) -> Fraction:
    return sum((min(a, b) for a, b in zip(p, q, strict=True)), Fraction(0))


def accepted(p_first: Row, p_second: list[Row], q_first: Row, q_second: list[Row]) -> Fraction:
    """Drafts that the token rule accepts of two, in fractions: drafted, tested, and only then the second one."""
    total = Fraction(0)
    for x, (p, q) in enumerate(zip(p_first, q_first, strict=True)):
        kept = q * min(Fraction(1), p / q) if q else Fraction(0)
        total += kept * (1 + overlap(p_second[x], q_second[x]))
    return total


def two_slots() -> list[tuple[str, Row, list[Row], Row, list[Row]]]:
    """What it is; the target's rows; the draft's rows."""
    quarters = [Fraction(1, 4), Fraction(3, 4)]
    tables = [random_tables(seed, 3, 2, 2, "dense") for seed in range(3)]
    firsts = [(t.target[()], [t.target[(x,)] for x in range(3)], t.draft[()]) for t in tables]
    seconds = [[t.draft[(x,)] for x in range(3)] for t in tables]
    return [
        ("of course, no problem; slots that do not see each other", COIN, OF_COURSE, COIN, [COIN, COIN]),
        ("of course, no problem; the second slot sees the first token", COIN, OF_COURSE, COIN, OF_COURSE),
        ("a second slot that is good after token 0 only", quarters, OF_COURSE, COIN, [[1, 0], [1, 0]]),
        ("a second slot that is good after token 1 only", quarters, OF_COURSE, COIN, [[0, 1], [0, 1]]),
        ("a first token that the target never says", [0, 1], OF_COURSE, COIN, [COIN, quarters]),
        ("the same rows", quarters, [COIN, quarters], quarters, [COIN, quarters]),
        *(("three tokens", *first, second) for first, second in zip(firsts, seconds, strict=True)),
        *(("three tokens, slots that do not see each other", *first, [first[2]] * 3) for first in firsts),
        ("seven tokens", SEVEN, [SEVEN[i:] + SEVEN[:i] for i in range(7)], SEVEN[::-1], [SEVEN] * 7),
    ]


def all_accepted(learner: ModuleType) -> list[float]:
    found = []
    for _, p_first, p_second, q_first, q_second in two_slots():
        first, second = rows(floats(p_first), floats(q_first)), [rows(*map(floats, r)) for r in (p_second, q_second)]
        found.append(round(float(learner.expected_accepted(first[0], second[0], first[1], second[1])), 9))
    return found


def test_two_slots_are_tested_one_after_the_other(learner):
    """expected_accepted: the second token counts only after a first one that was accepted, and after that one."""
    found = all_accepted(learner)
    for (what, *given), own in zip(two_slots(), found, strict=True):
        right = accepted(*given)
        if own != pytest.approx(float(right), abs=1e-8):
            names = ("p first", "p second", "q first", "q second")
            tables = ", ".join(f"{name} {_shown(r)}" for name, r in zip(names, given, strict=True))
            wrong(
                f"{what} ({tables}): {right} of two are accepted, yours says {own:g}{named(STEM, all_accepted, found)}"
            )


def _shown(row: list) -> str:
    return f"[{', '.join(_shown(x) if isinstance(x, list) else str(x) for x in row)}]"


# --- the walk ---------------------------------------------------------------------------------------------------------


def powers(logits: Tensor) -> Tensor:
    """The distribution that whole logits stand for here: powers of 2, divided by their sum. Fractions, not decimals."""
    weights = 2.0 ** logits.double()
    return weights / weights.sum(-1, keepdim=True)


def fractions(logits: list[int]) -> Row:
    weights = [Fraction(2) ** n for n in logits]
    return [weight / sum(weights) for weight in weights]


SLOTS = [[0, 1, 3], [2, 0, 0], [1, 1, 0], [0, 2, 1], [3, 0, 1], [1, 2, 2], [0, 0, 1], [2, 1, 0]]
BIAS = [[0, 2, -1], [1, 0, 0], [-2, 0, 1]]  # row x: what is added after token x
WALKS = [  # the last committed token, what is drawn
    (0, [2, 0, 1]),
    (1, [0, 0, 0]),
    (2, [1, 2, 1]),
    (2, [1]),
    (0, []),
    (1, [2, 0, 1, 1, 2, 0, 0, 2]),
]


def right_rows(slots: list[list[int]], bias: list[list[int]], last: int, drawn: list[int]) -> list[list[int]]:
    """The logits of each row: slot and bias by the token before, as whole numbers."""
    return [
        [a + b for a, b in zip(slot, bias[before], strict=True)]
        for slot, before in zip(slots, [last, *drawn], strict=False)
    ]


def walked(
    learner: ModuleType, slots: list[list[int]], bias: list[list[int]], last: int, script: list[int]
) -> tuple[list[list[float]], list[int], list[list[float]]]:
    """What each token was drawn from, the ids that are returned, and the rows that are handed over."""
    seen: list[list[float]] = []
    about = f"slots {slots[: len(script)]}, last {last}, drawn {script}"

    def draw(row: Tensor) -> int:
        if not isinstance(row, Tensor) or row.shape != (len(bias),):
            wrong(f"{about}: draw is called with a row of shape ({len(bias)},), yours with {row!r}")
        seen.append([round(x, 9) for x in row.tolist()])
        return script[len(seen) - 1] if len(seen) <= len(script) else 0

    logits = torch.tensor(slots[: len(script)], dtype=torch.float64).reshape(-1, len(bias))
    table = rows(*bias)
    given = learner.walk(logits, lambda token: table[int(token)], last, powers, draw)
    _unchanged(table, bias, about)
    if not isinstance(given, tuple | list) or len(given) != 2:
        wrong(f"{about}: return a pair, ids and rows; yours returns {given!r}")
    if any(not isinstance(row, Tensor) or row.shape != (len(bias),) for row in given[1]):
        wrong(f"{about}: each row is of shape ({len(bias)},)")
    return seen, [int(token) for token in given[0]], [[round(x, 9) for x in row.tolist()] for row in given[1]]


def _unchanged(table: Tensor, bias: list[list[int]], about: str) -> None:
    """What bias(token) gives is a view of the head's own table, as in a run."""
    if table.tolist() != bias:
        wrong(
            f"{about}: it looks as if yours changes what bias(token) gives it: that is a row of the head's own table, "
            "which later slots and rounds need as it was; make a new tensor of the sum"
        )


def in_fractions(some_rows: list[list[float]]) -> str:
    """Rows as a learner reads them: 1/13 where 0.076923077 stands."""
    near = [[Fraction(x).limit_denominator(200) for x in row] for row in some_rows]
    shown = [
        ", ".join(str(f) if abs(f - x) < 1e-8 else f"{x:.4g}" for f, x in zip(*pair, strict=True))
        for pair in zip(near, some_rows, strict=True)
    ]
    return ", ".join(f"({row})" for row in shown) or "nothing"


def all_walks(learner: ModuleType) -> list:
    return [walked(learner, SLOTS, BIAS, last, script) for last, script in WALKS]


def test_each_row_depends_on_the_token_before(learner):
    """walk: a token is drawn from its slot with the bias of the one before it, and handed over with that very row."""
    found = all_walks(learner)
    for (last, script), (seen, tokens, handed) in zip(WALKS, found, strict=True):
        right = [[round(float(x), 9) for x in fractions(r)] for r in right_rows(SLOTS, BIAS, last, script)][
            : len(script)
        ]
        about = f"slots {SLOTS[: len(script)]}, bias {BIAS} (a row for each token before), last {last}, drawn {script}"
        if seen != right:
            wrong(
                f"{about}: they are drawn from {in_fractions(right)}, yours from {in_fractions(seen)}"
                f"{named(STEM, all_walks, found)}"
            )
        if tokens != script:
            wrong(f"{about}: yours returns the ids {tokens}{named(STEM, all_walks, found)}")
        if handed != right:
            wrong(
                f"{about}: q are the rows {in_fractions(right)}, yours hands over {in_fractions(handed)}"
                f"{named(STEM, all_walks, found)}"
            )


def certain(logits: Tensor) -> Tensor:
    """The distribution at temperature 0: the largest has all."""
    return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()


def test_a_walk_at_temperature_0(learner):
    """walk: slot and bias are added before a distribution is made of them, so that it stays one that is certain."""
    logits = torch.tensor(SLOTS, dtype=torch.float64) + torch.arange(3) * 1e-4  # no two are equal, some nearly
    bias = torch.tensor(BIAS, dtype=torch.float64)
    for last in range(3):
        right, before = [], last
        for slot in logits:
            before = int((slot + bias[before]).argmax())
            right.append(before)
        about = f"temperature 0, slots {SLOTS} + (0, 0.0001, 0.0002), bias {BIAS}, last {last}"
        tokens, handed = learner.walk(
            logits.clone(), lambda token: bias[int(token)], last, certain, lambda row: int(row.argmax())
        )
        _unchanged(bias, BIAS, about)
        if [int(token) for token in tokens] != right:
            wrong(f"{about}: {right} are drawn, yours returns {[int(token) for token in tokens]}")
        if [row.tolist() for row in handed] != [[float(i == token) for i in range(3)] for token in right]:
            wrong(f"{about}: each row is certain of its token, yours hands over {[row.tolist() for row in handed]}")


def as_fractions(row: list[float], about: str) -> Row:
    """The fractions with small denominators that a row was computed from."""
    found = [Fraction(x).limit_denominator(1000) for x in row]
    if any(x < 0 for x in found) or sum(found) != 1:
        wrong(f"{about}: a row is a distribution, yours has {row}")
    return found


def law_of(learner: ModuleType, tables: Tables, slots: list[list[int]], bias: list[list[int]], last: int) -> Law:
    """The joint law of the next k + 1 tokens, the draft's rows judged by the rule of chapter 4."""
    law: Law = {}
    for script in itertools.product(range(tables.vocab), repeat=tables.k):
        seen, tokens, handed = walked(learner, slots, bias, last, list(script))
        about = f"slots {slots}, bias {bias}, last {last}, drawn {list(script)}"
        if len(seen) != len(script) or tuple(tokens) != script or len(handed) != len(script):
            wrong(f"{about}: yours draws {len(seen)} times and returns {tokens} with {len(handed)} rows")
        chance = Fraction(1)
        for token, row in zip(script, seen, strict=True):
            chance *= as_fractions(row, about)[token]
        q = [as_fractions(row, about) for row in handed]
        if any(not row[token] for row, token in zip(q, script, strict=True)):
            wrong(f"{about}: a token is handed over with a row that rules it out")
        path = Tables(tables.vocab, tables.k, tables.target, {script[:i]: row for i, row in enumerate(q)})
        for block, share in emitted(path, list(script)).items():
            if share:
                law[block] = law.get(block, Fraction(0)) + chance * share
    return completed(law, tables, (), tables.k + 1)


def of_the_chapter() -> tuple[Tables, list[list[int]], list[list[int]], int]:
    """One slot after "of": the target says course in 5 of 6 cases; the slot 1 : 1, the bias makes it 2 : 1."""
    row = [Fraction(5, 6), Fraction(1, 6)]
    return Tables(2, 1, {(): row, (0,): row, (1,): row}, {}), [[0, 0]], [[1, 0], [0, 1]], 0


BLOCKS = [(2, 3, SLOTS[:2], BIAS), (3, 2, [[0, 1], [1, 1], [2, 0]], [[0, 2], [1, -1]]), (1, 3, SLOTS[1:2], BIAS)]


def exact_cases() -> list[tuple[Tables, list[list[int]], list[list[int]], int]]:
    families = [(family, seed) for family in ("dense", "target forbids") for seed in range(2)]
    return [
        (random_tables(seed, vocab, k, k + 1, family), slots, bias, last)
        for k, vocab, slots, bias in BLOCKS
        for family, seed in families
        for last in range(vocab)
    ]


def law_with(name: str) -> Law:
    """Of the chapter's example, with a known mistake in the walk."""
    return law_of(with_wrong_answer(STEM, *WRONG[name]), *of_the_chapter())


@pytest.mark.whole
def test_the_rows_that_are_handed_over_keep_the_targets_law(learner):
    """Summed in fractions over every path of the walk, the next k + 1 tokens follow the target's law."""
    for tables, slots, bias, last in [of_the_chapter(), *exact_cases()]:
        found, right = law_of(learner, tables, slots, bias, last), target_law(tables, (), tables.k + 1)
        if found != right:
            tokens = furthest(found, right)

            def answers(one: ModuleType, given: tuple = (tables, slots, bias, last)) -> Law:
                return law_of(one, *given)

            at = Tables(tables.vocab, 0, tables.target, {})
            wrong(
                f"slots {slots}, bias {bias}, last {last}, summed over all drafts: the next tokens {tokens} must come "
                f"with probability {right.get(tokens, 0)}, with yours it is {found.get(tokens, 0)}"
                f"{named(STEM, answers, found)}. {rows_along(at, tokens)}"
            )


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_prices_of_the_chapter():
    """Both rows of speeds, and the best length of each."""
    said = {
        name: [float(x) for x in cells.replace("*", "").split("|")]
        for name, cells in re.findall(r"^\| (token by token|one pass) \| (.+) \|$", chapter(STEM), re.MULTILINE)
    }
    for name, draft in (("token by token", STEPWISE), ("one pass", ONE_PASS)):
        found = speeds(ACCEPTANCE, draft, VERIFY, OVERHEAD)[1:]
        assert said[name] == [round(speed, 2) for speed in found]
    bold = re.findall(r"\*\*([\d.]+)\*\*", chapter(STEM).partition("## Predict")[0])
    assert [float(x) for x in bold] == [max(said["token by token"]), max(said["one pass"])]


def test_the_two_slots_of_the_chapter():
    """Slots whose joint law is not the target's, and what is accepted of them."""
    joint = {(x, y): COIN[x] * OF_COURSE[x][y] for x in range(2) for y in range(2)}
    alone = {(x, y): COIN[x] * sum(joint[z, y] for z in range(2)) for x in range(2) for y in range(2)}
    rows_said = re.findall(r"^ (of|no) +(course|problem) +(\S+) +(\S+)", chapter(STEM), re.MULTILINE)
    assert [(Fraction(p), Fraction(q)) for _, _, p, q in rows_said] == [(joint[key], alone[key]) for key in joint]
    assert accepted(COIN, OF_COURSE, COIN, [COIN, COIN]) == Fraction(3, 2)
    assert accepted(COIN, OF_COURSE, COIN, OF_COURSE) == 2


def test_a_row_that_was_not_drawn_from_is_biased():
    """p = (5/6, 1/6), the slot (1/2, 1/2), with its bias (2/3, 1/3); and a token that is called certain is not."""
    _, slots, bias, last = of_the_chapter()
    assert fractions(slots[0]) == COIN
    assert fractions(right_rows(slots, bias, last, [0])[0]) == [Fraction(2, 3), Fraction(1, 3)]
    for name, share in ((BASE_HANDED, Fraction(1, 9)), (BASE_DRAWN, Fraction(1, 4)), (ONE_HOT, Fraction(1, 6))):
        assert sum(chance for tokens, chance in law_with(name).items() if tokens[0] == 1) == share
