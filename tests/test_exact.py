"""Losslessness, proved: the production rule and `draw`, enumerated exactly. Tolerance zero, no statistics.

Both are piecewise constant in their uniforms. The corners of the pieces follow from the tables (acceptance
thresholds p / q, corners of every distribution a token may be drawn from) and are computed here in Fractions. The
production float64 code then runs at one interior point of each box, and the boxes' exact volumes add up to the law of
its output. The rule itself is not written down here a second time: it is judged by its output alone.

Extensions enumerate their rules with `play`, too.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch

from speclab.core.accept import accept
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import NOT_FINITE, draw

Prefix = tuple[int, ...]
Row = list[Fraction]  # a distribution
Law = dict[Prefix, Fraction]  # tokens -> exact probability
Box = tuple[Fraction, Fraction]

CENTRE = Fraction(1, 2)
NARROWEST = Fraction(1, 10**7)  # float64 errs by 1e-16 here, so an interior point of a wider box is unambiguous


# --- tables ---------------------------------------------------------------------------------------------------------


@dataclass
class Tables:
    """Target and draft distributions after each prefix."""

    vocab: int
    k: int
    target: dict[Prefix, Row]
    draft: dict[Prefix, Row]
    stored: bool = True  # False: the drafts are one-hot and go to `accept` with probs=None


def random_row(rng: random.Random, vocab: int, support: list[int]) -> Row:
    """Positive on `support`, zero elsewhere; the denominator is at most 12."""
    denominator = rng.randint(max(2, len(support)), 12)
    cuts = [0, *sorted(rng.sample(range(1, denominator), len(support) - 1)), denominator]
    row = [Fraction(0)] * vocab
    for token, (low, high) in zip(support, itertools.pairwise(cuts), strict=True):
        row[token] = Fraction(high - low, denominator)
    return row


def two_supports(rng: random.Random, vocab: int, family: str) -> tuple[list[int], list[int]]:
    """Where the target and where the draft is positive."""
    everything = list(range(vocab))
    some = rng.sample(everything, rng.randint(1, vocab))
    fewer = rng.sample(everything, rng.randint(1, vocab - 1))  # a strict subset of everything
    if family == "dense":
        return everything, everything
    if family == "zeros":
        return some, rng.sample(everything, rng.randint(1, vocab))
    if family == "draft blind":  # q = 0 where p > 0
        return everything, fewer
    if family == "target forbids":  # p = 0 where q > 0
        return fewer, everything
    if family == "disjoint":
        return fewer, [token for token in everything if token not in fewer]
    if family in ("one-hot", "one-hot stored"):
        return some, [rng.randrange(vocab)]
    assert family == "greedy"
    return [rng.randrange(vocab)], [rng.randrange(vocab)]


def random_tables(seed: int, vocab: int, k: int, length: int, family: str) -> Tables:
    """Rows for every prefix shorter than `length`, each on its own: nothing is shared between prefixes."""
    rng = random.Random(f"{family} {seed}")
    tables = Tables(vocab, k, {}, {}, stored=family != "one-hot")
    for n in range(length):
        for prefix in itertools.product(range(vocab), repeat=n):
            if family == "identical":
                support = rng.sample(range(vocab), rng.randint(1, vocab))
                tables.target[prefix] = tables.draft[prefix] = random_row(rng, vocab, support)
            else:
                supports = two_supports(rng, vocab, family)
                tables.target[prefix], tables.draft[prefix] = (random_row(rng, vocab, s) for s in supports)
    return tables


def target_law(tables: Tables, start: Prefix, length: int) -> Law:
    """The target's own joint law of the `length` tokens after `start`, zeros left out."""
    law = {(): Fraction(1)}
    for _ in range(length):
        law = {
            (*tokens, token): chance * weight
            for tokens, chance in law.items()
            for token, weight in enumerate(tables.target[start + tokens])
            if weight
        }
    return law


# --- the production functions at the centres of boxes ---------------------------------------------------------------


def boxes(corners: list[Fraction]) -> list[Box]:
    """[0, 1) cut at the corners that lie inside it."""
    edges = sorted({Fraction(0), Fraction(1), *(c for c in corners if 0 < c < 1)})
    found = list(itertools.pairwise(edges))
    assert min(high - low for low, high in found) > NARROWEST
    return found


def cdf_corners(weights: Row) -> list[Fraction]:
    """Where the inverse CDF of unnormalised weights jumps; nothing for weights without mass."""
    total = sum(weights)
    return [corner / total for corner in itertools.accumulate(weights)] if total else []


def inside(box: Box, at: Fraction) -> float:
    low, high = box
    return float(low + at * (high - low))


def floats(row: Row) -> list[float]:
    return [float(weight) for weight in row]


def drawn(rows: list[Row], at: Fraction = CENTRE) -> list[Counter[int]]:
    """Exact law of what the production `draw` returns for each row of weights."""
    cut = [(i, box) for i, row in enumerate(rows) for box in boxes(cdf_corners(row))]
    weights = torch.tensor([floats(rows[i]) for i, _ in cut], dtype=torch.float64)
    tokens = draw(weights, torch.tensor([inside(box, at) for _, box in cut], dtype=torch.float64))
    laws = [Counter() for _ in rows]
    for (i, (low, high)), token in zip(cut, tokens.tolist(), strict=True):
        laws[i][token] += high - low
    return laws


class Job(NamedTuple):
    """One round: `size` drafted tokens after `start`, fewer where one of `last` is drawn: no other follows it."""

    tables: Tables
    start: Prefix
    size: int
    last: frozenset[int] = frozenset()
    dropped: bool = False  # such a token is not handed over, which is wrong


Rule = Callable[[Draft, torch.Tensor, torch.Tensor], AcceptResult]
Pieces = Callable[[Job, Prefix], tuple[list[list[Fraction]], list[Row]]]


def token_pieces(job: Job, tokens: Prefix, scale: Fraction = Fraction(1)) -> tuple[list[list[Fraction]], list[Row]]:
    """Of the token rule: where each test changes, and every residual that a next token may come from.

    scale: a factor on the draft's probability in the test; 1 in the rule itself.
    """
    tests, residuals = [], []
    for i in range(len(tokens)):
        p, q = (rows[job.start + tokens[:i]] for rows in (job.tables.target, job.tables.draft))
        tests.append([p[tokens[i]] / (scale * q[tokens[i]])])
        residuals.append([max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)])
    return tests, residuals


class Path(NamedTuple):
    """One outcome of a round's drafting, with the boxes in which its verdict is constant."""

    job: int
    tokens: Prefix
    chance: Fraction
    sides: list[list[Box]]  # size acceptance tests, then the draw of the next token


def drafted(job: Job) -> Law:
    """Exact law of the drafted tokens. Drawn by the production `draw`, unless the draft is a bare one-hot."""
    law, ended = {(): Fraction(1)}, Counter()
    for _ in range(job.size):
        if not law:
            break
        rows = [job.tables.draft[job.start + tokens] for tokens in law]
        steps = drawn(rows) if job.tables.stored else [{row.index(1): Fraction(1)} for row in rows]
        further: Law = {}
        for (tokens, chance), step in zip(law.items(), steps, strict=True):
            for token, width in step.items():
                if token in job.last:
                    ended[tokens if job.dropped else (*tokens, token)] += chance * width
                else:
                    further[(*tokens, token)] = chance * width
        law = further
    return {tokens: law.get(tokens, Fraction(0)) + ended[tokens] for tokens in {**law, **ended}}


def paths_of(index: int, job: Job, pieces: Pieces = token_pieces) -> Iterator[Path]:
    for tokens, chance in drafted(job).items():
        tests, residuals = pieces(job, tokens)
        # The next token's side is cut at the corners of every row and every residual of the round, so that code
        # which draws from the wrong one of them is enumerated exactly as well, and fails by a whole box.
        rows = [*residuals, *(job.tables.target[job.start + tokens[:i]] for i in range(len(tokens) + 1))]
        corners = [corner for row in rows for corner in cdf_corners(row)]
        yield Path(index, tokens, chance, [*map(boxes, tests), boxes(corners)])


def padded(path: Path, job: Job, n: int, padding: str) -> tuple[list[int], list[list[float]], list[list[float]]]:
    """Ids, target rows and draft rows of a path, filled up to n drafted tokens with what must never be read."""
    size, tables = len(path.tokens), job.tables
    target = [floats(tables.target[job.start + path.tokens[:i]]) for i in range(size + 1)]
    likely = max(range(tables.vocab), key=target[size].__getitem__)
    if padding == "tempting":  # ids the target likes and draft rows of zeros: whoever tests a pad accepts it
        fill_target, fill_draft = [float(token == likely) for token in range(tables.vocab)], [0.0] * tables.vocab
    else:  # whoever computes with a pad spoils the token
        fill_target = fill_draft = [float("nan")] * tables.vocab
    draft = [floats(tables.draft[job.start + path.tokens[:i]]) for i in range(size)]
    n_pads = n - size
    return [*path.tokens, *[likely] * n_pads], target + [fill_target] * n_pads, draft + [fill_draft] * n_pads


class Outcome(NamedTuple):
    law: Law  # tokens committed by the round -> exact probability
    blocks: list[Prefix]  # tokens committed in each box, in the boxes' order
    tally: Counter[str]  # how the boxes' rounds went
    n_accepted: Fraction = Fraction(0)  # expected


def play(
    jobs: list[Job],
    n: int | None = None,
    padding: str = "tempting",
    at: random.Random | None = None,
    rule: Rule = accept,
    pieces: Pieces = token_pieces,
) -> list[Outcome]:
    """Run a production rule on every box of every job, in one batched call with n drafted columns.

    Centres of the boxes, or, with `at`, points near random vertices of them. pieces: where the rule's tests change.
    """
    n = max(job.size for job in jobs) if n is None else n
    stored = jobs[0].tables.stored
    paths = [path for i, job in enumerate(jobs) for path in paths_of(i, job, pieces)]
    ids, target, draft = zip(*(padded(path, jobs[path.job], n, padding) for path in paths), strict=True)
    cells = [(i, cell) for i, path in enumerate(paths) for cell in itertools.product(*path.sides)]
    chances = []
    for i, cell in cells:
        size = len(paths[i].tokens)
        places = [at.choice((Fraction(1, 1000), Fraction(999, 1000))) if at else CENTRE for _ in cell]
        *tests, last = (inside(box, place) for box, place in zip(cell, places, strict=True))
        chances.append([*tests, *[0.0] * (n - size), last])  # a pad's test would pass

    of_cell = torch.tensor([i for i, _ in cells])
    draft_probs = torch.tensor(draft, dtype=torch.float64).reshape(len(paths), n, jobs[0].tables.vocab)
    verdict = rule(
        Draft(
            torch.tensor(ids, dtype=torch.long).reshape(len(paths), n)[of_cell],
            torch.tensor([len(path.tokens) for path in paths])[of_cell],
            draft_probs[of_cell] if stored else None,
        ),
        torch.tensor(target, dtype=torch.float64)[of_cell],
        torch.tensor(chances, dtype=torch.float64),
    )

    outcomes, kept = [Outcome({}, [], Counter()) for _ in jobs], [Fraction(0)] * len(jobs)
    decided = zip(cells, verdict.n_accepted.tolist(), verdict.next_token.tolist(), strict=True)
    for (i, cell), n_accepted, next_token in decided:
        path, (law, blocks, tally, _) = paths[i], outcomes[paths[i].job]
        size = len(path.tokens)
        assert 0 <= n_accepted <= size, "pads were accepted"
        assert next_token != NOT_FINITE
        volume = path.chance
        for low, high in cell:
            volume *= high - low
        block = (*path.tokens[:n_accepted], next_token)
        law[block] = law.get(block, Fraction(0)) + volume
        blocks.append(block)
        tally["drafted"] += size
        tally["accepted"] += n_accepted
        kept[paths[i].job] += volume * n_accepted
        tally["rejected"] += n_accepted < size
        tally["partial"] += 0 < n_accepted < size
        tally["bonus"] += n_accepted == size > 0
    assert all(sum(outcome.law.values()) == 1 for outcome in outcomes)
    return [outcome._replace(n_accepted=mean) for outcome, mean in zip(outcomes, kept, strict=True)]


# --- what must hold --------------------------------------------------------------------------------------------------


def completed(law: Law, tables: Tables, start: Prefix, length: int) -> Law:
    """Joint law of `length` tokens: the round's, then the target's own."""
    joint: Law = {}
    for block, chance in law.items():
        for rest, weight in target_law(tables, start + block, length - len(block)).items():
            tokens = block + rest
            joint[tokens] = joint.get(tokens, Fraction(0)) + chance * weight
    return joint


def assert_lossless(job: Job, outcome: Outcome) -> None:
    # No filter on the left: a token of target probability zero must not come out of any box at all.
    joint = completed(outcome.law, job.tables, job.start, job.size + 1)
    assert joint == target_law(job.tables, job.start, job.size + 1)


def assert_keeps_all_it_may(job: Job, outcome: Outcome) -> None:
    """P(at least i accepted) = sum over prefixes of the product of min(p, q), the most a token-by-token rule can keep.

    Without it, a rule that rejects everything and draws from p would pass as lossless.
    """
    overlap = {(): Fraction(1)}
    for i in range(1, job.size + 1):
        overlap = {
            (*tokens, token): chance * min(p, q)
            for tokens, chance in overlap.items()
            for token, (p, q) in enumerate(
                zip(job.tables.target[job.start + tokens], job.tables.draft[job.start + tokens], strict=True)
            )
        }
        kept = sum((chance for block, chance in outcome.law.items() if len(block) > i), Fraction(0))
        assert kept == sum(overlap.values())


FAMILIES = {  # family -> kinds of round that cannot occur in it
    "dense": set(),
    "zeros": set(),
    "draft blind": set(),
    "target forbids": set(),
    "identical": {"rejected", "partial"},
    "disjoint": {"accepted", "partial", "bonus"},
    "one-hot": set(),
    "one-hot stored": set(),
    "greedy": set(),
}
SHAPES = list(itertools.product((2, 3, 4), (1, 2, 3)))  # vocabulary, k
PER_SHAPE = 5  # 45 instances a family


def assert_not_vacuous(outcomes: list[Outcome], impossible: set[str] = frozenset()) -> None:
    tally = sum((outcome.tally for outcome in outcomes), Counter())
    for kind in ("drafted", "accepted", "rejected", "partial", "bonus"):
        assert (tally[kind] == 0) == (kind in impossible), (kind, tally)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_round_emits_the_targets_joint_law(family):
    """A wrong threshold, a wrong residual or a wrong row index shifts the joint law of the next k + 1 tokens."""
    outcomes = []
    for vocab, k in SHAPES:
        jobs = [Job(random_tables(seed, vocab, k, k + 1, family), (), k) for seed in range(PER_SHAPE)]
        played = play(jobs)
        outcomes += played
        for job, outcome in zip(jobs, played, strict=True):
            assert_lossless(job, outcome)
            assert_keeps_all_it_may(job, outcome)
    assert len(outcomes) >= 20
    assert_not_vacuous(outcomes, FAMILIES[family])


@pytest.mark.parametrize("family", ["dense", "zeros", "target forbids"])
def test_a_draft_may_end_where_it_likes(family):
    """Whether another token is drafted may depend on the tokens that are drawn: all of them are handed over."""
    outcomes = []
    for vocab, k in SHAPES:
        jobs = [
            Job(random_tables(seed, vocab, k, k + 1, family), (), k, frozenset({seed % vocab})) for seed in range(4)
        ]
        played = play(jobs)
        outcomes += played
        for job, outcome in zip(jobs, played, strict=True):
            assert_lossless(job, outcome)
    assert len(outcomes) >= 20
    assert_not_vacuous(outcomes)


def test_a_token_that_is_dropped_after_it_was_drawn_makes_the_output_wrong():
    """p = q = (4/5, 1/5), and the draft leaves out token 1 whenever it drew it: (24/25, 1/25) comes out."""
    row = [Fraction(4, 5), Fraction(1, 5)]
    tables = Tables(2, 1, {(): row, (0,): row, (1,): row}, {(): row})
    (outcome,) = play([Job(tables, (), 1, frozenset({1}), dropped=True)])
    first = Counter()
    for block, chance in outcome.law.items():
        first[block[0]] += chance
    assert first == {0: Fraction(24, 25), 1: Fraction(1, 25)}


@pytest.mark.parametrize("padding", ["tempting", "poisoned"])
@pytest.mark.parametrize("family", ["zeros", "one-hot"])
def test_rows_of_different_sizes_share_a_batch(family, padding):
    """A row with fewer drafts than its batch must not read its pads: neither test one, nor take one for the refused."""
    outcomes = []
    for vocab in (2, 3):
        tables = [random_tables(seed, vocab, 3, 4, family) for seed in range(6)]
        jobs = [Job(t, (), size) for t in tables for size in (3, 0, 2, 1)]
        played = play(jobs, n=3, padding=padding)
        outcomes += played
        for job, outcome in zip(jobs, played, strict=True):
            assert_lossless(job, outcome)
            assert_keeps_all_it_may(job, outcome)
    assert len(outcomes) >= 20
    assert_not_vacuous(outcomes)


@pytest.mark.parametrize("family", ["zeros", "one-hot"])
def test_a_batch_of_pads_alone(family):
    """Rows that drafted nothing while the tensors have columns: every next token is the target's own."""
    jobs = [Job(random_tables(seed, 3, 2, 3, family), (), 0) for seed in range(20)]
    for padding in ("tempting", "poisoned"):
        for job, outcome in zip(jobs, play(jobs, n=2, padding=padding), strict=True):
            assert_lossless(job, outcome)


@pytest.mark.parametrize("family", ["zeros", "one-hot"])
def test_no_drafts_at_all(family):
    """n = 0 is plain decoding: the tensors have no draft columns to index."""
    jobs = [Job(random_tables(seed, 4, 0, 1, family), (), 0) for seed in range(20)]
    for job, outcome in zip(jobs, play(jobs, n=0), strict=True):
        assert_lossless(job, outcome)


@pytest.mark.parametrize("family", ["dense", "zeros", "one-hot"])
@pytest.mark.parametrize(("vocab", "k", "length"), [(2, 1, 3), (2, 2, 4), (3, 2, 3)])
def test_further_rounds_complete_the_law(family, vocab, k, length):
    """Rounds follow rounds, drafts capped at what is left but one, as the decoder does it: down to a round of n = 0."""

    def chained(tables: Tables, laws: dict[Prefix, Law], start: Prefix) -> Law:
        if len(start) >= length:
            return {(): Fraction(1)}
        joint: Law = {}
        for block, chance in laws[start].items():
            for rest, weight in chained(tables, laws, start + block).items():
                joint[block + rest] = joint.get(block + rest, Fraction(0)) + chance * weight
        return joint

    outcomes = []
    for seed in range(7):  # 21 instances a family
        tables = random_tables(seed, vocab, k, length, family)
        jobs = [Job(tables, start, min(k, length - len(start) - 1)) for start in tables.target]
        played = play(jobs)
        outcomes += played
        laws = {job.start: outcome.law for job, outcome in zip(jobs, played, strict=True)}
        assert chained(tables, laws, ()) == target_law(tables, (), length)
    assert_not_vacuous(outcomes, {"partial"} if k == 1 else set())


@pytest.mark.parametrize("family", ["zeros", "draft blind", "target forbids", "one-hot"])
def test_the_verdict_is_constant_in_every_box(family):
    """The enumeration rests on it: near random vertices of a box the same tokens come out as in its centre."""
    dice = random.Random(0)
    for vocab, k in [(2, 3), (3, 2), (4, 1)]:
        jobs = [Job(random_tables(seed, vocab, k, k + 1, family), (), k) for seed in range(3)]
        centres = [outcome.blocks for outcome in play(jobs)]
        for _ in range(4):
            assert [outcome.blocks for outcome in play(jobs, at=dice)] == centres


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(1, 4096), Fraction(3000)])
def test_draw_follows_its_weights_exactly(scale):
    """Each token has exactly its share of [0, 1), whatever the weights add up to; a token of weight zero has none."""
    rng = random.Random(1)
    rows = [random_row(rng, 4, rng.sample(range(4), rng.randint(1, 4))) for _ in range(60)]
    scaled = [[weight * scale for weight in row] for row in rows]
    for at in (Fraction(1, 1000), CENTRE, Fraction(999, 1000)):
        for row, law in zip(rows, drawn(scaled, at), strict=True):
            assert law == {token: weight for token, weight in enumerate(row) if weight}
