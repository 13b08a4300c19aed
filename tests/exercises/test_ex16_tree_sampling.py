"""Checks of exercise 16: children without replacement, the two rules for them, and the law that comes out, exactly."""

import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from types import ModuleType

from solutions import ex16_tree_sampling as right
from speclab.system.paths import ROOT
from tests.exercises.answers import asked, chapter, simplest, whole, wrong
from tests.test_exact import CENTRE, boxes, inside

STEM = "ex16_tree_sampling"
Row = list[Fraction]


def shares(*parts: int) -> Row:
    return [Fraction(part, sum(parts)) for part in parts]


def shown(row: Iterable[Fraction]) -> str:
    return f"[{', '.join(map(str, row))}]"


class Script:
    """A `draw` that gives the ids of a script, and remembers the rows that it was asked to draw from."""

    def __init__(self, *ids: int):
        self._ids, self.rows = list(ids), []

    def __call__(self, row: Row) -> int:
        row = list(row)
        if any(isinstance(share, float) for share in row) or sum(row) != 1 or min(row) < 0:
            what = "no distribution of fractions (one 0.0 makes floats of them; write 0)"
            wrong(f"it looks as if yours calls draw with {shown(row)}, {what}")
        self.rows.append(row)
        if len(self.rows) > len(self._ids):
            wrong(f"it looks as if yours calls draw {len(self.rows)} times, where {len(self._ids)} are enough")
        return self._ids[len(self.rows) - 1]


DICE = random.Random(0)
SIZES = [1, 2, 3, 4, 8] * 6


def row_of(n: int) -> Row:
    return shares(*(DICE.choice([0, 1, 1, 2, 5]) for _ in range(n - 1)), 1)


def drawn_ids(row: Row, m: int) -> list[int]:
    """As many as there are, at most m, in random order."""
    ids = [token for token, share in enumerate(row) if share]
    return DICE.sample(ids, min(m, len(ids)))


DRAWN = simplest((row, m, drawn_ids(row, m)) for row, m in ((row_of(n), DICE.randint(0, n)) for n in SIZES))


def as_drawn(drawn: list[tuple[int, Row]]) -> str:
    return ", ".join(f"{token} from {shown(law)}" for token, law in drawn) or "none"


def children_in_words(row: Row, m: int, ids: list[int]) -> str:
    return f"row {shown(row)}, {m} children, {ids} are drawn"


@asked(DRAWN, children_in_words)
def test_children_differ_and_say_what_they_were_drawn_from(one, row, m, ids):
    """children: each is drawn from the row without those before it, scaled to sum to 1; the given row stays."""
    drawn = one.children(list(row), m, Script(*ids))
    return as_drawn([(whole(token), [Fraction(share) for share in law]) for token, law in drawn])


HALF, LAST = shares(1, 1), 1 - 2**-40


def node(n: int) -> tuple[Row, list[tuple[int, Row]], list[float], int]:
    """The target's row, the children, uniforms, what draw gives."""
    target, draft = row_of(n), row_of(n)
    ids = drawn_ids(draft, DICE.randint(0, n))
    children = right.children(draft, len(ids), Script(*ids))
    return target, children, [DICE.choice([0.0, 0.25, 0.5, LAST, LAST]) for _ in ids], DICE.randrange(n)


TESTS = simplest(node(n) for n in SIZES * 8)


def node_in_words(target: Row, drawn: list[tuple[int, Row]], uniforms: list[float], _: int) -> str:
    return f"target {shown(target)}, children {as_drawn(drawn)}, uniforms {uniforms}"


@asked(TESTS, node_in_words)
def test_children_are_tested_one_after_the_other(one, target, drawn, uniforms, gives):
    """accept_children: they are tested in the order in which they were drawn, each against what is left by then; after
    a rejection something is left."""
    script = Script(gives)
    try:
        kept, token = one.accept_children(list(target), [(t, list(q)) for t, q in drawn], list(uniforms), script)
    except ZeroDivisionError:
        return "a division by a sum of 0"
    number = None if kept is None else whole(kept)
    return f"{number}, {whole(token)}" + "".join(f", drawn from {shown(map(Fraction, row))}" for row in script.rows)


FOLLOWED = list(itertools.product(([0], [2, 1], [1, 1], [], [7, 6, 5, 4, 3, 0, 2, 1, 2]), (0, 1, 2)))


@asked(FOLLOWED, "target (1/4, 1/4, 1/2), children {}, the target draws {}")
def test_the_targets_own_draw_is_followed(one, tokens, own):
    """follow: there is one draw, from the target's row, whatever the children are."""
    script = Script(own)
    kept, token = one.follow(shares(1, 1, 2), list(tokens), script)
    return None if kept is None else whole(kept), whole(token), *map(shown, script.rows)


NODES = [  # the target's row, the draft's row
    (shares(1, 3), HALF),
    (shares(4, 3, 2, 1), shares(3, 3, 2, 2)),
    (shares(16, 2, 1, 1), shares(5, 3, 1, 1)),
    (shares(1, 2, 3, 4), shares(4, 3, 2, 1)),
    (shares(0, 1, 1), shares(2, 1, 1)),
    (shares(1, 1, 1, 1), shares(1, 1, 1, 1)),
    (shares(5, 0, 3), shares(1, 2, 0)),
]


def sequences(one: ModuleType, row: Row, m: int) -> Iterator[tuple[Fraction, list[tuple[int, Row]]]]:
    """Every way in which the children can be drawn, with its probability."""
    ids = [token for token, share in enumerate(row) if share]
    for script in (Script(*drawn) for drawn in itertools.permutations(ids, min(m, len(ids)))):
        children = [(token, [Fraction(share) for share in law]) for token, law in one.children(list(row), m, script)]
        yield math.prod(law[token] for law, (token, _) in zip(script.rows, children, strict=False)), children


def law_at(one: ModuleType, target: Row, draft: Row, m: int) -> tuple[Row, Fraction]:
    """The law of the token after a node with m children, and how often a child is kept."""
    law, kept_share = [Fraction(0)] * len(target), Fraction(0)
    for weight, drawn in sequences(one, draft, m):
        left, turns = list(target), []  # where the test of each child turns
        for token, q in drawn:
            turns.append(left[token] / q[token])
            rest = [max(a - b, Fraction(0)) for a, b in zip(left, q, strict=True)]
            left = [share / sum(rest) for share in rest] if any(rest) else rest
        for cell in itertools.product(*(boxes([turn]) for turn in turns)):
            script, volume = Script(0), math.prod((high - low for low, high in cell), start=weight)
            uniforms = [inside(box, CENTRE) for box in cell]
            number, token = one.accept_children(list(target), list(drawn), uniforms, script)
            kept_share += volume * (number is not None)
            for other, share in enumerate(script.rows[0] if number is None else [i == token for i in range(len(law))]):
                law[other] += volume * share
    return law, kept_share


def test_the_targets_law_comes_out(learner):
    """children, accept_children: summed over all draws of children and all their tests, the next token follows the
    target's row."""
    for (target, draft), m in itertools.product(NODES, (1, 2, 3)):
        law, _ = law_at(learner, target, draft, m)
        if law != target:
            wrong(f"target {shown(target)}, draft {shown(draft)}, {m} children: the law is {shown(law)} with yours")


def test_the_table_of_the_chapter():
    """How often a child is kept: both rules, one to three children."""
    said = re.findall(r"^\| (flat|near|sure) \| (.+) \|$", chapter(STEM), re.MULTILINE)
    rows = {"flat": NODES[5], "near": NODES[1], "sure": NODES[2]}
    assert [name for name, _ in said] == list(rows)
    for name, cells in said:
        target, draft = rows[name]
        best = sorted(range(len(draft)), key=lambda token: -draft[token])
        tested = [law_at(right, target, draft, m)[1] for m in (1, 2, 3)]
        followed = [sum(target[token] for token in best[:m]) for m in (1, 2, 3)]
        assert cells.replace("*", "") == " | ".join(f"{float(share):.3f}" for share in (*tested, *followed))


def test_the_counted_rows_of_the_chapter_are_those_of_the_record():
    record = json.loads((ROOT / "results" / "cpu-2-cores-drawn.json").read_text("utf-8"))
    said = re.findall(r"^\| ([\dx]+|chain), (certain|drawn) \| ([\d.]+) \| ([\d.]+) \|$", chapter(STEM), re.MULTILINE)
    assert len(said) == 7
    for shape, kind, *cells in said:
        for temperature, cell in zip((0.8, 1.2), cells, strict=True):
            rows = [r for r in record["raw"] if (r["arm"], r["temperature"]) == (f"{shape}, {kind}", temperature)]
            accepted, rounds = (sum(row[name] for row in rows) for name in ("n_accepted", "n_rounds"))
            assert cell == f"{1 + accepted / rounds:.2f}"
