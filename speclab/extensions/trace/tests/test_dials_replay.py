"""The page's replay against the lab's own loop: the same rounds for every text, draft and k; and its arithmetic."""

import json
import shutil
import subprocess
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draft_models import as_draft
from optimized_speculative import speculative_decode
from speclab.core.drafter import Drafter
from speclab.core.rounds import Decided, DecodeSettings, Draft
from speclab.drafts import registry
from speclab.extensions.trace import build, page
from speclab.extensions.trace.proposals import LONGEST, PieceTable, asked
from speclab.extensions.trace.tests.test_trace import Tags
from speclab.models import loading, prompts
from speclab.models.pieces import Pieces
from speclab.theory import formulas

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed; the browser's tests run the same script")


def in_node(body: str, given: Any) -> Any:
    """What `body`, the body of a function of `given` and `replay`, returns in node."""
    script = (page.TEMPLATES / "replay.js").read_text("utf-8")
    script += "\nconst given = JSON.parse(require('fs').readFileSync(0, 'utf-8'));\n"
    script += f"console.log(JSON.stringify((() => {{ {body} }})()));"
    done = subprocess.run(
        [NODE, "-e", script], input=json.dumps(given), capture_output=True, text=True, check=True, timeout=300
    )
    return json.loads(done.stdout)


# --- the lab's loop, with a target and a draft that say what the page holds ---


class Room:
    def check(self, n_prompt: int, n_new: int) -> None:
        pass


class TextTarget:
    """Says a known text, whatever is drafted."""

    device, n_ids, room = torch.device("cpu"), 2**31, Room()

    def __init__(self, ids: list[int]):
        self.ids, self.n_ids_of_text = ids, max(ids, default=0) + 1

    def _logits(self, start: int, n: int) -> Tensor:
        wanted = [*self.ids[start : start + n], *[0] * max(0, start + n - len(self.ids))][:n]
        return torch.nn.functional.one_hot(torch.tensor([wanted]), self.n_ids_of_text).float()

    def prefill(self, prompt: Tensor) -> Tensor:
        self.n = 1
        return self._logits(0, 1)

    def verify(self, token: Tensor, draft: Draft) -> Tensor:
        return self._logits(self.n, draft.tokens.shape[1] + 1)

    def commit(self, decided: Decided) -> None:
        self.n += len(decided.tokens)


class TextDrafter(Drafter):
    """Proposes the beginning of what is known to be proposed after each token."""

    def __init__(self, proposals: list[list[int]]):
        self.proposals = proposals

    def prefill(self, target, prompt, sampling) -> None:
        self.n = 0

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return as_draft(self.proposals[self.n - 1][:k], torch.device("cpu"))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self.n += len(committed)


def rounds_of_the_loop(text: dict, draft: str, k: int) -> list[list[int]]:
    """Drafted, accepted, rejected, committed of each round. A text that is shorter than its limit ends with an end
    token, which has an id of its own here."""
    ids, proposals = list(text["ids"]), text["proposals"].get(draft, [[]] * len(text["ids"]))
    eos = frozenset()
    if len(ids) < text["limit"]:
        eos = frozenset(ids[-1:])
        assert not eos & set(ids[:-1])
    rounds = speculative_decode(
        TextTarget(ids), TextDrafter(proposals), torch.tensor([[0]]), k, DecodeSettings(text["limit"], eos=eos)
    )
    first, *rest = rounds
    assert [*first.tokens, *(token for one in rest for token in one.tokens)] == ids
    return [[one.n_drafted, one.n_accepted, one.n_rejected, len(one.tokens)] for one in rest]


ROUNDS = """
  return given.map((one) => {
    const text = one.ids.length ? one : null;
    return [...Object.keys(text.proposals), "none"].map((draft) => Array.from({length: replay.LENGTHS + 1}, (_, k) =>
      replay.rounds(text, draft, k).map((r) => [r.drafted.length, r.accepted, r.rejected, r.committed])));
  });
"""
UNPACK = "return given.map((text) => replay.unpackText(text));"


def check_rounds(texts: list[dict]) -> None:
    for text, of_drafts in zip(texts, in_node(ROUNDS, texts), strict=True):
        for draft, of_lengths in zip([*text["proposals"], "none"], of_drafts, strict=True):
            for k, rounds in enumerate(of_lengths):
                assert rounds == rounds_of_the_loop(text, draft, k), (draft, k)


@needs_node
def test_the_committed_page_replays_the_loop_for_every_text_draft_and_k():
    data = Tags(build.PAGE.read_text("utf-8")).data
    packed = [text for target in data["targets"] for text in target["texts"]]
    texts = in_node(UNPACK, packed)
    assert len(texts) == 10
    check_rounds(texts)


@st.composite
def dial_texts(draw):
    """Texts of few ids, so that proposals are often right, some of which an end token ends."""
    n = draw(st.integers(1, 24))
    ids = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    limit = n + draw(st.integers(0, 6))
    if limit > n:
        ids[-1] = 3
    proposals = {}
    for name in ("a", "b"):
        rows = []
        for start in range(1, n):
            right = draw(st.integers(0, LONGEST))
            wrong = draw(st.lists(st.integers(0, 3), max_size=3))
            rows.append([*ids[start : start + right], *wrong][:LONGEST])
        proposals[name] = rows
    return {"ids": ids, "limit": limit, "proposals": proposals}


@needs_node
@given(st.lists(dial_texts(), min_size=1, max_size=20))
@settings(max_examples=15, deadline=None)
def test_any_text_replays_the_loop(texts):
    check_rounds(texts)


# --- the data: what production drafters say ---


@pytest.fixture(scope="module")
def lab():
    setup = build.load_setup(loading.LAB_TARGET, engine="eager")
    (*_, prompt) = prompts.first_of_each_kind(prompts.encode(prompts.standard(), setup.tokenizer), 1)
    drafts = {name: registry.make(name, setup) for name in build.DRAFTS[loading.LAB_TARGET]}
    return setup, prompt, drafts, asked(setup.target, drafts, prompt.ids, DecodeSettings(48, eos=setup.eos))


@pytest.mark.parametrize(("draft", "k"), [("model", 5), ("feature", 3), ("block", 12), ("ngram", 7), ("suffix", 4)])
def test_what_drafters_are_asked_is_what_they_propose_in_the_loop(lab, draft, k):
    """The real pair, and rounds that begin in other places than those at which it was asked."""
    setup, prompt, drafts, found = lab
    settings = DecodeSettings(48, eos=setup.eos)
    real = [
        [one.n_drafted, one.n_accepted, one.n_rejected, len(one.tokens)]
        for one in speculative_decode(setup.target, drafts[draft], prompt.ids, k, settings)
        if not one.prefill
    ]
    assert len(real) < len(found.ids) - 1
    assert real == rounds_of_the_loop(vars(found), draft, k)


@needs_node
def test_a_page_holds_the_ids_and_proposals(lab):
    setup, prompt, _, found = lab
    table = PieceTable()
    text = table.text(found, Pieces(setup.tokenizer, prompt.id_list, special=True))
    [shown] = in_node(UNPACK, [text])
    numbers = {place: id_ for id_, place in table._places.items()}
    assert [numbers[place] for place in shown["ids"]] == found.ids
    for draft, proposed in found.proposals.items():
        assert [[numbers[place] for place in one] for one in shown["proposals"][draft]] == proposed
    assert "".join(text["pieces"]) == setup.tokenizer.decode(found.ids)


def test_two_ids_of_one_picture_stay_two():
    """A replay compares tokens, not pictures of them."""
    table = PieceTable()

    class Blank:
        def fork(self):
            return self

        def add(self, ids):
            return ""

        rest = lambda self: ""  # noqa: E731

    assert [table.place(id_, Blank()) for id_ in (7, 9, 7)] == [0, 1, 0]
    assert table.pictures == ["◌", "◌"]


# --- its arithmetic ---


@needs_node
def test_the_book_and_the_clock_are_pythons():
    preset = build.presets()[0]
    body = """
      const {ids} = given, model = ids.slice(1).map((_, i) => ids.slice(i + 1, i + 13));
      const text = {ids, limit: ids.length, proposals: {model}};
      const dials = {draft: 2, pass: 0.5, rest: 3, bandwidth: 4, arithmetic: 0.5, users: 8};
      const costs = replay.turned(given.preset, "model", dials);
      const found = replay.rounds(text, "model", 4), all = replay.counts(found);
      const lookup = replay.turned(given.preset, "suffix", dials).draft;
      return {book: [1, 2, 4, 12].map((k) => replay.book(0.7, k)), costs, clock: replay.clock(found, costs), lookup,
        all, speedup: replay.speedup(found, costs), curve: replay.curve(text, "model", costs),
        best: replay.best([1, 3, 2, 3]), alpha: replay.acceptance(all),
        limits: [[1, 1], [64, 1], [64, 64]].map(([bandwidth, arithmetic]) =>
          replay.limit({start: 0.1, read: 0.8, compute: 0.1}, 5, {pass: 1, bandwidth, arithmetic, users: 1}))};
    """
    ids = list(range(21))
    said = in_node(body, {"ids": ids, "preset": preset})
    assert said["book"] == pytest.approx([formulas.book_formula(0.7, k) for k in (1, 2, 4, 12)])
    costs = said["costs"]
    assert costs["draft"] == pytest.approx([2 * one for one in preset["draft"]["model"]])
    machine, narrow = preset["machine"], preset["pass"][0]

    def longer(width):
        shares = [machine["start"], machine["read"], width * machine["compute"]]
        return (shares[0] + shares[1] / 4 + 8 * shares[2] / 0.5) / sum(shares)

    turned = [one * longer(n + 1) / longer(1) for n, one in enumerate(preset["pass"])]
    passes = [narrow + 0.5 * (one - narrow) for one in turned]
    assert costs["pass"] == pytest.approx(passes)
    assert said["lookup"] == pytest.approx([2 * 8 * one / longer(1) for one in preset["draft"]["lookup"]])
    assert costs["rest"] == pytest.approx([3 * one / longer(1) for one in preset["rest"]])
    assert costs["step_ms"] == pytest.approx(preset["step_ms"] * longer(1))
    assert said["limits"] == ["read", "compute", "start"]
    # Five of the twenty tokens after the first come in every round: four rounds, all of whose four drafts are right.
    assert said["all"] == {"rounds": 4, "drafted": 16, "accepted": 16, "rejected": 0, "tokens": 20}
    assert said["alpha"] == 1
    one_round = 2 * preset["draft"]["model"][4] + passes[4] + costs["rest"][4]
    assert [one["end"] for one in said["clock"]] == pytest.approx([one_round * i for i in (1, 2, 3, 4)])
    assert said["speedup"] == pytest.approx(20 / (4 * one_round)) == said["curve"][4]
    assert said["best"] == 1
    expected = formulas.expected_tokens_per_round(1.0, 4) / (costs["draft"][4] + costs["pass"][4] + costs["rest"][4])
    assert said["speedup"] == pytest.approx(expected)


def test_presets_are_the_records_costs():
    run = build.read(build.RESULTS / "cpu-2-cores-c.json", build.ComparisonRun)
    costs, preset = build.greedy_costs(run)["model"], build.presets()[1]
    at, step = build.CONTEXT, costs.step_seconds(build.CONTEXT)
    assert preset["step_ms"] == pytest.approx(1000 * step, rel=1e-3)
    for n in (1, 4, 6):
        assert preset["draft"]["model"][n] == pytest.approx(costs.draft_seconds(n, at) / step, rel=1e-3)
        assert preset["pass"][n] == pytest.approx(costs.verify_seconds(n + 1, at) / step, rel=1e-3)
        assert preset["rest"][n] == pytest.approx(costs.overhead_seconds(n) / step, rel=1e-3)
    for one in build.presets():
        curves = [*one["draft"].values(), one["pass"], one["rest"]]
        assert all(len(curve) == LONGEST + 1 and min(curve) >= 0 for curve in curves)
        machine = one["machine"]
        assert machine["read"] + machine["compute"] + machine["start"] == pytest.approx(1)
        assert min(machine.values()) >= 0
        assert one["pass"][-1] - one["pass"][0] == pytest.approx(LONGEST * machine["compute"])
    reading = run.weight_bytes / run.bandwidth / costs.step_seconds(at)
    assert preset["machine"]["read"] == pytest.approx(min(reading, 1 - preset["machine"]["compute"]), rel=1e-3) != 0
