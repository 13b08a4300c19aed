"""Drafting ahead: each number is its definition."""

import itertools

import pytest
import torch

from benchmarks import ahead
from speclab.records import files
from speclab.system.paths import ROOT

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


def test_a_file_that_is_no_record_is_one_line(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert ahead.main(["--costs", str(tmp_path / "x.json")]) == 3
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
