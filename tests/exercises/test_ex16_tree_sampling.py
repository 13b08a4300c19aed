"""Checks of exercise 16: children without replacement, the two rules for them, and what the chapter counts."""

import itertools
import json
import random
import re
from collections.abc import Iterable
from fractions import Fraction

from solutions import ex16_tree_sampling as right
from speclab.system.files import ROOT
from tests.exercises.answers import asked, chapter, simplest, whole, wrong

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
    return target, children, [DICE.choice([0.0, 0.26, 0.51, LAST, LAST]) for _ in ids], DICE.randrange(n)


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


def test_the_counted_rows_of_the_chapter_are_those_of_the_record():
    record = json.loads((ROOT / "results" / "cpu-2-cores-drawn.json").read_text("utf-8"))
    said = re.findall(r"^\| ([\dx]+|chain), (certain|drawn) \| ([\d.]+) \| ([\d.]+) \|$", chapter(STEM), re.MULTILINE)
    assert len(said) == 7
    for shape, kind, *cells in said:
        for temperature, cell in zip((0.8, 1.2), cells, strict=True):
            rows = [r for r in record["raw"] if (r["arm"], r["temperature"]) == (f"{shape}, {kind}", temperature)]
            accepted, rounds = (sum(row[name] for row in rows) for name in ("n_accepted", "n_rounds"))
            assert cell == f"{1 + accepted / rounds:.2f}"
