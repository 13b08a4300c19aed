"""What the caches hold and what the models are fed, round by round.

The text alone does not show a cache that is repaired by luck or a token that is paid for twice; these tests do.
"""

import copy

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from draft_models import ModelDrafter
from speclab.core.rounds import AcceptResult, Round
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.decoding import keys_and_values, poison, speculative_rounds
from tests.tiny_models import CLOSE, DTYPE_ON, VOCAB, on_engine, perturbed, tiny

N_NEW = 40
PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
WARM = Sampling(temperature=0.8)
FAMILIES = ["llama", "gpt2", "mistral_window", "gemma3_window"]
ALL_FAMILIES = [*FAMILIES, "c qwen2", "c gpt2", "c mistral_window", "c gemma3_window"]


def model_of(family: str) -> tuple[str, PreTrainedModel]:
    """The engine, and the model in the number format that it is tried in."""
    engine, _, name = family.rpartition(" ")
    engine = engine or "eager"
    return engine, tiny(name, dtype=DTYPE_ON[engine])


class Run:
    """A target, a draft that is often right, and a decoding that can be looked at after every round.

    "c llama" is a llama on the engine c in float32, "llama" one on the eager engine in float64.
    """

    def __init__(self, family: str, noise: float = 0.12, cached=CachedModel, drafter=ModelDrafter):
        engine, model = model_of(family)
        self.target = cached(model, fast=on_engine(engine, model))
        other = perturbed(model, noise)
        self.draft = cached(other, fast=on_engine(engine, other))
        self.close = CLOSE[model.dtype]
        self.drafter = drafter(self.draft)
        self.rounds: list[Round] = []
        self.ids = PROMPT[0].tolist()  # prompt and everything committed

    def decode(self, k: int = 4, sampling: Sampling = Sampling(), limit: int = N_NEW):
        for r in speculative_rounds(self.target, self.drafter, PROMPT, k, limit, sampling):
            self.rounds.append(r)
            self.ids += r.tokens
            yield r

    def check_variety(self) -> None:
        checked = [r for r in self.rounds if not r.prefill and r.n_drafted > 1]
        assert any(r.n_accepted == 0 for r in checked), "nothing was rejected at once"
        assert any(0 < r.n_accepted < r.n_drafted for r in checked), "nothing was partly accepted"
        assert any(r.n_accepted == r.n_drafted for r in checked), "nothing was fully accepted"


# --- The caches equal a recomputation --------------------------------------------------------------------------------


def worst_difference(cached: CachedModel, ids: list[int]) -> float:
    """Largest difference between the cache and one recomputed over `ids` from scratch, in any key or value, as a share
    of the largest of them."""
    fresh = DynamicCache(config=cached.model.config)
    for layer in fresh.layers:  # without this a sliding-window layer throws old entries away
        if hasattr(layer, "activate_past_recording"):
            layer.activate_past_recording()
    with torch.inference_mode():
        cached.model(torch.tensor([ids]), past_key_values=fresh, use_cache=True)
    worst = 0.0
    for (keys, values), right in zip(keys_and_values(cached), fresh.layers, strict=True):
        n_held = keys.shape[-2]
        window = getattr(right, "sliding_window", None)
        assert n_held == len(ids) if window is None else n_held >= min(len(ids), window - 1)
        for mine, theirs in ((keys, right.keys), (values, right.values)):
            off = (mine - theirs[..., -n_held:, :]).abs().max() / theirs.abs().max()
            worst = max(worst, off.item() if off == off else float("inf"))
    return worst


@pytest.mark.parametrize("k", [0, 1, 2, 7])
def test_lengths_at_every_draft_length(k):
    """The invariant holds at k = 0, where the draft falls behind, and where k is larger than what is left."""
    run = Run("gpt2")
    for r in run.decode(k):
        assert run.target.length == len(run.ids) - 1
        if k == 0:
            assert run.draft.length == PROMPT.shape[1], "nothing was drafted, so nothing had to be caught up with"
        elif not r.prefill and r.n_drafted > 0:  # all that was fed and kept; a last drafted token is never fed
            assert run.draft.length == len(run.ids) - 1 - (r.n_accepted == r.n_drafted)


@pytest.mark.parametrize(("n_accepted", "ends"), [(2, (2, 2)), (4, (4, 3))])
def test_the_table_of_lengths_in_cached_py(n_accepted, ends):
    """With L committed tokens before a round of k = 4: lengths less L after each step."""
    run = Run("llama")
    lengths, before = [], PROMPT.shape[1] + 1

    def accept(draft, logits, sampling, uniforms):
        lengths.append((run.target.length - before, run.draft.length - before))
        return AcceptResult(torch.tensor([n_accepted]), torch.tensor([0]))

    rounds = speculative_rounds(run.target, run.drafter, PROMPT, 4, 20, accept=accept)
    next(rounds)
    assert (run.target.length - before, run.draft.length - before) == (-1, -1)
    assert len(next(rounds).tokens) == n_accepted + 1
    assert lengths == [(4, 3)], "after the pass that verifies"
    assert (run.target.length - before, run.draft.length - before) == ends


# --- Rejected slots are never read -----------------------------------------------------------------------------------


class Poisoned(CachedModel):
    """Writes NaN over what a rollback is about to drop, in the storage that the kept part shares."""

    n_poisoned = 0

    def crop(self, length: int) -> None:
        dropped = self.length - length
        if dropped > 0:
            poison(self, dropped)
            self.n_poisoned += dropped
        super().crop(length)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_caches_equal_a_recomputation_after_every_round(family, sampling):
    """A rollback that is off by one, or a token fed at the wrong position, leaves other keys and values behind.

    Rejected slots are poisoned: one read of them would make every later logit NaN.
    """
    run = Run(family, cached=Poisoned)
    for _ in run.decode(sampling=sampling):
        assert run.target.length == len(run.ids) - 1, "the last committed token is never in the cache"
        assert run.draft.length <= run.target.length, "the draft holds a prefix of that"
        assert worst_difference(run.target, run.ids[:-1]) < run.close
        assert worst_difference(run.draft, run.ids[: run.draft.length]) < run.close
    run.check_variety()
    assert min(run.target.n_poisoned, run.draft.n_poisoned) > 5


def test_poison_would_be_seen():
    """The test above can fail: a rollback that keeps one slot too many hits the poison."""

    class KeepsOne(Poisoned):
        def crop(self, length: int) -> None:
            extra = self.length > length
            super().crop(length)
            if extra:  # look one slot past the live end of the same storage
                for layer in self.backend._cache.layers:
                    shape = list(layer.keys.shape)
                    shape[-2] += 1
                    layer.keys = layer.keys.as_strided(shape, layer.keys.stride(), layer.keys.storage_offset())
                    layer.values = layer.values.as_strided(shape, layer.values.stride(), layer.values.storage_offset())
                self.length += 1

    run = Run("llama", cached=KeepsOne, drafter=lambda draft: ModelDrafter(CachedModel(draft.model)))
    with pytest.raises(EnvironmentProblem, match="finite"):
        list(run.decode())


# --- Nothing is fed twice --------------------------------------------------------------------------------------------


class Diary:
    """Every block a model is fed, with the live length it starts at and the text it is read after."""

    def __init__(self, cached: CachedModel):
        self.blocks: list[tuple[int, list[int]]] = []
        self.contexts: list[tuple[int, ...]] = []  # one per fed token: all the model sees there, itself included
        self._cached, self._live = cached, []
        cached.model.register_forward_pre_hook(self._note, with_kwargs=True)
        if cached.fast:
            self._run, cached.fast = cached.fast.run, copy.copy(cached.fast)
            cached.fast.run = self._note_c

    def _note(self, module, args, kwargs) -> None:
        held = kwargs["past_key_values"].get_seq_length()
        self._write(kwargs["input_ids"][0].tolist(), held)

    def _note_c(self, texts, token: Tensor, ids: Tensor, **more) -> tuple:
        """Positions, rows and what is read follow each other, from the length of the text on."""
        m, first = ids.shape[1], int(token[0, 2])
        assert token[:m].tolist() == [[0, row, row, row + 1] for row in range(first, first + m)]
        self._write(ids[0].tolist(), first)
        return self._run(texts, token, ids, **more)

    def _write(self, tokens: list[int], held: int) -> None:
        start = self._cached.length if held else 0  # a new prompt forgets what was held
        assert held == start, f"the cache holds {held} tokens, its keeper says {start}"
        self.blocks.append((start, tokens))
        self._live = self._live[:start] + tokens
        self.contexts += [tuple(self._live[: end + 1]) for end in range(start, len(self._live))]


@pytest.mark.parametrize(
    ("family", "sampling"), [("llama", Sampling()), ("mistral_window", WARM), ("c llama", WARM)], ids=str
)
def test_nothing_is_fed_twice(family, sampling):
    """The lab's one invariant: every committed token but the last goes through each model once, after its own text."""
    run = Run(family)
    target_diary, draft_diary = Diary(run.target), Diary(run.draft)
    for _ in run.decode(sampling=sampling):
        pass
    run.check_variety()
    text, n_prompt = run.ids, PROMPT.shape[1]

    assert target_diary.blocks[0] == (0, text[:n_prompt])
    assert len(target_diary.blocks) == len(run.rounds) == run.target.n_passes
    at = n_prompt
    for (start, tokens), r in zip(target_diary.blocks[1:], run.rounds[1:], strict=True):
        assert start == at, "a block starts at the live length"
        assert len(tokens) == r.n_drafted + 1
        assert tokens[: r.n_accepted + 1] == text[at : at + r.n_accepted + 1], "the last committed, then the accepted"
        at += len(r.tokens)

    for end in range(1, len(text)):
        assert target_diary.contexts.count(tuple(text[:end])) == 1, f"position {end - 1} of the target"
        assert draft_diary.contexts.count(tuple(text[:end])) <= 1, f"position {end - 1} of the draft"
    assert tuple(text) not in target_diary.contexts + draft_diary.contexts, "nobody needs what follows the last token"
    for end in range(1, run.draft.length + 1):
        assert draft_diary.contexts.count(tuple(text[:end])) == 1, f"the draft's cache holds position {end - 1}"
    assert len(set(draft_diary.contexts)) == len(draft_diary.contexts), "the draft computed something twice"


def test_draft_is_fed_its_last_token_after_full_acceptance():
    """The last drafted token was never fed when it was proposed; after full acceptance the draft must catch up."""
    run = Run("llama", noise=0.0)
    diary = Diary(run.draft)
    for r in run.decode(k=3, limit=22):  # 1 + 5 rounds of 4 + 1 that drafts nothing
        assert r.n_accepted == r.n_drafted
    at = PROMPT.shape[1]
    expected = [(0, run.ids[:at])]
    missing = 1
    for r in run.rounds[1:]:
        if r.n_drafted:
            expected.append((at - missing + 1, run.ids[at - missing + 1 : at + 1]))  # catch-up of 1, then always of 2
            expected += [(at + i, run.ids[at + i : at + i + 1]) for i in range(1, r.n_drafted)]
            missing = 2
        at += len(r.tokens)
    assert diary.blocks == expected
    assert [len(tokens) for _, tokens in diary.blocks[1:]] == [1, 1, 1] + [2, 1, 1] * 4


# --- The cached model alone ------------------------------------------------------------------------------------------


def test_a_cache_is_cut_to_no_more_than_it_holds():
    """The library does not check its own crop."""
    cached = CachedModel(tiny("llama"))
    cached.prefill(PROMPT)
    with pytest.raises(RuntimeError, match="cannot crop"):
        cached.crop(PROMPT.shape[1] + 1)
    cached.forward(PROMPT[:, :3])
    with pytest.raises(AssertionError, match="drafted token 2 of 2"):
        cached.keep([0, 2])
