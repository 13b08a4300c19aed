"""A planted difference is found at its place with its margin, and the margins of all places are counted."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import same_text
from speclab.models.cached import CachedModel
from speclab.models.checks import Reference
from speclab.present.tables import show
from speclab.records import files
from tests.decoding import plain_text
from tests.lab.test_harness import make_bench, make_prompt
from tests.tiny_models import PlainTransformer, perturbed, tiny

PLACE, EDGES = 5, same_text.EDGES


def margin(model, ids: list[int]) -> float:
    """The highest logit after these ids minus the second one."""
    with torch.inference_mode():
        first, second = model(torch.tensor([ids])).logits[0, -1].topk(2).values.tolist()
    return first - second


def test_a_planted_difference_is_found_with_its_place_and_margin(pair_folder, tmp_path, monkeypatch, capsys):
    """In the texts of one draft length, in float32, which come first. The page is a view of the record."""
    honest = same_text.take_turns

    def take_turns(decodings):
        honest(decodings)
        text = next(one for one in decodings if one.arm.draft_length == 2).tokens
        text[PLACE] = (text[PLACE] + 3) % 9

    monkeypatch.setattr(same_text, "take_turns", take_turns)
    words = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", "12", "-k", "1,2"]
    assert same_text.main([*words, "--out-dir", str(tmp_path)]) == 1
    run = files.read(tmp_path / "results" / "local-same-text.json", same_text.SameTextRun)
    assert capsys.readouterr().out == show(same_text.page(run))
    exact = run.compared[:-4]  # without the library's text in float32, which is the reference
    assert [(len(row.differences), row.n_as_reference) for row in exact] == [(0, 1), (0, 1), (1, 0)]
    model, tokenizer = (kind.from_pretrained(pair_folder / "target") for kind in (AutoModelForCausalLM, AutoTokenizer))
    prompt, one = tokenizer("def f(x):").input_ids, exact[-1].differences[0]
    before = plain_text(CachedModel(model), torch.tensor([prompt]), PLACE)
    assert (one.prompt, one.position, one.verdict) == (0, PLACE, "BUG")
    assert one.margin == pytest.approx(margin(model, prompt + before), rel=1e-4)
    assert sum(group.n_places for group in run.margins) == 12 - 1


@pytest.mark.parametrize(("other", "verdict"), [(2, "near-tie"), (3, "BUG")])
def test_a_difference_within_the_tolerance_is_a_near_tie(other, verdict, monkeypatch):
    setup = make_bench((tiny("llama"),) * 2).setup
    known = torch.tensor([[0.0, 3.0, 2.75, 2.0]]), torch.tensor([0.0625])
    monkeypatch.setattr(Reference, "with_deviations", lambda *_: known)
    monkeypatch.setattr(type(setup), "token_text", lambda *which: which[-1])
    (one,) = same_text.differences(setup, 7, make_prompt(), [0, 1, 1], [0, other, 1])
    assert (one.prompt, one.position, one.tokens, one.verdict) == (7, 1, [1, other], verdict)
    assert (one.margin, one.tolerance) == (0.25, 0.5)


def test_a_margin_belongs_to_the_place_of_its_token():
    """Each place is looked at alone: its margin, and whether the draft's first choice there is the target's."""
    target, prompt = PlainTransformer(12, seed=3), make_prompt()
    bench = make_bench((target, draft := perturbed(target, 0.3)), 40)
    groups = [same_text.Group(low=low, n_proposed={"model": 0}, n_right={"model": 0}) for low in EDGES]
    same_text.count_margins(groups, bench, prompt, text := bench.whole_text(prompt))
    found = {low: [0, 0] for low in EDGES}
    for place in range(1, 40):
        ids = prompt.id_list + text[:place]
        low = max(edge for edge in EDGES if edge <= margin(target, ids))
        choice = plain_text(CachedModel(draft), torch.tensor([ids]), 1)
        found[low] = [found[low][0] + 1, found[low][1] + (choice == [text[place]])]
    assert {group.low: [group.n_places, group.n_right["model"]] for group in groups} == found


def test_the_float32_model_says_what_rounding_changes_also_of_its_weights():
    exact, rounded = (tiny("llama", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    of_all, of_passes = (Reference(rounded, higher).with_deviations([1, 2], [3], 40)[0] for higher in (exact, None))
    assert torch.equal(of_all.float(), Reference(exact).with_deviations([1, 2], [3], 40)[0])
    assert not torch.equal(of_all, of_passes)
