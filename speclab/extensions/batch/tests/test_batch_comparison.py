"""The command end to end on a tiny pair, and its parts: bookkeeping, checks, expectations."""

import doctest
import gc
import json
from types import SimpleNamespace

import pytest
import torch

from draft_models import NgramDrafter
from speclab.core.rounds import Round
from speclab.extensions.batch import __main__ as command
from speclab.extensions.batch import expectations, measure, shown
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.expectations import PLAIN, TARGET, Expectations, OfOne, PassTimer, of_one
from speclab.extensions.batch.measure import FIRST, arms, requests_of
from speclab.lab.rows import rows_of
from speclab.models import prompts
from speclab.models.prompts import Prompt
from speclab.models.setup import load_setup
from speclab.records.files import ComparisonRun, read
from speclab.records.rows import BASELINE, BASELINE_REPEAT, Arm

TEXTS = [("code", "def f(x):"), ("prose", "return x + 1"), ("copy", "x + 1, x + 1,")]


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    monkeypatch.setattr(measure, "TURNS", 2)

    def call(*words, drafts="model"):
        names = {"model": str(pair_folder / "draft"), "both": f"{pair_folder / 'draft'},ngram"}
        models = ["--target", str(pair_folder / "target"), "--draft", names.get(drafts, drafts)]
        size = ["--max-new-tokens", "12", "-k", "1,3", "--out-dir", str(tmp_path)]
        code = command.main([*models, *size, "--threads", "1", "--engine", "eager", *words])
        return (code, *capsys.readouterr())

    return call


# --- the run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [pytest.param("eager", marks=pytest.mark.full), "c"])
def test_a_run_leaves_its_record_page_and_picture(run, tmp_path, engine):
    code, out, _ = run("-B", "2,3", "--engine", engine, drafts="both")
    made = read(tmp_path / "results" / "local-batch.json", ComparisonRun)
    assert code == 0
    sizes = [1, 2, 3]
    assert (made.settings["engine"], made.settings["row_by_row"]) == (engine, ["ngram"])
    rows = [row for row in made.rows if row.prompt_kind == "all"]
    assert len(rows) == len(made.raw) / 3 - len(sizes) == len(sizes) * (1 + 2 * 2), "plain decoding a second time"
    assert {row.n_texts for row in rows} == set(sizes)
    assert len(made.noise) == len(sizes)
    assert all(row.speedup == 1 for row in rows if row.draft is None)
    assert all(row.forecast for row in rows if row.draft)
    again = rows_of(made.raw)
    for name in ("speedup", "speedup_low", "verdict", "tokens_per_second", "acceptance_rate", "n_texts"):
        assert [getattr(row, name) for row in again] == pytest.approx([getattr(row, name) for row in made.rows])
    assert all(entry["passed"] for entry in made.correctness)
    assert len(made.correctness) == len(rows) + len(sizes) - 1, "all but plain decoding of one text at a time"
    assert out.index("same text? target") < out.index("tok/s") < out.index("speculation pays up to a batch of")
    assert (tmp_path / "plots" / "local-batch-speedup.png").stat().st_size > 5000
    assert "../plots/local-batch-speedup.png" in (tmp_path / "results" / "local-batch.md").read_text()
    assert max(map(len, out.splitlines())) <= 100
    assert str(tmp_path) not in (tmp_path / "results" / "local-batch.json").read_text()


def test_sampled_texts_are_held_to_the_targets_law(run, tmp_path):
    code, _, _ = run("-B", "1,3", "--temperature", "0.8")
    made = json.loads((tmp_path / "results" / "local-batch.json").read_text())
    assert code == 0
    assert len(made["correctness"]) == 2 * 2
    assert all(entry["n_tokens"] and entry["passed"] for entry in made["correctness"])


@pytest.mark.parametrize("temperature", [pytest.param("0", marks=pytest.mark.full), "0.8"])
def test_a_wrong_text_is_found(run, monkeypatch, temperature):
    """One token in the texts of two rows, and only where there are two."""
    honest = measure.speculative_decode_batch

    def decode(target, *args):
        for number, round_ in honest(target, *args):
            if target.n_rows == 2 and not round_.prefill and temperature == "0":
                round_.tokens[0] = (round_.tokens[0] + 1) % 64
            elif target.n_rows == 2:
                round_.tokens[0] = 1
            yield number, round_

    monkeypatch.setattr(measure, "speculative_decode_batch", decode)
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
    stop = 420
    code, out, err = run("-B", "1,2")
    made = read(tmp_path / "results" / "local-batch.json", ComparisonRun)
    assert code == 0, "all texts that there are have been judged"
    assert frozen, "a long collection would be in the seconds"
    assert made.interrupted
    assert made.rows
    assert all(row.forecast is None for row in made.rows)
    assert "the rounds so far are complete" in err
    assert "Stopped before the end" in out
    n, stop = 0, 3
    (tmp_path / "results" / "local-batch.json").unlink()
    code, *_ = run("-B", "1,2")
    assert code == 130
    assert not (tmp_path / "results" / "local-batch.json").exists()


# --- what is decoded --------------------------------------------------------------------------------------------------


def config(n_prompts: int = 4, **others) -> SimpleNamespace:
    texts = [Prompt("code", "", torch.tensor([[1, number]])) for number in range(n_prompts)]
    fields = {"prompts": texts, "repeats": 1, "temperatures": [0.0], "draft_lengths": [2], "drafters": {}}
    return SimpleNamespace(**fields | others)


def test_every_batch_is_decoded_in_every_way():
    """Plain decoding twice, and first of all one text at a time."""
    ways = arms(config(3, drafters={"ngram": NgramDrafter()}, method=lambda name: name), [1, 2, 4])
    assert ways[0] == FIRST
    for arm in (BASELINE, BASELINE_REPEAT, Arm("ngram", "ngram", 2)):
        assert [one.n_texts for one in ways if one.arm == arm] == [1, 2, 4]


@pytest.mark.parametrize(("n_prompts", "n_texts", "n"), [(30, 1, 30), (30, 16, 60), (4, 8, 24), (3, 1, 3)])
def test_a_batch_is_filled_three_times(n_prompts, n_texts, n):
    assert requests_of(config(n_prompts), n_texts) == [*range(n_prompts)] * (n // n_prompts)


def test_the_warm_up_asks_for_no_more_than_the_run(monkeypatch):
    """Prompts that leave room for three tokens fit, with a warm-up of twelve."""
    budgets, done = [], SimpleNamespace(done=True)
    monkeypatch.setattr(measure, "BatchedModel", lambda *args: SimpleNamespace(start=print))
    monkeypatch.setattr(measure, "_decoding", lambda *given: budgets.append(given[-1]) or done)
    for most in (3, 200):
        measure._warmed(config(max_new_tokens=most, setup=SimpleNamespace(target=None, chunk=1)), FIRST)
    assert budgets == [3, measure.WARM_UP_TOKENS]


def test_the_examples_of_the_knee():
    result = doctest.testmod(shown)
    assert result.failed == 0 < result.attempted
    assert shown.knee({1: 2.0, 2: 0.9, 4: 1.0}) == "beyond 4", "a speedup of 1 is no loss, and the last fall counts"


# --- expectations -----------------------------------------------------------------------------------------------------


def expected(pads: bool = True) -> Expectations:
    """A pass takes 0.95 + 0.1 for each token + 0.05 for each text, a draft's 0.1; a round of one text 0.25 more."""
    times = {
        TARGET: {(1, 50): 1.1, (101, 50): 11.1} | {(1, 50 * n): 1.05 + 0.05 * n for n in range(1, 17)},
        "model": {(1, 50): 0.1, (101, 50): 0.1} | {(1, 50 * n): 0.1 for n in range(1, 17)},
    }
    # half of the rounds accept both tokens; the other draft proposes in half of the rounds alone
    known = {
        PLAIN: OfOne(1, 1.1 + 0.25),
        ("model", 2): OfOne(2, 1.3 + 0.2 + 0.25, (1.0, 1.0), 0.5),
        ("other", 2): OfOne(2, 1.2 + 0.45, (0.5, 0.5), 0.5),
    }
    return Expectations(50, times, known, {"other"}, pads)


def test_rates_by_hand():
    """One text at a time is expected to take what it took; of several, the weights are read once, not the caches."""
    e = expected()
    assert e.rate(*PLAIN, 1) == pytest.approx(1 / 1.35)
    assert e.rate(*PLAIN, 4) == pytest.approx(4 / (1.4 + 0.15 + 0.25))
    assert e.rate("model", 2, 1) == pytest.approx(2 / 1.75)
    assert e.rate("model", 2, 4) == pytest.approx(8 / (2.2 + 0.15 + 0.2 + 0.25))
    # of four texts one at least drafts in 15 of 16 rounds, and all rows are padded to it; drafting is paid four times
    assert e.rate("other", 2, 1) == pytest.approx(2 / 1.65)
    assert e.rate("other", 2, 4) == pytest.approx(8 / (1.15 + 0.4 * (1 + 2 * 15 / 16) + 0.45 + 3 * 0.2))
    assert expected(pads=False).rate("other", 2, 4) == pytest.approx(8 / (1.15 + 0.4 * (1 + 1) + 0.45 + 3 * 0.2))
    e.row_by_row.clear()  # a lookup
    assert e.rate("other", 2, 4) == pytest.approx(8 / (1.15 + 0.4 * (1 + 2 * 15 / 16) + 0.45))


def test_a_draft_model_catches_up():
    """Its first pass reads two tokens of a text whose whole draft was accepted; padded, of all where one was."""
    for pads, first in ((True, 4 * (1 + 1 - 0.5**4)), (False, 4 * 1.5)):
        e = expected(pads)
        e.times["model"] |= {(1, 50): 0.1, (101, 50): 10.1, (1, 200): 0.1}  # 0.1 for each token
        e.known["model", 2] = OfOne(2, 1.3 + 0.15 + 0.1 + 0.25, (1.0, 1.0), 0.5)
        assert e.rate("model", 2, 4) == pytest.approx(8 / (2.2 + 0.15 + 0.1 * first + 0.4 + 0.25))


def test_what_is_not_known_has_no_rate():
    e = expected()
    assert e.rate("model", 4, 4) is None
    e.times["model"] = {}
    assert e.rate(*PLAIN, 4) is e.speedup("model", 2, 4) is None


def test_what_rounds_of_one_text_say():
    rounds = [Round([1, 2, 3], 2, 2, 0), Round([4], 2, 0, 1), Round([5], 0, 0, 0), Round([6, 7], 1, 1, 0)]
    assert of_one(rounds, 8.0, 2) == OfOne(7 / 4, 2.0, (3 / 4, 2 / 4), 2 / 4)
    assert of_one(rounds, 8.0, 0) == OfOne(1, 8 / 7)


def test_passes_over_one_text_are_timed_in_turns(pair_folder, monkeypatch):
    """Each comes once in a turn, over memory that was written; disturbed moments count for all of them alike."""
    assert [expectations.middle_mean(some) for some in ([1.0, 2.0, 4.0, 99.0], [5.0])] == [3.0, 5.0]
    setup = load_setup(str(pair_folder / "target"), engine="eager", threads=1)
    asked = []

    def seconds(call, device):
        asked.append(call().shape[1])
        return {1: 1.0, 6: 2.0}[asked[-1]] + 8.0 * (len(asked) == 10)

    monkeypatch.setattr(expectations, "seconds", seconds)
    timer = PassTimer({TARGET: setup.target}, {TARGET: {(1, 9), (6, 4)}})
    for _ in range(4 * timer.n_steps):
        timer.step()
    assert asked[:2] == [1, 6]
    assert [set(asked[i : i + 2]) for i in (2, 4, 6, 8)] == [{1, 6}] * 4
    more = (4 * 1.0 + 4 * 2.0 + 8) / (4 * 1.0 + 4 * 2.0)
    assert timer.times == {TARGET: {(1, 9): pytest.approx(1.0 * more), (6, 4): pytest.approx(2.0 * more)}}
    assert all((part != 0).all() for part in timer._batches[TARGET]._buffers.keys)
