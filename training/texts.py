"""The rows that a head learns from: pieces of training text, and what its target wrote after pieces of it."""

import copy
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.lab.training.steps import check_ids, product_dtype, readable, save_tensors
from training.draft import continuations

# Tokens of a row: the share of the steps, and tokens of text that the target's own continuation starts from.
ROWS = {256: (0.65, 48), 512: (0.25, 256), 1024: (0.10, None)}
OF_PROSE = 64  # tokens of a comment or docstring that the target's own continuation starts from
OWN = 0.5  # share of the rows that the target has written itself
OWN_AT_ONCE = 192  # texts that the target writes side by side, a third of them at each temperature


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
    """(n, OF_PROSE): the first ids of each text that has as many."""
    ids = [row[:OF_PROSE] for row in tokenizer(texts).input_ids if len(row) >= OF_PROSE] if texts else []
    return torch.tensor(ids, dtype=torch.int32).reshape(-1, OF_PROSE)


def batch(stream: Tensor, own: dict[int, Tensor], step: int, seed: int, tokens: int) -> Tensor:
    """(rows, length) of one length, always the same for the same arguments."""
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
