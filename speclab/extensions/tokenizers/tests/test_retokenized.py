"""A draft with another tokenizer: same text, a cache of its own tokens, and what it says."""

import pytest
import torch

from draft_models import ModelDrafter
from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.registry import make, read
from speclab.extensions.tokenizers import kinds
from speclab.extensions.tokenizers.retokenized import RetokenizedDrafter
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from speclab.models.setup import load_setup
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text, speculative_rounds
from tests.llamas import tiny_llama
from tests.models.test_caches import worst_difference
from tests.renumbered import save_renumbered


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


class Watched(RetokenizedDrafter):
    """Compares its cache with a recomputation after every proposal."""

    def lookup(self, k: int) -> list[int]:
        found = super().lookup(k)
        if k:
            assert self.draft.length == len(self._fed)
            assert worst_difference(self.draft, self._fed) < 1e-9
            context = [*self._start, *self.own.encode("".join(OF_TARGET.decode(self._ids)), add_special_tokens=False)]
            assert self._fed[: len(context)] == context
        return found


@pytest.mark.parametrize("kind", ["one starts", "lacks one"])
def test_text_and_cache(kind):
    own, n_drafted = OTHERS[kind], 0
    for seed in range(3):
        prompt = torch.randint(0, 5, (1, 3 + seed), generator=torch.Generator().manual_seed(seed))
        made = drafter_for(own, seed)
        drafter = Watched(made.draft, own, OF_TARGET, 5)
        rounds = list(speculative_rounds(target(), drafter, prompt, 3, 20))
        assert tokens_of(rounds) == plain_text(target(), prompt, 20)
        n_drafted += sum(r.n_drafted for r in rounds)
        assert max(r.n_drafted for r in rounds) <= 3
    assert n_drafted > 10


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


def test_text_that_would_be_cut_otherwise_is_cut_alone():
    """After a committed "a" comes "b", which the tokenizer would make one token with it."""
    drafter = drafter_for(OTHERS["others"])
    drafter._ids = [3, 0]
    assert OF_TARGET.encode("cab") == [3, 2]
    assert drafter._tokenized("b") == [1]
    assert drafter._tokenized("c") == [3]


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


def test_it_is_a_lookup_to_the_lab():
    """So that its forecast, its checks and its replays are those of drafts that the text alone decides."""
    assert not drafter_for(OTHERS["others"]).draws


# --- the lab's own draft, under other ids -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def renumbered(tmp_path_factory) -> str:
    """The lab's draft in a folder, with its tokenizer's ids in another order."""
    return save_renumbered(tmp_path_factory.mktemp("renumbered"))


@pytest.mark.full
def test_the_labs_draft_under_other_ids_says_the_same(renumbered):
    """What the model accepts with the target's own ids is accepted when it is cut anew, but for text that the target
    cut in its own way."""
    setup = load_setup(loading.LAB_TARGET, threads=1, engine="eager")
    with pytest.raises(UsageProblem, match="retokenize:NAME"):
        setup.load_draft(renumbered)
    drafters = [make("model", setup), make(f"retokenize:{renumbered}", setup)]
    assert isinstance(drafters[0], ModelDrafter)
    kept = [0, 0]
    for prompt in prompts.encode(prompts.standard()[:4], setup.tokenizer):
        texts = []
        for i, drafter in enumerate(drafters):
            rounds = list(speculative_rounds(setup.target, drafter, prompt.ids, 4, 24))
            texts.append(tokens_of(rounds))
            kept[i] += sum(r.n_accepted for r in rounds)
        assert texts[0] == texts[1] == plain_text(setup.target, prompt.ids, 24)
    assert kept[1] > 0.85 * kept[0] > 20


def test_names(renumbered):
    read(f"retokenize:{renumbered}")
    assert read(f"retokenize:{renumbered}").name == f"retokenize:{loading.short_name(renumbered)}"
    for kind in (
        "retokenize",
        "retokenize:",
        "retokenize:model",
        "hybrid:suffix+retokenize:a/b",
        "tree:2:retokenize:a/b",
    ):
        with pytest.raises(UsageProblem) as problem:
            read(kind)
        assert "\n" not in str(problem.value)


@pytest.mark.parametrize("kind", ["retokenize", "intersect"])
def test_they_need_models_of_one_text(kind, monkeypatch):
    """The target must be decoder-only, and the family of the draft is asked, too."""
    assert not read(f"{kind}:some/model").any_family
    asked = []
    monkeypatch.setattr(kinds, "check_family", lambda model, what, advice: asked.append(what))
    make(f"{kind}:{loading.LAB_DRAFT}", load_setup(loading.LAB_TARGET, threads=1, engine="eager"))
    assert asked == [f"--draft {kind}"]
