"""The shapes of one round are those of a real pass, for families with one projection as with three."""

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from solutions.ex01_shapes import shapes as of_exercise
from speclab.extensions.trace import shapes
from speclab.extensions.trace.__main__ import main
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.tiny_models import FAMILIES, VOCAB, tiny

N_PROMPT, N_NEW = 5, 4
HEADS, WIDTH, HEAD_WIDTH = 4, 32, 8
SHARED = {"llama": 2, "qwen2": 2, "gemma": 2, "mistral_window": 2, "gemma3_window": 2}  # key heads, where fewer


def ids() -> torch.Tensor:
    return torch.randint(0, VOCAB, (1, N_PROMPT + N_NEW), generator=torch.Generator().manual_seed(0))


def watched_pass(model, n_cached: int) -> shapes.Shapes:
    """The shapes of a pass over all but the first `n_cached` ids, which a cache holds; 0: without a cache."""
    cached = CachedModel(model)
    if n_cached:
        cached.prefill(ids()[:, :n_cached])
    with torch.inference_mode(), shapes.watched(model) as found:
        if n_cached:
            cached.forward(ids()[:, n_cached:])
        else:
            model(input_ids=ids(), use_cache=False)
    return found


@pytest.mark.parametrize("n_cached", [0, N_PROMPT])
@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_of_a_pass(family, n_cached):
    model, total = tiny(family), N_PROMPT + N_NEW
    fed = total - n_cached
    found = watched_pass(model, n_cached)
    # A sliding window of 8 keeps 7 old tokens at most; here all fit.
    key = (1, SHARED.get(family, HEADS), total, HEAD_WIDTH)
    assert found == {
        "ids": (1, fed),
        "hidden": (1, fed, WIDTH),
        "q": (1, HEADS, fed, HEAD_WIDTH),
        "k": key,
        "v": key,
        "scores": (1, HEADS, fed, total),
        "logits": (1, fed, VOCAB),
    }


def test_watching_changes_nothing_and_ends():
    model = tiny("llama")
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with torch.inference_mode():
        plain = model(input_ids=ids(), use_cache=False).logits
        with shapes.watched(model):
            assert torch.equal(plain, model(input_ids=ids(), use_cache=False).logits)
    with pytest.raises(ZeroDivisionError), shapes.watched(model):
        raise ZeroDivisionError
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
    assert not any(part._forward_hooks for part in model.modules())


def test_eager_attention_is_refused_with_a_way_out():
    model = tiny("llama")
    model.set_attn_implementation("eager")
    with pytest.raises(EnvironmentProblem, match="sdpa"):
        watched_pass(model, 0)


@pytest.mark.parametrize("k", [3, 0])
def test_the_command_prints_both_passes_and_who_verifies_whom(models, capsys, k):
    assert main(["shapes", *models, "--prompt", "def f(x):", "-k", str(k)]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    n_prompt = int(out.split("One round: ")[1].split()[0])
    assert f"(1, {k + 1})" in rows["ids"]
    assert f"(1, {n_prompt + k + 1})" in rows["ids"]
    assert f"(1, 4, {k + 1}, {n_prompt + k + 1})" in rows["scores"]
    assert f"(1, 4, {n_prompt + k + 1}, {n_prompt + k + 1})" in rows["scores"]
    for i in range(k):
        assert f"draft {i + 1}:" in rows[str(i)]
        assert f" {n_prompt + i} " in rows[str(i)]
    assert "gives the bonus" in rows[str(k)]
    assert "differ by" in out
    assert "of them decoded" not in out


def first_round() -> shapes.RoundShapes:
    """A round of a model two of whose heads share their keys."""
    passes = [watched_pass(tiny("llama"), n) for n in (N_PROMPT, 0)]
    return shapes.RoundShapes(ids()[0].tolist(), *passes, choices=[0] * N_NEW, gap=0.0)


@pytest.mark.parametrize("wrong", [False, True])
def test_yours_beside_the_real_ones(wrong):
    def answer(*sizes):
        table = of_exercise(*sizes)
        if wrong:
            table["scores"] = (sizes[3], sizes[1], sizes[1])
            del table["logits"]
        return table

    round_ = first_round()
    text, all_right = shapes.beside(round_, *(answer(*sizes) for sizes in round_.sizes()))
    assert all_right != wrong
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert ("no: it is (4, 4, 9) and (4, 9, 9)" in lines["scores"]) == wrong
    assert (lines["logits"].split()[1:3] == ["-", "-"]) == wrong, "what is not said is a gap"
    assert "yes" in lines["k"]  # here two heads share their keys; the exercise gives each its own
