"""Solution 0: measuring honestly."""

from collections.abc import Callable, Iterator


def time_decoding(
    decode: Callable[[], Iterator[int]],
    clock: Callable[[], float],
    synchronize: Callable[[], None],
    n_warm_up: int,
) -> tuple[float, float, int]:
    def now() -> float:
        # A GPU works on while the host runs ahead. Without this the clock tells how fast work was handed out.
        synchronize()
        return clock()

    for _ in range(n_warm_up):
        # The first runs pay for allocations, kernel choices and cold caches. The iterator is lazy: use it up.
        for _ in decode():
            pass

    start = first = now()
    n_tokens = 0
    for _ in decode():
        n_tokens += 1
        if n_tokens == 1:  # it comes from the prompt's own pass, so it ends the prefill
            first = now()
    end = now()
    if n_tokens == 0:
        first = end
    return first - start, end - first, n_tokens


def tokens_per_second(n_tokens: int, decode_seconds: float) -> float:
    # Count and seconds must speak of the same tokens: those that a decode step produced.
    n_decoded = n_tokens - 1
    if n_decoded <= 0 or decode_seconds <= 0:
        return 0.0
    return n_decoded / decode_seconds
