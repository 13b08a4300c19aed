"""Wrong answers to exercise 0 that are easy to give. Every one of them must fail a check."""


def _time(
    start: str = "synchronize()\n    start = first = clock()",
    warm_up: str = "list(decode())",
    after_start: str = "n_tokens = 0",
    at: str = "n_tokens == 1",
    read: str = "synchronize()\n            first = clock()",
    end: str = "synchronize()\n    end = clock()",
    none: str = "first = first if n_tokens else end",
    answer: str = "first - start, end - first, n_tokens",
) -> tuple[str, str]:
    """The right stopwatch with one part of it replaced."""
    return (
        "time_decoding",
        f"""
def time_decoding(decode, clock, synchronize, n_warm_up):
    for _ in range(n_warm_up):
        {warm_up}
    {start}
    {after_start}
    for _ in decode():
        n_tokens += 1
        if {at}:
            {read}
    {end}
    {none}
    return {answer}
""",
    )


def _rate(line: str) -> tuple[str, str]:
    return "tokens_per_second", f"def tokens_per_second(n_tokens, decode_seconds):\n    return {line}"


NO_WAIT = "start = first = clock()"
WRONG = {
    "the prefill counts as decoding": _time(answer="first - start, end - start if n_tokens > 1 else 0.0, n_tokens"),
    "the clock is read while the device still works": _time(start=NO_WAIT, read="first = clock()"),
    "nobody waits for the device": _time(start=NO_WAIT, read="first = clock()", end="end = clock()"),
    "a wait after every token": _time(at="synchronize() or n_tokens == 1", read="first = clock()"),
    "the warm-up takes no token": _time(warm_up="decode()"),
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
    "no token ends the prefill, so the seconds of none count as decoding": _time(none="pass"),
    "the first token is rated too": _rate("n_tokens / decode_seconds if n_tokens > 1 and decode_seconds > 0 else 0.0"),
    "a division by no time": _rate("max(0, n_tokens - 1) / decode_seconds"),
    "a reading of 0.0 is taken for none": _time(
        after_start="n_tokens, first = 0, None", at="not first", none="first = first or end"
    ),
    "a prefill of no time is taken for none": _time(at="first == start"),
    "a rate without its fraction": _rate(
        "(n_tokens - 1) // decode_seconds if n_tokens > 1 and decode_seconds > 0 else 0.0"
    ),
}
