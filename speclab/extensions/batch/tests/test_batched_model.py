"""Passes over several texts: each row's logits, keys and values are those of the text alone."""

import itertools
from collections.abc import Iterable

import pytest
import torch
from speclab.models.backends import compiled
from speclab.models.backends.exported import ExportedModel
from torch import Tensor

from benchmarks.families import tiny_families
from speclab.core import graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.extensions.batch.decoding import batched_model, row_buffers
from speclab.extensions.batch.decoding.batched_model import BatchedModel, check_batch
from speclab.extensions.batch.decoding.row_buffers import Programs
from speclab.extensions.batch.tests.trees import trees
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.grids import pairs_often
from tests.models.test_caches import worst_difference
from tests.recorder import stand_in
from tests.tiny_models import CONTEXT, FAMILIES, VOCAB, copied, flattened, tiny, uncompiled

GARBAGE = 1e4  # finite: attention multiplies what it masks by zero
TEXTS = torch.randint(0, VOCAB, (3, 80), generator=torch.Generator().manual_seed(8))
LENGTHS = (5, 11, 17)
ENGINES = ["eager", "fast", "graphs", "in parts"]


def on(engine: str, family: str = "llama") -> CachedModel:
    model = tiny(family)
    graphed = lambda m: GraphedModel(m, compile_parts=False)  # noqa: E731
    fast = {"eager": None, "fast": flattened, "in parts": flattened}.get(engine, graphed)
    return CachedModel(model, fast=fast and fast(model))


def in_rows(target: CachedModel, widths: Iterable[int] = (1, 3, 5), n_texts: int = 3) -> Programs:
    """Its passes over so many texts, cut into layers as they are compiled; nothing is compiled."""
    whole = compiled.cut(copied(row_buffers.exported_rows(target.fast)))
    return {target.fast: {(n_texts, width): whole.program(width, 1, uncompiled, n_texts) for width in widths}}


def right(model, text: Tensor) -> Tensor:
    """(n,) ids -> (n, vocab), without a cache"""
    with torch.inference_mode():
        return model(input_ids=text[None], use_cache=False).logits[0]


def started(target: CachedModel, longest: int = CONTEXT, programs: Programs | None = None) -> BatchedModel:
    """Three rows with the first tokens of the three texts."""
    batch = BatchedModel(target, 3, programs=programs)
    batch.start(longest)
    for row, length in enumerate(LENGTHS):
        logits = batch.prefill(row, TEXTS[row : row + 1, :length])
        assert torch.allclose(logits[0, -1], right(target.model, TEXTS[row, :length])[-1], atol=1e-9)
    return batch


def spoil(batch: BatchedModel) -> None:
    """Fill every place that holds no token of its row's text."""
    with torch.inference_mode():
        for part in batch._buffers.keys + batch._buffers.values:
            for row, length in enumerate(batch.lengths):
                part[row, :, length:] = GARBAGE


def next_tokens(batch: BatchedModel, m: int) -> Tensor:
    return torch.stack([TEXTS[row, length : length + m] for row, length in enumerate(batch.lengths)])


class RowCache:
    """One row of a batch in the form that tests/models/test_caches.py compares with a recomputation."""

    def __init__(self, batch: BatchedModel, row: int):
        self.model, self._backend, self.length = batch.model.model, self, batch.lengths[row]
        self._buffers = self
        self._parts = [[part[row : row + 1] for part in side] for side in (batch._buffers.keys, batch._buffers.values)]

    def first(self, n: int) -> list[list[Tensor]]:
        return [[part[:, :, :n] for part in side] for side in self._parts]


@pytest.mark.parametrize(
    ("family", "engine"),
    pairs_often(
        FAMILIES,
        ENGINES,
        lambda family, engine: engine == "eager" or family in ("gpt2", "gemma3_window"),
    ),
)
def test_logits_of_each_row_are_those_of_its_text(family, engine, monkeypatch):
    """Rows of different lengths, passes of several widths, a different number of tokens rejected in each row."""
    recorder = stand_in(monkeypatch) if engine == "graphs" else None
    target = on(engine, family)
    batch = started(target, programs=in_rows(target) if engine == "in parts" else None)
    for width, kept in ((3, (3, 1, 2)), (1, (1, 1, 1)), (5, (1, 5, 2)), (2, (2, 2, 1))):
        spoil(batch)
        before = batch.lengths
        logits = batch.forward(next_tokens(batch, width))
        assert logits.shape == (3, width, VOCAB)
        for row, length in enumerate(before):
            of_text = right(batch.model.model, TEXTS[row, : length + width])[length:]
            assert torch.allclose(logits[row], of_text, atol=1e-9)
        batch.crop([length + n for length, n in zip(before, kept, strict=True)])
        for row in range(3):
            assert worst_difference(RowCache(batch, row), TEXTS[row, : batch.lengths[row]].tolist()) < 1e-9
    assert batch.n_passes == 4
    assert recorder is None or recorder.n_replays > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_around_64_tokens_at_every_width(engine, monkeypatch):
    """A pass that is padded may end in another block of places than its tokens."""
    if engine == "graphs":
        stand_in(monkeypatch)
    target = on(engine)
    batch = started(target, programs=in_rows(target) if engine == "in parts" else None)
    batch.prefill(1, TEXTS[1:2, :58])
    of_texts = [right(target.model, text) for text in TEXTS]
    for length, width in itertools.product(range(58, 67), range(1, 6)):
        before = (5, length, 17)
        batch.crop(before)
        for row, logits in enumerate(batch.forward(next_tokens(batch, width))):
            assert torch.allclose(logits, of_texts[row][before[row] : before[row] + width], atol=1e-9)


def test_a_graph_for_each_width_and_bucket(monkeypatch):
    stand_in(monkeypatch)
    batch = started(on("graphs"))
    before = graphs.captures.n
    for width in (1, 3, 1, 3, 1):
        batch.forward(next_tokens(batch, width))
        batch.crop(LENGTHS)
    assert graphs.captures.n - before == 2
    batch.crop([1, 1, 1])
    batch.forward(next_tokens(batch, 3))
    assert graphs.captures.n - before == 3, "fewer places are read"


def test_what_is_not_of_a_text_counts_for_nothing():
    """To the last bit: dead places of a row may hold any number, other rows anything at all."""
    found = []
    for spoiled in (False, True):
        batch = started(on("eager"))
        if spoiled:
            spoil(batch)
            with torch.inference_mode():
                for part in batch._buffers.keys + batch._buffers.values:
                    part[2] = torch.nan
        found.append(batch.forward(next_tokens(batch, 3)))
    assert torch.equal(found[0][:2], found[1][:2])
    assert found[1][2].isnan().any(), "the other row was not read, so nothing was shown"


@pytest.mark.parametrize(
    ("engine", "family"),
    [
        ("eager", "llama"),
        ("eager", "gemma3_window"),
        ("fast", "gemma3_window"),
        ("graphs", "gemma3_window"),
        ("in parts", "gemma3_window"),
    ],
)
def test_trees_in_rows(engine, family, monkeypatch):
    """Another tree in each row: the logits are those of the branches, and what is kept goes on."""
    if engine == "graphs":
        stand_in(monkeypatch)
    target = on(engine, family)
    target.hidden_layers = (0, 1)
    programs = in_rows(target, (1, 9)) if engine == "in parts" else None  # a tree is padded, too
    if programs:
        monkeypatch.setattr(row_buffers, "over_rows", pytest.fail)
    batch = started(target, programs=programs)
    parents = torch.tensor([[-1, -1, 1, 2], [-1, 0, 0, 2], [-1, 0, 1, 2]])
    paths = [[1, 2, 3], [0, 2], []]
    before = batch.lengths
    tokens = torch.randint(0, VOCAB, (3, 5), generator=torch.Generator().manual_seed(2))
    logits = batch.forward(tokens, trees("draft").reads(parents))
    seen = [batch.hidden((0, 1), row).clone() for row in range(3)]
    batch.keep(paths)
    batch.crop([length + 1 + len(path) for length, path in zip(before, paths, strict=True)])
    for row, path in enumerate(paths):
        kept = [0, *(i + 1 for i in path)]
        text = torch.cat([TEXTS[row, : before[row]], tokens[row, kept]])
        assert torch.allclose(logits[row, kept], right(target.model, text)[before[row] :], atol=1e-9)
        assert worst_difference(RowCache(batch, row), text.tolist()) < 1e-9
        assert torch.equal(batch.hidden((0, 1), row)[:, : len(kept)], seen[row][:, kept])


def test_a_row_starts_another_text():
    batch = started(on("eager"))
    batch.forward(next_tokens(batch, 2))
    other = TEXTS[0:1, 20:27]
    assert torch.allclose(batch.prefill(1, other)[0, -1], right(batch.model.model, other[0])[-1], atol=1e-9)
    assert batch.lengths == [7, 7, 19]
    for row, text in enumerate((TEXTS[0, :7], other[0], TEXTS[2, :19])):
        assert worst_difference(RowCache(batch, row), text.tolist()) < 1e-9


def test_states_of_a_prompt_are_its_rows():
    target = on("eager")
    target.hidden_layers = (1,)
    batch = started(target)
    assert batch.hidden((1,), 2).shape[1] == LENGTHS[2]
    with pytest.raises(RuntimeError, match="row 2"):
        batch.hidden((1,), 0)


def test_padding_may_stand_behind_the_last_position():
    batch = BatchedModel(on("eager", "gpt2"), 2)
    batch.start(CONTEXT + 4)
    text = TEXTS[:1].repeat(1, 7)[:, :CONTEXT]
    batch.prefill(0, text[:, :-1])
    batch.prefill(1, text[:, :7])
    tokens = torch.stack([text[0, [-1, 0, 0]], text[0, 7:10]])
    logits = batch.forward(tokens)
    assert torch.allclose(logits[0, 0], right(batch.model.model, text[0])[-1], atol=1e-9)
    assert torch.allclose(logits[1], right(batch.model.model, text[0, :10])[7:], atol=1e-9)


def test_what_cannot_be():
    batch = BatchedModel(on("eager"), 2)
    with pytest.raises(RuntimeError, match="start"):
        batch.prefill(0, TEXTS[:1, :3])
    batch.start(6)
    batch.prefill(0, TEXTS[:1, :3])
    with pytest.raises(RuntimeError, match="row 0"):
        batch.crop([4, 0])
    with pytest.raises(RuntimeError, match="buffers of 6"):
        batch.forward(TEXTS[:2, :4])


# --- The check --------------------------------------------------------------------------------------------------------


def test_windows_are_welcome():
    check_batch(on("eager", "mistral_window"))


def test_a_model_with_more_rows_than_its_tokenizer_has_ids_is_welcome():
    """The check compares passes that are cut at the tokenizer's ids with uncached ones of the whole output layer."""
    check_batch(CachedModel(tiny("llama"), VOCAB - 8))


def test_recurrent_layers_are_refused():
    with pytest.raises(EnvironmentProblem, match=r"mamba cannot decode in batches: .*recurrent.*; choose another"):
        check_batch(CachedModel(tiny_families.tiny("mamba")))


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_broken_rollback_is_refused(monkeypatch, width):
    """Keys and values of rejected tokens stay where the next tokens should be written."""
    target = on("eager")
    check_batch(target, width=width)
    honest = row_buffers.WrittenAtPlaces.update

    def update(cache, keys, values, *rest):
        kept = [
            torch.where(old[cache._places] == 0, new.transpose(1, 2), old[cache._places]).transpose(1, 2)
            for old, new in ((cache.keys, keys), (cache.values, values))
        ]
        return honest(cache, *kept, *rest)

    monkeypatch.setattr(row_buffers.WrittenAtPlaces, "update", update)
    with pytest.raises(EnvironmentProblem, match="logits differ"):
        check_batch(target, width=width)


def test_wrong_passes_are_refused(monkeypatch):
    target = on("eager")
    check_batch(target)
    honest = batched_model._visible
    monkeypatch.setattr(
        batched_model, "_visible", lambda places, *rest: honest(places.amax(0, keepdim=True) + 0 * places, *rest)
    )
    with pytest.raises(EnvironmentProblem, match="logits differ"):
        check_batch(target)


# --- What a pass costs ------------------------------------------------------------------------------------------------


def test_a_batch_of_one_runs_the_kernels_of_one_text(monkeypatch):
    """Those that models/engine_choice.py has chosen, and none of the exported pass over rows."""
    target = on("fast")
    monkeypatch.setitem(row_buffers.EXPORTED, target.fast, {False: pytest.fail})
    seen, honest = [], target.fast._whole[False]

    def watched(name, run):
        return lambda *inputs: seen.append((name, inputs[0].shape[1])) or run(*inputs)

    monkeypatch.setattr(target.fast, "_whole", {False: [*map(watched, ("wide", "one"), honest)]})
    batch = BatchedModel(target, 1)
    batch.start(30)
    batch.prefill(0, TEXTS[:1, :5])
    for m in (1, 2, 5):
        logits = batch.forward(TEXTS[:1, 5 : 5 + m])
        assert logits.shape == (1, m, VOCAB)
        assert torch.allclose(logits[0], right(target.model, TEXTS[0, : 5 + m])[5:], atol=1e-9)
        batch.crop([5])
    assert seen == [("one", 1), ("wide", 2), ("wide", 5)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_reads_the_weights_that_were_chosen(packed):
    model = tiny("llama", dtype=torch.float32)
    fast = ExportedModel(model)
    if not fast.can_pack:
        pytest.skip("oneDNN is not here")
    fast.packs_several = packed
    batch = BatchedModel(CachedModel(model, fast=fast), 2)
    batch.start(CONTEXT)
    for row in range(2):
        batch.prefill(row, TEXTS[row : row + 1, :5])
    for m in (3, 1):
        found = batch.forward(next_tokens(batch, m))
        batch.crop([5, 5])
        for row in range(2):
            assert torch.allclose(found[row], right(model, TEXTS[row, : 5 + m])[5:], atol=1e-4)
    assert list(row_buffers.EXPORTED[fast]) == [packed]


def test_passes_that_were_said_to_come_are_recorded_before_them(monkeypatch):
    stand_in(monkeypatch)
    batch = BatchedModel(on("graphs"), 3)
    batch.start(CONTEXT)
    batch.prepare({1, 3}, 20)
    before = graphs.captures.n
    assert before > 0
    for row, length in enumerate(LENGTHS):
        batch.prefill(row, TEXTS[row : row + 1, :length])
    for width in (1, 3):
        logits = batch.forward(next_tokens(batch, width))
        for row, length in enumerate(LENGTHS):
            assert torch.allclose(
                logits[row], right(batch.model.model, TEXTS[row, : length + width])[length:], atol=1e-9
            )
        batch.crop(LENGTHS)
    batch.start(CONTEXT - 1)
    batch.prefill(0, TEXTS[:1, :4])
    batch.forward(torch.zeros(3, 1, dtype=torch.long))
    assert graphs.captures.n == before, "the next texts find the graphs of the first ones"
