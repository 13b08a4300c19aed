"""What is said of the texts of a run."""

from types import SimpleNamespace

import pytest

from speclab.lab import comparison
from speclab.records.rows import BASELINE, Arm, Decoded
from speclab.theory import losslessness
from speclab.theory.losslessness import Divergence

RIGHT, NEAR, WRONG = [5, 6, 7], [5, 6, 8], [5, 9, 7]


@pytest.fixture
def measured(monkeypatch):
    """A measurement with one prompt, from the texts of an arm's repeats."""
    found = {tuple(NEAR): Divergence(2, 7, 8, 0.0, True), tuple(WRONG): Divergence(1, 6, 9, 5.0, False)}
    monkeypatch.setattr(losslessness, "judge_divergence", lambda *given: found.get(tuple(given[3])))

    def of(texts: list[list[int]]) -> SimpleNamespace:
        samples = {BASELINE: [RIGHT], Arm("model", "model", 4): texts}
        made = {arm: [Decoded.begin(arm, 0.0, 0, "code", 3)] for arm in samples}
        for arm, its in samples.items():
            made[arm][0].texts = its
        target = SimpleNamespace(vocab_size=10)
        setup = SimpleNamespace(reference=None, target=target, token_text=lambda prompt, text, token: str(token))
        prompts = [SimpleNamespace(id_list=[1, 2, 3])]
        return SimpleNamespace(bench=SimpleNamespace(setup=setup), prompts=prompts, of=lambda arm, _: made[arm])

    return of


VERDICTS = [([RIGHT, RIGHT], []), ([RIGHT, NEAR], ["near-tie"])]
VERDICTS += [(texts, ["BUG"]) for texts in ([NEAR, WRONG], [WRONG, NEAR], [RIGHT, NEAR, RIGHT, WRONG])]


@pytest.mark.parametrize(("texts", "verdicts"), VERDICTS)
def test_a_wrong_text_among_the_repeats_is_found(measured, texts, verdicts):
    entry = comparison.judge_greedy(measured(texts), Arm("model", "model", 4))
    assert [one["verdict"] for one in entry["differences"]] == verdicts
    assert entry["passed"] == ("BUG" not in verdicts)
