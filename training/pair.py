"""The offline pair: a Llama-type target, and a draft distilled from it, on the sources of Python itself.

`python -m training.heads target` trains the first on its corpus, with a tokenizer of its own. `python -m training.heads
model` trains a draft model of one layer for it, or for another target, as a head is trained: on what the target itself
writes, because that is where it will be asked to guess (Zhou et al., DistillSpec, arXiv 2310.08461).
"""

import argparse
import copy
import functools
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from speclab.drafts.heads.files import SavedHead
from speclab.models import loading
from training import corpus
from training.recipes import USUAL_INTERMEDIATE, Reading, Recipe, distance
from training.steps import crops, next_token_loss, train
from training.texts import encode

BATCH_TOKENS, FEW_TOKENS = 131072, 8192  # tokens of a step, on a GPU and elsewhere
END = "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 4096
SHAPE = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 704}


# --- the target -------------------------------------------------------------------------------------------------------


def train_target(args: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    documents = list(corpus.standard_library())
    tokenizer = train_tokenizer(d.text for d in documents if not d.held_out)
    stream, held_out = (encode(tokenizer, [d.text for d in documents if d.held_out == out]) for out in (False, True))
    torch.manual_seed(args.seed)
    model = llama().to(device)  # type: ignore[arg-type]
    stream, n_tokens = stream.to(device), BATCH_TOKENS if device.type == "cuda" else FEW_TOKENS

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        return [(rows,) for rows in crops(stream, step, args.seed, n_tokens)]

    loss_of = functools.partial(next_token_loss, model)
    facts = train(model, batches, loss_of, 60 * args.minutes, args.rate, "target")
    model.to(dtype=torch.bfloat16).save_pretrained(args.out, max_shard_size="14MB")
    tokenizer.save_pretrained(args.out)
    loss = held_out_loss(LlamaForCausalLM.from_pretrained(args.out, dtype=torch.float32), held_out)
    about = {
        "corpus": {"python": platform.python_version(), "documents": len(documents)},
        "tokens": {"training": len(stream), "held_out": len(held_out), "vocabulary": VOCABULARY},
        "parameters": model.num_parameters(),
        "seed": args.seed,
        **vars(facts),
        "held_out_loss": round(loss, 4),
    }
    return about, {"held_out_loss": round(loss, 4)}


def llama() -> LlamaForCausalLM:
    """A random Llama: heads of 64, rotary positions, embeddings tied to the output."""
    heads = SHAPE["hidden_size"] // 64
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        **SHAPE,  # type: ignore[arg-type]
    )
    return LlamaForCausalLM(config)


def train_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the corpus; id 0 ends a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, model_max_length=CONTEXT)


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, stream: Tensor, length: int = 512, limit: int = 100_000) -> float:
    """Mean loss over the held-out stream in windows of `length`, nats per token."""
    model.eval()
    windows = stream[: min(limit, len(stream)) // length * length].view(-1, length)
    losses = [next_token_loss(model, rows).item() * len(rows) for rows in windows.split(8)]
    return sum(losses) / len(windows)


# --- the draft --------------------------------------------------------------------------------------------------------


class DraftModel(nn.Module):
    """A small language model, asked as a head is: it needs no states of its target, and is given those of one layer."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.config = argparse.Namespace(layers=(0,))

    def logits(self, tokens: Tensor) -> Tensor:
        """(batch, n) ids -> what it says after each of them (batch, n, vocab)"""
        return self.model(input_ids=tokens, use_cache=False).logits

    def chains(self, hidden: Tensor, tokens: Tensor, depth: int) -> list[Tensor]:
        """The logits of token t + 2 + j for every position t of a known text, (1, n) ids: element j of the list."""
        logits, n = self.logits(tokens), tokens.shape[1] - 1 - depth
        return [logits[:, 1 + j : 1 + j + n] for j in range(depth)]


def fresh_model(
    target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace, ids: Tensor | None = None
) -> DraftModel:
    """A draft of one layer that starts from the target's embeddings, final norm and first layer; what is wider starts
    random."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = 1
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(config, name, None):
            setattr(config, name, getattr(config, name)[:1])
    config.intermediate_size = USUAL_INTERMEDIATE
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        draft = type(target)(config).float()
    source = dict(target.named_parameters())
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            overlap = tuple(slice(0, min(a, b)) for a, b in zip(weight.shape, source[name].shape, strict=True))
            weight[overlap] = source[name].cpu()[overlap]
    return DraftModel(draft, tokenizer)


def model_loss(draft: DraftModel, read: Reading, tokens: Tensor, starts: Tensor) -> Tensor:
    """The mean over all positions. starts: not used."""
    return distance(read(tokens)[1], draft.logits(tokens))


def write_model(folder: Path, draft: DraftModel, target: str, architectures: list[str]) -> None:
    draft.model.save_pretrained(folder)
    draft.tokenizer.save_pretrained(folder)


def trained_model(target: PreTrainedModel, args: argparse.Namespace) -> SavedHead:
    tokenizer = loading.load_tokenizer(args.init)
    loading.check_same_tokenizer(loading.load_tokenizer(args.target), tokenizer, args.target, args.init)
    draft = loading.load_model(args.init, target.device, torch.float32, "draft")
    return SavedHead(DraftModel(draft, tokenizer), None)


MODEL = Recipe(
    help="a draft model of one layer, distilled from its target",
    fresh=fresh_model,
    loss=model_loss,
    write=write_model,
    trained=trained_model,
)
