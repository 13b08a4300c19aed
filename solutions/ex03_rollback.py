"""Solution 3: roll the caches back.

Chapter: docs/chapters/03-rollback.md. Check: python check.py 3 --impl solutions
"""

from torch import Tensor


def tokens_to_keep(n_cached: int, n_committed: int) -> int:
    """How many leading tokens stay in a cache after a round. One rule for the target's cache and for the draft's.

    n_cached: tokens in this cache now, before rolling back. Their order is the text's: first some or all of what was
    committed before the round, then the drafted tokens that were fed, rejected or not.
    n_committed: tokens of the text now, prompt and this round's accepted and added tokens included, at least 1.

    Keep as much as two things allow. The last committed token is never in a cache: it is fed in the next round. And a
    cache cannot keep what it does not hold.

    >>> tokens_to_keep(n_cached=9, n_committed=7)
    6
    """
    # n_committed - 1 drops the rejected tokens: after the last committed token nothing is true any more. The minimum
    # is for the draft, which has never been fed its last drafted token and may hold one less.
    return min(n_cached, n_committed - 1)


def catch_up(committed: list[int], n_cached: int) -> list[int]:
    """What to feed the draft first in the next round: every committed token that its cache lacks, in order.

    committed: the ids of the whole text so far, prompt included.
    n_cached: tokens in the draft's cache after it was rolled back. They are the first n_cached ids of `committed`, and
    never all of them (tokens_to_keep), so the list that you return is never empty.

    >>> catch_up([11, 12, 13, 14], n_cached=3)
    [14]
    """
    return committed[n_cached:]  # usually one token, two after a fully accepted round, more if rounds drafted nothing


def crop(layers: list[tuple[Tensor, Tensor]], n: int) -> list[tuple[Tensor, Tensor]]:
    """Keep the first n positions of a cache. Returns a new list of (keys, values), layer by layer in the same order.

    layers: keys and values of each layer of one model, at least one layer. Both are (1, heads, length, head_dim);
    length is the same in all layers, and every layer has keys and values of its own.
    n: positions to keep, 0 to length. Raises ValueError if n is negative or larger than length.

    What you return shares nothing with what you were given. `layers` and its tensors are as long as before and hold
    the same numbers, and a later write into those tensors does not show in yours: another owner may go on with them.

    >>> keys, values = torch.ones(1, 2, 5, 4), torch.zeros(1, 2, 5, 4)
    >>> [(k.shape, v.shape) for k, v in crop([(keys, values)], 3)]
    [(torch.Size([1, 2, 3, 4]), torch.Size([1, 2, 3, 4]))]
    """
    length = layers[0][0].shape[2]
    if not 0 <= n <= length:  # a slice would not complain: x[:9] of five is five, x[:-1] of five is four
        raise ValueError(f"cannot keep {n} of {length} positions")
    # A slice alone is a view of the same memory. Without clone() two caches would have one owner too many.
    return [(keys[:, :, :n].clone(), values[:, :, :n].clone()) for keys, values in layers]
