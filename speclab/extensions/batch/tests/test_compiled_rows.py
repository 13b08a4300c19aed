"""Compiled passes over several texts: which are made and kept, one real compilation, and none while texts are decoded.

That their parts give each row's logits is shown by test_batched_model.py ("in parts").
"""

import argparse
import copy
import math

import pytest
import torch

from draft_models import ModelDrafter
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import GREEDY
from speclab.extensions.batch.decoding import batched_model, compiled_rows, row_buffers
from speclab.extensions.batch.decoding.batched_model import BatchedModel, check_batch
from speclab.extensions.batch.decoding.compiled_rows import MOST_TOKENS, compile_for, compile_rows
from speclab.extensions.batch.decoding.drafters import batch_drafter
from speclab.extensions.batch.decoding.loops import autoregressive_decode_batch, speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from speclab.extensions.batch.tests.test_batched_model import LENGTHS, TEXTS, next_tokens, right
from speclab.models import engine_choice
from speclab.models.backends import packages
from speclab.models.backends.compile_functions import BLOCK
from speclab.models.cached import CachedModel
from speclab.models.checking import checks
from speclab.system import cache as user_cache
from tests.models.test_compiled import pretend_to_compile
from tests.tiny_models import CONTEXT, flattened, in_parts, perturbed, tiny

SHAPES = [(2, 1), (2, 3), (3, 1), (1, 3)]
HAS_COMPILER = packages.compiler() is not None


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(user_cache.FOLDER, str(tmp_path))
    monkeypatch.setattr(packages, "compiler", lambda: "g++")
    return tmp_path


def exported(model=None) -> CachedModel:
    model = model or tiny("llama", dtype=torch.float32)
    return CachedModel(model, fast=copy.copy(flattened(model)))


def timed(monkeypatch, *ratios: float) -> None:
    """The compiled pass of each shape takes so many times the seconds of the kernels."""
    turns = iter([seconds for ratio in ratios for seconds in [ratio, 1.0] * engine_choice.PASSES])
    monkeypatch.setattr(engine_choice, "PATIENCE", math.inf)
    monkeypatch.setattr(compiled_rows, "seconds", lambda *call: next(turns))


def run_as_it_is(module, inputs):
    return lambda given: module(*given)


@pytest.mark.parametrize(
    ("ratios", "kept"),
    [
        ((0.5,) * 4, {1, 2, 3}),
        ((0.5, 0.5, 1.3, 1.0), {1, 2}),
        ((0.5, 1.3, 0.9, 0.5), {1, 3}),
        ((1.0, 0.5, 0.5, 1.0), {2}),
        ((1.0,) * 4, set()),
    ],
)
def test_all_passes_over_so_many_texts_are_kept_or_none(monkeypatch, ratios, kept):
    """Both arms run on the same engine, so a pass that is slower stays with faster ones, or goes with them.

    ratios: of (1, 3), (2, 1), (2, 3) and (3, 1).
    """
    pretend_to_compile(monkeypatch, run_as_it_is)
    model = exported()
    timed(monkeypatch, *ratios)
    programs, _ = compile_rows(model, SHAPES)
    assert set(programs.get(model.fast, ())) == {shape for shape in SHAPES if shape[0] in kept}
    assert ("cut" in model.fast.__dict__) == bool(kept), "weights in blocks are freed where nobody reads them"


@pytest.mark.parametrize(
    ("ratio_of_one", "kept"), [(0.5, {(1, 1), (1, 2), (1, 3), (1, 6), (2, 1), (2, 3)}), (1.5, {(2, 1), (2, 3)})]
)
def test_passes_that_only_predict_decide_nothing(monkeypatch, ratio_of_one, kept):
    """They are not timed: there are no further seconds for them. None is kept where those over one text are not."""
    pretend_to_compile(monkeypatch, run_as_it_is)
    model = exported()
    timed(monkeypatch, ratio_of_one, ratio_of_one, 0.5, 0.5)
    assert set(compile_rows(model, [(1, 1), (1, 3), (2, 1), (2, 3)], as_one=True)[0][model.fast]) == kept


def test_too_many_tokens_leave_only_that_number_of_texts_to_the_kernels(monkeypatch):
    pretend_to_compile(monkeypatch, run_as_it_is)
    timed(monkeypatch, *(0.5,) * 4)
    model = exported()
    programs, words = compile_rows(model, [*SHAPES, (4, 1), (4, MOST_TOKENS // 4 + 1)])
    assert set(programs[model.fast]) == set(SHAPES)
    assert str(MOST_TOKENS) in words


def test_timing_ends_after_two_turns_where_patience_does(monkeypatch):
    pretend_to_compile(monkeypatch, run_as_it_is)
    model = exported()
    timed(monkeypatch, 0.5, 0.5)
    programs, _ = compile_rows(model, [(2, 1)])
    times = compiled_rows.time_rows(model, programs, (2, 1), patience=-1.0)
    assert [len(taken) for taken in times] == [2, 2]


@pytest.mark.parametrize("bad", [(2, 1), (2, 3), (3, 1)], ids=str)
def test_a_wrong_pass_is_refused(monkeypatch, bad):
    def compile_one(module, inputs):
        shape = next(tuple(t.shape[:2]) for t in inputs if t.ndim == 3 and t.shape[:2] in [*SHAPES])
        return lambda given: [output + 0.1 * (shape == bad) for output in module(*given)]

    pretend_to_compile(monkeypatch, compile_one)
    timed(monkeypatch, *(0.5,) * 4)
    model = exported()
    programs, words = compile_rows(model, SHAPES)
    assert set(programs[model.fast]) == {shape for shape in SHAPES if shape[0] != bad[0]}
    assert "logits differ" in words


def test_where_nothing_may_be_built_passes_are_taken_if_all_are_there(monkeypatch):
    pretend_to_compile(monkeypatch, run_as_it_is)
    timed(monkeypatch, *(0.5,) * 8)
    never, build = "never", packages.build
    monkeypatch.setattr(packages, "build", pytest.fail)
    assert compile_rows(exported(), SHAPES, never=never) == ({}, "1, 2, 3 not compiled: never")
    monkeypatch.setattr(packages, "build", build)
    compile_rows(exported(), SHAPES)
    monkeypatch.setattr(packages, "build", pytest.fail)
    model = exported()
    assert set(compile_rows(model, SHAPES, never=never)[0][model.fast]) == set(SHAPES)
    assert compile_rows(exported(), [(2, 2)], never=never)[0] == {}, "of other passes it knows nothing"


def test_without_a_compiler_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(packages, "build", None)
    monkeypatch.setattr(packages, "compiler", lambda: None)
    programs, words = compile_rows(exported(), SHAPES)
    assert not programs
    assert "g++" in words


# --- a run ------------------------------------------------------------------------------------------------------------


def setup_of(target: CachedModel, wish: str):
    return argparse.Namespace(target=target, wish=wish, reasons={"engine": "asked for"})


@pytest.mark.parametrize(
    ("n_texts", "k", "wish"),
    [
        (1, 3, "auto"),
        (2, 4, "auto"),
        (2, 4, "compiled"),
        (8, MOST_TOKENS // 8, "auto"),
        (8, MOST_TOKENS // 8, "compiled"),
    ],
)
def test_both_arms_run_on_one_engine(monkeypatch, wish, n_texts, k):
    """Kernels make all passes or none, those of drafts included, also where drafts are shorter near the end of a text.
    Nothing is compiled or loaded while texts are decoded."""
    built = []
    pretend_to_compile(monkeypatch, lambda *one: built.append(one) or run_as_it_is(*one))
    monkeypatch.setattr(compiled_rows, "seconds", lambda *call: next(turns))
    turns = iter([0.5, 1.0] * 1000)
    model = tiny("llama", dtype=torch.float32)
    target, draft = CachedModel(model, fast=copy.copy(in_parts(model))), exported(perturbed(model, 0.1))
    drafter = ModelDrafter(draft)
    if wish == "auto":  # another run has compiled the target's passes
        compile_for(setup_of(target, "compiled"), [], [n_texts], {1, k + 1})
    programs = compile_for(setup_of(target, wish), [drafter], [n_texts], {1, k + 1})
    n_built, taken = len(built), n_texts * (k + 1) <= MOST_TOKENS
    assert bool(built) == taken
    assert set(programs) == ({target.fast, draft.fast} if taken else set())
    for name in ("load", "build"):
        monkeypatch.setattr(packages, name, pytest.fail)
    on_kernels = []
    honest = row_buffers.over_rows
    for module in (row_buffers, batched_model):
        monkeypatch.setattr(module, "over_rows", lambda fast, *rest: on_kernels.append(fast) or honest(fast, *rest))
    asked = [Request(TEXTS[i : i + 1, :n], DecodeSettings(6 + 5 * i, GREEDY, seed=i)) for i, n in enumerate(LENGTHS)]
    texts = []
    for decoded in (
        autoregressive_decode_batch(BatchedModel(target, n_texts, programs=programs), asked),
        speculative_decode_batch(
            BatchedModel(target, n_texts, programs=programs), batch_drafter(drafter, n_texts, programs), asked, k
        ),
    ):
        rounds = [[] for _ in asked]
        for number, round_ in decoded:
            rounds[number].append(round_)
        texts.append([tokens_of(one) for one in rounds])
        assert bool(on_kernels) == (not taken)
        on_kernels.clear()
    assert texts[0] == texts[1]
    assert len(built) == n_built


def test_one_text_stays_compiled_beside_batches_that_are_not(monkeypatch):
    """The sizes and lengths of the command's defaults: 16 x 7 tokens are too many, and no reason to change the rest."""
    pretend_to_compile(monkeypatch, run_as_it_is)
    turns = iter([0.5, 1.0] * 1000)
    monkeypatch.setattr(compiled_rows, "seconds", lambda *call: next(turns))
    model = tiny("llama", dtype=torch.float32)
    target, draft = CachedModel(model, fast=copy.copy(in_parts(model))), exported(perturbed(model, 0.1))
    setup = setup_of(target, "compiled")
    programs = compile_for(setup, [ModelDrafter(draft)], {1, 4, 16}, {1, 3, 5, 7}, as_one=True)
    assert {fast: compiled_rows.sizes_of({fast: of}) for fast, of in programs.items()} == {
        fast: {1, 4} for fast in (target.fast, draft.fast)
    }
    monkeypatch.setattr(packages, "build", pytest.fail)
    auto = CachedModel(model, fast=copy.copy(in_parts(model)))
    assert compiled_rows.sizes_of(compile_for(setup_of(auto, "auto"), [], {1, 3}, {1, 3})) == {1}, "3 were never built"


def test_nothing_is_compiled_for_a_target_whose_passes_are_not(monkeypatch):
    """A draft's passes over several texts follow the target's."""
    monkeypatch.setattr(packages, "build", pytest.fail)
    drafter = ModelDrafter(exported())
    assert compile_for(setup_of(exported(), "compiled"), [drafter], [2], {1, 5}) == {}
    model = tiny("llama", dtype=torch.float32)
    target = CachedModel(model, fast=copy.copy(in_parts(model)))
    assert compile_for(setup_of(target, "auto"), [drafter], [2], {1, 5}) == {}


def test_narrower_passes_are_padded_and_wider_ones_replayed(monkeypatch):
    """The logits are right either way."""
    pretend_to_compile(monkeypatch, run_as_it_is)
    timed(monkeypatch, 0.5, 0.5)
    model = exported()
    [(fast, passes)] = compile_rows(model, [(3, 1), (3, 3)])[0].items()
    ran = []
    watched = {shape: lambda *given, s=shape, run=run: ran.append(s) or run(*given) for shape, run in passes.items()}
    batch = BatchedModel(model, 3, programs={fast: watched})
    batch.start(CONTEXT)
    assert batch._buffers.capacity % BLOCK == 0
    for row, length in enumerate(LENGTHS):
        batch.prefill(row, TEXTS[row : row + 1, :length])
    for width in (1, 2, 3, 4):
        before = batch.lengths
        logits = batch.forward(next_tokens(batch, width))
        for row, length in enumerate(before):
            of_text = right(model.model, TEXTS[row, : length + width])[length:]
            assert torch.allclose(logits[row], of_text, atol=1e-4)
        batch.crop([length + 1 for length in before])
    assert ran == [(3, 1), (3, 3), (3, 3)]


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler")
def test_a_real_compilation_gives_the_logits_of_both_texts(monkeypatch):
    timed(monkeypatch, 0.5)
    model = exported()
    programs, words = compile_rows(model, [(2, 1)])
    assert list(programs[model.fast]) == [(2, 1)], words
    text = checks.random_text(model.model, BLOCK + 9)[0]  # its second block of places is read, too
    batch = BatchedModel(model, 2, programs=programs)
    batch.start(2 * BLOCK)
    for row, n in enumerate((4, len(text) - 3)):
        batch.prefill(row, text[None, :n])
    for _ in range(3):
        tokens = torch.stack([text[length : length + 1] for length in batch.lengths])
        logits = batch.forward(tokens)
        for row, length in enumerate(batch.lengths):
            expected = right(model.model, text[:length])[-1]
            assert (logits[row, 0] - expected).abs().max() < 1e-5 * expected.abs().max()
    check_batch(model, 2, 1, programs)
