"""Exercise 19: the whole pass.

Chapter: docs/chapters/19-whole-pass.md. Check: python check.py 19
"""

from collections.abc import Callable

from torch import Tensor

from exercises import Todo


def pack(weight: Tensor, lanes: int) -> Tensor:
    """A matrix in the order in which a register takes it.  -> (blocks, columns, lanes)

    weight: (rows, columns). lanes: numbers in a register. Block b holds the rows from b * lanes on, as many as there
    are lanes, column by column: [b, j] of the result is one load, column j of these rows. Rows that the last block
    lacks are 0, and the type of the numbers stays.

    >>> pack(torch.tensor([[1, 2], [3, 4], [5, 6]]), 2)
    tensor([[[1, 3],
             [2, 4]],
    <BLANKLINE>
            [[5, 0],
             [6, 0]]])
    """
    raise Todo("ex19: pack")


def product(load: Callable[[int, int], Tensor], n_blocks: int, n_columns: int, x: Tensor, most: int) -> Tensor:
    """x times a packed matrix.  -> (m, blocks * lanes)

    load(b, j): reads (lanes,) weights from memory, column j of block b. x: (m, columns), a row for each token. Output
    [i, b * lanes + r] is the sum over j of x[i, j] times weight r of load(b, j).

    Registers hold the sums of at most `most` tokens. So the tokens are taken `most` at a time, and for each such
    group every (b, j) is loaded exactly once. (`multiply` of pass.c does so for 16 blocks at a time: as many
    loads, of which all but the first group's come from the processor's cache.)

    >>> packed = pack(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
    >>> product(lambda b, j: packed[b, j], 1, 2, torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 8)
    tensor([[1., 3.],
            [3., 7.]])
    """
    raise Todo("ex19: product")


def attend(query: Tensor, keys: Tensor, values: Tensor, whole: int, mask: list[bool]) -> Tensor:
    """What one head of one token reads from the cache.  -> (head size,)

    query: (head size,), scaled already. keys, values: (rows, head size), of one text. The token reads the first `whole`
    rows, and of the rows behind them row whole + i where mask[i] is true. The answer is the mean of these rows' values,
    weighted by the softmax of query times key; zeros where it reads nothing. A score may be in the
    thousands. What it does not read may hold anything, NaN too.

    >>> cache = torch.tensor([[1.0], [1.0], [float("nan")], [1.0], [float("nan")]])
    >>> attend(torch.tensor([1.0]), cache, 2 * cache, 2, [False, True])
    tensor([2.])
    """
    raise Todo("ex19: attend")
