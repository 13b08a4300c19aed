"""The command end to end on a tiny pair, and its parts: bookkeeping, checks, expectations."""

import gc
import json

import pytest
import torch

from speclab.core.rounds import Round
from speclab.extensions.batch import __main__ as command
from speclab.extensions.batch import batch_comparison, expectations, passes, turns
from speclab.extensions.batch.batch_record import BatchRun
from speclab.extensions.batch.decoding import decodings
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.expectations import TARGET, Expectations, known_of
from speclab.extensions.batch.passes import PassCosts
from speclab.models import prompts
from speclab.records.files import read
from tests.decoding import plain_text

TEXTS = [("code", "def f(x):"), ("prose", "return x + 1"), ("copy", "x + 1, x + 1,")]


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    monkeypatch.setattr(turns, "TURNS", 2)

    def call(*words, drafts="model"):
        names = {"model": str(pair_folder / "draft"), "both": f"{pair_folder / 'draft'},ngram"}
        models = ["--target", str(pair_folder / "target"), "--draft", names.get(drafts, drafts)]
        size = ["--max-new-tokens", "12", "-k", "1,3", "--out-dir", str(tmp_path)]
        code = command.main([*models, *size, "--threads", "1", "--engine", "eager", *words])
        return (code, *capsys.readouterr())

    return call


# --- the run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [pytest.param(["-B", "1,2,4"], marks=pytest.mark.full), ["--thorough", "-B", "2,3"]])
def test_a_run_leaves_its_record_page_and_picture(run, tmp_path, words):
    thorough = "--thorough" in words
    code, out, _ = run(*words, drafts="both")
    name = "local-sweep-batch" if thorough else "local-batch"
    made = read(tmp_path / "results" / f"{name}.json", BatchRun)
    assert code == 0
    assert (made.batches, made.thorough) == (([2, 3], True) if thorough else ([1, 2, 4], False))
    sizes = {1, *made.batches}
    assert len(made.rows) == len(sizes) * (1 + 2 * 2) + (thorough and 2 * 2 * 2)
    assert {one.n_texts for one in made.noise} == sizes
    assert len(made.raw) == len(made.rows) + len(sizes), "plain decoding a second time"
    assert (made.n_distinct, made.row_by_row) == (3, ["ngram"])
    assert {row.n_texts for row in made.rows} == sizes
    assert all(row.speedup == 1 for row in made.rows if row.draft is None)
    assert all(row.predicted_tokens_per_second for row in made.rows)
    assert all(row.n_requests >= 3 * row.n_texts for row in made.rows)
    assert all((row.acceptance_rate is None) == (row.lockstep or row.draft is None) for row in made.rows)
    assert all(entry["passed"] for entry in made.correctness)
    assert len(made.correctness) == len(made.raw) - 1, "all but plain decoding of one text at a time"
    assert out.index("same text? target") < out.index("the best draft length of each batch")
    assert {entry.source for entry in made.knees} >= {"measured", "predicted", "from measured passes"}
    assert bool(made.library) == bool(made.machines) == any(row.lockstep for row in made.rows) == thorough
    assert all((one.predicted is None) == (one.n_texts == 1) for one in made.passes)
    assert (tmp_path / "plots" / f"{name}.png").stat().st_size > 5000
    page = (tmp_path / "results" / f"{name}.md").read_text()
    assert f"../plots/{name}.png" in page
    assert ("PREDICTED, not measured" in page) == thorough
    assert max(map(len, out.splitlines())) <= 100
    assert "speculation pays up to a batch of" in out
    assert str(tmp_path) not in (tmp_path / "results" / f"{name}.json").read_text()


def test_sampled_texts_are_held_to_the_targets_law(run, tmp_path):
    code, _, _ = run("-B", "1,3", "--temperature", "0.8")
    made = json.loads((tmp_path / "results" / "local-batch.json").read_text())
    assert code == 0
    assert len(made["correctness"]) == 2 * 2
    assert all(entry["n_tokens"] and entry["passed"] for entry in made["correctness"])


@pytest.mark.parametrize("temperature", [pytest.param("0", marks=pytest.mark.full), "0.8"])
def test_a_wrong_text_is_found(run, monkeypatch, temperature):
    """One token in the texts of two rows, and only where there are two."""
    honest = turns.speculative_decode_batch

    def decode(target, *args):
        for number, round_ in honest(target, *args):
            if target.n_rows == 2 and not round_.prefill and temperature == "0":
                round_.tokens[0] = (round_.tokens[0] + 1) % 64
            elif target.n_rows == 2:
                round_.tokens[0] = 1
            yield number, round_

    monkeypatch.setattr(turns, "speculative_decode_batch", decode)
    code, out, _ = run("-B", "1,2", "--temperature", temperature)
    assert code == 1
    assert "WRONG OUTPUT" in out
    assert "2 at a time" in out
    assert "1 at a time" not in out.partition("WRONG OUTPUT")[2]


def test_ctrl_c_keeps_the_rounds_so_far(run, tmp_path, monkeypatch):
    honest, n, frozen = BatchDecoding.advance, 0, 0

    def advance(self):
        nonlocal n, frozen
        n, frozen = n + 1, gc.get_freeze_count()
        if n == stop:
            raise KeyboardInterrupt
        honest(self)

    monkeypatch.setattr(BatchDecoding, "advance", advance)
    stop = 260
    code, out, err = run("-B", "1,2")
    made = read(tmp_path / "results" / "local-batch.json", BatchRun)
    assert code == 0, "all texts that there are have been judged"
    assert frozen, "a long collection would be in the seconds"
    assert made.interrupted
    assert made.rows
    assert made.costs == {}
    assert all(row.predicted_speedup is None for row in made.rows)
    assert "the rounds so far are complete" in err
    assert "Stopped before the end" in out
    n, stop = 0, 3
    (tmp_path / "results" / "local-batch.json").unlink()
    code, *_ = run("-B", "1,2")
    assert code == 130
    assert not (tmp_path / "results" / "local-batch.json").exists()


# --- bookkeeping ------------------------------------------------------------------------------------------------------


def test_rounds_are_booked_by_pass(monkeypatch):
    """Two rows, three texts: the third one takes the row of the second."""
    clock = iter(range(100))
    monkeypatch.setattr(decodings.time, "perf_counter", lambda: next(clock) / 2)
    start = Round([1], prefill=True)
    end = Round([4], 2, 0, 1, finish="length")
    found = [(0, start), (1, start), (0, Round([2, 3], 2, 1, 1)), (1, end), (2, start), (0, end), (2, end)]
    decoding = BatchDecoding(iter(found), 3)
    while not decoding.done:
        decoding.advance()
    assert [made.n_busy for made in decoding.passes] == [2, 2]
    assert [made.n_tokens for made in decoding.passes] == [3, 2]
    assert [made.seconds for made in decoding.full(2)] == [0.5, 0.5]
    assert {n: text.tokens for n, text in decoding.texts.items()} == {0: [1, 2, 3, 4], 1: [1, 4], 2: [1, 4]}
    assert [decoding.texts[i].latency for i in range(3)] == [2.5, 1.0, 1.0]
    assert decoding.texts[0].between_tokens == 2.0 / 3
    assert (decoding.latency, decoding.between_tokens) == (1.0, 0.5)
    assert (decoding.seconds, decoding.n_tokens) == (2.5, 8)
    assert decoding.counts.n_rounds == 4
    assert decoding.ended == {0, 1, 2}


# --- expectations -----------------------------------------------------------------------------------------------------


def expected(**others) -> Expectations:
    """A step of a text costs 1 + 0.1 for each token in the pass, a draft's pass 0.1."""
    costs = {
        TARGET: PassCosts((1, 101), (1.1, 11.1), 50, 0.0, 0.0),
        "model": PassCosts((1, 101), (0.1, 0.1), 50, 0.0, 0.0),
    }
    known = {("model", 2): known_of([(2, 2), (2, 0)], 2), ("other", 2): known_of([(2, 2), (0, 0)], 2)}
    loops = {(draft, k, n): 0.01 * n for n in (1, 4) for draft, k in (("", 0), ("model", 2), ("other", 2))}
    times = {name: {} for name in costs}
    fields = {"contexts": {1: 50.0, 4: 50.0}, "one_draft": {("other", 2): 0.2}, "loops": loops}
    return Expectations(**{"context": 50, "known": known, "times": times, "costs": costs} | fields | others)


def test_rates_by_hand():
    e = expected()
    assert e.rate("", 0, 1) == pytest.approx(1 / 1.11)
    assert e.rate("", 0, 4) == pytest.approx(4 / 1.44)
    # half of the rounds accept both tokens: 2 tokens in a round; two draft passes, one target pass over 3 tokens each
    assert e.rate("model", 2, 1) == pytest.approx(2 / (1.3 + 0.2 + 0.01))
    assert e.rate("model", 2, 4) == pytest.approx(8 / (2.2 + 0.2 + 0.04))
    assert e.rate("model", 2, 4, lockstep=True) == pytest.approx(4 * (1 + 2 * 0.5**4) / (2.2 + 0.2 + 0.04))
    # the other draft proposes in half of the rounds; of four texts one at least does so in 15 of 16
    assert e.rate("other", 2, 1) == pytest.approx(2 / (0.5 * 1.3 + 0.5 * 1.1 + 0.2 + 0.01))
    widths = e.known["other", 2].widths(4)
    assert widths == pytest.approx({0: 1 / 16, 2: 15 / 16})
    assert e.rate("other", 2, 4) == pytest.approx(8 / (15 / 16 * 2.2 + 1 / 16 * 1.4 + 0.8 + 0.04))


def test_what_is_not_known_has_no_rate():
    assert expected().knees()[0].source == "predicted"
    assert {entry.source for entry in expected().knees()} == {"predicted"}, "no pass over several texts was timed"


def test_costs_are_those_of_one_text():
    times = {(1, 1, 50): 1.0, (1, 4, 50): 1.6, (4, 1, 50): 9.9, (1, 1, 150): 1.1, (1, 4, 150): 1.9}
    costs = passes.fitted_costs(times, 50, 150)
    assert (costs.widths, costs.seconds, costs.context) == ((1, 4), (1.0, 1.6), 50)
    assert costs.per_place == pytest.approx((0.1 - 0.2 / 3) / 100)
    assert costs.per_pair == pytest.approx(0.2 / 3 / 100)
    assert passes.fitted_costs(times, 50, None).per_place == 0


def test_the_middle_half_counts():
    assert passes.middle_mean([1.0, 2.0, 4.0, 99.0]) == 3.0
    assert passes.middle_mean([5.0]) == 5.0


def test_every_shape_that_a_round_needs_is_timed():
    class Room:
        max_length = 2000

    shapes = expectations._shapes(Room(), [1, 5], [1, 4], 100, thorough=True)
    assert {(n, w, c) for n in (1, 4) for w in (1, 5) for c in (100, 1024)} <= shapes
    assert {(1, 4, 100), (1, 20, 100), (1, 20, 1024)} <= shapes
    assert not any(c > 1024 for _, _, c in shapes), "no room"


def test_the_librarys_batch_is_its_text(pair_folder, monkeypatch):
    """Left padding does not change what it generates."""
    from types import SimpleNamespace

    from speclab.models.setup import load_setup

    setup = load_setup(str(pair_folder / "target"), engine="eager", threads=1)
    texts = prompts.encode(TEXTS, setup.tokenizer, False)
    made, generate = [], setup.target.model.generate

    def kept(*args, **how):
        made.append(generate(*args, **how))
        return made[-1]

    monkeypatch.setattr(setup.target.model, "generate", kept)
    found = batch_comparison.library_batches(SimpleNamespace(setup=setup, prompts=texts, max_new_tokens=5), [1, 4])
    assert [(entry["n_texts"], entry["n_tokens"]) for entry in found] == [(1, 5), (4, 20)]
    side_by_side = [texts[i % len(texts)] for i in range(4)]
    assert [row[-5:].tolist() for row in made[-1]] == [plain_text(setup.target, one.ids, 5) for one in side_by_side]
    assert all(entry["seconds"] > 0 for entry in found)


def test_passes_are_timed_over_written_memory(pair_folder):
    from speclab.extensions.batch.decoding.batched_model import BatchedModel
    from speclab.models.setup import load_setup

    setup = load_setup(str(pair_folder / "target"), engine="eager", threads=1)
    batch = BatchedModel(setup.target, 2)
    batch.start(8)
    batch.fill(seed=0)
    assert all((part != 0).all() for part in batch._buffers.keys + batch._buffers.values)
    timer = passes.PassTimer({TARGET: setup.target}, {TARGET: [(1, 1, 4), (2, 3, 4)]})
    for _ in range(timer.n_steps):
        timer.step()
    timed = [part for one in timer._batches.values() for part in one._buffers.keys + one._buffers.values]
    assert timed
    assert all((part != 0).all() for part in timed)
    assert set(timer.times[TARGET]) == {(1, 1, 4), (2, 3, 4)}
    assert all(seconds > 0 for seconds in timer.times[TARGET].values())
    assert torch.isfinite(torch.tensor(list(timer.times[TARGET].values()))).all()
