"""Margins, right tokens and ends of rounds are those of the production loop; the views show a record's counts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import GREEDY
from speclab.extensions.margins import __main__ as command
from speclab.extensions.margins import margin_views
from speclab.extensions.margins.margin_record import EDGES, MarginRun, added
from speclab.extensions.margins.measuring import counted, measure
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import files
from tests.decoding import plain_text, speculative_rounds
from tests.tiny_models import perturbed, tiny

N_NEW = 40


@pytest.fixture
def setup():
    return Setup(CachedModel(tiny("llama")), None, "tiny", GREEDY, torch.device("cpu"), torch.float64)


@pytest.mark.parametrize(
    "make", [lambda m: ModelDrafter(CachedModel(perturbed(m, 0.12))), lambda m: NgramDrafter(2, 1)]
)
@pytest.mark.parametrize("k", [1, 4])
def test_a_replay_is_what_the_loop_does(setup, make, k):
    drafter, prompt = make(setup.target.model), torch.arange(9)[None]
    [found] = measure(setup, {"x": drafter}, Prompt("code", "", prompt), k, N_NEW)
    rounds = list(speculative_rounds(setup.target, drafter, prompt, k, N_NEW))[1:]
    assert found.n_rounds == len(rounds)
    assert sum(group.n_ends for group in found.groups) == sum(r.n_rejected for r in rounds) > 0
    assert found.n_tokens == sum(group.n_places for group in found.groups) == N_NEW - 1
    assert found.n_sure_rounds <= found.n_rounds


def test_a_margin_belongs_to_the_place_of_its_token(setup):
    """Each place is looked at alone: its margin, and whether the draft's first choice there is the target's."""
    model, prompt = setup.target.model, torch.arange(9)[None]
    other = perturbed(model, 0.2)
    [found] = measure(setup, {"x": ModelDrafter(CachedModel(other))}, Prompt("code", "", prompt), 4, N_NEW)
    text, right = plain_text(setup.target, prompt, N_NEW), {low: [0, 0] for low in EDGES}
    for place in range(1, N_NEW):
        ids = torch.cat([prompt, torch.tensor([text[:place]])], dim=1)
        with torch.inference_mode():
            top, choice = model(ids).logits[0, -1].topk(2).values, other(ids).logits[0, -1].argmax()
        low = max(edge for edge in EDGES if edge <= (top[0] - top[1]).item())
        right[low][0] += 1
        right[low][1] += int(choice == text[place])
    assert {group.low: [group.n_places, group.n_right] for group in found.groups} == right
    assert sum(n > 0 for n, _ in right.values()) > 2


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), min_size=2, max_size=30), st.integers(1, 6))
def test_a_draft_that_is_right_at_more_places_takes_no_more_rounds(places, k):
    margins, rows = (
        [margin for margin, _ in places],
        [[float(is_right) for _, is_right in places[i:]] for i in range(len(places))],
    )
    found = counted("x", "code", margins, rows, k)
    assert found.n_sure_rounds <= found.n_rounds
    everywhere = counted("x", "code", [2.0] * len(places), rows, k)
    assert everywhere.n_sure_rounds == -(-(len(places) - 1) // (k + 1))


def test_a_run_is_written_read_and_shown(pair_folder, tmp_path, capsys):
    words = ["--target", str(pair_folder / "target"), "--draft", "ngram,suffix", "--prompt", "def f(x):", "--prompt"]
    assert command.main([*words, "class A", "--max-new-tokens", "12", "--out-dir", str(tmp_path), "--no-chat"]) == 0
    run = files.read(tmp_path / "results" / "local-margins.json", MarginRun)
    assert [(row.draft, row.n_tokens) for row in run.margins] == [
        (name, 11) for _ in range(2) for name in ("ngram", "suffix")
    ]
    assert margin_views.text(run) in capsys.readouterr().out
    assert (tmp_path / "plots" / "local-margins.png").stat().st_size > 0
    total = added(run.margins[:2])
    assert total.n_tokens == sum(group.n_places for group in total.groups) == 22
