"""Plausible wrong answers to exercise 2: name -> (hole, source). Each must fail a check (tests/exercises/)."""


def _round(commit: str, drafts: str = "min(k, max_new - 1)", cut: str = "committed[: i + 1]") -> str:
    """The right round with one part of it replaced."""
    return f"""
def one_round(target, draft, text, k, max_new, eos):
    drafted = []
    for _ in range({drafts}):
        drafted.append(draft(text + drafted))
    own = target(text + drafted, len(drafted))
    n = count_accepted(drafted, own)
    {commit}
    for i, token in enumerate(committed):
        if token in eos:
            return {cut}
    return committed
"""


WRONG = {
    "agreements after the first rejected draft count": (
        "count_accepted",
        "def count_accepted(drafted, own):\n    return sum(d == o for d, o in zip(drafted, own))",
    ),
    "token 0 is nothing": (
        "count_accepted",
        """
def count_accepted(drafted, own):
    n = 0
    while n < len(drafted) and drafted[n] and drafted[n] == own[n]:
        n += 1
    return n
""",
    ),
    "counts by taking the drafts off their list": (
        "count_accepted",
        """
def count_accepted(drafted, own):
    n = 0
    while drafted and drafted.pop(0) == own[n]:
        n += 1
    return n
""",
    ),
    "the next token is taken out of the list": (
        "next_token",
        "def next_token(own, n_accepted):\n    return own.pop(n_accepted)",
    ),
    "the number of accepted drafts is a float": (
        "count_accepted",
        """
def count_accepted(drafted, own):
    n = 0.0
    while n < len(drafted) and drafted[int(n)] == own[int(n)]:
        n += 1
    return n
""",
    ),
    "the next token is always the last one": ("next_token", "def next_token(own, n_accepted):\n    return own[-1]"),
    "the last accepted token once more": (
        "next_token",
        "def next_token(own, n_accepted):\n    return own[max(n_accepted - 1, 0)]",
    ),
    "the correction in front of the drafts": ("one_round", _round("committed = [next_token(own, n), *drafted[:n]]")),
    "no bonus token": (
        "one_round",
        _round("committed = drafted if drafted and n == len(drafted) else [*drafted[:n], next_token(own, n)]"),
    ),
    "the correction is thrown away": (
        "one_round",
        _round("committed = [*drafted[:n], next_token(own, n)] if n == len(drafted) else drafted[:n] or [own[0]]"),
    ),
    "the target is asked again for the correction": (
        "one_round",
        _round(
            "committed = [*drafted[:n], next_token(own, n) if n == len(drafted) else target(text + drafted[:n], 0)[0]]"
        ),
    ),
    "an end inside the block is overlooked": (
        "one_round",
        _round("committed = [*drafted[:n], next_token(own, n)]", cut="committed"),
    ),
    "a drafted end is believed": (
        "one_round",
        _round(
            "ends = [i for i, token in enumerate(drafted) if token in eos]\n"
            "    committed = drafted[: ends[0] + 1] if ends else [*drafted[:n], next_token(own, n)]"
        ),
    ),
    "drafting stops at an end, the question does not": (
        "one_round",
        _round("committed = [*drafted[:n], next_token(own, n)]")
        .replace("drafted.append", "if drafted and drafted[-1] in eos:\n            break\n        drafted.append")
        .replace("target(text + drafted, len(drafted))", "target(text + drafted, min(k, max_new - 1))"),
    ),
    "the budget is overshot": ("one_round", _round("committed = [*drafted[:n], next_token(own, n)]", drafts="k")),
    "the draft never sees its own tokens": (
        "one_round",
        _round("committed = [*drafted[:n], next_token(own, n)]").replace("draft(text + drafted)", "draft(text)"),
    ),
    "all or nothing": (
        "count_accepted",
        """
        def count_accepted(drafted, own):
            return len(drafted) if drafted == own[: len(drafted)] else 0
        """,
    ),
    "all or nothing, in the round": (
        "one_round",
        """
        def one_round(target, draft, text, k, max_new, eos):
            drafted = []
            for _ in range(min(k, max_new - 1)):
                drafted.append(draft(text + drafted))
            own = target(text + drafted, len(drafted))
            committed = own if drafted == own[:-1] else own[:1]
            for i, token in enumerate(committed):
                if token in eos:
                    return committed[: i + 1]
            return committed
        """,
    ),
}
