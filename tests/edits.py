"""Edits of source text, for mutants of the lab and for wrong answers to exercises.

Lines behind `-` are an old text, which has to be there exactly once, and lines behind `+` a new one. Several pairs are
made one after the other.
"""

import itertools
from collections.abc import Iterable

Edit = tuple[str, str]  # old, new


def edits_in(lines: Iterable[str]) -> list[Edit]:
    """Those that these lines describe; lines with another beginning are passed over."""
    marked = itertools.groupby((line for line in lines if line.startswith(("-", "+"))), key=lambda line: line[0])
    texts = ["\n".join(line[2:] for line in of_mark) for _, of_mark in marked]
    return list(zip(texts[::2], texts[1::2], strict=True))


def edited(text: str, edits: Iterable[Edit], where: str) -> str:
    """The text with these edits. Raises ImportError where an old text is not there exactly once."""
    for old, new in edits:
        if (n := text.count(old)) != 1:
            raise ImportError(f"{where} has {n} times: {old}")
        text = text.replace(old, new)
    return text
