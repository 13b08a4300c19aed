"""The heads that a training starts from: random ones of the target's width, and trained ones."""

import argparse
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from speclab.drafts.heads.block import BlockConfig, BlockHead
from speclab.drafts.heads.exit import ExitAdapter
from speclab.drafts.heads.exit_files import read_adapter
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.files import read_head, weights_of
from speclab.models import loading
from speclab.system.errors import UsageProblem
from training.blocks import SLOTS

Draft = FeatureHead | BlockHead | ExitAdapter


def sizes(target: PreTrainedModel, n_layers: int, intermediate: int) -> dict[str, Any]:
    """Of decoder layers of the target's width."""
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": intermediate,
        "num_hidden_layers": n_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "max_position_embeddings": getattr(config, "max_position_embeddings", 4096),
        "tie_word_embeddings": False,
    }


def fresh_head(target: PreTrainedModel, args: argparse.Namespace, mask: int | None = None) -> FeatureHead | BlockHead:
    """Random, but for embedding and output layer, which are the target's or start as them.

    It reads layers a third, two thirds and almost all the way up. mask: the mask token of a block.
    """
    config = target.config.get_text_config()
    n, width, vocab = config.num_hidden_layers, config.hidden_size, config.vocab_size
    layers = (max(0, n // 3 - 1), max(0, 2 * n // 3 - 1), max(0, n - 2))
    table, output = weights_of(target)
    head: FeatureHead | BlockHead
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        if mask is None:
            block: Any = LlamaConfig(**sizes(target, 1, args.intermediate))
            head = FeatureHead(HeadConfig(block, layers, width, vocab))
        else:
            block = Qwen3Config(**sizes(target, args.layers, args.intermediate))
            markov = {"markov_rank": args.markov_rank, "causal": args.causal}
            head = BlockHead(BlockConfig(block, layers, width, vocab, SLOTS, mask, **markov), table, output)
        for name, weight in head.named_parameters():
            if weight.ndim == 2:
                std = 0.005 if "o_proj" in name or "down_proj" in name else 0.02
                torch.nn.init.normal_(weight, std=std * ("markov_w2" not in name))  # a bias of 0
    if isinstance(head, FeatureHead):
        norm = last_norm(target)
        with torch.no_grad():
            head.embed_tokens.weight.copy_(table)
            head.lm_head.weight.copy_(output)
            if norm is not None and norm.shape == head.norm.weight.shape:
                head.norm.weight.copy_(norm)
        if table is output or table.data_ptr() == output.data_ptr():
            head.lm_head.weight = head.embed_tokens.weight  # one table learns from both of its uses
    return head


def last_norm(target: PreTrainedModel) -> Tensor | None:
    """The weight of the target's last norm, (hidden,), where it has the usual name."""
    return getattr(getattr(target.base_model, "norm", None), "weight", None)


def trained_head(name: str, kind: str, target: PreTrainedModel) -> Draft:
    """A head from a file, its weights free to change: all but a block's embedding and output layer, the target's own.

    An embedding and an output layer that are one table in a fresh feature head are two from here on.

    UsageProblem for one that proposes other ids than the target's: those are not trained here.
    """
    head, ids = (read_adapter(name, target), None) if kind == "exit" else read_head(name, target, kind)
    if ids is not None:
        raise UsageProblem(f"--init {loading.short_name(name)} proposes a part of the target's ids; leave --init out")
    for module in head.modules():  # what is not in the file is the target's own memory, which must not learn
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(weight.detach().clone()))
    return head
