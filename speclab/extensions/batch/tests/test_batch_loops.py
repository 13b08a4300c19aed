"""The loops over a batch against the loops over one text: the same rounds, whatever the neighbours do."""

import itertools
from dataclasses import replace

import pytest
import torch

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter, NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core.accept import accept
from speclab.core.rounds import DecodeSettings, Draft, Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.drafters import BatchedModelDrafter, RowByRow, side_by_side
from speclab.extensions.batch.decoding.loops import (
    BatchDecoding,
    autoregressive_decode_batch,
    judging,
    speculative_decode_batch,
)
from speclab.extensions.batch.decoding.texts import Request
from speclab.extensions.batch.tests.test_batched_model import RowCache, cached, on, spoil
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem
from tests.grids import and_in_full
from tests.heads import N_LEARNT, block_heads, prompts, trained
from tests.models import test_rope as rope
from tests.models.test_caches import worst_difference
from tests.recorder import stand_in
from tests.tiny_models import CLOSE, CONTEXT, VOCAB, perturbed, tiny

WARM = Sampling(temperature=0.7, top_k=8, top_p=0.9)
SIZES = (1, 3, 16)
N_TEXTS = 9


def requests(sampling: Sampling = GREEDY, n: int = N_TEXTS, eos: tuple[int, ...] = ()) -> list[Request]:
    """Texts with prompts, budgets and seeds of their own; the first ones end after one token and after none.

    Every third prompt is one whose text a trained head has learnt.
    """
    learnt, generator = prompts(N_LEARNT)[:, None], torch.Generator().manual_seed(11)
    budgets = itertools.cycle([1, 30, 0, 17, 24, 2, 31, 9, 26])
    others = (torch.randint(0, VOCAB, (1, 4 + 3 * (i % 5)), generator=generator) for i in range(n) if i % 3 != 1)
    texts = [learnt[i // 3 % N_LEARNT] if i % 3 == 1 else next(others) for i in range(n)]
    settings = [DecodeSettings(next(budgets), sampling, frozenset(eos), seed=i) for i in range(n)]
    return [*map(Request, texts, settings)]


def pair(engine: str = "eager", family: str = "llama") -> tuple[CachedModel, CachedModel]:
    target = on(engine, family)
    return target, cached(perturbed(target.model, 0.12), engine)


def with_drafter(kind: str, engine: str = "eager") -> tuple:
    """A target and a drafter for one text."""
    if kind in ("feature", "block"):
        model, head, _ = trained() if kind == "feature" else block_heads().trained_block()
        target = CachedModel(model)  # in float64, as it was trained
        target.hidden_layers = head.config.layers
        return target, FeatureDrafter(head) if kind == "feature" else block_heads().BlockDrafter(head)
    target, draft = pair(engine)
    drafters = {
        "model": lambda: ModelDrafter(draft),
        "ngram": lambda: NgramDrafter(3, 1),
        "hybrid": lambda: HybridDrafter(NgramDrafter(3, 1), ModelDrafter(draft)),
    }
    return target, drafters[kind]()


def of_batch(drafter, n_rows: int):
    """The same drafter for a batch."""
    if isinstance(drafter, ModelDrafter):
        return BatchedModelDrafter(BatchedModel(drafter.draft, n_rows))
    return RowByRow(drafter, n_rows)


def by_text(found, n: int = N_TEXTS) -> list[list[Round]]:
    texts: list[list[Round]] = [[] for _ in range(n)]
    for number, round_ in found:
        texts[number].append(round_)
    return texts


def alone(target: CachedModel, drafter, asked: list[Request], k: int, **how) -> list[list[Round]]:
    texts = []
    for request in asked:
        drafter.forget()
        texts.append(list(speculative_decode(target, drafter, request.prompt, k, request.settings, **how)))
    return texts


TRIED = [("model", how, engine) for how in ("greedy", "sampled") for engine in ("eager", "c")]
TRIED += [("ngram", "greedy", "eager"), ("ngram", "greedy", "c"), ("ngram", "sampled", "eager")]
TRIED += [("feature", "sampled", "eager")]
OTHERS = [(kind, "sampled", "eager") for kind in ("hybrid", "block")]


@pytest.mark.parametrize(("kind", "sampling", "engine"), and_in_full(TRIED, OTHERS))
def test_rounds_of_each_text_are_those_that_it_has_alone(kind, sampling, engine):
    """Tokens, counts and ends; more texts than rows, other budgets, end tokens, other random numbers."""
    target, drafter = with_drafter(kind, engine)
    sampling = {"greedy": GREEDY, "sampled": WARM}[sampling]
    plain = alone(target, drafter, requests(sampling), 4)
    eos = (plain[1][-2].tokens[0], plain[6][-2].tokens[-1])
    expected = alone(target, drafter, requests(sampling, eos=eos), 4)
    assert expected != plain
    for n_rows in SIZES:
        batch = BatchedModel(target, n_rows)
        found = by_text(speculative_decode_batch(batch, of_batch(drafter, n_rows), requests(sampling, eos=eos), 4))
        assert found == expected, f"{n_rows} rows"
    counted = [round_ for rounds in expected for round_ in rounds]
    assert any(r.n_accepted for r in counted)
    assert any(r.n_rejected for r in counted)
    assert any(r.finish == "eos" for r in counted)
    assert len({r.n_drafted for r in counted}) > 1


def test_a_lookup_is_judged_beside_other_rows_as_it_is_alone():
    """It has no law of its own; beside rows that have one it gets one."""
    vocab, n = 5, 3
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        target_probs = (3 * torch.randn(2, n + 1, vocab, generator=generator)).softmax(-1)
        laws = (3 * torch.randn(1, n, vocab, generator=generator)).softmax(-1)
        tokens = torch.randint(0, vocab, (2, n), generator=generator)
        sizes = torch.randint(1, n + 1, (2,), generator=generator)
        uniforms = torch.rand(2, n + 1, generator=generator)
        drafts = [Draft(tokens[:1], sizes[:1]), Draft(tokens[1:], sizes[1:], laws)]
        together = accept(side_by_side(drafts, vocab), target_probs, uniforms)
        alone = [accept(draft, target_probs[i : i + 1], uniforms[i : i + 1]) for i, draft in enumerate(drafts)]
        assert together.n_accepted.tolist() == [one.n_accepted.item() for one in alone]
        assert together.next_token.tolist() == [one.next_token.item() for one in alone]


WINDOWED = [("eager", "gemma3_window"), ("graphs", "gemma3_window")]


@pytest.mark.parametrize(
    ("engine", "family"), and_in_full([("graphs", "llama"), ("c", "gemma3_window")], [("c", "llama"), *WINDOWED])
)
def test_rounds_on_the_other_engines(engine, family, monkeypatch):
    """Texts of 35 tokens and more, windows of 8."""
    if engine == "graphs":
        stand_in(monkeypatch)
    target, draft = pair(engine, family)
    drafter = ModelDrafter(draft)
    for sampling in [GREEDY, WARM] if family == "llama" else [GREEDY]:
        asked = requests(sampling, 5)
        expected = alone(target, drafter, asked, 4)
        found = speculative_decode_batch(BatchedModel(target, 3), of_batch(drafter, 3), asked, 4)
        assert by_text(found, 5) == expected, sampling


@pytest.mark.parametrize("engine", ["eager", "c"])
@pytest.mark.parametrize(("sampling", "chunk"), [(GREEDY, 1), (WARM, 4)], ids=["greedy", "sampled"])
def test_plain_texts_are_those_that_they_are_alone(sampling, chunk, engine):
    target, _ = pair(engine)
    expected = [tokens_of(autoregressive_decode(target, *request[:2])) for request in requests(sampling)]
    eos = (expected[1][20], expected[6][9])
    asked = requests(sampling, eos=eos)
    expected = [tokens_of(autoregressive_decode(target, *request[:2])) for request in asked]
    for n_rows in SIZES:
        found = by_text(autoregressive_decode_batch(BatchedModel(target, n_rows), asked, chunk))
        assert [tokens_of(rounds) for rounds in found] == expected
        ends = ["eos" if set(eos) & set(text) else "length" for text in expected if text]
        assert [rounds[-1].finish for rounds in found if rounds] == ends


def test_neighbours_play_no_part():
    """The same request among other neighbours, in another row: the same rounds. No draft is plain decoding."""
    target, draft = pair()
    undrafted = speculative_decode_batch(BatchedModel(target, 2), of_batch(ModelDrafter(draft), 2), requests(), 0)
    assert by_text(undrafted) == by_text(autoregressive_decode_batch(BatchedModel(target, 2), requests()))
    asked = requests(WARM)
    found = []
    for order in ([4, 1, 6], [8, 7, 3, 6, 4], [6, 6, 4]):
        batch = BatchedModel(target, 3)
        drafter = of_batch(ModelDrafter(draft), 3)
        rounds = by_text(speculative_decode_batch(batch, drafter, [asked[i] for i in order], 4), len(order))
        found.append([rounds[order.index(4)], rounds[order.index(6)]])
    assert found[0] == found[1] == found[2]


def test_rows_are_filled_again():
    """No row waits for another one: so many passes as the rounds need, when the texts are dealt out as they end."""
    target, draft = pair()
    asked = [Request(r.prompt, DecodeSettings(n)) for r, n in zip(requests(), (30, 5, 5, 5, 5, 5), strict=False)]
    found = speculative_decode_batch(BatchedModel(target, 2), of_batch(ModelDrafter(draft), 2), asked, 3)
    made = BatchDecoding(lambda clock: found, len(asked))
    while not made.done:
        made.advance()
    rounds = [len(made.rounds[number]) - 1 for number in range(len(asked))]
    assert len(made.passes) == max(rounds[0], sum(rounds[1:]))


@pytest.mark.parametrize("engine", ["eager", "c"])
def test_caches_equal_a_recomputation_after_every_round(engine):
    """Of the target: all of each text but its last token. Of the draft model: no rejected token.

    What was rejected is spoiled: one read of it would make another text.
    """
    target, drafter = with_drafter("model", engine)
    close = CLOSE[target.model.dtype]
    asked = [request for request in requests(WARM) if request.settings.max_new_tokens > 20]
    n_rows = len(asked)
    batch, drafters = BatchedModel(target, n_rows), of_batch(drafter, n_rows)
    texts = [request.prompt[0].tolist() for request in asked]
    lengths, kept = set(), set()
    for row, round_ in speculative_decode_batch(batch, drafters, asked, 2):
        texts[row] += round_.tokens
        kept.add(round_.n_accepted)
        if not round_.finish:
            assert batch.lengths[row] == len(texts[row]) - 1
            assert worst_difference(RowCache(batch, row), texts[row][:-1]) < close
            held = drafters.draft.lengths[row]
            assert held < len(texts[row])
            assert worst_difference(RowCache(drafters.draft, row), texts[row][:held]) < close
        spoil(batch)
        lengths.add(tuple(batch.lengths))
    assert kept == {0, 1, 2}
    assert len(lengths) > 10
    assert any(len(set(row)) == n_rows for row in lengths), "the rows were never at different lengths"


def test_a_draft_with_a_short_context_stops_row_by_row():
    """The rows whose text it cannot read any more go on without it."""
    target, _ = pair()
    draft = CachedModel(perturbed(tiny("llama", max_position_embeddings=24), 0.1))
    assert draft.room.text == 24
    drafter, asked = ModelDrafter(draft), requests(WARM)
    expected = alone(target, drafter, asked, 4)
    found = by_text(speculative_decode_batch(BatchedModel(target, 3), of_batch(drafter, 3), asked, 4))
    assert found == expected
    last = [rounds[-2].n_drafted for rounds in found if len(rounds) > 5]
    assert 0 in last, "no row ran out of the draft's context"


def test_drafts_side_by_side():
    """Padded to the longest; a certain draft gets one-hot rows beside a drawn one."""
    law = torch.full((1, 2, 4), 0.25)
    drawn = Draft(torch.tensor([[1, 2]]), torch.tensor([2]), law)
    certain = Draft(torch.tensor([[3, 2, 1]]), torch.tensor([3]))
    both = side_by_side([drawn, certain], 4)
    assert both.tokens.tolist() == [[1, 2, 0], [3, 2, 1]]
    assert both.size.tolist() == [2, 3]
    assert torch.equal(both.probs[0, :2], law[0])
    assert both.probs[1, 0].tolist() == [0, 0, 0, 1]
    assert side_by_side([replace(drawn, probs=None)] * 2, 4).probs is None


@pytest.mark.parametrize(("kind", "engine"), [("dynamic", "eager"), ("learned", "eager"), ("longrope", "c")])
def test_texts_up_to_the_limit_of_positions_are_those_of_uncached_passes(kind, engine):
    """Padding behind the last position must not count as a longer text."""
    n_tokens = rope.LIMIT[kind] - rope.PROMPT.shape[1]
    target, draft = rope.pair_of(kind, engine)
    asked = [Request(ids, DecodeSettings(n_tokens)) for ids in (rope.PROMPT[:, :2], rope.PROMPT)]
    rounds = speculative_decode_batch(BatchedModel(target, 2), of_batch(ModelDrafter(draft), 2), asked, 4)
    assert tokens_of(by_text(rounds, 2)[1]) == rope.uncached(kind, n_tokens)


def test_requests_are_checked_before_anything_is_decoded():
    target, _ = pair()
    one, other = requests()[1], requests(WARM)[1]
    with pytest.raises(UsageProblem, match="sampled in one way"):
        next(autoregressive_decode_batch(BatchedModel(target, 2), [one, other]))
    long = Request(one.prompt, DecodeSettings(CONTEXT))
    with pytest.raises(UsageProblem, match="do not fit"):
        next(autoregressive_decode_batch(BatchedModel(target, 2), [one, long]))
    assert list(autoregressive_decode_batch(BatchedModel(target, 2), [])) == []


def test_a_row_judges_with_the_numbers_that_it_has_alone():
    draft = Draft(torch.zeros(3, 2, dtype=torch.long), torch.tensor([2, 1, 0]))
    uniforms = torch.arange(12.0).view(3, 4)
    assert judging(draft, uniforms).tolist() == [[0, 1, 2], [4, 5, 5], [8, 9, 8]]
