"""Wrong answers to exercise 5 that are easy to give. Every one of them must fail a check."""

WRONG = {
    "accepted / drafted": (
        "acceptance_rate",
        """
        def acceptance_rate(rounds):
            drafted = sum(d for d, _ in rounds)
            if drafted == 0:
                raise ValueError("nothing drafted")
            return sum(a for _, a in rounds) / drafted
        """,
    ),
    "every round rejects one": (
        "acceptance_rate",
        """
        def acceptance_rate(rounds):
            if not any(d for d, _ in rounds):
                raise ValueError("nothing tested")
            accepted = sum(a for _, a in rounds)
            return accepted / (accepted + len(rounds))
        """,
    ),
    "a mean of shares": (
        "acceptance_rate",
        """
        def acceptance_rate(rounds):
            shares = [a / d for d, a in rounds if d]
            if not shares:
                raise ValueError("nothing tested")
            return sum(shares) / len(shares)
        """,
    ),
    "nothing tested is 0": (
        "acceptance_rate",
        """
        def acceptance_rate(rounds):
            accepted = sum(a for _, a in rounds)
            rejected = sum(a < d for d, a in rounds)
            return accepted / max(1, accepted + rejected)
        """,
    ),
    "no bonus token": (
        "expected_tokens",
        """
        def expected_tokens(alpha, k):
            return float(sum(alpha**i for i in range(max(1, k))))
        """,
    ),
    "drafts count after a rejected one": (
        "expected_tokens",
        """
        def expected_tokens(alpha, k):
            return 1 + alpha * k
        """,
    ),
    "zero divided by zero": (
        "expected_tokens",
        """
        def expected_tokens(alpha, k):
            return (1 - alpha ** (k + 1)) / (1 - alpha)
        """,
    ),
    "the book's formula": (
        "predicted_speedup",
        """
        def predicted_speedup(alpha, k, draft_cost, verify_cost, overhead):
            return 1 / (1 - alpha + alpha / k) if k else 1.0
        """,
    ),
    "the overhead forgotten": (
        "predicted_speedup",
        """
        def predicted_speedup(alpha, k, draft_cost, verify_cost, overhead):
            return expected_tokens(alpha, k) / (k * draft_cost + verify_cost)
        """,
    ),
    "the last term forgotten": (
        "expected_tokens",
        """
        def expected_tokens(alpha, k):
            return float(sum(alpha**i for i in range(k))) if k else 1.0
        """,
    ),
    "v on top of a step": (
        "predicted_speedup",
        """
        def predicted_speedup(alpha, k, draft_cost, verify_cost, overhead):
            return expected_tokens(alpha, k) / (1 + k * draft_cost + verify_cost + overhead)
        """,
    ),
    "verification is free": (
        "predicted_speedup",
        """
        def predicted_speedup(alpha, k, draft_cost, verify_cost, overhead):
            return expected_tokens(alpha, k) / (1 + k * draft_cost)
        """,
    ),
    "never below 1": (
        "predicted_speedup",
        """
        def predicted_speedup(alpha, k, draft_cost, verify_cost, overhead):
            return max(1.0, expected_tokens(alpha, k) / (k * draft_cost + verify_cost + overhead))
        """,
    ),
}
