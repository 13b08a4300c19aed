"""Wrong answers to exercise 6 that are easy to give. Every one of them must fail a check."""

from textwrap import dedent, indent

HEADS = {
    "best_draft_length": "alpha, draft_cost, verify_cost, overhead, longest",
    "next_draft_length": "k, n_drafted, n_accepted, longest",
}


def _of(hole: str, body: str) -> tuple[str, str]:
    """The function with this body."""
    return hole, f"def {hole}({HEADS[hole]}):\n" + indent(dedent(body).strip(), "    ")


WRONG = {
    "the book's formula has no best k": _of(
        "best_draft_length",
        "return max(range(longest + 1), key=lambda k: 1 / (1 - alpha + alpha / k) if k and alpha < 1 else 1.0)",
    ),
    "a pass over k tokens": _of(
        "best_draft_length",
        """
        def speedup(k):
            return sum(alpha**i for i in range(k + 1)) / (k * draft_cost + verify_cost(k) + overhead) if k else 1.0
        return max(range(longest + 1), key=speedup)
        """,
    ),
    "stops at the first dip": _of(
        "best_draft_length",
        """
        best, highest = 0, 1.0
        for k in range(1, longest + 1):
            tokens = sum(alpha**i for i in range(k + 1))
            speedup = tokens / (k * draft_cost + verify_cost(k + 1) + overhead)
            if speedup <= highest:
                break
            best, highest = k, speedup
        return best
        """,
    ),
    "always drafts": _of(
        "best_draft_length",
        """
        def speedup(k):
            return sum(alpha**i for i in range(k + 1)) / (k * draft_cost + verify_cost(k + 1) + overhead)
        return max(range(1, longest + 1), key=speedup, default=0)
        """,
    ),
    "a fixed length": _of("next_draft_length", "return max(k, min(1, longest))"),
    "one up, all the way down": _of(
        "next_draft_length", "return min(longest, k + 1) if n_accepted == n_drafted else min(1, longest)"
    ),
    "a pause after a round without luck": _of(
        "next_draft_length",
        """
        if n_drafted > n_accepted == 0:
            return 0
        return min(longest, max(1, 2 * k if n_accepted == n_drafted else n_accepted + 1))
        """,
    ),
    "two up, one down": _of(
        "next_draft_length", "return min(longest, k + 2 if n_accepted == n_drafted else max(1, k - 1))"
    ),
    "compared with k": _of(
        "next_draft_length", "return min(longest, max(1, 2 * k if n_accepted == k else n_accepted + 1))"
    ),
    "down to 0 and never up": _of(
        "next_draft_length", "return min(longest, 2 * k if n_accepted == n_drafted else n_accepted)"
    ),
    "beyond the longest": _of(
        "next_draft_length", "return max(1, 2 * k) if n_accepted == n_drafted else n_accepted + 1"
    ),
    "the longer of two equally fast lengths": _of(
        "best_draft_length",
        """
        best, highest = 0, 1.0
        for k in range(1, longest + 1):
            speedup = sum(alpha**i for i in range(k + 1)) / (k * draft_cost + verify_cost(k + 1) + overhead)
            if speedup >= highest:
                best, highest = k, speedup
        return best
        """,
    ),
    "a draft of 8 for an alpha of 0": _of(
        "best_draft_length",
        """
        if not alpha:
            return min(8, longest)
        best, highest = 0, 1.0
        for k in range(1, longest + 1):
            speedup = sum(alpha**i for i in range(k + 1)) / (k * draft_cost + verify_cost(k + 1) + overhead)
            if speedup > highest:
                best, highest = k, speedup
        return best
        """,
    ),
}
