"""Small tokenizers of several kinds, trained here on a few lines."""

import functools
import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

LINES = (
    "the cat sat on the mat and the dog sat on the log",
    "a man and a woman sat there, then the other man came over",
    "there is a theory that the others came later than the first",
    "東京 is a city, 京都 is another one; 東京 is larger than 京都",
    "naïve café, über die Straße; the café is there",
)


@functools.cache
def byte_level(size: int = 320, n_lines: int = len(LINES)) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2 has it. "<|end|>" ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(LINES[:n_lines], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@functools.cache
def sentence_piece(size: int = 120) -> PreTrainedTokenizerFast:
    """BPE over characters with bytes for those that it lacks, as Llama 2 has it. Texts begin with "<s>"."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(LINES[:3], trainers.BpeTrainer(vocab_size=size, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    special = ["<unk>", "<s>", "</s>"]
    names = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocab = {name: i for i, name in enumerate(names)}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", add_bos_token=True
    )


@functools.cache
def with_first_space(scheme: str, size: int = 110) -> PreTrainedTokenizerFast:
    """BPE that puts a space before a text. scheme: "prepend", with merges over all of it, or "first", word by word."""
    tokenizer, decoder = Tokenizer(models.BPE(unk_token="<unk>")), decoders.Metaspace(prepend_scheme="first")
    if scheme == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoder
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], max_token_length=5, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@functools.cache
def words(*known: str) -> PreTrainedTokenizerFast:
    """Whole words; others are left out."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token=known[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
