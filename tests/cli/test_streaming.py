"""The streamed text: each token has the colour of its origin, on a terminal only, and no half character is shown."""

import contextlib
import io
import re

import pytest

import baseline_autoregressive
import optimized_speculative
from speclab.cli import decoding, streaming
from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.models.cached import CachedModel
from speclab.models.pieces import pieces, text_of
from tests.small_tokenizers import byte_level

COLOUR = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m", re.DOTALL)


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return monkeypatch


def shown(rounds: list[Round], tokenizer, at_once: bool = True, stream: type[io.StringIO] = Terminal) -> str:
    with contextlib.redirect_stdout(stream()) as out:
        text = streaming.Text(pieces(tokenizer), at_once)
        for round_ in rounds:
            text.add(round_)
        text.end()
    return out.getvalue()


def rounds_of(ids: list[int]) -> list[Round]:
    """One round of each kind: of the prompt, accepted and corrected, accepted and a bonus, nothing drafted."""
    a, b, c, d, e, f, *g = ids
    return [
        Round([a], prefill=True),
        Round([b, c], n_drafted=3, n_accepted=1, n_rejected=1),
        Round([d, e], n_drafted=1, n_accepted=1),
        Round([f, *g], n_drafted=0, finish="length"),
    ]


def test_each_token_has_the_colour_of_its_origin(terminal):
    tokenizer = byte_level(n_lines=1)
    ids = tokenizer("abcdef")["input_ids"]
    assert len(ids) == 6
    out = shown(rounds_of(ids), tokenizer)
    kinds = {code: kind for kind, (code, _) in streaming.ORIGINS.items()}
    colours = {text: kinds[code] for code, text in COLOUR.findall(out)}
    assert COLOUR.sub(r"\2", out) == "abcdef\n"
    assert colours == {"b": "accepted", "c": "corrected", "d": "accepted", "e": "bonus"}
    assert len(kinds) == 3


def test_a_half_character_is_held_back(terminal):
    """Its bytes come in two rounds: it is shown once, whole, and no colour begins or ends inside it."""
    tokenizer = byte_level(n_lines=1)
    ids = tokenizer("xö→y")["input_ids"]  # 1 + 2 + 3 + 1 bytes, each a token
    assert len(ids) == 7
    out = shown(rounds_of(ids), tokenizer)
    assert COLOUR.sub(r"\2", out) == text_of(tokenizer, ids) + "\n" == "xö→y\n"


@pytest.mark.parametrize("forbid", ["NO_COLOR", "TERM", "pipe", "at the end"])
def test_where_colours_are_forbidden_there_are_none(terminal, forbid):
    stream = io.StringIO if forbid == "pipe" else Terminal
    if forbid in ("NO_COLOR", "TERM"):
        terminal.setenv(forbid, "dumb")
    tokenizer = byte_level(n_lines=1)
    out = shown(rounds_of(tokenizer("abcdef")["input_ids"]), tokenizer, forbid != "at the end", stream)
    assert out == "abcdef\n"
    with contextlib.redirect_stdout(stream()):
        assert (streaming.legend() is None) == (forbid != "at the end")


def test_the_last_line_counts_the_passes_of_both_loops(pair_folder, capsys, monkeypatch):
    """Both scripts run, and passes over one or several tokens after the prompt are counted where they are made."""
    n_passes = 0

    def counted(name):
        make = getattr(CachedModel, name)

        def count(*args, **kwargs):
            nonlocal n_passes
            n_passes += 1
            return make(*args, **kwargs)

        return count

    words = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager", "--max-new-tokens", "24"]
    words += ["--prompt", "def f(x):", "--prompt", "import", "--ignore-eos", "--stream"]
    for name in ("step", "verify"):
        monkeypatch.setattr(CachedModel, name, counted(name))
    check_prompts = decoding.check_prompts

    def check_and_forget(*args):  # before this the checks of loaded models make passes, too
        nonlocal n_passes
        n_passes = 0
        return check_prompts(*args)

    monkeypatch.setattr(decoding, "check_prompts", check_and_forget)
    assert optimized_speculative.main([*words, "--draft", str(pair_folder / "target")]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    n_tokens, found, one_by_one = map(int, re.findall(r"\d+", line))
    assert (n_tokens, found) == (48, n_passes)
    assert baseline_autoregressive.main(words) == 0
    assert one_by_one == n_passes > found


def test_one_pass_is_not_called_passes():
    counts = Counts()
    counts.add(Round([5], finish="length"))
    assert "1 pass of" in streaming.passes_line(1, counts)
