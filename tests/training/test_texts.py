"""The texts of a head: what the target writes, what is held out, and the rows and positions that are learned from."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from speclab.models import prompts
from speclab.models.cached import CachedModel
from tests.decoding import plain_text
from tests.small_tokenizers import byte_level
from tests.tiny_models import FAMILIES, VOCAB, tiny
from training import texts
from training.corpus import Document
from training.texts import MARGIN, Prompts, Text, batch, frequent_ids, packed, written, written_after


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _gpt_neo():
    """A model with layers of a window that counts on the shapes of a DynamicCache."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    config = GPTNeoConfig(**sizes, attention_types=[[["global", "local"], 1]], window_size=8, intermediate_size=64)
    return GPTNeoForCausalLM(config).double().eval()


@pytest.mark.parametrize("family", [*sorted(FAMILIES), "gpt_neo"])
def test_answers_side_by_side_are_those_of_each_prompt_alone(family):
    """Of prompts of different lengths, so that some are padded; they end with the first end."""
    model = _gpt_neo() if family == "gpt_neo" else tiny(family)
    lengths = (12, 12, 12) if family == "gpt_neo" else (3, 12, 7)
    given = [torch.randint(3, VOCAB, (n,), generator=draws(n + i)).tolist() for i, n in enumerate(lengths)]
    answers = written_after(model, given, (1e-6,) * 3, 14, frozenset(), draws())
    for ids, answer in zip(given, answers, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*ids, *answer]]), use_cache=False).logits[0, len(ids) - 1 : -1]
        lost = logits.max(-1).values - logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]
        assert lost.max() < 1e-4
    end = answers[0][5]
    ended = written_after(model, given, (1e-6,) * 3, 14, frozenset({end}), draws())
    for found, full in zip(ended, answers, strict=True):
        assert found == full[: full.index(end) + 1 if end in full else len(full)]


def made(n: int, start: int = 0, prompt: int = 5, answer: int = 40) -> list[Text]:
    """Texts of distinct numbers, so that each place of a row tells where it is from."""
    size = prompt + answer
    ids = [list(range(start + i * size, start + (i + 1) * size)) for i in range(n)]
    return [Text(row[:prompt], row[prompt:]) for row in ids]


def test_rows_begin_with_texts():
    seen: set[int] = set()
    rows = packed(made(200), [256, 512, 1024])
    for length, (ids, own) in rows.items():
        assert ids.shape == own.shape == (len(ids), length)
        assert (ids[:, 0] % 45 == 0).all()
        assert torch.equal(own, ids % 45 >= 5), "prompts are not the target's own"
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
    assert all(map(torch.equal, (ids, starts), batch(torch.zeros(0), rows, 0.0, 1 / 4, 0, 0, 1024)))
    assert not torch.equal(starts, batch(torch.zeros(0), rows, 0.0, 1 / 4, 1, 0, 1024)[1])


def test_the_most_frequent_ids():
    some = [Text([9], [7, 7, 7, 2]), Text([9], [2, 5])]
    assert frequent_ids(some, 12, 4).tolist() == [0, 2, 5, 7], "of those that never come the lowest one; not a prompt's"


def test_every_text_of_the_lab_is_measured_wherever_it_stands():
    found = set(texts.measured_texts())
    assert {text for _, text in prompts.standard()} < found
    for path in prompts.PROMPTS.glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            said = entry.get("messages", [{"content": entry.get("prompt")}])
            assert {message["content"] for message in said} < found
    for whole in found:
        assert texts.is_measured(whole.upper())
        assert texts.is_measured(f"Before it {whole} and behind it") or len(whole.split()) < texts.RUN_OF_WORDS
    assert not texts.is_measured("a text of its own that says what nobody has ever written in these files before")


def test_no_prompt_that_is_measured_is_learned_from():
    _, measured = prompts.standard()[0]
    sources = [f'"""{text}\n\n\n"""' for text in (measured, "One.\n\nTwo three four five.")]
    source = Prompts(byte_level(), tiny("llama"), [Document("a.py", text) for text in sources], 0)
    found = [source.tokenizer.decode(ids) for _ in range(40) for ids in source.some(4, draws())]
    assert any("Two three" in text for text in found)
    assert not any(texts.is_measured(text) for text in found)


def test_a_prompt_that_is_held_out_is_not_learned_from(monkeypatch):
    monkeypatch.setattr(texts, "HELD_OUT", 2)
    monkeypatch.setattr(texts, "ANSWER", 60)
    given = [[i % 40, 1 + i % 7] for i in range(200)]
    left = iter([*given[:2], given[0], *given])
    source = SimpleNamespace(longest=2, some=lambda n, draws: [next(left) for _ in range(n)])
    monkeypatch.setattr(texts, "Prompts", lambda *_: source)
    target = tiny("llama", dtype=torch.float32)
    held_out, answers = written(target, SimpleNamespace(eos_token_id=None), [], [256], 0.0, 0)
    assert [text.prompt for text in held_out] == given[:2]
    assert not any(text.prompt in given[:2] for text in answers)
    assert held_out[0].answer == plain_text(CachedModel(target), torch.tensor([given[0]]), 60)
    assert packed(answers, [256])
