"""Models of real depth pass the checks at load, and what is broken is refused at every depth.

The random ones are narrow, and their weights are large, so that their logits spread as a trained model's do (about 25).
"""

import functools
import os
from collections.abc import Callable

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from speclab.engines import eager, windows
from speclab.engines.c_pass import CModel
from speclab.models import engine_choice
from speclab.models.cached import CachedModel
from speclab.models.checking import checks, rounding
from speclab.models.checking.rounding import Reference
from speclab.system.errors import EnvironmentProblem
from tests.mutants import engines

SMOLLM2 = os.environ.get("SPECLAB_SMOLLM2", "")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"vocab_size": 300, "head_dim": 16, "tie_word_embeddings": False, "initializer_range": 0.15}
KINDS = {
    "llama-24": (LlamaForCausalLM, LlamaConfig(**SIZES, num_hidden_layers=24)),
    "qwen2-32": (Qwen2ForCausalLM, Qwen2Config(**SIZES, num_hidden_layers=32)),
    "gemma3-40": (Gemma3ForCausalLM, Gemma3TextConfig(**SIZES, num_hidden_layers=40, sliding_window=12)),
}
no_smollm2 = pytest.mark.skipif(not SMOLLM2, reason="SPECLAB_SMOLLM2 names no folder of a converted SmolLM2")
# The slow ones run in `make test-full` alone.
NAMES = [*KINDS, pytest.param("smollm2", marks=no_smollm2)]
SLOW = ["llama-24", *(pytest.param(name, marks=pytest.mark.full) for name in ("qwen2-32", "gemma3-40")), NAMES[-1]]


@functools.cache
def deep(name: str) -> PreTrainedModel:
    """The model in float32, with logits that spread as a trained model's do."""
    if name == "smollm2":
        return AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
    kind, config = KINDS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config).eval()
    logits = checks.uncached_logits(model, checks.random_text(model))
    with torch.no_grad():
        model.lm_head.weight *= 25 / rounding.spread(logits)
    return model


@pytest.mark.parametrize("name", SLOW)
def test_right_models_pass_however_deep_they_are(name):
    model = deep(name)
    logits = checks.uncached_logits(model, checks.random_text(model))
    assert 15 < rounding.spread(logits) < 40
    checks.check_model(model)
    fast, why = engine_choice.build(model)
    assert fast is not None, why


def no_rollback(monkeypatch) -> None:
    monkeypatch.setattr(eager.EagerBackend, "crop", lambda self, n_tokens, length: None)


def too_short_a_rollback(monkeypatch) -> None:
    right = eager.EagerBackend.crop
    monkeypatch.setattr(eager.EagerBackend, "crop", lambda self, n, length: right(self, max(n - 1, 0), length))


@pytest.mark.parametrize("broken", [no_rollback, too_short_a_rollback])
@pytest.mark.parametrize("name", NAMES)
def test_broken_rollbacks_are_refused_however_deep_the_model_is(name, broken: Callable, monkeypatch):
    model = deep(name)
    broken(monkeypatch)
    with pytest.raises(EnvironmentProblem, match="cannot be rolled back"):
        checks.check_model(model)


BROKEN = {
    "positions": engines.gives_tokens_the_positions_before,
    "mask": engines.reads_the_row_after_it,
    "rows": engines.writes_one_row_too_early,
    "window": engines.reads_one_row_less_than_the_window,
}


@pytest.mark.parametrize("broken", ["positions", *(pytest.param(b, marks=pytest.mark.full) for b in list(BROKEN)[1:])])
@pytest.mark.parametrize("name", SLOW)
def test_broken_passes_are_no_fast_engine_however_deep_the_model_is(name, broken, monkeypatch):
    model = deep(name)
    if broken == "window" and windows.window_of(model) is None:
        pytest.skip("this model has no sliding window")
    monkeypatch.setattr(engines, "put", monkeypatch.setattr)
    BROKEN[broken].apply()
    fast, why = engine_choice.build(model)
    assert fast is None
    assert "off by" in why


LONG = 400  # tokens; the sums of attention are as long


@pytest.mark.parametrize("name", SLOW)
def test_behind_a_long_text_rounding_is_told_from_what_is_broken(name, monkeypatch):
    """Rolled back passes behind hundreds of tokens give the logits that they should, and broken ones are noticed."""
    model = deep(name)
    text = torch.randint(10, 250, (1, LONG), generator=torch.Generator().manual_seed(1))
    right, parts = checks.uncached_logits(model, text), [checks.in_two(model, text)]
    right = right[:, -sum(checks.WIDTHS) :]

    def difference(fast: CModel | None) -> str | None:
        logits = checks.cached_logits(CachedModel(model, fast=fast), text, wrong=checks.WRONG)
        return checks.unexplained(model, parts, logits, right)

    fast, why = engine_choice.build(model)
    assert fast is not None, why
    assert difference(None) is None
    assert difference(fast) is None
    for broken in (no_rollback, too_short_a_rollback):
        with monkeypatch.context() as patch:
            broken(patch)
            assert difference(None) is not None, broken.__name__
    for name_of_bug in ("positions", "rows"):
        with monkeypatch.context() as patch:
            patch.setattr(engines, "put", patch.setattr)
            BROKEN[name_of_bug].apply()
            assert difference(fast) is not None, name_of_bug


@pytest.mark.parametrize("name", KINDS)
def test_where_the_floor_is_passed_the_models_own_rounding_decides(name, monkeypatch):
    """With a floor of almost nothing the measured bound holds for right passes, and no wrong one gets through."""
    monkeypatch.setattr(rounding, "UNITS", {torch.float32: 1e-3})
    model = deep(name)
    text = checks.random_text(model)
    right = checks.uncached_logits(model, text)[:, -10:]
    parts = [checks.in_two(model, text)]
    logits = checks.cached_logits(CachedModel(model), text, wrong=checks.WRONG)
    assert checks.unexplained(model, parts, logits, right) is None
    errors = Reference(model).errors(*parts[0], right.shape[-1], 10)
    assert (errors > 0).all()
    logits[0, 4, 7] += 3 * rounding.MARGIN * errors.max()  # a single logit
    assert "uncached logits" in checks.unexplained(model, parts, logits, right)
