"""Checks of exercise 16: children without replacement, the two rules for them, and the law that comes out, exactly."""

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import ModuleType

import pytest

from solutions import ex16_tree_sampling as right
from speclab.system.paths import ROOT
from tests.exercises.answers import chapter, unlike, whole, wrong

STEM = "ex16_tree_sampling"
Row = list[Fraction]
FINE = 2**40  # a uniform at which a decision turns is looked for to this share


def shares(*parts: int) -> Row:
    return [Fraction(part, sum(parts)) for part in parts]


def shown(row: Row) -> str:
    return f"[{', '.join(map(str, row))}]"


class Script:
    """A `draw` that gives the ids of a script, and remembers the rows that it was asked to draw from."""

    def __init__(self, *ids: int):
        self._ids, self.rows = list(ids), []

    def __call__(self, row: Row) -> int:
        row = list(row)
        if any(isinstance(share, float) for share in row):
            wrong(
                f"it looks as if yours calls draw with floats, {shown(row)}: keep fractions. One 0.0 makes "
                "floats of them; write 0"
            )
        if abs(sum(row) - 1) > 1e-9 or min(row) < 0:
            wrong(f"it looks as if yours calls draw with {shown(row)}, which is no distribution")
        self.rows.append(row)
        if len(self.rows) > len(self._ids):
            wrong(f"it looks as if yours calls draw {len(self.rows)} times, where {len(self._ids)} are enough")
        return self._ids[len(self.rows) - 1]


# --- children ---------------------------------------------------------------------------------------------------------

DRAWN = [  # the draft's row, how many, what is drawn
    (shares(2, 1, 1), 2, [0, 1]),
    (shares(2, 1, 1), 2, [2, 0]),
    (shares(4, 3, 2, 1), 3, [3, 0, 2]),
    (shares(1, 0, 3), 3, [2, 0]),  # two tokens alone can be drawn
    (shares(0, 1), 2, [1]),
    (shares(4, 3, 2, 1), 1, [1]),
    (shares(1, 1), 0, []),
    (shares(5, 7, 3, 2, 9, 4, 6, 1), 7, [4, 0, 7, 2, 6, 1, 3]),
    (shares(5, 7, 3, 2, 9, 4, 6, 1), 8, [1, 0, 2, 3, 4, 5, 6, 7]),
    (shares(0, 0, 1, 0), 6, [2]),  # temperature 0
]


def all_children(learner: ModuleType) -> list[object]:
    found = []
    for row, m, ids in DRAWN:
        drawn = learner.children(list(row), m, Script(*ids))
        found.append([(whole(token), [Fraction(share) for share in law]) for token, law in drawn])
    return found


def test_children_differ_and_say_what_they_were_drawn_from(learner):
    """children: each is drawn from the row without those before it, scaled to sum to 1; the given row stays."""
    for (row, m, ids), given, expected, name in unlike(STEM, all_children, learner, right, DRAWN):
        text = ", ".join(f"{token} from {shown(law)}" for token, law in expected)
        own = ", ".join(f"{token} from {shown(law)}" for token, law in given)
        wrong(
            f"row {shown(row)}, {m} children, {ids} are drawn: they are {text or 'none'}; yours {own or 'none'}{name}"
        )
    for row, m, ids in DRAWN:
        given_row = list(row)
        learner.children(given_row, m, Script(*ids))
        if given_row != row:
            wrong(f"children changed the row that it was given from {shown(row)} to {shown(given_row)}; work on a copy")


# --- at one node, by hand ---------------------------------------------------------------------------------------------

HALF, HALVES, LAST = shares(1, 1), shares(64, 32, 16, 8, 4, 2, 1, 1), 1 - 2**-40
TESTS = [  # the target's row, the children, uniforms, what draw gives
    (shares(1, 3), [(0, HALF), (1, shares(0, 1))], [0.4, 0.9], 7),
    (shares(1, 3), [(0, HALF), (1, shares(0, 1))], [0.6, 0.9], 7),
    (shares(1, 1, 2), [(0, shares(2, 1, 1)), (1, shares(0, 1, 1))], [0.9, 0.3], 2),
    (shares(1, 1, 2), [(0, shares(2, 1, 1)), (1, shares(0, 1, 1))], [0.9, 0.1], 2),
    (shares(0, 1, 1), [(0, shares(2, 1, 1))], [0.0], 1),  # a token that the target forbids is never kept
    (shares(4, 3, 2, 1), [(3, shares(1, 1, 1, 1)), (0, shares(1, 1, 1, 0))], [0.5, 0.99], 1),
    (shares(4, 3, 2, 1), [], [], 2),
    (shares(0, 1), [(0, shares(1, 0))], [0.5], 1),  # temperature 0
    (shares(0, 1), [(1, shares(0, 1))], [0.99], 0),
    *(  # all but the last child are rejected, and the last one can be kept
        (shares(*[1] * 8), right.children(HALVES, len(ids), Script(*ids)), [LAST] * (len(ids) - 1) + [uniform], 7)
        for ids in ((0, 6), (0, 1, 6), (0, 1, 2, 6), (0, 1, 2, 3, 6), (0, 1, 2, 3, 4, 6), (0, 1, 2, 3, 4, 5, 6))
        for uniform in (0.0, LAST)
    ),
]


def all_tests(learner: ModuleType) -> list[object]:
    found = []
    for target, drawn, uniforms, gives in TESTS:
        script = Script(gives)
        children = [(t, list(q)) for t, q in drawn]
        try:
            kept, token = learner.accept_children(list(target), children, list(uniforms), script)
        except ZeroDivisionError:
            wrong(
                f"target {shown(target)}, uniforms {uniforms}: it looks as if yours divides by a sum of 0. Remember: a "
                "child is tested against what the rejected ones have left, and after a rejection something is left"
            )
        found.append(
            (None if kept is None else whole(kept), whole(token), [list(map(Fraction, r)) for r in script.rows])
        )
    return found


def test_children_are_tested_one_after_the_other(learner):
    """accept_children: they are tested in the order in which they were drawn, each against what is left by then."""
    for (target, drawn, uniforms, _), given, expected, name in unlike(STEM, all_tests, learner, right, TESTS):
        about = ", ".join(f"{token} from {shown(law)}" for token, law in drawn)
        want, own = (
            f"{kept}, {token}" + "".join(f", drawn from {shown(r)}" for r in rows)
            for kept, token, rows in (expected, given)
        )
        wrong(f"target {shown(target)}, children {about or 'none'}, uniforms {uniforms}: {want}; yours {own}{name}")


FOLLOWED = [
    (shares(1, 1, 2), tokens, own)
    for tokens in ([0], [2, 1], [1, 1], [], [7, 6, 5, 4, 3, 0, 2, 1, 2])
    for own in (0, 1, 2)
]


def all_followed(learner: ModuleType) -> list[object]:
    found = []
    for target, tokens, own in FOLLOWED:
        script = Script(own)
        kept, token = learner.follow(list(target), list(tokens), script)
        found.append((None if kept is None else whole(kept), whole(token), script.rows))
    return found


def test_the_targets_own_draw_is_followed(learner):
    """follow: there is one draw, from the target's row, whatever the children are."""
    for (target, tokens, own), given, expected, name in unlike(STEM, all_followed, learner, right, FOLLOWED):
        wrong(
            f"target {shown(target)}, children {tokens}, the target draws {own}: {expected[:2]}, yours says "
            f"{given[:2]}{name}"
        )


# --- the law ----------------------------------------------------------------------------------------------------------

NODES = [  # the target's row, the draft's row
    (shares(1, 3), HALF),
    (shares(4, 3, 2, 1), shares(3, 3, 2, 2)),
    (shares(16, 2, 1, 1), shares(5, 3, 1, 1)),
    (shares(1, 2, 3, 4), shares(4, 3, 2, 1)),
    (shares(0, 1, 1), shares(2, 1, 1)),
    (shares(1, 1, 1, 1), shares(1, 1, 1, 1)),
    (shares(5, 0, 3), shares(1, 2, 0)),
]


def sequences(learner: ModuleType, row: Row, m: int) -> Iterator[tuple[Fraction, list[tuple[int, Row]]]]:
    """Every way in which the children can be drawn, with its probability."""

    def go_on(ids: list[int]) -> Iterator[tuple[Fraction, list[tuple[int, Row]]]]:
        if len(ids) > m:
            wrong(
                f"row {shown(row)}, {m} children: it looks as if yours draws more than {m} times; one draw for a child"
            )
        script = Script(*ids, *[-1] * m)  # -1: the next one, which is not decided yet

        class NextError(Exception):
            pass

        def draw(law: Row) -> int:
            token = script(law)
            if token < 0:
                raise NextError
            return token

        try:
            drawn = learner.children(list(row), m, draw)
        except NextError:
            law = script.rows[len(ids)]
            for token, share in enumerate(law):
                if share:
                    for weight, found in go_on([*ids, token]):
                        yield weight * share, found
            return
        yield Fraction(1), [(token, [Fraction(share) for share in law]) for token, law in drawn]

    yield from go_on([])


def turning(decide: Callable[[float], bool]) -> float:
    """The uniform below which `decide` is true."""
    low, high = 0, FINE
    if not decide(0.0):
        return 0.0
    if decide(1 - 1 / FINE):
        return 1.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if decide(middle / FINE) else (low, middle)
    return high / FINE


def law_at(learner: ModuleType, target: Row, draft: Row, m: int) -> tuple[list[float], float]:
    """The law of the token after a node with m children, and how often a child is kept."""
    law, kept_share = [0.0] * len(target), 0.0
    for weight, drawn in sequences(learner, draft, m):
        alive, uniforms = float(weight), [0.0] * len(drawn)
        for i, (token, _) in enumerate(drawn):

            def kept(uniform: float, i: int = i, uniforms: list[float] = uniforms, drawn: list = drawn) -> bool:
                asked = [*uniforms[:i], uniform, *uniforms[i + 1 :]]
                number, _ = learner.accept_children(list(target), list(drawn), asked, lambda row: 0)
                return number == i

            turn = turning(kept)
            law[token] += alive * turn
            kept_share += alive * turn
            alive *= 1 - turn
            uniforms[i] = 1 - 1 / FINE  # rejected, where that can be
            if alive < 1e-12:
                break
        else:
            script = Script(0)
            number, _ = learner.accept_children(list(target), list(drawn), uniforms, script)
            if number is not None:
                wrong(f"child {number} is kept at a uniform at which it was not")
            for token, share in enumerate(script.rows[0]):
                law[token] += alive * float(share)
    return law, kept_share


@pytest.mark.whole
def test_the_targets_law_comes_out(learner):
    """Summed over all draws of children and all their tests, the next token follows the target's row."""
    for target, draft in NODES:
        for m in (1, 2, 3):
            law, _ = law_at(learner, target, draft, m)
            if law != pytest.approx([float(share) for share in target], abs=1e-8):
                off = max(range(len(target)), key=lambda token: abs(law[token] - target[token]))
                wrong(
                    f"target {shown(target)}, draft {shown(draft)}, {m} children: token {off} must come with "
                    f"probability {target[off]}, with yours it is {law[off]:.4f}"
                )


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_table_of_the_chapter():
    """How often a child is kept: both rules, one to three children."""
    said = re.findall(r"^\| (flat|near|sure) \| (.+) \|$", chapter(STEM), re.MULTILINE)
    rows = {"flat": NODES[5], "near": NODES[1], "sure": NODES[2]}
    assert [name for name, _ in said] == list(rows)
    for name, cells in said:
        target, draft = rows[name]
        best = sorted(range(len(draft)), key=lambda token: -draft[token])
        tested = [law_at(right, target, draft, m)[1] for m in (1, 2, 3)]
        followed = [float(sum(target[token] for token in best[:m])) for m in (1, 2, 3)]
        # The tests' uniforms are known to 2^-40, so that 15/16 comes a little lower and would be rounded down.
        assert cells.replace("*", "") == " | ".join(f"{share + 1e-9:.3f}" for share in (*tested, *followed))


def test_the_counted_rows_of_the_chapter_are_those_of_the_record():
    record = json.loads((ROOT / "results" / "cpu-2-cores-drawn.json").read_text("utf-8"))
    said = re.findall(r"^\| ([\dx]+|chain), (certain|drawn) \| ([\d.]+) \| ([\d.]+) \|$", chapter(STEM), re.MULTILINE)
    assert len(said) == 7
    for shape, kind, *cells in said:
        for temperature, cell in zip((0.8, 1.2), cells, strict=True):
            rows = [r for r in record["raw"] if (r["arm"], r["temperature"]) == (f"{shape}, {kind}", temperature)]
            accepted, rounds = (sum(row[name] for row in rows) for name in ("n_accepted", "n_rounds"))
            assert cell == f"{1 + accepted / rounds:.2f}"
