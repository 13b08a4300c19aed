"""A draft with another tokenizer: where its text is cut, how far its cache goes back, what the lab predicts."""

from types import SimpleNamespace

import pytest
import torch

from speclab.core.sampling import Sampling
from speclab.drafts.registry import check_prompts
from speclab.extensions.tokenizers.retokenized import BEFORE, RetokenizedDrafter
from speclab.extensions.tokenizers.shared_tokens import text_of
from speclab.extensions.tokenizers.tests.test_retokenized import OF_TARGET, OTHERS, Words, drafter_for, target
from speclab.lab.bench import Bench
from speclab.lab.known_texts import accept_probs
from speclab.models import prompts
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem
from speclab.theory.forecast import forecast
from tests.decoding import plain_text, speculative_rounds
from tests.models.test_caches import worst_difference
from tests.small_tokenizers import LINES, byte_level, sentence_piece, with_first_space
from tests.tiny_models import tiny


class Characters:
    """A tokenizer whose ids are those of Unicode."""

    bos_token_id = eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int], **options) -> str:
        return "".join(map(chr, token_ids))


class Knows(RetokenizedDrafter):
    """Its draft says what the text goes on with."""

    text = ""

    def _continued(self, context: list[int], n: int) -> list[int]:
        return self.own.encode(self.text)[len(context) :][:n]


@pytest.mark.parametrize(
    "tokenizer",
    [byte_level(), sentence_piece(40), with_first_space("prepend"), with_first_space("first")],
    ids=["bytes", "always", "prepend", "first"],
)
def test_a_draft_that_is_right_proposes_the_targets_own_tokens(tokenizer):
    """Also where the last tokens begin inside a word, which some tokenizers put a space before."""
    made = drafter_for(OTHERS["others"])
    drafter = Knows(made.draft, Characters(), tokenizer, len(tokenizer))
    ids = tokenizer.encode(" ".join((LINES[0], LINES[1], LINES[2])), add_special_tokens=False)
    drafter.text = text_of(tokenizer, ids)
    inside = 0
    for n in range(1, len(ids) - 2):
        drafter.prefill(None, torch.tensor([ids[:n]]), Sampling())
        assert drafter.lookup(12)[:1] == ids[n : n + 1], tokenizer.decode(ids[:n])
        window = ids[:n][-BEFORE:]
        inside += tokenizer.encode(text_of(tokenizer, window), add_special_tokens=False) != window
    assert inside > 5 or tokenizer is byte_level()


def test_a_text_whose_end_would_be_cut_otherwise_gets_no_space_before_it():
    """After "t" comes "he", which would make one token with it; what begins with "▁" would be wrong for certain."""
    tokenizer = with_first_space("prepend")
    drafter = Knows(drafter_for(OTHERS["others"]).draft, Characters(), tokenizer, len(tokenizer))
    drafter._ids = [tokenizer.convert_tokens_to_ids(name) for name in ("▁", "t")]
    whole = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(whole) == ["▁the"]
    assert "".join(tokenizer.convert_ids_to_tokens(drafter._tokenized("he"))) == "he"


# --- what the draft has read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3_window"])
def test_a_text_that_is_read_otherwise_later(family):
    """Characters come byte by byte, and words begin with a token of their own: the draft's last tokens change."""
    of_target, own = byte_level(), sentence_piece()
    model = tiny(family, vocab_size=len(own))
    kept, fresh = (RetokenizedDrafter(CachedModel(model), own, of_target, len(of_target)) for _ in range(2))
    ids, crop = of_target.encode(" ".join(LINES[2:])), kept.draft.crop

    def watched_crop(length: int) -> None:
        crop(length)
        assert worst_difference(kept.draft, kept._fed[:length]) < 1e-9

    kept.draft.crop = watched_crop
    for start in (0, len(ids) // 2):
        kept.prefill(None, torch.tensor([ids[start : start + 5]]), Sampling())
        back = 0
        for n in range(start + 5, len(ids)):
            before = kept._fed
            found = kept.lookup(3)
            assert worst_difference(kept.draft, kept._fed) < 1e-9
            same = next(
                (i for i, pair in enumerate(zip(before, kept._fed, strict=False)) if pair[0] != pair[1]), len(before)
            )
            back = max(back, len(before) - same)
            fresh.prefill(None, torch.tensor([ids[start:n]]), Sampling())
            assert found == fresh.lookup(3)
            kept.observe(0, [ids[n]])
        assert back > 3


def test_no_text_is_read_anew():
    """A cache keeps everything, also behind a window, and goes back as far as the text changes."""
    passes = {}
    for family in ("llama", "mistral_window"):
        of_target, own = byte_level(), sentence_piece()
        drafter = RetokenizedDrafter(CachedModel(tiny(family, vocab_size=len(own))), own, of_target, len(of_target))
        prefills, right = [], drafter.draft.prefill
        drafter.draft.prefill = lambda *a, right=right, seen=prefills, **more: seen.append(1) or right(*a, **more)
        ids = of_target.encode(" ".join(LINES[2:]))
        drafter.prefill(None, torch.tensor([ids[:20]]), Sampling())
        for token in ids[20:]:
            drafter.lookup(3)
            drafter.observe(0, [token])
        passes[family] = len(prefills)
    assert passes == {"llama": 1, "mistral_window": 1}


def test_prompts_are_counted_in_the_drafts_tokens():
    """Six of the target's tokens are twelve of the draft's."""
    drafter = drafter_for(OTHERS["lacks one"])
    drafter.own = Words("a", "b")
    prompt = prompts.Prompt("code", "", torch.tensor([[2, 2, 2, 2, 2, 2]]))  # "ab", six times
    drafter.draft.max_length = 11
    with pytest.raises(UsageProblem, match="12 of the draft's tokens and the draft model's context only 11"):
        check_prompts(target(), [drafter], [prompt], 1)
    drafter.draft.max_length = 12
    check_prompts(target(), [drafter], [prompt], 9)


# --- what the lab predicts --------------------------------------------------------------------------------------------

BUDGET, LONGEST = 24, 5


class Noted(RetokenizedDrafter):
    """Keeps what it proposed, by the number of new tokens before it."""

    def prefill(self, target, prompt, sampling):
        super().prefill(target, prompt, sampling)
        self.n_prompt, self.proposed = prompt.shape[1], {}

    def propose(self, k, uniforms):
        draft = super().propose(k, uniforms)
        self.proposed[len(self._ids) - self.n_prompt] = k, draft.tokens[0].tolist()
        return draft


MORE = [pytest.param(name, marks=pytest.mark.full) for name in ("the same", "lacks one")]


@pytest.mark.parametrize("kind", ["others", *MORE])
def test_the_forecast_asks_for_the_lengths_that_rounds_ask_for(kind):
    """A proposal of k tokens is not the beginning of a longer one, and near the end of a text rounds ask for fewer."""
    differ, model = 0, target()
    for seed in range(2):
        made = drafter_for(OTHERS[kind], seed)
        drafter = Noted(made.draft, made.own, OF_TARGET, 5)
        bench = Bench(SimpleNamespace(target=model), {"own": drafter}, BUDGET, seed=0)
        ids = torch.randint(0, 5, (1, 4), generator=torch.Generator().manual_seed(seed))
        text = plain_text(model, ids, BUDGET)
        rows = accept_probs(bench, "own", prompts.Prompt("code", "", ids), text, Sampling(), LONGEST)
        assert len(rows) == BUDGET
        differ += sum(list(row[:k]) != list(row[:LONGEST])[:k] for row in rows for k in range(LONGEST))
        for k in range(1, LONGEST + 1):
            rounds = list(speculative_rounds(model, drafter, ids, k, BUDGET))[1:]
            for place, (asked, tokens) in drafter.proposed.items():
                assert list(rows[place][:asked]) == [
                    float(token == own) for token, own in zip(tokens, text[place:], strict=False)
                ]
            law = made.law(model, ids[0].tolist(), text, Sampling(), k)
            for place, (asked, tokens) in drafter.proposed.items():
                drawn = law.drawn_from([(place, depth, asked) for depth in range(len(tokens))])
                assert drawn.argmax(-1).tolist() == tokens
            found = forecast(rows, k)
            assert found.n_rounds == len(rounds)
            assert found.n_drafted == sum(round_.n_drafted for round_ in rounds)
            assert found.n_accepted == sum(round_.n_accepted for round_ in rounds)
    assert differ > 0 or kind != "others"
