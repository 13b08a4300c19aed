"""A draft with another tokenizer: same text, a cache of its own tokens, and what it says."""

import pytest
import torch

from speclab.core.sampling import Sampling
from speclab.drafts.registry import make, read
from speclab.extensions.tokenizers import register
from speclab.extensions.tokenizers.retokenized import RetokenizedDrafter
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup, load_setup
from speclab.system.errors import UsageProblem
from tests.llamas import tiny_llama


class Words:
    """A tokenizer of a few strings: of those that fit, the longest one first. An id ends the text."""

    def __init__(self, *words: str, starts: bool = False):
        self.words = list(words)
        self.bos_token_id, self.eos_token_id = (len(words) if starts else None), len(words) + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        while text:
            fitting = [word for word in self.words if text.startswith(word)]
            if not fitting:
                text = text[1:]  # a character that it does not know
                continue
            best = max(fitting, key=len)
            ids.append(self.words.index(best))
            text = text[len(best) :]
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False, **options) -> str:
        return "".join(self.words[i] for i in token_ids if i < len(self.words))


OF_TARGET = Words("a", "b", "ab", "c", "abc")
OTHERS = {
    "others": Words("a", "b", "c", "bc", "ca"),
    "the same": Words(*OF_TARGET.words),
    "one starts": Words("c", "ba", "b", "a", starts=True),
    "lacks one": Words("a", "ab"),
}


def drafter_for(own: Words, seed: int = 5) -> RetokenizedDrafter:
    """A random model that knows this tokenizer's ids, and those that start and end a text."""
    model = tiny_llama(seed, n_layers=2, vocab_size=len(own.words) + 2, dtype=torch.float64)
    return RetokenizedDrafter(CachedModel(model), own, OF_TARGET, len(OF_TARGET.words))


def target() -> CachedModel:
    return CachedModel(tiny_llama(0, n_layers=2, vocab_size=5, dtype=torch.float64))


def test_proposals_are_the_definition():
    """Of greedy text by the draft's own ids, from passes without a cache."""
    own = OTHERS["others"]
    drafter = drafter_for(own)
    drafter.prefill(None, torch.tensor([[2, 3, 0]]), Sampling())  # ab c a
    for committed in ([1], [3, 0], [4, 2]):
        drafter.observe(0, committed)
        text = OF_TARGET.decode(drafter._ids)
        ids, said = own.encode(text), []
        for _ in range(3):
            with torch.inference_mode():
                token = int(drafter.draft.model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
            if token == own.eos_token_id:
                break
            ids, said = [*ids, token], [*said, token]
        words, last = own.decode(said), drafter._ids[-8:]
        together = OF_TARGET.encode(OF_TARGET.decode(last) + words)
        n = next((n for n in range(len(together)) if OF_TARGET.decode(together[:n]) == OF_TARGET.decode(last)), None)
        expected = OF_TARGET.encode(words) if n is None else together[n:]
        assert drafter.lookup(3) == expected[:3]


def test_ids_that_the_target_lacks_end_the_proposal():
    """A tokenizer may know more words than the model has logits for."""

    class Says(RetokenizedDrafter):
        def _continued(self, context: list[int], n: int) -> list[int]:
            return self.own.encode("babcab")

    made = drafter_for(OTHERS["others"])
    for n_ids, expected in ((5, [1, 4, 2]), (4, [1]), (1, [])):  # "b", "abc", "ab"
        drafter = Says(made.draft, made.own, OF_TARGET, n_ids)
        drafter.prefill(None, torch.tensor([[3]]), Sampling())
        assert drafter.lookup(4) == expected
        assert drafter.matched == len(expected)


def test_the_context_of_the_draft_ends_the_proposals():
    drafter = drafter_for(OTHERS["others"])
    drafter.draft.max_length = 6
    drafter.prefill(None, torch.tensor([[0, 0, 0, 0]]), Sampling())
    assert drafter.lookup(9)
    assert drafter.draft.length <= 6
    drafter.observe(0, [0, 0, 0])
    assert drafter.lookup(9) == []


def test_names():
    assert read(f"retokenize:{loading.LAB_DRAFT}").name == "retokenize:models/lab-pair/draft"
    wrong = [f"{word}{rest}" for word in ("retokenize", "intersect") for rest in ("", ":")]
    wrong += ["hybrid:suffix+retokenize:a/b", "tree:2:retokenize:a/b", "dial:0.5:intersect:a/b"]
    for kind in wrong:
        with pytest.raises(UsageProblem) as problem:
            read(kind)
        assert "\n" not in str(problem.value)


@pytest.mark.parametrize("kind", ["retokenize", "intersect"])
def test_they_need_models_of_one_text(kind, monkeypatch):
    """The target must be decoder-only, and the family of the draft is asked, too."""
    assert not read(f"{kind}:some/model").any_family
    asked, cached = [], Setup.cached
    monkeypatch.setattr(register, "check_family", lambda model, what, advice: asked.append(what))
    monkeypatch.setattr(Setup, "cached", lambda *given, **how: asked.append(how) or cached(*given, **how))
    make(f"{kind}:{loading.LAB_DRAFT}", load_setup(loading.LAB_TARGET, threads=1, engine="eager"))
    assert asked == [f"--draft {kind}", {"graphs": False}], "its passes have any width"
