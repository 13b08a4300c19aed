"""Tables and sentences. Every one is a view of counts or of a run record; nothing is computed here that is not there."""

from tabulate import tabulate

from speclab.theory import Counts


def number(value: float | None, digits: int = 2) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows: list[list[str]], headers: list[str], markdown: bool = False, n_words: int = 1) -> str:
    """Right-aligned columns after the first `n_words`, which hold words."""
    align = ["left"] * n_words + ["right"] * (len(headers) - n_words)
    return tabulate(
        rows,
        headers,
        tablefmt="github" if markdown else "simple",
        colalign=align if rows else None,
        disable_numparse=True,
    )


def counts_summary(counts: Counts) -> str:
    """Rounds, acceptance in all its meanings, and a histogram of accepted lengths."""
    lines = [
        f"rounds {counts.n_rounds}, drafted {counts.n_drafted}, accepted {counts.n_accepted}, "
        f"refused {counts.n_rejected}, never tested {counts.n_drafted - counts.n_accepted - counts.n_rejected}",
        f"alpha (accepted / tested)           {number(counts.acceptance_rate, 3)}",
        f"drafted fraction (accepted/drafted) {number(counts.drafted_fraction, 3)}",
        f"tokens per round (target pass)      {number(counts.tokens_per_round)}",
        "accepted in a round:",
    ]
    most = max(counts.accepted_lengths.values(), default=1)
    for length in range(max(counts.accepted_lengths, default=0) + 1):
        rounds = counts.accepted_lengths[length]
        lines.append(f"  {length:2d} | {'#' * round(40 * rounds / most):40s} {rounds}")
    return "\n".join(lines)
