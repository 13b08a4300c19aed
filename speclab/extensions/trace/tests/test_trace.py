"""Pictures of a decoding: they show what happened, no text can break them, and looking changes nothing."""

import gc
import html.parser
import itertools
import json
import platform
import socket
from types import SimpleNamespace

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core import clock as clock_module
from speclab.core.counts import Counts
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import Sampling
from speclab.extensions.trace import follow, page, positions, trace, trace_terminal
from speclab.extensions.trace.tests.trace_streams import (
    by_hand,
    clock,
    count_all,
    rounds,
    scripted,
    settings,
    with_texts,
)
from speclab.extensions.trace.trace import Position
from speclab.lab.instruments import LoopFunctions, with_phases
from speclab.models.cached import CachedModel
from speclab.models.pieces import Pieces
from speclab.system import terminal
from speclab.system.files import ROOT
from tests.tiny_models import perturbed, tiny

NASTY = 'a <script>alert(1)</script> <!-- & "x" </pre> {{ 7 * 7 }} \u202e\x1b[31m'


def decoded(target, drafter, sampling, n_tokens=60, look=True) -> list[Round]:
    settings = DecodeSettings(n_tokens, sampling, frozenset(), 3)
    args = (LoopFunctions(speculative_decode), CachedModel(target), drafter, torch.arange(1, 8)[None], 4, settings)
    return list(follow.detailed(*args) if look else with_phases(*args))


def drafters(target) -> dict:
    return {"model": lambda: ModelDrafter(CachedModel(perturbed(target, 0.3))), "ngram": lambda: NgramDrafter(2, 1)}


# --- what a round looked at ---


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["model", "ngram"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_outcome_can_be_recomputed(family, kind, temperature):
    """From the numbers shown alone: u q < p up to the first that fails."""
    target = tiny(family)
    found = decoded(target, drafters(target)[kind](), Sampling(temperature), 120)
    counts = Counts()
    for round_ in found[1:]:
        *drafted, last = round_.detail
        assert len(drafted) == round_.n_drafted
        kept = list(itertools.takewhile(lambda position: position.passes, drafted))
        assert len(kept) == round_.n_accepted
        assert [position.id for position in (*kept, last)] == round_.tokens
        counts.add(round_)
    assert counts.n_accepted > 0
    assert counts.n_rejected > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_probabilities_are_the_models(temperature):
    """Every number shown against both models run over the whole text without a cache."""
    target, sampling = tiny("llama"), Sampling(temperature, top_p=0.9)
    draft = perturbed(target, 0.3)
    found = decoded(target, ModelDrafter(CachedModel(draft)), sampling, 40)
    text = list(range(1, 8)) + found[0].tokens
    n_checked = 0
    for round_ in found[1:]:
        *drafted, last = round_.detail
        ids = torch.tensor([text + [position.id for position in drafted]])
        with torch.inference_mode():
            rows, draft_rows = (model(input_ids=ids).logits[0, len(text) - 1 :] for model in (target, draft))
        for i, position in enumerate(drafted):
            assert position.target_prob == pytest.approx(sampling.probs(rows[i])[position.id].item(), abs=1e-9)
            expected = sampling.probs(draft_rows[i])[position.id].item() if temperature else 1.0
            assert position.draft_prob == pytest.approx(expected, abs=1e-9)
            n_checked += 1
        here = rows[round_.n_accepted]
        assert last.id == round_.tokens[-1]
        assert last.target_prob == pytest.approx(sampling.probs(here)[last.id].item(), abs=1e-9)
        text += round_.tokens
    assert n_checked > 20


def test_looking_changes_nothing(monkeypatch):
    """The text is the same with and without, and the time it takes falls between two rounds, where no clock runs."""
    target = tiny("llama")
    plain = decoded(target, NgramDrafter(2, 1), Sampling(), look=False)
    now = itertools.count()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    positions_of = positions.positions_of

    def slow(*inputs):
        for _ in range(1000):  # looking takes a thousand ticks
            next(now)
        return positions_of(*inputs)

    monkeypatch.setattr(positions, "positions_of", slow)
    looked = decoded(target, NgramDrafter(2, 1), Sampling())
    assert [r._replace(seconds=None, detail=None) for r in looked] == [r._replace(seconds=None) for r in plain]
    assert all(r.detail is None for r in plain)
    assert all(0 < sum(r.seconds.values()) < 1000 for r in looked[1:])


def test_turns_follow_the_phases_seconds_and_not_what_looking_costs(monkeypatch):
    """Rounds of 2 s in their phases, 100 s to come with all that is looked up, beside plain steps of 1 s."""
    now, order = [0.0], []
    monkeypatch.setattr(follow, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def stream(name: str, takes: float, n: int, seconds: dict | None):
        yield Round([0], prefill=True)
        for i in range(n):
            assert gc.get_freeze_count(), "a long collection would be in the seconds"
            now[0] += takes
            order.append(name)
            yield Round([0], finish="length" if i == n - 1 else None, seconds=seconds)

    phased = stream("round", 100, 4, {"draft": 0.5, "verify": 1.5})
    seen, plain = follow.in_turns(phased, stream("step", 1, 8, None))
    assert [second for _, second in seen] == [0, 2, 4, 6, 8]
    assert [second for _, second in plain] == list(range(9))
    assert order == ["round", "step", "step"] * 4


# --- the data ---


def test_marks_are_the_rounds_counts(tokenizer):
    stream = rounds(list(range(1, 60)), 200)
    found = scripted(tokenizer, "def f(x):", 200, list(range(1, 60)))
    kinds = [t.kind for e in found.events for t in e.tokens]
    expected = count_all(stream)
    assert all(expected.values())  # every kind is there
    assert {kind: kinds.count(kind) for kind in expected} == expected
    drafts = [t.kind for e in found.events for t in e.drafts]
    assert len(drafts) == found.counts.n_drafted == sum(r.n_drafted for r in stream)
    assert drafts.count("accepted") == found.counts.n_accepted
    assert drafts.count("rejected") == found.counts.n_rejected
    assert drafts.count("untested") == len(drafts) - found.counts.n_accepted - found.counts.n_rejected
    assert len(kinds) == 200 == found.events[-1].n_tokens
    assert f"{found.counts.n_rounds} rounds, {found.counts.n_drafted} drafted" in trace_terminal.summary(found)


def test_time_is_the_rounds_time(tokenizer):
    found = scripted(tokenizer, "x", 30)
    for before, event in itertools.pairwise(found.events):
        assert event.end - before.end == pytest.approx(sum(event.seconds.values()))
        assert event.seconds["verify"] == 8e-3
        assert event.seconds["other"] == pytest.approx(1e-4 + 3e-4 + 1e-5)
    assert found.events[0].end == 0
    assert found.baseline_tokens(0.0) == 1
    assert found.baseline_tokens(0.0999) == 10


def test_a_text_that_ends_inside_a_block(tokenizer):
    """Drafts after the end were never emitted; the end itself is an accepted one."""
    positions = [*(Position(token, 0.9, 0.5, 0.1) for token in (5, 0, 7, 8)), Position(9, 0.5)]
    stream = [Round([3], prefill=True), Round([5, 0], 4, 2, 0, False, "eos", {"verify": 0.01}, positions)]
    found = trace.trace(stream, clock([3, 5, 0]), tokenizer, "x", [4], settings())
    assert [t.kind for t in found.events[1].drafts] == ["accepted", "accepted", "after_eos", "after_eos"]
    assert [t.kind for t in found.events[1].tokens] == ["accepted", "accepted"]
    assert "after the end of the text" in trace_terminal.terminal(found)


def test_words_say_the_rules_outcome_and_where_it_was_broken(tokenizer):
    positions = [Position(5, 0.4, 0.5, 0.5), Position(6, 0.1, 0.8, 0.5), Position(9, 0.3)]
    stream = [Round([3], prefill=True), Round([5, 9], 2, 1, 1, False, None, {"verify": 0.01}, positions)]
    kept, rejected = trace.trace(stream, clock([3]), tokenizer, "x", [4], settings()).events[1].drafts
    assert trace_terminal.outcome(kept, greedy=False) == "accepted: u × q = 0.25 is below p = 0.4"
    assert trace_terminal.outcome(rejected, greedy=False) == "rejected: u × q = 0.4 is not below p = 0.1"
    broken = [stream[0], stream[1]._replace(tokens=[5, 6, 9], n_accepted=2, n_rejected=0)]
    found = trace.trace(broken, clock([3]), tokenizer, "x", [4], settings())
    assert [token.against_rule for token in found.events[1].drafts] == [False, True]
    assert "accepted, against the rule: u x q = 0.4 is not below p = 0.1" in trace_terminal.terminal(found)
    assert "Against the rule 1 drafted token was accepted or rejected." in page_of(found)
    assert "Against the rule" not in page_of(scripted(tokenizer, "x", 60))
    for kind, target_prob, choice in (("accepted", 1.0, "the same"), ("rejected", 0.0, "another")):
        token = trace.Token("x", kind, Position(5, target_prob, 1.0, 0.5))
        assert trace_terminal.outcome(token, greedy=True) == f"{kind}: the target's first choice is {choice}"


# --- spelling ---


def test_a_character_of_several_tokens_appears_with_its_last(tokenizer):
    ids = tokenizer("é東").input_ids
    assert len(ids) == 5  # the small vocabulary knows neither: one token per byte
    before = Pieces(tokenizer, tokenizer("x").input_ids)
    assert trace.spell(before.fork(), ids) == ["", "é", "", "", "東"]
    assert trace.spell(before.fork(), ids[:1]) == ["\ufffd"]  # a draft that ends inside a character
    assert trace.spell(before.fork(), []) == []
    before.add(ids[:1])
    assert trace.spell(before.fork(), ids[1:2]) == ["é"]  # and one that completes what was committed
    found = scripted(tokenizer, "é", 30, ids)
    assert "".join(t.text for e in found.events for t in e.tokens)


def test_every_kind_has_a_meaning_and_signs_and_every_blank_a_picture(tokenizer):
    assert [trace.visible(text) for text in (" x\n", "")] == ["·x↵", "◌"]
    kinds = set(trace_terminal.MEANINGS)
    assert kinds == set(trace_terminal.SIGNS) == set(page.KINDS)
    assert scripted(tokenizer, "x", 60).kinds < kinds


# --- the terminal ---


def test_terminal_shows_every_token_by_sign(tokenizer):
    found = scripted(tokenizer, "x", 60)
    text = trace_terminal.terminal(found)
    assert "\x1b" not in text
    lines = text.splitlines()
    first = lines.index(next(line for line in lines if line.startswith("round"))) + 1
    assert len(lines[first : first + len(found.events)]) == len(found.events)
    for line, event in zip(lines[first:], found.events, strict=False):
        assert line.split()[0] == str(event.number)
        for token in (*(t for t in event.drafts if t.kind != "accepted"), *event.tokens):
            assert trace_terminal.SIGNS[token.kind] + trace_terminal.ascii_quoted(token.text) in line
    assert trace_terminal.summary(found) in text


# --- the page ---


class Tags(html.parser.HTMLParser):
    """Elements, comments, and the scripts' texts."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.comments, self.scripts = [], [], []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" in self._open:
            self.scripts.append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    @property
    def data(self) -> dict:
        """What the page's scripts read."""
        return json.loads(self.scripts[0])


def page_of(found: trace.Trace) -> str:
    return page.render(page.of_trace(found))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_page_holds_every_token_once(tokenizer, temperature):
    found = scripted(tokenizer, "def f(x):", 120, temperature=temperature)
    data = Tags(page_of(found)).data
    [lane] = data["lanes"][0]["lanes"]
    for event, round_ in zip(found.events, lane["rounds"], strict=True):
        assert [kind for _, kind in round_["drafts"]] == [page.KINDS[token.kind] for token in event.drafts]
        assert [kind for _, kind in round_["own"]] == [page.KINDS[t.kind] for t in event.tokens[event.n_accepted :]]
        assert sum(round_["phases"]) == pytest.approx(sum(event.seconds.values()), rel=1e-3)
    assert len(data["lanes"][0]["baseline"]) == 120
    texts = [text for one in data["sampled"] for round_ in one["rounds"] for text in round_["texts"]]
    assert "".join(texts) == (
        "" if found.greedy else terminal.harmless("".join(t.text for e in found.events for t in e.tokens))
    )


@pytest.mark.parametrize("where", ["prompt", "names", "tokens", "tree"])
def test_nothing_in_a_text_becomes_markup(tokenizer, where):
    ids = tokenizer(NASTY).input_ids
    names = {"target": NASTY, "draft": NASTY} if where == "names" else {}
    stream = rounds(ids, 60)
    prompt = NASTY if where == "prompt" else "x"
    found = trace.trace(stream, clock(tokens_of(stream)), tokenizer, prompt, ids, {**settings(), **names})
    found = by_hand(tokenizer) if where == "tree" else found
    found = with_texts(found, NASTY) if where in ("tokens", "tree") else found
    text = page_of(found)
    tags = Tags(text)
    assert [name for name, _ in tags.tags].count("script") == 2  # the data and the page's own
    assert text.count("</script>") == 2
    assert not tags.comments
    assert "alert(1)</script>" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert len(tags.data["lanes"][0]["lanes"][0]["rounds"]) == len(found.events)
    if where == "prompt":
        assert tags.data["sampled"][0]["prompt"] == terminal.harmless(NASTY)


def test_page_asks_nobody(tokenizer, monkeypatch):
    """No address in it, no host, no folder of this machine; and the same data gives the same page."""
    for module, name in ((platform, "node"), (socket, "gethostname")):  # a real name may be too short to look for
        monkeypatch.setattr(module, name, lambda: "this-very-machine")
    found = scripted(tokenizer, "def f(x):", 60)
    text = page_of(found)
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    for address in ("https:", "url(h", "@import", "this-very-machine", str(ROOT)):
        assert address not in text
    assert text == page_of(found)
