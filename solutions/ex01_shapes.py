"""Solution 1: the shapes of one round."""

import torch
from torch import Tensor


def shapes(n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict[str, tuple[int, ...]]:
    head_dim = d_model // n_heads  # the heads divide the width among them, they do not multiply it
    n_asked = n_cached + n_new  # the cache saves computing old keys, not reading them
    return {
        "ids": (n_new,),
        "hidden": (n_new, d_model),
        "q": (n_heads, n_new, head_dim),
        "k": (n_heads, n_asked, head_dim),
        "v": (n_heads, n_asked, head_dim),
        "scores": (n_heads, n_new, n_asked),
        "logits": (n_new, vocab_size),  # a row for every fed token, not only for the last one: that is what verifies
    }


def verifying_probs(target_probs: Tensor, drafted: list[int]) -> Tensor:
    k = len(drafted)
    # The k rows before the last one: row i follows the token in front of drafted[i]. Counted from the end, because
    # that is where the drafts are, whatever stands in front of them.
    rows = target_probs[-(k + 1) : -1]  # (k, vocab)
    ids = torch.tensor(drafted, dtype=torch.long, device=target_probs.device)  # long also where the list is empty
    return rows.gather(-1, ids[:, None])[:, 0]  # (k,)
