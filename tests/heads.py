"""Tiny heads that read a tiny target's hidden states: random ones, and one that was trained for a moment."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from speclab.drafts.heads.feature import FeatureHead, HeadConfig, rollout, target_pass
from speclab.drafts.heads.parts import rotations
from speclab.models.cached import CachedModel
from tests.decoding import plain_text
from tests.tiny_models import VOCAB, tiny
from training.recipes import Likely, likely


def block(hidden: int = 32, qwen3: bool = False, vocab: int = VOCAB, **changes) -> LlamaConfig:
    sizes = {"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 48, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False}
    return (Qwen3Config if qwen3 else LlamaConfig)(**sizes | changes)


@functools.cache
def in_format(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy in another number format."""
    return copy.deepcopy(module).to(dtype)


def block_heads():
    """Tiny heads that draft blocks, and `BlockDrafter`: the extension may not be there."""
    return pytest.importorskip("speclab.extensions.blocks.tests.block_heads")


class Keeping:
    """Makes a drafter keep its drafts, each with the text before it. `text` is everything committed."""

    def prefill(self, target, prompt, sampling):
        super().prefill(target, prompt, sampling)
        self.text, self.proposed = prompt[0].tolist(), []

    def propose(self, k, uniforms):
        draft = super().propose(k, uniforms)
        self.proposed.append((list(self.text), draft))
        return draft

    def observe(self, n_accepted, committed):
        self.text += committed
        super().observe(n_accepted, committed)


def keeping(kind: type) -> type:
    """The drafters of this kind, which keep their drafts."""
    return type(kind.__name__, (Keeping, kind), {})


def tiny_head(
    seed: int = 0,
    hidden: int = 32,
    vocab: int = VOCAB,
    draft_vocab: int | None = None,
    qwen3: bool = False,
    std: float = 0.3,
    target_hidden: int = 32,
    **flags,
) -> FeatureHead:
    """A random head for a tiny target of two layers; its matrices have this spread."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = FeatureHead(
            HeadConfig(block(hidden, qwen3, vocab), (0, 1), target_hidden, draft_vocab or vocab, **flags)
        ).double()
        for weight in head.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=std)
    return head.eval()


def distance(target: Likely, draft_logits: Tensor) -> Tensor:
    """Cross-entropy plus total variation: tiny heads learn a few texts by heart with it, on every processor."""
    target_probs, draft_log_probs = target.probs, draft_logits.log_softmax(-1).gather(-1, target.ids)
    cross_entropy = -(target_probs * draft_log_probs).sum(-1).mean()
    return cross_entropy + 1 - torch.minimum(target_probs, draft_log_probs.exp()).sum(-1).mean()


def prompts(n: int, seed: int = 3, length: int = 9) -> Tensor:
    return torch.randint(0, VOCAB, (n, length), generator=torch.Generator().manual_seed(seed))


N_NEW = 26  # tokens of a text that was learnt


LEARNT = (True, True, True, False)  # the last text is new to a draft: much of what it drafts there is rejected
N_LEARNT = sum(LEARNT)


def learnt_texts(target: PreTrainedModel) -> Tensor:
    """The target's greedy texts after four prompts, (4, 9 + N_NEW), of which the first three will be learnt."""
    return torch.tensor([[*p.tolist(), *plain_text(CachedModel(target), p[None], N_NEW)] for p in prompts(4)])


@functools.cache
def trained() -> tuple[PreTrainedModel, FeatureHead, Tensor]:
    """A tiny target, a head that has learnt three of its texts by heart, and four texts, (4, 9 + N_NEW).

    In float64, as all heads that are trained here: training multiplies rounding errors by 10^5 and more, and the tests
    should meet the same head on every processor.
    """
    target = tiny("llama").requires_grad_(False)
    texts = learnt_texts(target)
    learnt = texts[:N_LEARNT]
    hidden, logits = target_pass(target, learnt, (0, 1))
    head = tiny_head(std=0.1)
    stepper = torch.optim.Adam(head.train().parameters())
    with torch.enable_grad():
        for step in range(200):
            stepper.param_groups[0]["lr"] = 0.01 * (1 - step / 200)
            stepper.zero_grad()
            loss: Tensor = sum(
                distance(likely(logits[:, positions[0] + depth + 1]), drafted)
                for depth, (positions, drafted) in enumerate(rollout(head, hidden, learnt, 3))
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            stepper.step()
    return target, head.eval().requires_grad_(False), texts


def read(target: PreTrainedModel, head: Any, tokens: Tensor) -> tuple[Tensor, Likely]:
    """What a head learns from, unrounded: the target's states, and what is likely, of (batch, n) ids."""
    hidden, logits = target_pass(target, tokens, head.config.layers)
    return hidden, likely(logits)


def target_states(target: PreTrainedModel, text: list[int], layers: tuple[int, ...]) -> Tensor:
    """What a head reads of a text, from a pass without a cache.  -> (1, length, layers * width)"""
    with torch.inference_mode():
        return target_pass(target, torch.tensor([text]), layers)[0]


def feature_row(head: FeatureHead, hidden: Tensor, text: list[int], drafted: list[int]) -> Tensor:
    """Logits of the token after `text` and these drafted ones, by definition: every step computes everything anew.

    hidden: (1, at least the text's length - 1, layers * width).  -> (draft vocabulary,)
    """
    states, tokens = head.fuse(hidden[:, : len(text) - 1]), text[1:]
    for token in [*drafted, None]:
        n = len(tokens)
        rotation = tuple(part.to(states.dtype) for part in rotations(head.config.block, torch.arange(n)))
        residual, queries, keys, values = head.project(states, torch.tensor([tokens]), rotation)
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        output = head.finish(residual, attended)[:, -1:]
        if token is not None:
            states, tokens = torch.cat([states, output], dim=1), [*tokens, token]
    return head.logits(output)[0, -1]
