"""Tiny heads that draft blocks: random ones, and one that was trained for a moment."""

import functools

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads.files import weights_of
from speclab.drafts.heads.parts import rotations
from speclab.extensions.blocks.block_drafter import BlockDrafter  # noqa: F401 - other tests take it from here
from speclab.extensions.blocks.head import BlockConfig, BlockHead
from speclab.extensions.blocks.recipe import block_loss, write_block  # noqa: F401
from tests.heads import N_LEARNT, block, distance, learnt_texts, read
from tests.tiny_models import tiny


def tiny_block_head(
    target: PreTrainedModel, seed: int = 0, slots: int = 4, layers: int = 2, std: float = 0.3, **options
) -> BlockHead:
    """A random head for a tiny target of two layers, of which it reads both; its matrices have this spread."""
    table, output = weights_of(target)
    vocab, hidden = table.shape
    sizes = block(hidden, True, vocab, num_hidden_layers=layers, max_position_embeddings=256)
    config = {"draft_vocab": vocab, "mask": vocab - 1} | options
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = BlockHead(BlockConfig(sizes, (0, 1), hidden, slots=slots, **config), table, output).to(table.dtype)
        for weight in head.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=std)
    head.output = head.output[: config["draft_vocab"]]
    return head.eval()


@functools.cache
def trained_block(**options) -> tuple[PreTrainedModel, BlockHead, Tensor]:
    """A tiny target, a block head that has learnt three of its texts by heart, and four texts, (4, 9 + N_NEW)."""
    target = tiny("llama").requires_grad_(False)
    texts = learnt_texts(target)
    head = tiny_block_head(target, std=0.1, **options)
    starts = torch.arange(texts.shape[1] - 1 - head.config.longest).expand(N_LEARNT, -1)
    stepper = torch.optim.Adam(head.train().parameters())
    with torch.enable_grad():
        for step in range(150):
            stepper.param_groups[0]["lr"] = 0.02 * (1 - step / 150)
            stepper.zero_grad()
            block_loss(head, functools.partial(read, target, head), texts[:N_LEARNT], starts, distance).backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            stepper.step()
    return target, head.eval().requires_grad_(False), texts


def block_rows(head: BlockHead, hidden: Tensor, text: list[int], drafted: list[int]) -> Tensor:
    """Logits that each of these tokens was drawn from after `text`, by definition.  -> (drafted, vocab)

    One block alone, attention written out. hidden: (1, at least the text's length - 1, layers * width).
    """
    config, n = head.config, len(text) - 1
    cos, sin = (part.double() for part in rotations(config.block, torch.arange(n + config.slots)))
    of_text, of_block = (cos[:, :n], sin[:, :n]), (cos[:, n:], sin[:, n:])
    states = head.hidden_norm(head.fc(hidden[:, :n]))
    x = head.table[[text[-1], *[config.mask] * (config.slots - 1)]][None]
    for layer in head.layers:
        attention, normed = layer.self_attn, layer.input_layernorm(x)
        pairs = zip(*(attention.keys_and_values(*one) for one in ((states, of_text), (normed, of_block))), strict=True)
        queries, *_ = attention.heads(normed, of_block)
        keys, values = (torch.cat(pair, dim=2).repeat_interleave(2, dim=1) for pair in pairs)
        weights = queries @ keys.transpose(-1, -2) / config.block.head_dim**0.5
        x = layer.finish(x, weights.softmax(-1) @ values)
    logits = (head.norm(x[0, config.slots - config.longest :]) @ head.output.T)[: len(drafted)]
    before = [text[-1], *drafted][: len(drafted)]
    if (bias := head.markov_head) is not None:
        logits = logits + bias.markov_w1.weight[before] @ bias.markov_w2.weight.T
    return logits
