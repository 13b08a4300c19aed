"""A greedy text counts up to where it begins to repeat, in every arm alike; sampled texts count whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.core.sampling import GREEDY
from speclab.lab.bench import n_before_repetition
from speclab.lab.harness import measure
from speclab.models import prompts
from speclab.models.loading import LAB_TARGET
from speclab.records.rows import BASELINE, GENERATE, Arm
from tests.lab.test_harness import finish, make_bench, make_prompt
from tests.tiny_models import VOCAB, perturbed, tiny

MODEL, NGRAM = Arm("model", "model", 2), Arm("ngram", "ngram", 4)
ARMS = [BASELINE, MODEL, NGRAM, GENERATE]
BUDGET = 80


def planted(n_before: int, period: int, n_repeated: int) -> list[int]:
    """No token comes twice but for the last ones, each of which equals the one a period before."""
    once = list(range(n_before + period))
    return once + [once[n_before + i % period] for i in range(n_repeated)]


@given(st.integers(0, 60), st.integers(1, 120), st.integers(0, 150), st.booleans())
def test_a_repetition_begins_with_the_first_token_that_is_repeated(n_before, period, n_repeated, ends):
    """Where its period and its length are in the bounds, and the text ends in it."""
    text = [*planted(n_before, period, n_repeated), *([] if ends else [-1])]
    counts = period <= 48 and n_repeated >= 32 and ends
    assert n_before_repetition(text) == (n_before + period if counts else len(text))


@pytest.fixture(scope="module")
def pair():
    """A target whose greedy texts end in repetition after some prompts, and a draft for it."""
    target = tiny("llama", initializer_range=0.05)
    return target, perturbed(target, 0.1)


PROMPTS = [make_prompt(seed, kind, vocab=VOCAB) for seed, kind in ((0, "code"), (1, "code"), (5, "prose"))]


def test_every_arm_is_cut_where_the_baselines_greedy_text_begins_to_repeat(pair):
    bench = make_bench(pair, BUDGET)
    whole = [finish(bench.decoding(BASELINE, GREEDY, prompt)) for prompt in PROMPTS]
    budgets = [max(2, n_before_repetition(decoding.tokens)) for decoding in whole]
    assert budgets[0] == BUDGET == len(whole[0].tokens)
    assert [n < BUDGET for n in budgets] == [False, True, True]
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


def test_the_screen_says_what_was_cut(run):
    """The lab's pair on three prompts, of which two lead it into a loop."""
    by_kind = {kind: [text for its_kind, text in prompts.standard() if its_kind == kind] for kind in prompts.KINDS}
    texts = [("code", by_kind["code"][4]), ("prose", by_kind["prose"][0]), ("copy", by_kind["copy"][3])]
    words = ["--draft", "ngram", "-k", "2", "--max-new-tokens", "44", "--alone", "--engine", "c"]
    ran = run("--target", LAB_TARGET, *words, texts=texts)
    assert (ran.code, ran.record.prompts["n_cut"]) == (0, 2)
    n_tokens = {row.temperature: row.n_emitted for row in ran.record.rows if row.draft and row.prompt_kind == "all"}
    assert n_tokens[0.8] == 3 * 43 > n_tokens[0.0]
    assert "lab pair: 2 of 3 greedy texts" in " ".join(ran.out.split())
