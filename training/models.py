"""The lab's family of models and its tokenizer: built, and written to a folder."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from speclab.system.errors import EnvironmentProblem, first_line

Result = TypeVar("Result")
END = "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 4096
TARGET_SHAPE = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 704}
ENCODED_AT_ONCE = 512  # texts
DRAFT_SHAPE = {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 1024}


def llama(shape: dict, fused: bool = False) -> LlamaForCausalLM:
    """A random Llama of the lab's family: heads of 64, rotary positions, embeddings tied to the output.

    fused: attention in one kernel, for a GPU. On a CPU eager attention, compiled, trains half as fast again in
    bfloat16.
    """
    heads = shape["hidden_size"] // 64
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
        attn_implementation="sdpa" if fused else "eager",  # type: ignore[call-arg]
        **shape,
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


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """All texts in one stream of ids, each ended by the tokenizer's end token if it has one.  -> (tokens,) int32

    Texts are encoded many at once, on all cores.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    parts = []
    for start in range(0, len(texts), ENCODED_AT_ONCE):
        for ids in tokenizer(texts[start : start + ENCODED_AT_ONCE]).input_ids:
            parts.append(np.array([*ids, *end], dtype=np.int32))
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.int32)


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compile each layer in place where a compiler is at hand; all layers share one compiled body per shape."""
    if has_compiler():
        torch._dynamo.config.cache_size_limit = 64
        for layer in model.model.layers:
            layer.compile(dynamic=False)


def has_compiler() -> bool:
    """Whether there is what torch.compile needs for a CPU."""
    return bool(shutil.which("g++") or shutil.which("clang++"))


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """The same function, compiled for each shape of its arguments where a compiler is at hand."""
    return torch.compile(function, dynamic=False) if has_compiler() else function


def uncompiled(model: LlamaForCausalLM, shape: dict) -> LlamaForCausalLM:
    """The same weights in a plain module on the CPU."""
    plain = llama(shape)
    plain.load_state_dict(model.state_dict())
    return plain.eval()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> LlamaForCausalLM:
    """Write bfloat16 safetensors and the tokenizer; returns the model as a user will load it."""
    try:
        model.to(dtype=torch.bfloat16).save_pretrained(folder, max_shard_size="14MB")  # type: ignore[call-arg]
        tokenizer.save_pretrained(folder)
    except Exception as error:  # each library below raises its own kinds; a full disk is the usual one
        raise EnvironmentProblem(
            f"cannot write the weights: {first_line(error)}; free some space and type the command again"
        ) from None
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
