"""Numbers in text that somebody typed. Python reads no more than some 4,300 digits, and nobody means as many."""

MOST_DIGITS = 18  # fit 64 bits


def whole_number(text: str) -> int | None:
    """Return the number that at most 18 decimal digits spell; None for any other text."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None
