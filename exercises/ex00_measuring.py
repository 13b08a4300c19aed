"""Exercise 0: measuring honestly.

Chapter: docs/chapters/00-measuring.md. Check: python check.py 0
"""

from collections.abc import Callable, Iterator

from exercises import Todo


def time_decoding(
    decode: Callable[[], Iterator[int]],
    clock: Callable[[], float],
    synchronize: Callable[[], None],
    n_warm_up: int,
) -> tuple[float, float, int]:
    """Time one decoding, prefill and decoding apart.  -> prefill seconds, decode seconds, tokens produced

    `decode()` starts a new decoding of the same prompt and returns an iterator over its token ids. The iterator is
    lazy: nothing runs until somebody asks it for tokens. `clock()` gives seconds. `synchronize()` waits until the
    device has finished all the work it was given.

    First run `n_warm_up` decodings from end to end without reading the clock. Then time one more:
    * read the clock before the decoding starts, when its first token is there, and when it has ended: three readings;
    * the time up to the first token is prefill, the time from there to the end is decoding;
    * call `synchronize()` right before every reading, and nowhere else in the timed run: to wait after every token
      would slow down what you measure.

    A decoding that yields no token at all is prefill only: (its seconds, 0.0, 0).

    >>> time_decoding(decode, clock, synchronize, 1)  # the prompt takes 4 s, each of 8 more tokens 0.25 s
    (4.0, 2.0, 9)
    """
    raise Todo("ex00: time_decoding")


def tokens_per_second(n_tokens: int, decode_seconds: float) -> float:
    """The rate of decoding, from what `time_decoding` returned.

    The first of the `n_tokens` came out of the prefill, whose seconds are not in `decode_seconds`. 0.0 if no token is
    left to rate, or no time.

    >>> tokens_per_second(9, 2.0)
    4.0
    >>> tokens_per_second(1, 0.5)
    0.0
    """
    raise Todo("ex00: tokens_per_second")
