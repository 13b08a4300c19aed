"""The streamed text: each token has the colour of its origin, on a terminal only, and no half character is shown."""

import contextlib
import io
import re
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

import baseline_autoregressive
import optimized_speculative
from speclab.cli import decoding
from speclab.core.rounds import Round
from speclab.models.cached import CachedModel
from speclab.models.pieces import Pieces, text_of
from speclab.models.prompts import Prompt
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


def shown(text: str, stream: bool = True, out: type[io.StringIO] = Terminal) -> str:
    """What is printed of a text, a token a byte, in one round of each kind: of the prompt, accepted and corrected,
    accepted and a bonus, nothing drafted."""
    tokenizer = byte_level(n_lines=1)
    a, b, c, d, e, f, *g = tokenizer(text)["input_ids"]
    rounds = [
        Round([a], prefill=True),
        Round([b, c], n_drafted=3, n_accepted=1, n_rejected=1),
        Round([d, e], n_drafted=1, n_accepted=1),
        Round([f, *g], n_drafted=0, finish="length"),
    ]
    setup = SimpleNamespace(pieces=lambda _: Pieces(tokenizer))
    with contextlib.redirect_stdout(out()) as printed:
        decoding._Decoded(setup, Namespace(stream=stream)).show(Prompt("x", "", torch.tensor([[0]])), iter(rounds))
    assert text_of(tokenizer, [a, b, c, d, e, f, *g]) == text
    return printed.getvalue().partition(f"{decoding.NEW_TEXT}\n")[2]


def test_each_token_has_the_colour_of_its_origin(terminal):
    kinds = {code: kind for kind, (code, _) in decoding.ORIGINS.items()}
    out = shown("abcdef")
    colours = {text: kinds[code] for code, text in COLOUR.findall(out)}
    assert COLOUR.sub(r"\2", out) == "abcdef\n"
    assert colours == {"b": "accepted", "c": "corrected", "d": "accepted", "e": "bonus"}
    assert len(kinds) == 3


def test_a_half_character_is_held_back(terminal):
    """Its bytes come in two rounds: it is shown once, whole, and no colour begins or ends inside it."""
    assert COLOUR.sub(r"\2", shown("xö→y")) == "xö→y\n"


@pytest.mark.parametrize("forbid", ["NO_COLOR", "TERM", "pipe", "at the end"])
def test_where_colours_are_forbidden_there_are_none(terminal, forbid):
    if forbid in ("NO_COLOR", "TERM"):
        terminal.setenv(forbid, "dumb")
    assert shown("abcdef", forbid != "at the end", io.StringIO if forbid == "pipe" else Terminal) == "abcdef\n"


def test_the_last_line_counts_the_passes_of_both_loops(pair_folder, capsys, monkeypatch):
    """Both scripts run, and passes over one or several tokens after the prompt are counted where they are made."""
    made = []
    words = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager", "--max-new-tokens", "24"]
    words += ["--prompt", "def f(x):", "--prompt", "import", "--ignore-eos", "--stream"]
    for name in ("step", "verify"):
        make = getattr(CachedModel, name)
        monkeypatch.setattr(CachedModel, name, lambda *args, make=make, **more: made.append(1) or make(*args, **more))
    check = decoding.check_prompts  # before this the checks of loaded models make passes, too
    monkeypatch.setattr(decoding, "check_prompts", lambda *args: made.clear() or check(*args))
    assert optimized_speculative.main([*words, "--draft", str(pair_folder / "target")]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    n_tokens, found, one_by_one = map(int, re.findall(r"\d+", line))
    assert (n_tokens, found) == (48, len(made))
    assert baseline_autoregressive.main(words) == 0
    assert one_by_one == len(made) > found
