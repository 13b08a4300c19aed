"""The command end to end on a tiny pair, and its parts: bookkeeping, checks, expectations."""

import doctest
import gc
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from draft_models import NgramDrafter
from speclab.core.rounds import Round
from speclab.extensions.batch import __main__ as command
from speclab.extensions.batch import expectations, measure, shown
from speclab.extensions.batch.decoding.loops import BatchDecoding
from speclab.extensions.batch.expectations import TARGET, simulate, step_costs, time_passes, trace_of, with_rounds
from speclab.extensions.batch.measure import FIRST, Batches, arms, requests_of
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
    monkeypatch.setattr(expectations, "TURNS", 2)

    def call(*words, drafts="model"):
        names = {"model": str(pair_folder / "draft"), "both": f"{pair_folder / 'draft'},ngram"}
        models = ["--target", str(pair_folder / "target"), "--draft", names.get(drafts, drafts)]
        size = ["--max-new-tokens", "12", "-k", "1,3", "--out-dir", str(tmp_path)]
        code = command.main([*models, *size, "--threads", "1", "--engine", "eager", *words])
        return (code, *capsys.readouterr())

    return call


def test_a_run_leaves_its_record_page_and_picture(run, tmp_path):
    budgets = ["-k", "1,auto,published"]
    code, out, _ = run("-B", "2,3", "--engine", "c", *budgets, drafts="both")
    made = read(tmp_path / "results" / "local-batch.json", ComparisonRun)
    assert code == 0
    sizes = [1, 2, 3]
    assert (made.settings["engine"], made.settings["row_by_row"]) == ("c", ["ngram"])
    rows = [row for row in made.rows if row.prompt_kind == "all"]
    assert len(rows) == len(made.raw) / 3 - len(sizes) == len(sizes) * (1 + 2 * 3), "plain decoding a second time"
    assert {row.n_texts for row in rows} == set(sizes)
    assert len(made.noise) == len(sizes)
    assert all(row.speedup == 1 for row in rows if row.draft is None)
    assert all((row.forecast is not None) == (row.prompt_kind == "all") for row in made.rows if row.draft)
    again = rows_of(made.raw)
    for name in ("speedup", "speedup_low", "verdict", "tokens_per_second", "acceptance_rate", "n_texts"):
        assert [getattr(row, name) for row in again] == pytest.approx([getattr(row, name) for row in made.rows])
    assert all(entry["passed"] for entry in made.correctness)
    assert len(made.correctness) == len(rows) + len(sizes) - 1, "all but plain decoding of one text at a time"
    assert out.index("same text? target") < out.index("tok/s") < out.index("speculation pays up to a batch of")
    assert (tmp_path / "plots" / "local-batch-speedup.png").stat().st_size > 5000
    assert "../plots/local-batch-speedup.png" in (tmp_path / "results" / "local-batch.md").read_text()
    assert max(map(len, out.splitlines())) <= 110  # a busy machine has wide intervals
    assert str(tmp_path) not in (tmp_path / "results" / "local-batch.json").read_text()


def test_sampled_texts_are_held_to_the_targets_law(run, tmp_path):
    code, _, _ = run("-B", "1,3", "--temperature", "0.8", "-k", "3,auto")
    made = json.loads((tmp_path / "results" / "local-batch.json").read_text())
    assert code == 0
    assert len(made["correctness"]) == 2 * 2
    assert all(entry["n_tokens"] and entry["passed"] for entry in made["correctness"])


def test_texts_come_at_random(run, tmp_path):
    """Hardly ever two at a time: what a user gets is then what one text gets."""
    code, out, _ = run("-B", "2", "--load", "1e-6", "-k", "2,auto")
    made = read(tmp_path / "results" / "local-batch.json", ComparisonRun)
    assert (code, made.settings["load"]) == (0, 1e-6)
    assert "a user" in out
    alone, two = (row.forecast for row in made.rows if row.draft_length == 2 and row.prompt_kind == "all")
    assert alone == pytest.approx(two)


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
        n += 1
        if n == stop:
            frozen = gc.get_freeze_count()
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


def config(n_prompts: int = 4, **others) -> SimpleNamespace:
    texts = [Prompt("code", "", torch.tensor([[1, number]])) for number in range(n_prompts)]
    fields = {"prompts": texts, "temperatures": [0.0], "draft_lengths": [2], "drafters": {}}
    return SimpleNamespace(**fields | others)


def test_every_batch_is_decoded_in_every_way():
    """Plain decoding twice, and first of all one text at a time."""
    ways = arms(config(3, drafters={"ngram": NgramDrafter()}, method=lambda name: name), [1, 2, 4])
    assert ways[0] == FIRST
    for arm in (BASELINE, BASELINE_REPEAT, Arm("ngram", "ngram", 2)):
        assert [one.n_texts for one in ways if one.arm == arm] == [1, 2, 4]


def test_a_batch_is_filled_three_times():
    for n_prompts, n_texts, n in ((30, 1, 30), (30, 16, 60), (4, 8, 24), (3, 1, 3)):
        assert requests_of(config(n_prompts), n_texts) == [*range(n_prompts)] * (n // n_prompts)


def test_the_warm_up_asks_for_no_more_than_the_run(monkeypatch):
    """Prompts that leave room for three tokens fit, with a warm-up of twelve."""
    budgets, done = [], SimpleNamespace(done=True)
    monkeypatch.setattr(measure, "BatchedModel", lambda *args: SimpleNamespace(start=print))
    monkeypatch.setattr(measure, "_decoding", lambda *given: budgets.append(given[-1]) or done)
    monkeypatch.setattr(measure, "_costs", lambda *given: price())
    for most in (3, 200):
        some = config(max_new_tokens=most, setup=SimpleNamespace(target=None, chunk=1))
        measure._warmed(Batches(some, None, {}), FIRST)
    assert budgets == [3, measure.WARM_UP_TOKENS]


def test_the_examples_of_the_knee():
    result = doctest.testmod(shown)
    assert result.failed == 0 < result.attempted
    assert shown.knee({1: 2.0, 2: 0.9, 4: 1.0}) == "more than 4", "a speedup of 1 is no loss, and the last fall counts"


def price(draft: str = "model", k: int = 2, pads: bool = False):
    """A pass takes 0.95 + 0.1 for each token + 0.05 for each text, a draft's 0.1 + 0.05 for each text."""
    widths = {(n, 50): 1.0 + 0.1 * n for n in (1, 64)}
    texts = {(1, 50 * n): 1.05 + 0.05 * n for n in range(1, 17)}
    times = {TARGET: widths | texts, "model": {(n, 50): 0.1 for n in (1, 16)} | {(1, 800): 0.85}}
    return step_costs(times, draft, 16, k, pads)


def test_steps_by_hand():
    """The weights are read once, the caches of all texts; a lookup costs nothing; padding is multiplied."""
    assert price().of_length(1, 2) == pytest.approx([1.1, 1.2 + 0.1, 1.3 + 0.2])
    assert price().of_length(4, 2) == pytest.approx([1.4 + 0.15 + n * (0.4 + 0.25) for n in range(3)])
    assert price("ngram").of_length(4, 2) == pytest.approx([1.55, 1.95, 2.35])
    for pads, n_tokens in ((False, 7), (True, 12)):
        assert price(pads=pads).verify(4, 3, 2) == pytest.approx(1 + 0.1 * n_tokens + 0.15)


def test_what_rounds_take_outside_of_passes():
    """Two texts, three rounds of 3 s with 1.5 drafted tokens: 1.5 s are left, or 0.5 for each token of a network."""
    rounds = {i: [Round([1], prefill=True), *[Round([1], n, 0, 1) for n in (2, 1)]] for i in (0, 1)}
    full = [({0: 1, 1: 1}, 3.0)] * 2
    made = SimpleNamespace(rounds=rounds, full=lambda n: full)
    free = replace(price("ngram"), target=[1.0] * 99, texts=[0.0] * 99)
    assert with_rounds(free, made, 2, 2, None).outside == pytest.approx(2.0)
    own = with_rounds(free, made, 2, 2, 0.5)
    assert (own.outside, own.draft[:3]) == (0.5, pytest.approx([0.0, 0.5, 1.0]))
    assert replace(own, pads=True).drafts(2, [2, 0]) == pytest.approx(1.0), "only the row that drafts is paid"
    plain = SimpleNamespace(rounds={0: [Round([1] * 4)]}, full=lambda n: [({0: 4}, 6.0)])
    assert with_rounds(free, plain, 1, 0, None).outside == pytest.approx(0.5)


def test_simulated_rates_by_hand():
    """Known rounds of two texts: 3, 1, 2 tokens and 1, 1, 4; where both have a text, steps with so many drafts."""
    rounds = [[(2, 2), (2, 0), (1, 1)], [(2, 0), (0, 0), (3, 3)]]
    texts = [[Round([0], prefill=True), *[Round([0] * (a + 1), n, a) for n, a in of_text]] for of_text in rounds]
    traces = [trace_of(of_text) for of_text in texts]
    assert [len(trace.accepts) for trace in traces] == [7, 7]
    costs = price(k=3)
    # Drafted tokens, those of the longest row, and the rows of each pass of the draft.
    steps = ((4, 2, (2, 2)), (2, 2, (1, 1)), (4, 3, (2, 1, 1)))
    taken = [costs.verify(2, *n) + sum(costs.draft[i] for i in passes) for *n, passes in steps]
    found = simulate(traces, costs, expectations.FIXED, 3, 2)
    assert found == pytest.approx((12 / sum(taken), 6 / sum(taken), 2))
    alone, one = (simulate(traces, costs, expectations.FIXED, 3, *more) for more in ((2, [0, 1e9]), (1,)))
    assert alone[:2] == pytest.approx([one.tokens_per_second] * 2)
    oracle = simulate(traces, costs, expectations.ORACLE, 3, 2).tokens_per_second
    assert found.tokens_per_second < oracle, "it drafts no wrong token"


@pytest.mark.parametrize(("prefill", "speed"), [(0.0, 1 / 1.1), (5.0, 1 / 1.25)])
def test_a_text_that_comes_waits_for_the_prompt_before_it(prefill, speed):
    """Plain steps of 1.1 s for one text and of 1.25 s for two: the other one comes after 4 s, behind the end of the
    first one's two steps, or while its prompt is read."""
    found = simulate([trace_of([Round([0] * 3)])] * 2, price(), expectations.FIXED, 0, 2, [0, 4], [prefill] * 2)
    assert found.of_user == pytest.approx(speed)


def test_passes_over_one_text_are_timed_in_turns(pair_folder, monkeypatch):
    """Each comes once in a turn, over memory that was written; a disturbed moment counts for nothing."""
    assert [expectations.middle_mean(some) for some in ([1.0, 2.0, 4.0, 99.0], [5.0])] == [3.0, 5.0]
    setup = load_setup(str(pair_folder / "target"), engine="eager", threads=1)
    asked = []

    def seconds(call, device):
        asked.append(call().shape[1])
        assert all((part != 0).all() for part in call.func.__self__._buffers.keys)
        return asked[-1] + 8.0 * (len(asked) == 10)

    monkeypatch.setattr(expectations, "seconds", seconds)
    monkeypatch.setattr(expectations, "TURNS", 4)
    some = config(setup=setup, draft_lengths=[2], drafters={"ngram": NgramDrafter()})
    assert time_passes(some, 4, [1, 2]) == {TARGET: {(1, 4): 1, (2, 4): 2, (3, 4): 3, (6, 4): 6, (1, 8): 1}}
    turns = [asked[i : i + 5] for i in range(0, 25, 5)]
    assert [sorted(turn) for turn in turns] == [[1, 1, 2, 3, 6]] * 5
    assert len(set(map(tuple, turns))) > 1
