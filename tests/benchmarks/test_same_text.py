"""Texts of every way of decoding are the baseline's, and a difference that is no tie is called a bug; margins, right
tokens and ends of rounds are those of the production loop."""

import pytest
import torch

from benchmarks import same_text
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import GREEDY
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import show
from speclab.records import files
from tests.decoding import plain_text, speculative_rounds
from tests.tiny_models import perturbed, tiny

BUDGET = 12


def words(pair_folder, tmp_path, *more: str) -> list[str]:
    models = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", str(BUDGET)]
    return [*models, "--no-chat", "-k", "2", "--out-dir", str(tmp_path), *more]


def test_a_wrong_loop_is_noticed_and_the_record_says_so(pair_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(same_text, "DTYPES", ("float32",))
    honest, ways = same_text.Bench.decoding, []

    def wrong(bench, arm, *rest):
        made = honest(bench, arm, *rest)
        if arm.speculative and ways:
            rounds = enumerate(made._rounds)
            made._rounds = (r._replace(tokens=[(t + 1) % 9 for t in r.tokens]) if i == 2 else r for i, r in rounds)
        return made

    monkeypatch.setattr(same_text.Bench, "decoding", wrong)
    for expected in ([True, True], [True, False]):
        assert same_text.main(words(pair_folder, tmp_path)) == int(not all(expected))
        run = files.read(tmp_path / "results" / "local-same-text.json", same_text.SameTextRun)
        assert [check["passed"] for check in run.correctness] == expected
        assert (show(same_text.page(run)).count("BUG") > 2) == bool(ways)
        ways.append("wrong")


def test_margins_of_drafts_are_in_the_record(pair_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(same_text, "DTYPES", ("float32",))
    assert same_text.main(words(pair_folder, tmp_path, "--draft", "ngram,suffix", "--prompt", "class A")) == 0
    run = files.read(tmp_path / "results" / "local-same-text.json", same_text.SameTextRun)
    n = 2 * (BUDGET - 1)
    assert [(row.draft, row.n_tokens) for row in run.margins] == [("ngram", n), ("suffix", n)]
    assert all(row.n_tokens == sum(group.n_places for group in row.groups) for row in run.margins)
    assert "tok/rnd" in capsys.readouterr().out


# --- margins ---

N_NEW = 40


def margins_of(setup, drafter, prompt):
    """The row of one draft on the greedy text of one prompt, with the draft length of the command."""
    rows = {}
    text = plain_text(setup.target, prompt, N_NEW)
    same_text.count_margins(rows, setup, {"x": drafter}, Prompt("code", "", prompt), text)
    return rows["x"]


@pytest.fixture
def exact():
    return Setup(CachedModel(tiny("llama")), None, "tiny", GREEDY, torch.device("cpu"), torch.float64)


@pytest.mark.parametrize(
    "make", [lambda m: ModelDrafter(CachedModel(perturbed(m, 0.12))), lambda m: NgramDrafter(2, 1)]
)
@pytest.mark.parametrize("k", [1, 4])
def test_a_replay_is_what_the_loop_does(exact, make, k, monkeypatch):
    monkeypatch.setattr(same_text, "K", k)
    drafter, prompt = make(exact.target.model), torch.arange(9)[None]
    found = margins_of(exact, drafter, prompt)
    rounds = list(speculative_rounds(exact.target, drafter, prompt, k, N_NEW))[1:]
    assert found.n_rounds == len(rounds)
    assert sum(group.n_ends for group in found.groups) == sum(r.n_rejected for r in rounds) > 0
    assert found.n_tokens == sum(group.n_places for group in found.groups) == N_NEW - 1


def test_a_margin_belongs_to_the_place_of_its_token(exact):
    """Each place is looked at alone: its margin, and whether the draft's first choice there is the target's."""
    model, prompt = exact.target.model, torch.arange(9)[None]
    other = perturbed(model, 0.2)
    found = margins_of(exact, ModelDrafter(CachedModel(other)), prompt)
    text, right = plain_text(exact.target, prompt, N_NEW), {low: [0, 0] for low in same_text.EDGES}
    for place in range(1, N_NEW):
        ids = torch.cat([prompt, torch.tensor([text[:place]])], dim=1)
        with torch.inference_mode():
            top, choice = model(ids).logits[0, -1].topk(2).values, other(ids).logits[0, -1].argmax()
        low = max(edge for edge in same_text.EDGES if edge <= (top[0] - top[1]).item())
        right[low][0] += 1
        right[low][1] += int(choice == text[place])
    assert {group.low: [group.n_places, group.n_right] for group in found.groups} == right
    assert sum(n > 0 for n, _ in right.values()) > 2
