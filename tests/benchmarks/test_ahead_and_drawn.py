"""Drafting ahead, drawn trees, and heads that learn side by side: each number is its definition."""

import itertools

import pytest
import torch

from benchmarks import ahead, learning
from benchmarks.tried import drawn, reliability, sure
from solutions import ex19_draft_ahead as chapter
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
        assert ahead.hit_rate(counts, budget) == pytest.approx(hit)
        time = chapter.round_time(hit, costs.verify, costs.draft, costs.draft, 0.0)
        assert ahead.speed(costs, hit) == pytest.approx(costs.tokens_per_round / time)


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
