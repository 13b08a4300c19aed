"""Wrong answers to exercise 5 that are easy to give. Every one of them must fail a check."""

from textwrap import dedent, indent

HEADS = {
    "acceptance_rate": "rounds",
    "expected_tokens": "alpha, k",
    "predicted_speedup": "alpha, k, draft_cost, verify_cost, overhead",
}


def _of(hole: str, body: str) -> tuple[str, str]:
    """The function with this body."""
    return hole, f"def {hole}({HEADS[hole]}):\n" + indent(dedent(body).strip(), "    ")


WRONG = {
    "accepted / drafted": _of(
        "acceptance_rate",
        """
        drafted = sum(d for d, _ in rounds)
        if drafted == 0:
            raise ValueError("nothing drafted")
        return sum(a for _, a in rounds) / drafted
        """,
    ),
    "every round rejects one": _of(
        "acceptance_rate",
        """
        if not any(d for d, _ in rounds):
            raise ValueError("nothing tested")
        accepted = sum(a for _, a in rounds)
        return accepted / (accepted + len(rounds))
        """,
    ),
    "a mean of shares": _of(
        "acceptance_rate",
        """
        shares = [a / d for d, a in rounds if d]
        if not shares:
            raise ValueError("nothing tested")
        return sum(shares) / len(shares)
        """,
    ),
    "nothing tested is 0": _of(
        "acceptance_rate",
        """
        accepted = sum(a for _, a in rounds)
        rejected = sum(a < d for d, a in rounds)
        return accepted / max(1, accepted + rejected)
        """,
    ),
    "no bonus token": _of("expected_tokens", "return float(sum(alpha**i for i in range(max(1, k))))"),
    "drafts count after a rejected one": _of("expected_tokens", "return 1 + alpha * k"),
    "zero divided by zero": _of("expected_tokens", "return (1 - alpha ** (k + 1)) / (1 - alpha)"),
    "the book's formula": _of("predicted_speedup", "return 1 / (1 - alpha + alpha / k) if k else 1.0"),
    "the overhead forgotten": _of(
        "predicted_speedup", "return expected_tokens(alpha, k) / (k * draft_cost + verify_cost)"
    ),
    "the last term forgotten": _of("expected_tokens", "return float(sum(alpha**i for i in range(k))) if k else 1.0"),
    "v on top of a step": _of(
        "predicted_speedup", "return expected_tokens(alpha, k) / (1 + k * draft_cost + verify_cost + overhead)"
    ),
    "verification is free": _of("predicted_speedup", "return expected_tokens(alpha, k) / (1 + k * draft_cost)"),
    "never below 1": _of(
        "predicted_speedup", "return max(1.0, expected_tokens(alpha, k) / (k * draft_cost + verify_cost + overhead))"
    ),
}
