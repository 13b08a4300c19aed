"""The drafters on their own and in the loop: what they propose, and what that costs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel
from speclab.models.family import distributions
from tests.decoding import plain_text, speculative_rounds
from tests.heads import keeping
from tests.tiny_models import VOCAB, tiny

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
NO_CHANCES = torch.empty((1, 0))


def ngram(tokens: list[int], longest: int = 4, shortest: int = 2) -> NgramDrafter:
    """A drafter that has taken in `tokens`."""
    drafter = NgramDrafter(longest, shortest)
    drafter.prefill(None, torch.tensor([tokens], dtype=torch.long), Sampling())
    return drafter


def proposed(drafter: NgramDrafter, k: int) -> list[int]:
    """The proposal, after checking that the draft's parts agree."""
    draft = drafter.propose(k, NO_CHANCES)
    assert draft.probs is None, "a copied token is certain"
    assert draft.tokens.dtype == torch.long
    assert draft.tokens.shape == (1, draft.size.item()), "an empty proposal must have the shape (1, 0)"
    return draft.tokens[0].tolist()


def brute_force(tokens: list[int], k: int, longest: int, shortest: int) -> list[int]:
    """The definition: longest n first, then the most recent place, then at most k ids that are really there."""
    for n in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):  # the match ends before the last token
            if tokens[end - n : end] == tokens[-n:]:
                return tokens[end : end + k]
    return []


@settings(max_examples=300)
@given(st.data())
def test_incremental_index_equals_a_search(data):
    """However the text arrives, the index answers as a search of all of it would."""
    small = st.integers(0, data.draw(st.integers(0, 4), label="largest id"))
    tokens = data.draw(st.lists(small, min_size=1, max_size=40), label="tokens")
    longest = data.draw(st.integers(1, 5), label="longest")
    shortest = data.draw(st.integers(1, longest), label="shortest")
    cuts = sorted(data.draw(st.lists(st.integers(1, len(tokens)), max_size=8), label="cuts"))
    edges = [*cuts, len(tokens)]
    drafter = ngram(tokens[: edges[0]], longest, shortest)
    for start, end in zip(edges, [*edges[1:], None], strict=True):
        for k in range(6):
            assert proposed(drafter, k) == brute_force(tokens[:start], k, longest, shortest)
        if end is not None:
            drafter.observe(0, tokens[start:end])


def test_the_search_is_the_definition():
    """The longest match comes first, then the most recent one; it may overlap the end that it is looked up for."""
    assert brute_force([1, 2, 3, 7, 7, 9, 2, 3, 8, 8, 1, 2, 3], 2, 3, 2) == [7, 7]
    assert brute_force([1, 2, 5, 1, 2, 6, 1, 2], 2, 4, 2) == [6, 1]
    assert brute_force([5, 5, 5], 3, 4, 1) == [5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_the_end_of_its_context_a_model_drafts_fewer_tokens_then_none(temperature):
    """Learned positions: a single token too many would be an IndexError, one too few is a shorter draft."""
    context, k, budget = 20, 4, 30
    target, draft = CachedModel(tiny("gpt2", seed=0)), CachedModel(tiny("gpt2", seed=1, n_positions=context))
    n_committed, sizes, tokens = PROMPT.shape[1], [], []
    for round_ in speculative_rounds(target, ModelDrafter(draft), PROMPT, k, budget, Sampling(temperature)):
        if not round_.prefill:
            left = PROMPT.shape[1] + budget - n_committed - 1
            assert round_.n_drafted == min(k, left, max(0, context - n_committed + 1))
            sizes.append(round_.n_drafted)
        n_committed += len(round_.tokens)
        tokens += round_.tokens
    assert {k, 0} <= set(sizes)
    assert any(0 < size < k for size in sizes[:-3]), "near the end of its context the draft is shorter"
    if temperature == 0:
        assert tokens == plain_text(CachedModel(target.model), PROMPT, budget)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_that_the_draft_lacks_have_probability_0_and_can_be_committed(temperature):
    """The target says such ids; they are never proposed, and feeding the draft with them is no error."""
    n_rows = 24
    target, draft = CachedModel(tiny("llama", seed=0)), CachedModel(tiny("llama", seed=0, vocab_size=n_rows), VOCAB)
    assert (draft.vocab_size, draft.n_ids, target.vocab_size) == (n_rows, n_rows, VOCAB)
    drafter, said = keeping(ModelDrafter)(draft), []
    for round_ in speculative_rounds(target, drafter, PROMPT, 3, 60, Sampling(temperature), seed=3):
        said += round_.tokens
    assert max(said) >= n_rows
    proposals = [proposal for _, proposal in drafter.proposed]
    assert max(proposal.tokens.max().item() for proposal in proposals if proposal.tokens.numel()) < n_rows
    for proposal in proposals:
        if proposal.probs is not None:
            assert proposal.probs.shape[-1] == VOCAB
            assert not proposal.probs[..., n_rows:].any()
    if temperature == 0:
        assert said == plain_text(CachedModel(target.model), PROMPT, 60)
    else:
        assert any(proposal.probs is not None for proposal in proposals)


def test_distributions_of_a_draft_end_with_its_ids_and_its_context():
    """What checks and forecasts use: zeros for ids that the draft lacks and for places after its context."""
    draft = tiny("llama", vocab_size=24, max_position_embeddings=12)
    prompt, tokens = PROMPT[0].tolist(), [40, 3, 5, 9, 23, 7, 8, 2, 1]
    rows = distributions(CachedModel(draft), prompt, tokens, Sampling(1.0), VOCAB)
    assert rows.shape == (len(tokens), VOCAB)
    n_places = 12 - len(prompt) + 1
    assert torch.allclose(rows[:n_places].sum(-1), torch.ones(n_places, dtype=rows.dtype))
    assert not rows[n_places:].any()
    assert not rows[:, 24:].any()
