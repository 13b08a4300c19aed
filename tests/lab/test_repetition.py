"""A greedy text counts up to where it begins to repeat, in every arm alike; sampled texts count whole."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import compare
from speclab.core.sampling import GREEDY
from speclab.lab.bench import Bench, n_before_repetition
from speclab.lab.comparison import build_rows
from speclab.lab.harness import measure
from speclab.lab.known_texts import calibrated
from speclab.models import prompts
from speclab.present import screen
from speclab.records import files
from speclab.records.files import ComparisonRun
from speclab.records.rows import BASELINE, GENERATE, Arm
from tests.lab.test_harness import Machine, make_bench, make_prompt
from tests.tiny_models import VOCAB, perturbed, tiny

MODEL, NGRAM = Arm("model", "model", 2), Arm("ngram", "ngram", 4)
ARMS = [BASELINE, MODEL, Arm("model", "model", 5), NGRAM, GENERATE]
BUDGET = 80
COMMON = {"target": "t", "device": "cpu", "dtype": "float64"}


# --- the rule ---------------------------------------------------------------------------------------------------------


def planted(n_before: int, period: int, n_repeated: int) -> list[int]:
    """No token comes twice but for the last ones, each of which equals the one a period before."""
    once = list(range(n_before + period))
    return once + [once[n_before + i % period] for i in range(n_repeated)]


@given(st.integers(0, 60), st.integers(1, 48), st.integers(32, 150))
def test_a_repetition_begins_with_the_first_token_that_is_repeated(n_before, period, n_repeated):
    assert n_before_repetition(planted(n_before, period, n_repeated)) == n_before + period


@given(st.integers(0, 60), st.integers(49, 120), st.integers(0, 150))
def test_longer_periods_do_not_count(n_before, period, n_repeated):
    text = planted(n_before, period, n_repeated)
    assert n_before_repetition(text) == len(text)


@given(st.integers(0, 60), st.integers(1, 48), st.integers(0, 31))
def test_fewer_tokens_do_not_count(n_before, period, n_repeated):
    text = planted(n_before, period, n_repeated)
    assert n_before_repetition(text) == len(text)


@given(st.integers(0, 60), st.integers(1, 48), st.integers(32, 100))
def test_a_repetition_that_ends_before_the_text_does_not_count(n_before, period, n_repeated):
    text = [*planted(n_before, period, n_repeated), -1]
    assert n_before_repetition(text) == len(text)


# --- in a measurement -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    """A target whose greedy texts end in repetition after some prompts, and a draft for it."""
    target = tiny("llama", initializer_range=0.05)
    return target, perturbed(target, 0.1)


PROMPTS = [
    make_prompt(seed, kind, vocab=VOCAB) for seed, kind in ((0, "code"), (1, "code"), (5, "prose"), (7, "prose"))
]


def test_every_arm_is_cut_where_the_baselines_greedy_text_begins_to_repeat(pair):
    bench = make_bench(pair, BUDGET)
    whole = [bench.decoding(BASELINE, GREEDY, prompt) for prompt in PROMPTS]
    for decoding in whole:
        while not decoding.done:
            decoding.advance()
    budgets = [max(2, n_before_repetition(decoding.tokens)) for decoding in whole]
    assert budgets[0] == BUDGET == len(whole[0].tokens)
    assert [n < BUDGET for n in budgets] == [False, True, True, True]
    found = measure(bench, ARMS, [0.0, 0.8], PROMPTS, 2, {"model": [0, 1, 2]})
    greedy = [line for line in found.lines if line.temperature == 0]
    assert {line.arm for line in greedy} >= set(ARMS)
    for line in greedy:
        n = budgets[line.prompt_index]
        assert line.texts == [whole[line.prompt_index].tokens[:n]] * 2, line.arm
        assert line.n_emitted == 2 * (n - 1)
        assert line.loops == (True if line.arm == BASELINE and n < BUDGET else None)
    sampled = [line for line in found.lines if line.temperature]
    assert sampled
    for line in sampled:
        assert [len(text) for text in line.texts] == [BUDGET] * 2, line.arm
        assert line.loops is None


def test_repetition_adds_nothing_to_a_speedup(pair, monkeypatch):
    """On a machine that keeps its prices, where the forecast of a text is what a run measures."""
    tools = {name: [0, 1, 2, 3, 4, 5] * 2 for name in ("model", "ngram")}

    def rows() -> dict:
        bench = make_bench(pair, BUDGET)
        Machine(monkeypatch, bench.setup.target.model, by_width=lambda width: 1 + width / 8, slope=0.01, catch=0.03)
        found = measure(bench, ARMS[:-1], [0.0], PROMPTS, 1, tools)
        made = build_rows(SimpleNamespace(common=COMMON), found, calibrated(found))
        return {(row.method, row.draft_length, row.prompt_kind): row for row in made if row.draft}

    cut = rows()
    with monkeypatch.context() as uncut:
        uncut.setattr(Bench, "budget", lambda bench, prompt, sampling: bench.max_new_tokens)
        whole = rows()
    assert cut.keys() == whole.keys()
    for key, row in cut.items():
        assert row.forecast == pytest.approx(row.speedup, rel=1e-9), key
    copied, text = whole["ngram", 4, "prose"], cut["ngram", 4, "prose"]
    assert copied.speedup > 1.25 * text.speedup, "a lookup is right wherever a text repeats itself"
    assert copied.tokens_per_round > 1.25 * text.tokens_per_round


def test_the_screen_says_what_was_cut(tmp_path, monkeypatch, capsys):
    """The lab's pair on three prompts, of which two lead it into a loop."""
    by_kind = {kind: [text for its_kind, text in prompts.standard() if its_kind == kind] for kind in prompts.KINDS}
    texts = [("code", by_kind["code"][4]), ("prose", by_kind["prose"][0]), ("copy", by_kind["copy"][3])]
    monkeypatch.setattr(prompts, "standard", lambda: texts)
    words = ["--draft", "model,ngram", "-k", "2", "--temperature", "0,0.8", "--engine", "eager", "--threads", "1"]
    size = ["--limit", "1", "--repeats", "1", "--max-new-tokens", "44", "--out-dir", str(tmp_path)]
    assert compare.main([*words, *size]) == 0
    run = files.read(tmp_path / "results" / "local.json", ComparisonRun)
    assert run.prompts["n_cut"] == 2
    rows = {(row.method, row.temperature, row.prompt_kind): row for row in run.rows if row.draft}
    row = rows["ngram", 0.0, "all"]
    line = screen.loops_line(run)
    assert line.startswith("lab pair: 2 of 3 greedy texts")
    assert rows["ngram", 0.8, "all"].n_tokens == 3 * 43 > row.n_tokens
    assert line in " ".join(capsys.readouterr().out.split())
