"""Wrong answers to exercise 0 that are easy to give. Every one of them must fail a check."""

WRONG = {
    "the prefill counts as decoding": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                list(decode())
            synchronize()
            start = clock()
            n_tokens, first = 0, None
            for _ in decode():
                n_tokens += 1
                if first is None:
                    synchronize()
                    first = clock()
            synchronize()
            end = clock()
            return (end if first is None else first) - start, end - start if n_tokens > 1 else 0.0, n_tokens
        """,
    ),
    "the clock is read while the device still works": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                list(decode())
            start = clock()
            n_tokens, first = 0, start
            for _ in decode():
                n_tokens += 1
                if n_tokens == 1:
                    first = clock()
            synchronize()
            return first - start, clock() - first, n_tokens
        """,
    ),
    "nobody waits for the device": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                list(decode())
            start = first = clock()
            n_tokens = 0
            for _ in decode():
                n_tokens += 1
                if n_tokens == 1:
                    first = clock()
            end = clock()
            return first - start, end - first, n_tokens
        """,
    ),
    "a wait after every token": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                list(decode())
            synchronize()
            times = [clock()]
            for _ in decode():
                synchronize()
                times.append(clock())
            if len(times) == 1:
                return 0.0, 0.0, 0
            return times[1] - times[0], times[-1] - times[1], len(times) - 1
        """,
    ),
    "the warm-up takes no token": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                decode()
            synchronize()
            start = first = clock()
            n_tokens = 0
            for _ in decode():
                n_tokens += 1
                if n_tokens == 1:
                    synchronize()
                    first = clock()
            synchronize()
            end = clock()
            return first - start, end - first, n_tokens
        """,
    ),
    "the clock runs during the warm-up": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            synchronize()
            start = first = clock()
            for _ in range(n_warm_up):
                list(decode())
            n_tokens = 0
            for _ in decode():
                n_tokens += 1
                if n_tokens == 1:
                    synchronize()
                    first = clock()
            synchronize()
            end = clock()
            return first - start, end - first, n_tokens
        """,
    ),
    "no token ends the prefill, so the seconds of none count as decoding": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                list(decode())
            synchronize()
            start = first = clock()
            n_tokens = 0
            for _ in decode():
                n_tokens += 1
                if n_tokens == 1:
                    synchronize()
                    first = clock()
            synchronize()
            return first - start, clock() - first, n_tokens
        """,
    ),
    "the first token is rated too": (
        "tokens_per_second",
        """
        def tokens_per_second(n_tokens, decode_seconds):
            return n_tokens / decode_seconds if n_tokens > 1 and decode_seconds > 0 else 0.0
        """,
    ),
    "a division by no time": (
        "tokens_per_second",
        """
        def tokens_per_second(n_tokens, decode_seconds):
            return max(0, n_tokens - 1) / decode_seconds
        """,
    ),
    "a reading of 0.0 is taken for none": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                list(decode())
            synchronize()
            start, first, n_tokens = clock(), None, 0
            for _ in decode():
                n_tokens += 1
                if not first:
                    synchronize()
                    first = clock()
            synchronize()
            end = clock()
            first = first or end
            return first - start, end - first, n_tokens
        """,
    ),
    "a prefill of no time is taken for none": (
        "time_decoding",
        """
        def time_decoding(decode, clock, synchronize, n_warm_up):
            for _ in range(n_warm_up):
                list(decode())
            synchronize()
            start, prefill, n_tokens = clock(), 0.0, 0
            for _ in decode():
                n_tokens += 1
                if not prefill:
                    synchronize()
                    prefill = clock() - start
            synchronize()
            total = clock() - start
            prefill = prefill if n_tokens else total
            return prefill, total - prefill, n_tokens
        """,
    ),
    "a rate without its fraction": (
        "tokens_per_second",
        """
        def tokens_per_second(n_tokens, decode_seconds):
            return (n_tokens - 1) // decode_seconds if n_tokens > 1 and decode_seconds > 0 else 0.0
        """,
    ),
}
