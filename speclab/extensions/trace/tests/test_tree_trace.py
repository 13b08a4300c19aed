"""Pictures of drafted trees: what the rule looked at, its order, and where each token stands."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Draft, Round
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.extensions.trace import follow, page, trace, trace_terminal
from speclab.extensions.trace.__main__ import main
from speclab.extensions.trace.positions import walked
from speclab.extensions.trace.tests.test_trace import Tags, page_of
from speclab.extensions.trace.tests.trace_streams import at, by_hand, clock, settings
from speclab.extensions.trace.trace import Position
from speclab.lab.instruments import LoopFunctions
from speclab.models.cached import CachedModel
from tests.tiny_models import perturbed, tiny

PROMPT = torch.arange(1, 8)[None]
TREES = {"most probable": "tree:3x2x1:model", "drawn": "sampled-tree:3x2x1:model", "best": "tree:best:model"}


def decoded(kind: str, temperature: float, looking=follow.detailed) -> tuple:
    """The target's model and the rounds."""
    pytest.importorskip("speclab.extensions.trees")
    model, sampling = tiny("llama", dtype=torch.float64), Sampling(temperature)
    draft = CachedModel(perturbed(model, 0.15))
    setup = SimpleNamespace(target=CachedModel(model), sampling=sampling, load_draft=lambda name: draft)
    how = DecodeSettings(80, sampling, frozenset(), 3)
    drafter, functions = registry.make(TREES[kind], setup), LoopFunctions(speculative_decode)
    return model, list(looking(functions, CachedModel(model), drafter, PROMPT, 15, how))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", TREES)
def test_every_outcome_can_be_recomputed(kind, temperature):
    """From the numbers shown alone: at each token of the path the children are tried up to the first that passes."""
    _, rounds = decoded(kind, temperature)
    seen = set()
    for round_ in rounds[1:]:
        *drafted, last = round_.detail
        n = round_.n_accepted
        assert len(drafted) == round_.n_drafted
        assert [position.id for position in (*drafted[:n], last)] == round_.tokens
        assert [position.parent for position in drafted[:n]] == list(range(-1, n - 1))
        assert all(position.tested and position.passes for position in drafted[:n])
        for place, position in enumerate(drafted[n:], n):
            assert position.parent < place or position.parent < n
            on_path = position.parent < n
            assert not (position.tested and not on_path)
            assert not (position.tested and position.passes)
            beside_kept = any(other.parent == position.parent for other in drafted[:n])
            seen.add((position.tested, on_path, beside_kept))
            assert position.tested or beside_kept or not on_path
    assert {(True, True, False), (True, True, True), (False, False, False)} <= seen


def test_what_is_left_for_a_child():
    """By hand: p = (1/2, 3/10, 1/5); after the one-hot token 1 is rejected 5/7 and 2/7 are left."""
    draft = Draft(torch.tensor([[1, 0, 2, 1]]), torch.tensor([4]), parents=torch.tensor([[-1, -1, 1, -1]]))
    rows = torch.tensor([[0.5, 0.3, 0.2], [0, 0, 1.0], [0.6, 0.3, 0.1], [1.0, 0, 0], [1.0, 0, 0]]).double()
    assert walked(draft, rows, [1]) == [(0, pytest.approx(0.3)), (1, pytest.approx(5 / 7)), (2, pytest.approx(0.1))]
    assert walked(draft, rows, []) == [(0, pytest.approx(0.3)), (1, pytest.approx(5 / 7)), (3, 0)]
    laws = torch.tensor([[[0.2, 0.6, 0.2], [0.5, 0, 0.5], [0, 0, 1], [0, 0, 0]]]).double()
    found = walked(replace(draft, probs=laws), rows, [])  # p - q = (0.3, 0, 0): all that is left is token 0
    assert found == [(0, pytest.approx(0.3)), (1, pytest.approx(1))]


def test_kinds_levels_and_order(tokenizer):
    found = by_hand(tokenizer)
    event = found.events[1]
    kinds = ["accepted", "accepted", "rejected", "untested", "rejected", "rejected", "rejected", "untested"]
    assert [token.kind for token in event.drafts] == kinds
    assert [token.kind for token in event.tokens] == ["accepted", "accepted", "corrected"]
    assert event.parents == [-1, 0, -1, -1, 0, 1, 1, 3]
    assert [token.position.id for token in event.in_order] == [11, 14, 15, 16, 18]
    assert [place for place, _ in event.rejected] == [5, 6]
    assert not any(token.against_rule for token in event.drafts)
    assert found.has_trees


def test_a_text_that_ends_on_a_branch(tokenizer):
    """After 11: what the rule tested behind it is after the end, and its siblings are what they were."""
    event = by_hand(tokenizer, "eos", 1).events[1]
    kinds = ["accepted", "after_eos", "rejected", "untested", "after_eos", "after_eos", "after_eos", "untested"]
    assert [token.kind for token in event.drafts] == kinds


def test_a_token_is_spelled_after_its_branch(tokenizer):
    """A token inside a character completes what stands before it on its branch, not in the list."""
    one, two = tokenizer("é").input_ids
    positions = [at(one, -1, True), at(two, 0, True), at(5, -1, False), Position(6, 0.5)]
    stream = [Round([3], prefill=True), Round([one, two, 6], 3, 2, 0, False, None, {}, positions)]
    drafts = trace.trace(stream, clock([3]), tokenizer, "x", [4], settings(0.0)).events[1].drafts
    assert drafts[1].text == "é"


def test_the_terminal_shows_the_accepted_branch(tokenizer):
    found = by_hand(tokenizer)
    text = trace_terminal.terminal(found)
    assert "1 place rejected" in text
    words = {token.position.id: trace_terminal.ascii_quoted(token.text) for token in found.events[1].drafts}
    assert f"+{words[11]} +{words[14]} x{words[15]} x{words[16]} >" in text


def test_the_page_holds_the_tree(tokenizer):
    found = by_hand(tokenizer)
    text = page_of(found)
    data = Tags(text).data
    assert data["sampled"] == []
    round_ = data["lanes"][0]["lanes"][0]["rounds"][1]
    assert round_["parents"] == found.events[1].parents
    assert [kind for _, kind in round_["drafts"]] == [page.KINDS[token.kind] for token in found.events[1].drafts]
    assert [kind for _, kind in round_["own"]] == ["c"]


@pytest.mark.parametrize("shape", ["2x2x1", "best"])
def test_trace_of_a_decoding_with_trees(models, pair_folder, capsys, tmp_path, shape):
    words = [*models, "--draft", f"tree:{shape}:{pair_folder / 'draft'}", "--ignore-eos", "--prompt", "def f(x):"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "Both texts are the same" in out
    assert "against the rule" not in out
    assert "never tested" not in out.partition("signs")[0]
    file = tmp_path / "t.html"
    assert main([str(file), *words, "--temperature", "0.8"]) == 0
    assert "Against the rule" not in file.read_text("utf-8")
