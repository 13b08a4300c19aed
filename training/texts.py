"""The texts that a draft learns from: training text as ids, what its target wrote after pieces of it, rows of both."""

import copy
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase, StaticCache

from speclab.lab.training.corpus import Document
from speclab.lab.training.steps import product_dtype
from speclab.system.terminal import note, progress_bar
from training.work import check_ids, readable, save_tensors

ENCODED_AT_ONCE = 512  # texts
PROMPT, CONTINUED = 48, 256  # tokens of text that a continuation starts from, and tokens of both together
TEMPERATURES = (1e-4, 0.8, 1.0)  # the draft will be asked to guess in all of them
# Tokens of a row: the share of the steps, and tokens of text that the target's own continuation starts from.
ROWS = {256: (0.65, 48), 512: (0.25, 256), 1024: (0.10, None)}
OF_PROSE = 64  # tokens of a comment or docstring that the target's own continuation starts from
OWN = 0.5  # share of the rows that the target has written itself
OWN_AT_ONCE = 192  # texts that the target writes side by side, a third of them at each temperature


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Tensor:
    """All texts in one stream of ids, each ended by the tokenizer's end token if it has one.  -> (tokens,) int32

    Texts are encoded many at once, on all cores.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    parts = []
    for start in range(0, len(texts), ENCODED_AT_ONCE):
        for ids in tokenizer(texts[start : start + ENCODED_AT_ONCE]).input_ids:
            parts.append(np.array([*ids, *end], dtype=np.int32))
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.int32)


def streams(tokenizer: PreTrainedTokenizerBase, documents: list[Document]) -> tuple[Tensor, Tensor]:
    """The ids of the documents to train on, and of those that are held out."""
    stream = encode(tokenizer, [d.text for d in documents if not d.held_out])
    held_out = encode(tokenizer, [d.text for d in documents if d.held_out])
    note(f"{len(stream):,} tokens to train on, {len(held_out):,} held out")
    return stream, held_out


@torch.inference_mode()
def continuations(
    target: PreTrainedModel,
    pieces: Tensor,
    seconds: float,
    seed: int,
    rows: int = 64,
    length: int = CONTINUED,
    temperatures: tuple[float, ...] = TEMPERATURES,
) -> Tensor:
    """Let the target continue pieces of text for `seconds`, at least once.  -> (n, length) ids, pieces included

    pieces: (n, prompt) ids, of which `rows` are drawn at a time. seed: the seed for drawing pieces and tokens.
    temperatures: those of the rows in turn; the lowest is as good as greedy.
    """
    target.eval()
    device, generator = target.device, torch.Generator().manual_seed(seed)
    draws = torch.Generator(device).manual_seed(seed)
    divisors = torch.tensor(temperatures, device=device).repeat(rows)[:rows, None]  # (rows, 1)
    written: list[Tensor] = []
    end = time.monotonic() + seconds
    with progress_bar(unit=" texts", desc="continuations", mininterval=10) as bar:
        while not written or time.monotonic() < end:
            picks = torch.randint(0, len(pieces), (rows,), generator=generator)
            text = pieces[picks].long().to(device)  # (rows, prompt)
            cache, feed = _cache(target, length), text
            while text.shape[1] < length:
                logits = target(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
                feed = (logits.float() / divisors).softmax(-1).multinomial(1, generator=draws)  # (rows, 1)
                text = torch.cat([text, feed], dim=1)
            written.append(text.cpu())
            bar.update(rows)
    return torch.cat(written)


def _cache(target: PreTrainedModel, length: int) -> Cache:
    """A cache for texts of this length. A StaticCache is allocated once, while a DynamicCache copies all keys and
    values for every new token; but models that the library cannot compile may count on the shapes of a DynamicCache."""
    if target._can_compile_fullgraph:
        return StaticCache(config=target.config, max_cache_len=length)
    return DynamicCache(config=target.config)


def own_texts(
    work: Path, target: PreTrainedModel, stream: Tensor, prose: Tensor, seconds: float, seed: int
) -> dict[int, Tensor]:
    """Continuations that the target has written, by their length; from the work folder where they are there.

    stream: (tokens,) of whole documents. prose: (n, OF_PROSE) beginnings of comments and docstrings, after which a
    third of the time is spent: in pieces of the stream they are rare.
    """
    texts = {}
    writer = None
    for length, (_, prompt) in ROWS.items():
        if prompt is None:
            continue
        file = work / f"own-{length}.pt"
        if not file.exists():
            writer = writer or in_fast_precision(target)
            sources = [stream.unfold(0, prompt, 1), *([prose] if length == min(ROWS) and len(prose) else [])]
            written = [
                continuations(writer, pieces, seconds / 3, seed + length + i, OWN_AT_ONCE, length)
                for i, pieces in enumerate(sources)
            ]
            save_tensors(file, torch.cat(written).to(torch.int32))
        with readable(file):
            texts[length] = torch.load(file, weights_only=True)
            check_ids(texts[length], length, target.config.get_text_config().vocab_size)
    return texts


def in_fast_precision(target: PreTrainedModel) -> PreTrainedModel:
    """A copy whose weights have the precision that is faster here. Its buffers, the rotary frequencies among them, stay
    as they are: in bfloat16 distant positions would be others."""
    writer = copy.deepcopy(target)
    for weight in writer.parameters():
        weight.data = weight.data.to(product_dtype(target.device))
    return writer


def beginnings(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Tensor:
    """The first ids of each text that has as many: (n, OF_PROSE)."""
    ids = [row[:OF_PROSE] for row in tokenizer(texts).input_ids if len(row) >= OF_PROSE] if texts else []
    return torch.tensor(ids, dtype=torch.int32).reshape(-1, OF_PROSE)


def batch(stream: Tensor, own: dict[int, Tensor], step: int, seed: int, tokens: int) -> Tensor:
    """A batch of rows of one length, (rows, length), always the same for the same arguments."""
    generator = torch.Generator().manual_seed((seed + 3) * 1_000_003 + step)
    shares = torch.tensor([share for share, _ in ROWS.values()])
    length = list(ROWS)[int(torch.multinomial(shares, 1, generator=generator))]
    n_rows = max(1, tokens // length)
    n_own = 0
    if length in own:  # of an odd number of rows the last one is, in half of the steps
        n_own = int(OWN * n_rows + torch.rand((), generator=generator).item())
    pieces = max(1, len(stream) // length)  # of text, side by side: each comes again, and the target's pass may be kept
    starts = length * torch.randint(0, pieces, (n_rows - n_own,), generator=generator)
    rows = stream[starts[:, None] + torch.arange(length)].long()
    if n_own:
        picks = torch.randint(0, len(own[length]), (n_own,), generator=generator)
        rows = torch.cat([own[length][picks].long(), rows])
    return rows
