"""Numbers and tokens in words, for the pictures of a decoding (speclab/lab/trace.py)."""

from speclab.system.terminal import harmless


def counted(n: int, what: str) -> str:
    """1 token, 2 tokens"""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}"


def apart(left: float, right: float) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see which is smaller, three at least."""
    for digits in range(3, 18):
        written = number(left, digits), number(right, digits)
        if (float(written[0]) < float(written[1])) == (left < right):
            break
    return written


def milliseconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f} ms"


def visible(text: str) -> str:
    """A token for a narrow place, on one line: blanks and line ends as signs."""
    signs = str.maketrans({" ": "·", "\n": "↵", "\t": "→"})
    return harmless(text).translate(signs) or "◌"


def spoken(text: str) -> str:
    """A token for someone who hears it."""
    if not text:
        return "a part of a character"
    if not text.strip(" \n\t"):
        parts = ((" ", "blank"), ("\n", "line end"), ("\t", "tab"))
        return " and ".join(counted(text.count(sign), word) for sign, word in parts if sign in text)
    return f"“{' '.join(harmless(text).split())}”"
