"""Wrong answers to exercise 6 that are easy to give. Every one of them must fail a check."""

WRONG = {
    "the book's formula has no best k": (
        "best_draft_length",
        """
        def best_draft_length(alpha, draft_cost, verify_cost, overhead, longest):
            return max(range(longest + 1), key=lambda k: 1 / (1 - alpha + alpha / k) if k and alpha < 1 else 1.0)
        """,
    ),
    "a pass over k tokens": (
        "best_draft_length",
        """
        def best_draft_length(alpha, draft_cost, verify_cost, overhead, longest):
            def speedup(k):
                return sum(alpha**i for i in range(k + 1)) / (k * draft_cost + verify_cost(k) + overhead) if k else 1.0
            return max(range(longest + 1), key=speedup)
        """,
    ),
    "stops at the first dip": (
        "best_draft_length",
        """
        def best_draft_length(alpha, draft_cost, verify_cost, overhead, longest):
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
    "always drafts": (
        "best_draft_length",
        """
        def best_draft_length(alpha, draft_cost, verify_cost, overhead, longest):
            def speedup(k):
                return sum(alpha**i for i in range(k + 1)) / (k * draft_cost + verify_cost(k + 1) + overhead)
            return max(range(1, longest + 1), key=speedup, default=0)
        """,
    ),
    "a fixed length": (
        "next_draft_length",
        """
        def next_draft_length(k, n_drafted, n_accepted, longest):
            return max(k, min(1, longest))
        """,
    ),
    "one up, all the way down": (
        "next_draft_length",
        """
        def next_draft_length(k, n_drafted, n_accepted, longest):
            return min(longest, k + 1) if n_accepted == n_drafted else min(1, longest)
        """,
    ),
    "a pause after a round without luck": (
        "next_draft_length",
        """
        def next_draft_length(k, n_drafted, n_accepted, longest):
            if n_drafted > n_accepted == 0:
                return 0
            return min(longest, max(1, 2 * k if n_accepted == n_drafted else n_accepted + 1))
        """,
    ),
    "two up, one down": (
        "next_draft_length",
        """
        def next_draft_length(k, n_drafted, n_accepted, longest):
            return min(longest, k + 2 if n_accepted == n_drafted else max(1, k - 1))
        """,
    ),
    "compared with k": (
        "next_draft_length",
        """
        def next_draft_length(k, n_drafted, n_accepted, longest):
            return min(longest, max(1, 2 * k if n_accepted == k else n_accepted + 1))
        """,
    ),
    "down to 0 and never up": (
        "next_draft_length",
        """
        def next_draft_length(k, n_drafted, n_accepted, longest):
            return min(longest, 2 * k if n_accepted == n_drafted else n_accepted)
        """,
    ),
    "beyond the longest": (
        "next_draft_length",
        """
        def next_draft_length(k, n_drafted, n_accepted, longest):
            return max(1, 2 * k) if n_accepted == n_drafted else n_accepted + 1
        """,
    ),
    "the longer of two equally fast lengths": (
        "best_draft_length",
        """
        def best_draft_length(alpha, draft_cost, verify_cost, overhead, longest):
            best, highest = 0, 1.0
            for k in range(1, longest + 1):
                speedup = sum(alpha**i for i in range(k + 1)) / (k * draft_cost + verify_cost(k + 1) + overhead)
                if speedup >= highest:
                    best, highest = k, speedup
            return best
        """,
    ),
    "a draft of 8 for an alpha of 0": (
        "best_draft_length",
        """
        def best_draft_length(alpha, draft_cost, verify_cost, overhead, longest):
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
