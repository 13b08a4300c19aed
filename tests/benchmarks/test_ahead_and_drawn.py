"""Drafting ahead, drawn trees, and heads that learn side by side: each number is its definition."""

import itertools

import pytest
import torch

from benchmarks import ahead
from benchmarks.shared import learning
from benchmarks.tried import drawn, reliability, sure
from solutions import ex19_draft_ahead as chapter
from speclab.present.tables import Table
from speclab.records import files
from speclab.system.paths import ROOT
from training.texts import Text

K, VOCAB = 3, 30


def rows_and_text(seed: int) -> tuple[torch.Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, VOCAB, (40,), generator=generator).tolist()
    rows = torch.rand(len(text) - K, K + 1, VOCAB, generator=generator)
    for start, depth in itertools.product(range(len(rows)), range(K + 1)):  # often right, and often second
        rows[start, depth, text[start + depth]] += torch.rand((), generator=generator) * 2 - 0.5
    return rows, text


def test_outcomes_are_those_of_a_loop():
    seen = 0
    for seed in range(5):
        rows, text = rows_and_text(seed)
        counts = ahead.outcomes(rows, text, K)
        found = [[0] * (ahead.GUESSES + 1) for _ in range(K + 1)]
        start = 1
        while start < len(rows):
            drafted = rows[start, :K].argmax(-1).tolist()
            right = [a == b for a, b in zip(drafted, text[start:], strict=False)]
            n = len(list(itertools.takewhile(bool, right)))
            better = rows[start, n] > rows[start, n, text[start + n]]
            if n < K:
                better[drafted[n]] = False  # it has just been rejected
            found[n][min(int(better.sum()), ahead.GUESSES)] += 1
            start += n + 1
        assert counts == found
        seen += sum(counts[K]) > 0
    assert seen


def test_hits_and_times_are_those_of_the_chapter():
    counts = ahead.outcomes(*rows_and_text(1), K)
    n_rounds = sum(map(sum, counts))
    chances = [[n / n_rounds for n in sorted(row[:-1], reverse=True)] for row in counts]
    costs = ahead.RoundCosts(name="x", tokens_per_round=2.5, draft=1.75, verify=1.25)
    assert ahead.speed(costs, None) == pytest.approx(2.5 / 3.0)
    for budget in ahead.BUDGETS:
        prepared = chapter.fan_out(chances, budget)
        hit = sum(sum(row[:m]) for row, m in zip(chances, prepared, strict=True))
        assert ahead.hit_rate(counts, counts, budget) == pytest.approx(hit)
        time = chapter.round_time(hit, costs.verify, costs.draft, costs.draft, ahead.SYNC)
        assert ahead.speed(costs, hit) == pytest.approx(costs.tokens_per_round / time)


def test_outcomes_are_chosen_on_other_rounds_than_those_they_are_scored_on():
    ours, theirs = (ahead.outcomes(*rows_and_text(seed), K) for seed in (1, 2))
    nothing = [[0] * (ahead.GUESSES + 1) for _ in range(K + 1)]
    for budget in ahead.BUDGETS:
        cells = ahead.prepared(ours, budget)
        assert len(set(cells)) == len(cells) <= budget
        least = min(ours[n][guess] for n, guess in cells)
        left = [ours[n][g] for n in range(K + 1) for g in range(ahead.GUESSES) if (n, g) not in cells]
        assert max(left) <= least or len(cells) < budget
        hits = sum(theirs[n][guess] for n, guess in cells)
        assert ahead.hit_rate(ours, theirs, budget) == pytest.approx(hits / sum(map(sum, theirs)))
        assert ahead.hit_rate(ours, nothing, budget) is None
        assert ahead.hit_rate(nothing, ours, budget) is None
    assert any(ahead.hit_rate(ours, theirs, b) != ahead.hit_rate(theirs, theirs, b) for b in ahead.BUDGETS)


@pytest.mark.parametrize(("draft", "verify"), [(0.75, 2.0), (2.0, 0.75), (0.1, 1.0), (0.05, 1.0), (0.0, 1.0)])
def test_the_needed_hit_rate_is_the_chapters(draft, verify):
    costs = ahead.RoundCosts(name="x", tokens_per_round=2.5, draft=draft, verify=verify)
    theirs = chapter.needed_hit_rate(2.5, verify, draft, draft, ahead.SYNC, ahead.speed(costs, None))
    assert ahead.needed(costs) == (None if theirs is None else pytest.approx(theirs))


def test_the_record_has_the_costs_of_the_comparison_that_it_names():
    """A comparison that is measured again asks for another simulation: python -m benchmarks.ahead."""
    for path in sorted((ROOT / "results").glob("*-ahead.json")):
        run = files.read(path, ahead.AheadRun)
        theirs = {one.name: one for one in ahead.costs_of(ROOT / "results" / run.settings["costs"], run.settings["k"])}
        assert {one.name for one in run.costs} == {row.draft for row in run.raw}
        for one in run.costs:
            for field in ("tokens_per_round", "draft", "verify"):
                assert getattr(one, field) == pytest.approx(getattr(theirs[one.name], field), rel=1e-4), path


def test_the_halves_of_a_record_are_its_prompts():
    run = files.read(ROOT / "results" / "cpu-2-cores-ahead.json", ahead.AheadRun)
    for name, both in ahead.halves(run).items():
        for half, counts in enumerate(both):
            of_half = [row.counts for row in run.raw if row.draft == name and row.prompt_index % 2 == half]
            assert of_half
            for n, guess in itertools.product(range(run.settings["k"] + 1), range(ahead.GUESSES + 1)):
                assert counts[n][guess] == sum(one[n][guess] for one in of_half)


def test_no_prompt_is_learned_from_and_replayed():
    long, short = tuple(range(40)), (1, 2)
    texts = [Text((i % 7,), short if i % 5 == 0 else long, i % 2 == 0) for i in range(30)]
    for n in (0, 2, 50):
        held_out, left = learning.split(texts, n)
        assert len(held_out) <= n
        assert all(text.greedy and len(text.answer) > 2 * learning.BEYOND for text in held_out)
        prompts = {text.prompt for text in held_out}
        assert len(prompts) == len(held_out)
        assert left == [text for text in texts if text.prompt not in prompts]
    assert len(learning.split(texts, 50)[0]) > 2


def test_rounds_of_a_text_are_those_of_all_seeds():
    def row(seed, index, rounds):
        return learning.Replayed(
            arm="x", seed=seed, steps=1, text="t", text_index=index, rounds=[0, rounds], accepted=[], tested=[]
        )

    rows = [row(0, 0, 3), row(0, 1, 5), row(1, 0, 7), row(1, 1, 11)]
    assert learning.rounds_of_texts(rows, 1) == [10, 16]


def test_all_tokens_of_a_tree_come_from_rounds(tmp_path, capsys):
    """Each round commits one token more than it accepts, and the first token comes from the prompt's own pass."""
    n = 12
    given = ["--limit", "1", "--max-new-tokens", str(n), "--temperatures", "1.0", "--out-dir", str(tmp_path)]
    assert drawn.main(given) == 0
    run = files.read(tmp_path / "results" / "local-drawn.json", drawn.DrawnRun)
    assert {row.arm for row in run.raw} == set(drawn.arms("model"))
    assert all(row.n_rounds + row.n_accepted == n - 1 for row in run.raw)
    assert any(row.n_accepted for row in run.raw)


@pytest.mark.parametrize("n_rounds", [0, 3])
def test_texts_that_end_at_once_have_no_tokens_per_round(n_rounds):
    run = files.read(ROOT / "results" / "cpu-2-cores-drawn.json", drawn.DrawnRun)
    for row in run.raw:
        row.n_rounds, row.n_accepted = n_rounds, n_rounds
    table = next(block for block in drawn.page(run) if isinstance(block, Table))
    shown = {cell(arm) for name, cell in table.cells.items() if name != "tokens" for arm in table.rows}
    assert ("2.00" in shown) == bool(n_rounds)
    assert shown == {"-"} or n_rounds


def test_the_picture_is_drawn_from_the_record(tmp_path):
    record = ROOT / "results" / "cpu-2-cores-sure.json"
    assert reliability.main([str(record), "--out-dir", str(tmp_path)]) == 0
    assert (tmp_path / "plots" / "cpu-2-cores-sure.png").stat().st_size > 10_000
    run = files.read(record, sure.SureRun)
    trees = {row.way for row in run.raw if not row.way.startswith(sure.CHAIN)}
    way, gain = sure.best_tree(run)
    assert way in trees
    assert gain == pytest.approx(max(sure.speed(run, one) for one in trees) / sure.speed(run, sure.best_chain(run)))


def test_a_file_that_is_no_record_is_one_line(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert reliability.main([str(tmp_path / "x.json")]) in (2, 3)
    assert ahead.main(["--costs", str(tmp_path / "x.json")]) == 3
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 2
