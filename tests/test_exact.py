"""Losslessness, proved: the production rule and `draw`, enumerated exactly. Tolerance zero, no statistics.

Both are piecewise constant in their uniforms. The corners of the pieces follow from the tables (acceptance
thresholds p / q, corners of every distribution a token may be drawn from) and are computed here in Fractions. The
production float64 code then runs at one interior point of each box, and the boxes' exact volumes add up to the law of
its output. The rule itself is not written down here a second time: it is judged by its output alone.

Extensions enumerate their rules with `play`, too.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from speclab.core.accept import accept
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import NOT_FINITE, draw

Prefix = tuple[int, ...]
Row = list[Fraction]  # a distribution
Law = dict[Prefix, Fraction]  # tokens -> exact probability
Box = tuple[Fraction, Fraction]

CENTRE = Fraction(1, 2)
TINY = 1e-12  # a law that accepts all that the target allows
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


Place = float | torch.Generator  # where in its box a number is put: there, or near either end, by chance


def cells(sides: list[list[Box]], at: Place = 0.5) -> tuple[Tensor, list[int], int]:
    """All products of boxes: a point in each (cells, sides), and their volumes as integers over one denominator."""
    ends = ([torch.tensor([float(box[end]) for box in side], dtype=torch.float64) for side in sides] for end in (0, 1))
    low, high = (torch.cartesian_prod(*of_sides).reshape(-1, len(sides)) for of_sides in ends)
    if isinstance(at, torch.Generator):
        at = torch.where(torch.rand(low.shape, generator=at) < 0.5, 0.001, 0.999).double()
    volumes, denominator = [1], 1
    for side in sides:
        common = math.lcm(*((high - low).denominator for low, high in side))
        widths = [int((high - low) * common) for low, high in side]
        volumes, denominator = [volume * width for volume in volumes for width in widths], denominator * common
    return low + at * (high - low), volumes, denominator


class Path(NamedTuple):
    """One outcome of a round's drafting, with the boxes in which its verdict is constant."""

    job: int
    tokens: Prefix
    chance: Fraction
    sides: list[list[Box]]  # of every number that the rule uses
    rows: list[Row]  # of the target, after the committed text and after each drafted token
    handed: list[list[float]]  # what each token is said to have been drawn from
    parents: list[int]  # the number of the token that each follows, -1 for the committed text
    prefixes: list[Prefix]  # the drafted tokens up to each row


class Outcome(NamedTuple):
    law: Law  # tokens committed by the round -> exact probability
    verdicts: list[tuple[int, int]]  # in each box, in the boxes' order: the row where it ends, and the next token
    tally: Counter[str]  # whether boxes keep none, some, or all down to a leaf
    n_accepted: Fraction  # expected


Rule = Callable[[Draft, Tensor, Tensor], AcceptResult]


def decide(
    paths: list[Path],
    rule: Rule,
    n: int,
    padding: str = "tempting",
    at: Place = 0.5,
    stored: bool = True,
    last_apart: bool = True,
    make: Callable[..., Draft] = lambda *parts, parents: Draft(*parts),
) -> list[Outcome]:
    """Run a production rule in every box of all paths, in one batched call with n drafted columns.

    stored: whether the rule gets probabilities. last_apart: its last number is in column n, else behind the others.
    """
    vocab, numbers, parts = len(paths[0].rows[0]), [], []
    ids, parents, laws, rows = [], [], [], []
    for path in paths:
        size = len(path.tokens)
        places = [(size - i) % (size + 1) for i in range(n - size)]  # which row a pad follows
        likely = [max(range(vocab), key=path.rows[place].__getitem__) for place in places]
        # Tokens that the target likes and that hardly anything is drawn with: whoever tests a pad accepts it. Or
        # whoever computes with a pad spoils the token.
        fill = (TINY, float("nan"))[padding == "poisoned"]
        ids.append([*path.tokens, *likely])
        parents.append(path.parents + [place - 1 for place in places])
        laws.append(path.handed + [[fill] * vocab] * (n - size))
        rows.append([*map(floats, path.rows), *[[1.0 - fill, *[fill] * (vocab - 1)]] * (n - size)])
        points, volumes, denominator = cells(path.sides, at)
        pads = points.new_zeros(len(points), n + 1 - points.shape[1])  # a pad's test would pass
        numbers.append(torch.cat([points[:, :-1], pads, points[:, -1:]] if last_apart else [points, pads], dim=1))
        parts.append((volumes, denominator))

    of_cell = torch.arange(len(paths)).repeat_interleave(torch.tensor([len(volumes) for volumes, _ in parts]))
    probs = torch.tensor(laws, dtype=torch.float64).reshape(len(paths), n, vocab)[of_cell] if stored else None
    tokens, above = (torch.tensor(x, dtype=torch.long).reshape(len(paths), n)[of_cell] for x in (ids, parents))
    draft = make(tokens, torch.tensor([len(path.tokens) for path in paths])[of_cell], probs, parents=above)
    result = rule(draft, torch.tensor(rows, dtype=torch.float64)[of_cell], torch.cat(numbers))
    assert (result.next_token != NOT_FINITE).all()
    assert ((result.n_accepted >= 0) & (result.n_accepted <= draft.size)).all(), "pads were accepted"
    ends = result.n_accepted
    if result.path is not None:
        assert_are_paths(draft, result)
        ends = result.path.amax(-1) + 1

    decided = iter(zip(ends.tolist(), result.next_token.tolist(), strict=True))
    outcomes = [Outcome({}, [], Counter(), Fraction(0)) for _ in range(paths[-1].job + 1)]
    for path, (volumes, denominator) in zip(paths, parts, strict=True):
        law, verdicts, tally, mean = outcomes[path.job]
        found = list(itertools.islice(decided, len(volumes)))
        counts: Counter[tuple[int, int]] = Counter()
        for verdict, volume in zip(found, volumes, strict=True):
            counts[verdict] += volume
        for (row, token), count in counts.items():
            chance, block = path.chance * Fraction(count, denominator), (*path.prefixes[row], token)
            law[block] = law.get(block, Fraction(0)) + chance
            mean += chance * (len(block) - 1)
            tally["none" if row == 0 else "some" if row - 1 in path.parents else "all"] += bool(path.tokens)
        verdicts += found
        outcomes[path.job] = Outcome(law, verdicts, tally, mean)
    assert all(sum(outcome.law.values()) == 1 for outcome in outcomes)
    return outcomes


def assert_are_paths(draft: Draft, result: AcceptResult) -> None:
    """Live tokens, each after the one before it, the first after the root, and as many as `n_accepted` says."""
    parents = torch.cat([torch.full_like(draft.parents[:, :1], -1), draft.parents], dim=1)  # of rows, from 1 on
    path, before = result.path, torch.full_like(result.n_accepted, -1)
    assert path.shape == draft.tokens.shape
    for i in range(path.shape[1]):
        kept = i < result.n_accepted
        assert ((path[:, i] >= 0) == kept).all()
        assert (path[:, i] < draft.size).all(), "a dead token was kept"
        follows = parents.gather(1, (path[:, i] + 1)[:, None])[:, 0] == before
        assert (follows | ~kept).all()
        before = torch.where(kept, path[:, i], before)


# --- chains ----------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """One round: `size` drafted tokens after `start`, fewer where one of `last` is drawn: no other follows it."""

    tables: Tables
    start: Prefix
    size: int
    last: frozenset[int] = frozenset()


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
                    ended[(*tokens, token)] += chance * width
                else:
                    further[(*tokens, token)] = chance * width
        law = further
    return {tokens: law.get(tokens, Fraction(0)) + ended[tokens] for tokens in {**law, **ended}}


def paths_of(index: int, job: Job, pieces: Pieces = token_pieces) -> Iterator[Path]:
    for tokens, chance in drafted(job).items():
        tests, residuals = pieces(job, tokens)
        prefixes = [tokens[:i] for i in range(len(tokens) + 1)]
        rows = [job.tables.target[job.start + prefix] for prefix in prefixes]
        # The next token's side is cut at the corners of every row and every residual of the round, so that code
        # which draws from the wrong one of them is enumerated exactly as well, and fails by a whole box.
        sides = [*map(boxes, tests), boxes([corner for row in [*residuals, *rows] for corner in cdf_corners(row)])]
        handed = [floats(job.tables.draft[job.start + prefix]) for prefix in prefixes[:-1]]
        yield Path(index, tokens, chance, sides, rows, handed, [*range(-1, len(tokens) - 1)], prefixes)


def play(
    jobs: list[Job], n: int | None = None, rule: Rule = accept, pieces: Pieces = token_pieces, **how
) -> list[Outcome]:
    """`decide`, of all that may be drafted in these rounds. pieces: where the rule's tests change."""
    paths = [path for i, job in enumerate(jobs) for path in paths_of(i, job, pieces)]
    return decide(paths, rule, max(job.size for job in jobs) if n is None else n, stored=jobs[0].tables.stored, **how)


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


IMPOSSIBLE = {"identical": {"none", "some"}, "disjoint": {"some", "all"}}  # of family: what tokens by itself cannot be
FAMILIES = (
    *("dense", "zeros", "draft blind", "target forbids", "identical", "disjoint"),
    *("one-hot", "one-hot stored", "greedy"),
)
SHAPES = list(itertools.product((2, 3, 4), (1, 2, 3)))  # vocabulary, k
PER_SHAPE = 5  # 45 instances a family


def assert_not_vacuous(outcomes: Iterable[Outcome], impossible: Collection[str] = ()) -> None:
    tally = sum((outcome.tally for outcome in outcomes), Counter())
    for kind in ("none", "some", "all"):
        assert (tally[kind] == 0) == (kind in impossible), (kind, tally)


# --- the contract of every lossless rule for chains: what is drafted, and what no law can show -----------------------


class Judge(NamedTuple):
    """A rule, as `play` runs it."""

    play: Callable[..., list[Outcome]] = play
    keeps_all: bool = True  # as often as a rule for one token at a time may
    own: bool = False  # it draws a token of the target's own at each place, which may not be the drafted one
    shapes: Collection[tuple[int, int]] = SHAPES

    def held(self, jobs: list[Job], **how) -> list[Outcome]:
        """Play rounds, each of which has to leave the target's joint law of the next size + 1 tokens."""
        outcomes = self.play(jobs, **how)
        for job, outcome in zip(jobs, outcomes, strict=True):
            assert_lossless(job, outcome)
            if self.keeps_all and not job.last:
                assert_keeps_all_it_may(job, outcome)
        return outcomes

    def check(self, outcomes: list[list[Outcome]], impossible: Collection[str] = ()) -> None:
        assert_not_vacuous(itertools.chain(*outcomes), impossible)


def one_round(judge: Judge, family: str) -> None:
    """A wrong threshold, a wrong residual or a wrong row index shifts the joint law of the next k + 1 tokens."""
    shapes = [[Job(random_tables(i, v, k, k + 1, family), (), k) for i in range(PER_SHAPE)] for v, k in judge.shapes]
    impossible = () if judge.own and family == "identical" else IMPOSSIBLE.get(family, ())
    judge.check([judge.held(jobs) for jobs in shapes], impossible)


def a_draft_that_ends_where_it_likes(judge: Judge, family: str) -> None:
    """Whether another token is drafted may depend on the tokens that are drawn: all of them are handed over."""
    outcomes = []
    for v, k in judge.shapes:
        jobs = [Job(random_tables(i, v, k, k + 1, family), (), k, frozenset({i % v})) for i in range(4)]
        outcomes.append(judge.held(jobs))
    judge.check(outcomes)


def rows_of_different_sizes(judge: Judge, family: str) -> None:
    """A row with fewer drafts than its batch must not read its pads: neither test one, nor take one for the refused."""
    for padding in ("tempting", "poisoned"):
        outcomes = []
        for vocab in (2, 3):
            tables = [random_tables(seed, vocab, 3, 4, family) for seed in range(6)]
            outcomes.append(judge.held([Job(t, (), n) for t in tables for n in (3, 0, 2, 1)], n=3, padding=padding))
        judge.check(outcomes)
        judge.held([Job(random_tables(i, 3, 2, 3, family), (), 0) for i in range(20)], n=2, padding=padding)
    judge.held([Job(random_tables(i, 4, 0, 1, family), (), 0) for i in range(20)], n=0)  # no columns to index


def a_verdict_that_is_constant_in_every_box(judge: Judge, family: str) -> None:
    """The enumeration rests on it: near random vertices of a box the same tokens come out as in its centre."""
    dice = torch.Generator().manual_seed(0)
    for vocab, k in [(2, 3), (3, 2), (4, 1)]:
        jobs = [Job(random_tables(seed, vocab, k, k + 1, family), (), k) for seed in range(3)]
        centres = [outcome.verdicts for outcome in judge.play(jobs)]
        for _ in range(4):
            assert [outcome.verdicts for outcome in judge.play(jobs, at=dice)] == centres


CLAUSES = {
    one_round: FAMILIES,
    a_draft_that_ends_where_it_likes: ("dense", "zeros", "target forbids"),
    rows_of_different_sizes: ("zeros", "one-hot"),
    a_verdict_that_is_constant_in_every_box: ("zeros", "draft blind", "target forbids", "one-hot"),
}
CONTRACT = [(clause, family) for clause, families in CLAUSES.items() for family in families]


def clause_id(part: object) -> str:
    return getattr(part, "__name__", str(part))


@pytest.mark.parametrize(("clause", "family"), CONTRACT, ids=clause_id)
def test_the_rule_keeps_the_contract(clause, family):
    clause(Judge(), family)


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(1, 4096), Fraction(3000)])
def test_draw_follows_its_weights_exactly(scale):
    """Each token has exactly its share of [0, 1), whatever the weights add up to; a token of weight zero has none."""
    rng = random.Random(1)
    rows = [random_row(rng, 4, rng.sample(range(4), rng.randint(1, 4))) for _ in range(60)]
    scaled = [[weight * scale for weight in row] for row in rows]
    for at in (Fraction(1, 1000), CENTRE, Fraction(999, 1000)):
        for row, law in zip(rows, drawn(scaled, at), strict=True):
            assert law == {token: weight for token, weight in enumerate(row) if weight}


def test_residual_without_mass_falls_back_to_the_target():
    """p is below q by one rounding and above it nowhere: norm(max(0, p - q)) would be 0/0."""
    q = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)
    p = torch.tensor([[[0.5, 0.5 - 2**-53], [0.5, 0.5]]], dtype=torch.float64)
    u = torch.tensor([[1 - 2**-53, 0.25]], dtype=torch.float64)
    verdict = accept(Draft(torch.tensor([[1]]), torch.tensor([1]), q), p, u)
    assert (verdict.n_accepted.item(), verdict.next_token.item()) == (0, 0)
