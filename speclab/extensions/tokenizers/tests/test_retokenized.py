"""A draft with another tokenizer, by way of its text: what it says, how far its cache goes back, what is predicted."""

import re
from types import SimpleNamespace

import pytest
import torch

from speclab.core.sampling import GREEDY
from speclab.extensions.tokenizers.retokenized import BEFORE, RetokenizedDrafter
from speclab.extensions.tokenizers.shared_tokens import text_of
from speclab.lab.bench import Bench
from speclab.lab.known_texts import probs_along
from speclab.models import prompts
from speclab.models.cached import CachedModel
from speclab.models.family import Room
from speclab.system.errors import UsageProblem
from speclab.theory.formulas import forecast
from tests.decoding import plain_text, speculative_rounds
from tests.llamas import tiny_llama
from tests.models.test_caches import worst_difference
from tests.small_tokenizers import LINES, byte_level, sentence_piece, with_first_space
from tests.tiny_models import tiny


class Words:
    """A tokenizer of a few strings: of those that fit, the longest one. What it does not know it leaves out."""

    bos_token_id = None

    def __init__(self, *words):
        self.words, self.known = list(words), re.compile("|".join(sorted(map(re.escape, words), key=len, reverse=True)))
        self.eos_token_id = len(words) + 1

    def encode(self, text, **options):
        return [self.words.index(word) for word in self.known.findall(text)]

    def decode(self, ids, **options):
        return "".join(self.words[i] for i in ids if i < len(self.words))


BUDGET, LONGEST = 24, 5  # new tokens of a text, and of a draft
OF_TARGET, OWN = Words("a", "b", "ab", "c", "abc"), Words("a", "b", "c", "bc", "ca")


def drafter_for(own=OWN, seed=5, kind=RetokenizedDrafter, tokenizer=OF_TARGET, n_ids=5):
    """A random model that knows this tokenizer's ids, and one that ends a text."""
    model = tiny_llama(seed, n_layers=2, vocab_size=len(own.words) + 2, dtype=torch.float64)
    return kind(CachedModel(model), own, tokenizer, n_ids)


def prefilled(drafter, ids):
    drafter.prefill(None, torch.tensor([ids]), GREEDY)
    return drafter


class Knows(RetokenizedDrafter):
    """Its draft says what the text goes on with."""

    def _continued(self, context, n):
        return self.own.encode(self.text)[len(context) :][:n]


def test_proposals_are_the_definition():
    """Of greedy text by the draft's own ids, from passes without a cache."""
    drafter = prefilled(drafter_for(), [2, 3, 0])  # ab c a
    for committed in ([1], [3, 0], [4, 2]):
        drafter.observe(0, committed)
        ids, said = OWN.encode(OF_TARGET.decode(drafter._ids)), []
        while len(said) < 3:
            with torch.inference_mode():
                token = int(drafter.draft.model(torch.tensor([ids + said]), use_cache=False).logits[0, -1].argmax())
            if token == OWN.eos_token_id:
                break
            said.append(token)
        words, last = OWN.decode(said), OF_TARGET.decode(drafter._ids[-BEFORE:])
        together = OF_TARGET.encode(last + words)
        n = next((n for n in range(len(together)) if OF_TARGET.decode(together[:n]) == last), None)
        assert drafter.lookup(3) == (OF_TARGET.encode(words) if n is None else together[n:])[:3]


@pytest.mark.parametrize(("n_ids", "expected"), [(5, [1, 4, 2]), (4, [1]), (1, [])])
def test_ids_that_the_target_lacks_end_the_proposal(n_ids, expected):
    """A tokenizer may know more words than the model has logits for: "b", "abc", "ab"."""
    drafter = prefilled(drafter_for(kind=Knows, n_ids=n_ids), [3])
    drafter.text = "cbabcab"
    assert (drafter.lookup(6), drafter.matched) == (expected, len(expected))


def test_the_context_of_the_draft_bounds_prompts_and_ends_proposals():
    """Both are counted in the draft's tokens."""
    drafter = prefilled(drafter_for(), [0] * 4)
    drafter.draft.room = Room(6)
    assert drafter.lookup(9)
    assert drafter.draft.length <= 6
    drafter.observe(0, [0] * 3)
    assert drafter.lookup(9) == []
    drafter.check_prompts([[2, 2, 2]])  # "ab", three times
    drafter.draft.room = Room(5)
    with pytest.raises(UsageProblem, match="6 tokens does not fit the draft model's context of 5"):
        drafter.check_prompts([[0], [2, 2, 2]])


@pytest.mark.parametrize("of_target", [byte_level(), sentence_piece(40), *map(with_first_space, ("prepend", "first"))])
def test_a_draft_that_is_right_proposes_the_targets_own_tokens(of_target):
    """Also where the last tokens begin inside a word, which some tokenizers put a space before."""
    drafter = drafter_for(Words(*set("".join(LINES[:3]))), kind=Knows, tokenizer=of_target, n_ids=len(of_target))
    ids = of_target.encode(" ".join(LINES[:3]), add_special_tokens=False)
    drafter.text, inside = text_of(of_target, ids), 0
    for n in range(1, len(ids) - 2):
        assert prefilled(drafter, ids[:n]).lookup(12)[:1] == ids[n : n + 1], of_target.decode(ids[:n])
        window = ids[:n][-BEFORE:]
        inside += of_target.encode(text_of(of_target, window), add_special_tokens=False) != window
    assert inside > 5 or of_target is byte_level()


def test_a_text_whose_end_would_be_cut_otherwise_gets_no_space_before_it():
    """After "t" comes "he", which would make one token with it; what begins with "▁" would be wrong for certain."""
    tokenizer = with_first_space("prepend")
    drafter = prefilled(drafter_for(tokenizer=tokenizer), tokenizer.convert_tokens_to_ids(["▁", "t"]))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("the", add_special_tokens=False)) == ["▁the"]
    assert "".join(tokenizer.convert_ids_to_tokens(drafter._tokenized("he"))) == "he"


@pytest.mark.parametrize("family", ["llama", "mistral_window", "gemma3_window"])
def test_a_text_that_is_read_otherwise_later(family):
    """Characters come byte by byte, and words begin with a token of their own: the draft's last tokens change. Its
    cache goes back as far as they do, also behind a window, and no text is read anew."""
    of_target, own = byte_level(), sentence_piece()
    model = tiny(family, vocab_size=len(own))
    kept, fresh = (RetokenizedDrafter(CachedModel(model), own, of_target, len(of_target)) for _ in range(2))
    ids, back, prefills, prefill = of_target.encode(" ".join(LINES[2:])), 0, [], kept.draft.prefill
    kept.draft.prefill = lambda prompt: prefills.append(1) or prefill(prompt)
    prefilled(kept, ids[:5])
    for n in range(5, len(ids)):
        before, found = kept._fed, kept.lookup(3)
        assert worst_difference(kept.draft, kept._fed) < 1e-9
        same = (i for i, pair in enumerate(zip(before, kept._fed, strict=False)) if pair[0] != pair[1])
        back = max(back, len(before) - next(same, len(before)))
        assert found == prefilled(fresh, ids[:n]).lookup(3)
        kept.observe(0, [ids[n]])
    assert (back > 3, prefills) == (True, [1])


class Noted(RetokenizedDrafter):
    """Keeps what it proposed, by the number of tokens before it."""

    def lookup(self, k):
        self.proposed[len(self._ids)] = k, (found := super().lookup(k))
        return found


@pytest.mark.parametrize("seed", range(2))
def test_the_forecast_asks_for_the_lengths_that_rounds_ask_for(seed):
    """A proposal of k tokens is not the beginning of a longer one, and near the end of a text rounds ask for fewer."""
    model, drafter = CachedModel(tiny_llama(0, n_layers=2, vocab_size=5, dtype=torch.float64)), drafter_for(seed=seed)
    ids = torch.randint(0, 5, (1, 4), generator=torch.Generator().manual_seed(seed))
    text, bench = plain_text(model, ids, BUDGET), Bench(SimpleNamespace(target=model), {"x": drafter}, BUDGET, seed=0)
    rows = probs_along(bench, LONGEST, "x", GREEDY, prompts.Prompt("code", "", ids), text)
    assert any(row[:k] != row[:LONGEST][:k] for row in rows for k in range(LONGEST))
    for k in range(1, LONGEST + 1):
        noted = Noted(drafter.draft, OWN, OF_TARGET, 5)
        noted.proposed, law = {}, drafter.law(model, ids[0].tolist(), text, GREEDY, k)
        rounds = list(speculative_rounds(model, noted, ids, k, BUDGET))[1:]
        for place, (asked, tokens) in ((n - 4, one) for n, one in noted.proposed.items()):
            assert rows[place][:asked] == [float(i == own) for i, own in zip(tokens, text[place:], strict=False)]
            drawn = law.drawn_from([(place, depth, asked) for depth in range(len(tokens))])
            assert drawn.argmax(-1).tolist() == tokens
        found = forecast(rows, k)
        assert found[1:3] == (len(rounds), sum(one.n_drafted for one in rounds))
        assert found.n_accepted == sum(one.n_accepted for one in rounds)
