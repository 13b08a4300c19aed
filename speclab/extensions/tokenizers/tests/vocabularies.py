"""Drafts whose vocabulary is not the target's: which ids mean the same, and models that think alike."""

import copy

import torch

from speclab.core.sampling import Sampling
from speclab.extensions.tokenizers.intersect import IntersectDrafter, intersect
from speclab.extensions.tokenizers.shared_tokens import SharedTokens
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from tests.llamas import tiny_llama
from tests.small_tokenizers import byte_level, sentence_piece
from tests.tiny_models import perturbed

OVERLAP = SharedTokens([0, 1, 2, 5, 7, 8, 9, 11], [3, 1, 6, 0, 9, 2, 8, 5], 12, 10)


class Pairs:
    """Reads a shared token as its pair, and any other one as two ids of the draft."""

    def __init__(self, shared: SharedTokens, n_draft: int):
        self.pairs = dict(zip(shared.target_ids, shared.draft_ids, strict=True))
        others = [i for i in range(n_draft) if i not in shared.draft_ids]
        self.other = [others[0], shared.draft_ids[0]]

    def token(self, i: int) -> list[int]:
        return [self.pairs[i]] if i in self.pairs else self.other

    def prompt(self, ids: list[int]) -> list[int]:
        return [own for i in ids for own in self.token(i)]


def cousin(target, shared: SharedTokens, n_ids: int, noise: float = 0.05):
    """A draft of another vocabulary that thinks as the target does: shared tokens have the target's rows."""
    config = copy.deepcopy(target.config)
    config.vocab_size = n_ids
    with torch.random.fork_rng():
        torch.manual_seed(9)
        other = type(target)(config).to(target.dtype).eval()
    with torch.no_grad():
        for (name, weight), own in zip(other.named_parameters(), perturbed(target, noise).parameters(), strict=True):
            if "embed" in name or "head" in name:
                weight[shared.draft_ids] = own[shared.target_ids]
            else:
                weight.copy_(own)
    return other


def setup_with(tokenizer, sampling: Sampling = Sampling(), seed: int = 0) -> Setup:
    """A target that hardly reads what stands before the last token, so that a text may be cut in another way."""
    model = tiny_llama(seed, vocab_size=len(tokenizer))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    target = CachedModel(model, len(tokenizer))
    return Setup(target, tokenizer, "tiny", sampling, model.device, model.dtype)


TOKENIZERS = {
    "into pieces": (byte_level(), sentence_piece()),
    "into bytes": (sentence_piece(), byte_level()),
    "two of a kind": (byte_level(400, 2), byte_level()),
}


def drafter_between(tokenizers, setup: Setup) -> IntersectDrafter:
    """A draft with the second tokenizer that is near the target, with the first one."""
    _, own = tokenizers
    other = tiny_llama(1, vocab_size=len(own))
    other.generation_config.eos_token_id = own.eos_token_id
    drafter = intersect(CachedModel(other, len(own)), own, setup, "intersect:own")
    near = cousin(setup.target.model, drafter.shared, len(own), noise=0.02)
    near.generation_config = other.generation_config
    return intersect(CachedModel(near, len(own)), own, setup, "intersect:own")
