"""`--batch B` of the decoding scripts: the texts that each prompt has alone, in the prompts' order."""

import gc
import re

import pytest

import baseline_autoregressive
import optimized_speculative
from speclab.cli import decoding, output
from speclab.lab.batching.decodings import BatchDecoding
from tests.cli.test_cli import run  # noqa: F401 - a fixture
from tests.grids import pairs_often

PROMPTS = ["--prompt", "def f(x):", "--prompt", "class Stack:\n", "--prompt", "for i in", "--max-new-tokens", "12"]
DRAFTS = {"model": [], "ngram": ["--draft", "ngram"], "tree": ["--tree", "2x2"], "best tree": ["--tree", "best"]}


def texts(out: str) -> str:
    """Prompts and texts, without the lines about speed."""
    return re.split(r"\n\d+ tokens, \d+ of them decoded", out)[0]


@pytest.mark.parametrize(
    ("kind", "temperature"),
    pairs_often(
        [None, *DRAFTS],
        ["0", "0.8"],
        lambda kind, temperature: (temperature != "0") == (kind in (None, "model", "tree")),
    ),
)
def test_the_texts_are_those_of_one_at_a_time(run, pair_folder, kind, temperature):  # noqa: F811
    script, draft, words = baseline_autoregressive, [], ["--temperature", temperature]
    if kind is not None:
        model = [] if kind == "ngram" else ["--draft", str(pair_folder / "draft")]
        script, draft = optimized_speculative, [*model, *DRAFTS[kind]]
    code, alone, _ = run(script, *PROMPTS, *words, *draft)
    assert code == 0
    for n_rows, at_once in (("1", 1), ("2", 2), ("8", 3)):
        code, out, err = run(script, *PROMPTS, *words, *draft, "--batch", n_rows)
        assert code == 0
        assert texts(out).split() == texts(alone).split()
        assert out.count(output.NEW_TEXT) == 3
        assert re.search(
            rf"\d+ tokens, \d+ of them decoded after the prompts' own passes in [\d.]+ s, {at_once} at a time: ", out
        )
        assert re.search(r"ms between tokens \(medians of 3 texts\)", out)
        assert ("3 prompts for 8 rows" in err) == (n_rows == "8")
        assert ("tokens per round" in out) == (kind is not None)


@pytest.mark.parametrize("at_once", [[], ["--batch", "2"]], ids=["alone", "batch"])
def test_no_long_collection_falls_into_the_seconds(run, monkeypatch, at_once):  # noqa: F811
    frozen = []
    for timed, name in ((decoding._Decoded, "_timed"), (BatchDecoding, "advance")):
        right = getattr(timed, name)

        def watched(*args, right=right):
            frozen.append(gc.get_freeze_count())
            return right(*args)

        monkeypatch.setattr(timed, name, watched)
    assert run(baseline_autoregressive, *PROMPTS, *at_once)[0] == 0
    assert len(frozen) >= 3
    assert all(frozen)


def test_there_are_prompts_for_all_rows():
    """Of the standard prompts as many of each kind as it takes; without --batch one."""
    asked = ([], ["--batch", "5"], ["--batch", "5", "--limit", "1"])
    assert [decoding._parse("", words, speculative=False).limit for words in asked] == [1, 2, 1]


def test_a_rule_judges_the_batch_too(run, pair_folder):  # noqa: F811
    words = [*PROMPTS, "--temperature", "1", "--draft", str(pair_folder / "draft"), "--rule"]
    found = []
    for rule in ("block", "follow", "lenient:0.5"):
        out = [run(optimized_speculative, *words, rule, *batch)[1] for batch in ([], ["--batch", "2"])]
        assert texts(out[0]).split() == texts(out[1]).split()
        found.append(out[1])
    assert "LOSSY" in found[2]
