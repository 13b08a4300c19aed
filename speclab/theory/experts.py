"""The cost of a pass of a model whose MLPs are mixtures of experts. Numbers only: no torch, no clock.

Of E experts a token uses K. A pass over m tokens reads the union of what they chose: E (1 - (1 - K/E)^m) experts, if
each token chose anew and evenly. Real tokens do not, so the union is counted, too.
"""

from typing import NamedTuple

import numpy as np


class Bytes(NamedTuple):
    """The bytes that a pass over one token of the model without experts reads, summed over all layers."""

    mlps: int
    others: int  # weights of attention and of the output layer
    places: int  # keys and values of the context


def expected_union(n_experts: int, n_used: int, n_tokens: int) -> float:
    """Return the number of experts that m tokens touch together, each choosing K of E evenly and anew.

    >>> expected_union(8, 2, 1), round(expected_union(8, 2, 5), 2)
    (2.0, 6.1)
    """
    return n_experts * (1 - (1 - n_used / n_experts) ** n_tokens)


def bytes_ratio(read: Bytes, n_used: int, union: float) -> float:
    """Return a ratio: the bytes of a pass that touches `union` experts over those of a pass over one token, which
    touches `n_used`."""
    outside = read.others + read.places
    return (outside + union * read.mlps) / (outside + n_used * read.mlps)


def pass_seconds(widths: list[int], dense: list[float], read: Bytes, n_used: int, union: float, width: int) -> float:
    """Return the seconds of a pass over `width` tokens that touches `union` experts, from passes of the model without
    experts.

    widths, dense: passes over so many tokens, ascending, with their seconds. An expert is the MLP of that model and has
    n_used * width / union tokens of its own on average; of a pass's seconds the MLPs take their share of the bytes.
    """
    share = read.mlps / sum(read)
    expert_seconds = float(np.interp(n_used * width / union, widths, dense))
    return (1 - share) * float(np.interp(width, widths, dense)) + union * share * expert_seconds
