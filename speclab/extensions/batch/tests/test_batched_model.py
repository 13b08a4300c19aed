"""Passes over several texts: each row's logits, keys and values are those of the text alone."""

import itertools

import pytest
import torch
from torch import Tensor

from speclab.core.rounds import Draft
from speclab.engines.cuda import graphs
from speclab.engines.parts import FAMILIES as KNOWN
from speclab.extensions.batch.decoding import row_buffers
from speclab.extensions.batch.decoding.batched_model import BatchedModel, check_batch
from speclab.extensions.batch.decoding.row_buffers import RowPages
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests import tiny_families
from tests.decoding import row_of
from tests.models.test_caches import worst_difference
from tests.recorder import not_compiled, stand_in
from tests.tiny_models import CLOSE, CONTEXT, DTYPE_ON, FAMILIES, VOCAB, assert_close, on_engine, tiny

GARBAGE = 1e4  # finite: attention multiplies what it masks by zero; the engine c never looks at it
TEXTS = torch.randint(0, VOCAB, (3, 90), generator=torch.Generator().manual_seed(8))
LENGTHS = (5, 62, 17)  # the second one is about to outgrow its first page


def cached(model, engine: str) -> CachedModel:
    fast = not_compiled(model) if engine == "graphs" else on_engine(engine, model)
    return CachedModel(model, fast=fast)


def on(engine: str, family: str = "llama") -> CachedModel:
    """A tiny model on this engine: in float64, on `c` in float32."""
    return cached(tiny(family, dtype=DTYPE_ON.get(engine, torch.float64)), engine)


def right(model, text: Tensor) -> Tensor:
    """(n,) ids -> (n, vocab), without a cache"""
    with torch.inference_mode():
        return model(input_ids=text[None], use_cache=False).logits[0]


def started(target: CachedModel, longest: int = CONTEXT) -> BatchedModel:
    """Three rows with the first tokens of the three texts."""
    batch = BatchedModel(target, 3)
    batch.start(longest)
    for row, length in enumerate(LENGTHS):
        logits = batch.prefill(row, TEXTS[row : row + 1, :length])
        assert_close(logits[0, -1], right(target.model, TEXTS[row, :length])[-1])
    return batch


def spoil(batch: BatchedModel) -> None:
    """Fill every place that holds no token of its row's text; in pages with NaN, which one read would show."""
    with torch.inference_mode():
        for row, length in enumerate(batch.lengths):
            if isinstance(batch._buffers, RowPages):
                text = batch._buffers.rows[row]
                for place in range(length, len(text.pages) * text._model.page):
                    for part in row_of(text, place):
                        part.fill_(torch.nan)
                continue
            for part in batch._buffers.keys + batch._buffers.values:
                part[row, :, length:] = GARBAGE


def next_tokens(batch: BatchedModel, m: int) -> Tensor:
    return torch.stack([TEXTS[row, length : length + m] for row, length in enumerate(batch.lengths)])


class RowCache:
    """One row of a batch in the form that tests/models/test_caches.py compares with a recomputation."""

    def __init__(self, batch: BatchedModel, row: int):
        self.model, self.length = batch.model.model, batch.lengths[row]
        self.backend = self._buffers = self
        if isinstance(batch._buffers, RowPages):
            self.backend = batch._buffers.rows[row]
            return
        self._parts = [[part[row : row + 1] for part in side] for side in (batch._buffers.keys, batch._buffers.values)]

    def first(self, n: int) -> list[list[Tensor]]:
        return [[part[:, :, :n] for part in side] for side in self._parts]


ON_C = [(family, "c") for family in FAMILIES if family in KNOWN]


@pytest.mark.parametrize(("family", "engine"), [*itertools.product(FAMILIES, ["eager", "graphs"]), *ON_C])
def test_logits_of_each_row_are_those_of_its_text(family, engine, monkeypatch):
    """Rows of different lengths, passes of several widths, a different number of tokens rejected in each row."""
    recorder = stand_in(monkeypatch) if engine == "graphs" else None
    target = on(engine, family)
    batch = started(target)
    for width, kept in ((3, (3, 1, 2)), (1, (1, 1, 1)), (5, (1, 5, 2)), (2, (2, 2, 1))):
        spoil(batch)
        before = batch.lengths
        logits = batch.forward(next_tokens(batch, width))
        assert logits.shape == (3, width, VOCAB)
        for row, length in enumerate(before):
            of_text = right(batch.model.model, TEXTS[row, : length + width])[length:]
            assert_close(logits[row], of_text)
        batch.crop([length + n for length, n in zip(before, kept, strict=True)])
        for row in range(3):
            found = worst_difference(RowCache(batch, row), TEXTS[row, : batch.lengths[row]].tolist())
            assert found < CLOSE[target.model.dtype]
    assert recorder is None or recorder.n_replays > 0


@pytest.mark.parametrize("engine", ["eager", "c", "graphs"])
def test_rows_around_64_tokens_at_every_width(engine, monkeypatch):
    """A pass may begin in one page, or block of places, and end in the next."""
    if engine == "graphs":
        stand_in(monkeypatch)
    target = on(engine)
    batch = started(target)
    batch.prefill(1, TEXTS[1:2, :58])
    of_texts = [right(target.model, text) for text in TEXTS]
    for length, width in itertools.product(range(58, 67), range(1, 6)):
        before = (5, length, 17)
        batch.crop(before)
        for row, logits in enumerate(batch.forward(next_tokens(batch, width))):
            assert_close(logits, of_texts[row][before[row] : before[row] + width])


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


@pytest.mark.parametrize("engine", ["eager", "c"])
@pytest.mark.parametrize("sizes", [None, (3, 1, 0), (1, 3, 2)])
def test_rows_may_have_different_numbers_of_tokens(engine, sizes):
    """Those of a row that count are right; the others leave nothing behind, and a row without a text stays empty."""
    batch = started(on(engine))
    batch.crop([5, 62, 0])
    logits = batch.forward(next_tokens(batch, 3), sizes=sizes)
    counted = [n if length else 0 for n, length in zip(sizes or (3, 3, 3), (5, 62, 0), strict=True)]
    assert batch.lengths == [length + n for length, n in zip((5, 62, 0), counted, strict=True)]
    spoil(batch)
    for row, n in enumerate(counted[:2]):
        assert_close(logits[row, :n], right(batch.model.model, TEXTS[row, : LENGTHS[row] + n])[LENGTHS[row] :])
        again = batch.forward(next_tokens(batch, 1))[row]
        batch.crop([length - bool(length) for length in batch.lengths])
        assert_close(again[0], right(batch.model.model, TEXTS[row, : batch.lengths[row] + 1])[-1])


def test_padding_is_never_computed_on_c(monkeypatch):
    """A draft of another length in each row, a row without a text: so many tokens reach the pass, and their own."""
    batch = started(on("c"))
    batch.crop([5, 0, 17])
    seen, fast, run = [], batch.model.fast, batch.model.fast.run

    def count(*given, wanted, **more):
        seen.append((len(given[1]), len(wanted)))
        return run(*given, wanted=wanted, **more)

    monkeypatch.setattr(fast, "run", count)
    draft = Draft(TEXTS[:, 20:24], torch.tensor([1, 4, 3]))
    logits = batch.verify(TEXTS[:, 19], draft)
    assert seen == [(6, 6)], "tokens, rows of logits"
    assert batch.lengths == [7, 0, 21]
    for row, length, n in ((0, 5, 2), (2, 17, 4)):
        text = torch.cat([TEXTS[row, :length], TEXTS[row, 19 : 19 + n]])
        assert_close(logits[row, :n], right(batch.model.model, text)[length:])


@pytest.mark.parametrize("engine", ["eager", "c"])
def test_what_is_not_of_a_text_counts_for_nothing(engine):
    """To the last bit: dead places of a row may hold any number, other rows anything at all."""
    found = []
    for spoiled in (False, True):
        batch = started(on(engine))
        if spoiled:
            spoil(batch)
            with torch.inference_mode():
                parts = [part[2] for part in batch._buffers.keys + batch._buffers.values] if engine == "eager" else []
                for part in parts or batch._buffers.rows[2].pages:
                    part.fill_(torch.nan)
        found.append(batch.forward(next_tokens(batch, 3)))
    assert torch.equal(found[0][:2], found[1][:2])
    assert found[1][2].isnan().any(), "the other row was not read, so nothing was shown"


@pytest.mark.parametrize("engine", ["eager", "c"])
def test_a_row_starts_another_text(engine):
    batch = started(on(engine))
    batch.forward(next_tokens(batch, 2))
    other = TEXTS[0:1, 20:27]
    assert_close(batch.prefill(1, other)[0, -1], right(batch.model.model, other[0])[-1])
    assert batch.lengths == [7, 7, 19]
    for row, text in enumerate((TEXTS[0, :7], other[0], TEXTS[2, :19])):
        assert worst_difference(RowCache(batch, row), text.tolist()) < CLOSE[batch.model.model.dtype]


@pytest.mark.parametrize("engine", ["eager", "c"])
def test_states_of_a_prompt_are_its_rows(engine):
    target = on(engine)
    target.hidden_layers = (1,)
    batch = started(target)
    assert batch.hidden((1,), 2).shape[1] == LENGTHS[2]
    with pytest.raises(RuntimeError, match="row 2"):
        batch.hidden((1,), 0)


def test_what_is_welcome():
    """The check compares passes that are cut at the tokenizer's ids with uncached ones of the whole output layer."""
    for target in (on("eager", "mistral_window"), on("c", "mistral_window"), CachedModel(tiny("llama"), VOCAB - 8)):
        check_batch(target)


@pytest.mark.parametrize(
    ("family", "why"), [("mamba", ": .*recurrent.*; choose another"), ("bloom", ""), ("llama4_text", "")]
)
def test_other_layers_are_refused(family, why):
    with pytest.raises(EnvironmentProblem, match=f"{family} cannot decode in batches{why}"):
        check_batch(CachedModel(tiny_families.tiny(family)))


def test_a_broken_rollback_is_refused(monkeypatch):
    """Keys and values of rejected tokens stay where the next tokens should be written."""
    target = on("eager")
    check_batch(target)
    honest = row_buffers.WrittenAtPlaces.update

    def update(cache, keys, values, *rest):
        olds = [part.transpose(1, 2)[cache._places].transpose(1, 2) for part in (cache.keys, cache.values)]
        kept = [torch.where(old == 0, new, old) for old, new in zip(olds, (keys, values), strict=True)]
        return honest(cache, *kept, *rest)

    monkeypatch.setattr(row_buffers.WrittenAtPlaces, "update", update)
    with pytest.raises(EnvironmentProblem, match="logits differ"):
        check_batch(target)


@pytest.mark.parametrize("engine", ["eager", "c"])
def test_wrong_passes_are_refused(monkeypatch, engine):
    """All rows stand at the places of the longest one."""
    target = on(engine)
    check_batch(target)
    kind = {"eager": row_buffers.RowBuffers, "c": RowPages}[engine]
    honest = kind.forward

    def forward(self, ids, starts, sizes, layers):
        return honest(self, ids, [max(starts)] * len(starts), sizes, layers)

    monkeypatch.setattr(kind, "forward", forward)
    with pytest.raises(EnvironmentProblem, match="logits differ"):
        check_batch(target)


@pytest.mark.parametrize("engine", ["eager", "c"])
def test_random_numbers_stand_everywhere(engine):
    """A pass whose time alone counts reads memory that was written."""
    batch = BatchedModel(on(engine), 2)
    batch.start(CONTEXT)
    batch.fill(seed=0)
    parts = batch._buffers.keys + batch._buffers.values if engine == "eager" else []
    parts = parts or [page for row in batch._buffers.rows for page in row.pages]
    assert sum(map(torch.numel, parts)) >= 2 * 2 * 2 * CONTEXT * 2 * 8, "rows, layers, keys and values, heads of 8"
    assert all((part != 0).all() for part in parts)
    batch.lengths = [CONTEXT - 3] * 2
    assert batch.forward(TEXTS[:2, :3]).isfinite().all()


def test_passes_that_were_said_to_come_are_recorded_before_them(monkeypatch):
    stand_in(monkeypatch)
    batch = BatchedModel(on("graphs"), 3)
    batch.start(CONTEXT, {1, 3})
    before = graphs.captures.n
    assert before > 0
    for row, length in enumerate(LENGTHS):
        batch.prefill(row, TEXTS[row : row + 1, :length])
    for width in (1, 3):
        logits = batch.forward(next_tokens(batch, width))
        for row, length in enumerate(LENGTHS):
            assert_close(logits[row], right(batch.model.model, TEXTS[row, : length + width])[length:])
        batch.crop(LENGTHS)
    batch.start(CONTEXT - 1)
    batch.prefill(0, TEXTS[:1, :4])
    batch.forward(torch.zeros(3, 1, dtype=torch.long))
    assert graphs.captures.n == before, "the next texts find the graphs of the first ones"
