"""The last scores of a head: the target writes on after the lab's prompts only where there is time for it."""

import pytest

from training import scoring


@pytest.mark.parametrize(
    ("seconds", "sets"), [(-1.0, ["held-out texts"]), (1e9, ["held-out texts", "code", "all prompts"])]
)
def test_prompts_are_left_out_where_no_time_is_left(seconds, sets, monkeypatch, capsys):
    asked = []

    def greedy_texts(target, tokenizer, layers, n=scoring.NEW + scoring.BEYOND):
        asked.append(n)
        return {"code": [layers]}

    class Head:
        class config:  # noqa: N801
            layers = (1, 2)

    monkeypatch.setattr(scoring, "greedy_texts", greedy_texts)
    monkeypatch.setattr(scoring, "score", lambda head, some, ids: len(some))
    assert list(scoring.scored(Head(), None, None, ["a text"], seconds)) == sets
    assert asked[-1] == (scoring.NEW + scoring.BEYOND if seconds > 0 else 1 + scoring.BEYOND)
    assert ("not scored on the lab's prompts" in capsys.readouterr().err) == (seconds < 0)
