"""`decode`: the texts that each prompt has alone, in the prompts' order."""

import gc
import re
from types import SimpleNamespace

import pytest

import baseline_autoregressive
import optimized_speculative
from speclab.cli import decoding, flags
from speclab.extensions.batch import decode
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from tests.cli.test_cli import run  # noqa: F401 - a fixture
from tests.grids import pairs_often

command = SimpleNamespace(main=lambda words, *others: decode.run(decode.make_parser().parse_args(words), *others))
PROMPTS = ["--prompt", "def f(x):", "--prompt", "class Stack:\n", "--prompt", "for i in", "--max-new-tokens", "12"]
DRAFTS = {"model": "{}", "ngram": "ngram", "tree": "tree:2x2:{}", "best tree": "tree:best:{}"}


def texts(out: str) -> str:
    """Prompts and texts, without the lines about speed."""
    return re.split(r"\n\d+ tokens, \d+ of them decoded", out)[0]


@pytest.mark.parametrize(
    ("kind", "temperature"),
    pairs_often(
        [None, *DRAFTS],
        ["0", "0.8"],
        lambda *one: one in ((None, "0.8"), ("model", "0.8"), ("best tree", "0")),
    ),
)
def test_the_texts_are_those_of_one_at_a_time(run, pair_folder, kind, temperature):  # noqa: F811
    script, words = baseline_autoregressive, ["--temperature", temperature]
    if kind is not None:
        script, words = optimized_speculative, [*words, "--draft", DRAFTS[kind].format(pair_folder / "draft")]
    code, alone, _ = run(script, *PROMPTS, *words)
    assert code == 0
    for n_rows, at_once in (("2", 2), ("8", 3)):
        plain = [] if kind else ["--draft", "none"]
        code, out, err = run(command, *PROMPTS, *words, *plain, "-B", n_rows)
        assert code == 0
        assert texts(out).split() == texts(alone).split()
        assert out.count(decoding.NEW_TEXT) == 3
        assert re.search(
            rf"\d+ tokens, \d+ of them decoded after the prompts' own passes in [\d.]+ s, {at_once} at a time: ", out
        )
        assert ("3 prompts for 8 rows" in err) == (n_rows == "8")
        assert ("tokens per round" in out) == (kind is not None)


def test_no_long_collection_falls_into_the_seconds(run, monkeypatch):  # noqa: F811
    frozen, right = [], BatchDecoding.advance

    def watched(self):
        frozen.append(gc.get_freeze_count())
        right(self)

    monkeypatch.setattr(BatchDecoding, "advance", watched)
    assert run(command, *PROMPTS, "--draft", "none")[0] == 0
    assert len(frozen) >= 3
    assert all(frozen)


@pytest.mark.parametrize(("words", "limit"), [("", 2), ("-B 5", 2), ("-B 5 --limit 1", 1), ("-B 1", 1)])
def test_there_are_prompts_for_all_rows(words, limit, monkeypatch):
    """Of the standard prompts there are as many of each kind as it takes."""
    args = decode.make_parser().parse_args([*words.split(), "--draft", "none"])
    monkeypatch.setattr(flags, "load", lambda args: [][0])
    with pytest.raises(IndexError):
        decode.run(args)
    assert args.limit == limit
