"""The texts of a head: what the target writes, what is held out, and the rows and positions that are learned from."""

from types import SimpleNamespace

import pytest
import torch

from speclab.models import prompts
from speclab.models.cached import CachedModel
from tests.decoding import plain_text
from tests.small_tokenizers import byte_level
from tests.tiny_models import VOCAB, tiny
from training import texts
from training.corpus import Document
from training.texts import MARGIN, Prompts, Text, Texts, batch, covered, frequent_ids, packed, written_after


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_window"])
def test_answers_side_by_side_are_those_of_each_prompt_alone(family):
    """Of prompts of different lengths, so that some are padded."""
    model = tiny(family)
    given = [torch.randint(3, VOCAB, (n,), generator=draws(n)).tolist() for n in (3, 11, 7)]
    answers = written_after(model, given, (1e-6,) * 3, 14, frozenset(), draws())
    for ids, answer in zip(given, answers, strict=True):
        assert answer == plain_text(CachedModel(model), torch.tensor([ids]), 14)


def test_an_answer_ends_with_its_first_end():
    model, given = tiny("llama"), [[5, 6, 7], [8, 9, 10]]
    whole = written_after(model, given, (1e-6,) * 2, 12, frozenset(), draws())
    end = whole[0][5]
    for found, full in zip(written_after(model, given, (1e-6,) * 2, 12, frozenset({end}), draws()), whole, strict=True):
        n = full.index(end) + 1 if end in full else len(full)
        assert found == full[:n]


def made(n: int, start: int = 0, prompt: int = 5, answer: int = 40) -> list[Text]:
    """Texts of distinct numbers, so that each place of a row tells where it is from."""
    size = prompt + answer
    ids = [tuple(range(start + i * size, start + (i + 1) * size)) for i in range(n)]
    return [Text(row[:prompt], row[prompt:]) for row in ids]


def test_rows_begin_with_texts_and_more_texts_change_none():
    some = made(200)
    rows, more = packed(some, [256, 512, 1024]), packed([*some, *made(90, 10**6)], [256, 512, 1024])
    seen: set[int] = set()
    for length, (ids, written) in rows.items():
        assert ids.shape == written.shape == (len(ids), length)
        assert (ids[:, 0] % 45 == 0).all()
        assert torch.equal(written, ids % 45 >= 5), "prompts are not the target's own"
        assert torch.equal(more[length][0][: len(ids)], ids)
        assert seen.isdisjoint(ids.flatten().tolist()), "the target reads each text once"
        seen |= set(ids.flatten().tolist())
    tokens = {length: ids.numel() for length, (ids, _) in rows.items()}
    assert tokens[256] > tokens[512] > tokens[1024] > 0


def test_chains_start_where_the_target_writes():
    """Of two answers and much prompt: every chain's first token is the target's own while there are enough of them."""
    rows = packed(made(40, prompt=150, answer=106), [256])
    ids, starts = batch(torch.zeros(0), rows, 0.0, 1 / 4, 0, 0, 1024)
    assert ids.shape == (4, 256)
    assert starts.shape == (4, 64)
    assert (ids.gather(1, starts + 2) % 256 >= 150).all()
    assert starts.max() < 256 - MARGIN
    assert all(len(set(row)) == len(row) for row in starts.tolist())
    again = batch(torch.zeros(0), rows, 0.0, 1 / 4, 0, 0, 1024)
    assert torch.equal(ids, again[0])
    assert torch.equal(starts, again[1])
    assert not torch.equal(starts, batch(torch.zeros(0), rows, 0.0, 1 / 4, 1, 0, 1024)[1])


@pytest.mark.parametrize("tokens", [256, 1000])
def test_a_share_of_the_rows_is_training_text(tokens):
    """Also where a step has a single row. Of 400 steps, 4.5 standard deviations: one false alarm in 100,000."""
    rows = packed(made(60, start=10**6), [256, 512])
    steps = [batch(torch.zeros(2000, dtype=torch.int32), rows, 0.5, 0.1, step, 0, tokens)[0] for step in range(400)]
    for length in rows:
        shares = torch.cat([ids[:, 0] == 0 for ids in steps if ids.shape[1] == length]).float()
        assert abs(shares.mean() - 0.5) < 4.5 * 0.5 / len(shares) ** 0.5
    cut = {int(row[0]) for step in range(100) for row in batch(torch.arange(600), rows, 1.0, 0.1, step, 0, 256)[0]}
    assert cut <= {0, 256}, "pieces of text come again"


def test_the_most_frequent_ids_and_what_they_cover():
    some = [Text((9,), (7, 7, 7, 2)), Text((9,), (2, 5))]
    assert frequent_ids(some, 12, 4).tolist() == [0, 2, 5, 7], "of those that never come the lowest one; not a prompt's"
    assert covered(some, torch.tensor([2, 7])) == pytest.approx(5 / 6)


@pytest.fixture
def prompts_of():
    """Prompts from a tiny tokenizer, without a template."""
    tokenizer = byte_level()

    def make(given=(), documents=()):
        found = documents or [Document("a.py", '"""One.\n\nTwo three four five.\n"""\nx = 1\n' * 4)]
        return Prompts(tokenizer, tiny("llama"), list(found), list(given), 0)

    return make


def test_no_prompt_that_is_measured_is_learned_from(prompts_of):
    _, measured = prompts.standard()[0]
    source = prompts_of(given=[measured, "def other(x):"])
    found = [ids for _ in range(6) for ids in source.some(4, draws())]
    own, other = source._encoded([measured, "def other(x):"], chat=False)
    assert own not in found
    assert other in found


def test_a_prompt_that_is_held_out_is_not_learned_from(monkeypatch):
    monkeypatch.setattr(texts, "HELD_OUT", 2)
    monkeypatch.setattr(texts, "ANSWER", 60)
    given = [[i % 40, 1 + i % 7] for i in range(200)]
    left = iter([*given[:2], given[0], *given])
    source = SimpleNamespace(longest=2, some=lambda n, draws: [next(left) for _ in range(n)])
    target = tiny("llama", dtype=torch.float32)
    found = Texts(target, SimpleNamespace(eos_token_id=None), lambda writer: source, 0)
    found.prepare([256])
    kept_out = {text.prompt for text in found.held_out}
    assert kept_out == {(0, 1), (1, 2)}
    assert kept_out.isdisjoint(text.prompt for text in found.answers)
    assert packed(found.answers, [256])
