"""Solution 3: roll the caches back."""

from torch import Tensor


def tokens_to_keep(n_cached: int, n_committed: int) -> int:
    # n_committed - 1 drops the rejected tokens: after the last committed token nothing is true any more. The minimum
    # is for the draft, which has never been fed its last drafted token and may hold one less.
    return min(n_cached, n_committed - 1)


def catch_up(committed: list[int], n_cached: int) -> list[int]:
    return committed[n_cached:]  # usually one token, two after a fully accepted round, more if rounds drafted nothing


def crop(layers: list[tuple[Tensor, Tensor]], n: int) -> list[tuple[Tensor, Tensor]]:
    length = layers[0][0].shape[2]
    if not 0 <= n <= length:  # a slice would not complain: x[:9] of five is five, x[:-1] of five is four
        raise ValueError(f"cannot keep {n} of {length} positions")
    # A slice alone is a view of the same memory. Without clone() two caches would have one owner too many.
    return [(keys[:, :, :n].clone(), values[:, :, :n].clone()) for keys, values in layers]
