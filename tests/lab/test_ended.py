"""Answers up to their end token: the same counts and seconds as a loop that stops there."""

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings
from speclab.lab.decodings import Decoding
from speclab.lab.rows import ended, rows_of
from speclab.models.cached import CachedModel
from speclab.present import by_kind, tables
from speclab.records.arms import BASELINE, Arm
from speclab.records.log import Line
from tests.tiny_models import perturbed, tiny

ARM = Arm("suffix", "suffix", 4)
COMMON = {"target": "t", "device": "cpu", "dtype": "float32"}
BUDGET = 40


def decoded(eos: frozenset[int] = frozenset()) -> Decoding:
    """A tiny model's text, with a draft that is often right and often wrong, so that a draft may hold its end."""
    target = CachedModel(tiny("llama"))
    drafter = ModelDrafter(CachedModel(perturbed(target.model, 0.05)))
    settings = DecodeSettings(BUDGET, eos=eos)
    rounds = list(speculative_decode(target, drafter, torch.tensor([[1, 2, 3, 1, 2, 3, 1]]), 4, settings))
    made = Decoding(ARM, iter(rounds), 7, sum(len(round_.tokens) for round_ in rounds))
    while not made.done:
        made.advance()
    return made


def line(arm: Arm, made: Decoding, eos: frozenset[int], index: int = 0) -> Line:
    found = Line.begin(arm, 0.0, index, "chat", 7)
    counts = made.counts if arm.draft else None
    found.add(0.1, made.decode_seconds, made.tokens, counts, made.rounds, made.end(eos))
    return found


WHOLE = decoded()


@given(place=st.integers(1, BUDGET - 1))
def test_the_counts_are_those_of_a_loop_that_stops(place):
    eos = frozenset({WHOLE.tokens[place]})
    first = next(i for i, token in enumerate(WHOLE.tokens) if token in eos)
    if first == 0:
        return
    stopped = decoded(eos)
    assert stopped.tokens == WHOLE.tokens[: first + 1]
    baseline, arm = line(BASELINE, WHOLE, eos), line(ARM, WHOLE, eos)
    found = {one.arm: one for one in ended([baseline, arm])}
    again = ended([baseline.recorded(), arm.recorded()])
    assert again == list(found.values()), "a record holds all that is needed"
    for name in ("n_rounds", "n_drafted", "n_accepted", "n_rejected", "n_emitted"):
        assert getattr(found[ARM], name) == getattr(stopped.counts, name), name
    assert found[BASELINE].n_emitted == found[BASELINE].n_rounds == first
    seconds = [its for _, its, _ in WHOLE.log[: stopped.counts.n_rounds]]
    assert abs(found[ARM].seconds - sum(seconds)) <= 1e-6 * sum(seconds)


def test_a_text_that_ends_elsewhere_or_at_once_does_not_count():
    eos = frozenset({-1})
    baseline, arm = line(BASELINE, WHOLE, eos), line(ARM, WHOLE, eos)
    assert len(ended([baseline, arm])) == 2
    assert arm.ends[0].n_tokens == BUDGET, "without an end token the whole text is the answer"
    other = line(ARM, WHOLE, eos)
    other.ends = [arm.ends[0]._replace(n_tokens=3)]
    assert [one.arm for one in ended([baseline, other])] == [BASELINE]
    at_once = frozenset({WHOLE.tokens[0]})
    assert ended([line(BASELINE, WHOLE, at_once), line(ARM, WHOLE, at_once)]) == []
    bare = line(ARM, WHOLE, eos)
    bare.ends = []
    assert [one.arm for one in ended([baseline, bare])] == [BASELINE]


def test_tables_show_each_kind_at_the_length_that_is_fastest_over_all():
    lines = []
    for index, kind in enumerate(("chat", "chat", "code")):
        for arm, seconds in ((BASELINE, 4.0), (ARM, 2.0), (Arm("suffix", "suffix", 2), 3.0)):
            made = line(arm, WHOLE, frozenset({-1}), index)
            made.prompt_kind, made.decode_seconds = kind, [seconds]
            lines.append(made)
    rows = rows_of(lines, COMMON)
    lengths = by_kind.best_lengths(rows)
    assert lengths == {"suffix": 4}
    shown = by_kind.shown(rows, lengths)
    assert [(row.prompt_kind, row.draft_length, row.n_prompts) for row in shown] == [
        ("chat", 4, 2),
        ("code", 4, 1),
        ("all", 4, 3),
    ]
    run = SimpleNamespace(rows=rows, ended=rows_of(ended(lines), COMMON), settings={"repeats": 1})
    page = tables.show(by_kind.blocks(run), markdown=True)
    assert page.count("| chat ") == page.count("| code ") == page.count("| all ") == 1, "no answer ends early"
    stopped = [line(arm, WHOLE, frozenset({WHOLE.tokens[9]}), 2) for arm in (BASELINE, ARM)]
    for one in stopped:
        one.prompt_kind = "code"
    run.ended = rows_of(ended([one for one in lines if one.prompt_kind == "chat"] + stopped), COMMON)
    page = tables.show(by_kind.blocks(run), markdown=True)
    assert (page.count("| chat "), page.count("| code "), page.count("| all ")) == (1, 2, 2), "an answer of code does"
    assert by_kind.blocks(SimpleNamespace(rows=rows, ended=None)) == []
    column = by_kind._tokens(2)
    assert column(SimpleNamespace(n_tokens=58, n_prompts=1)) == "30", "two answers, each of 29 tokens and a first one"
