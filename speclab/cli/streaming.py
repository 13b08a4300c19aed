"""Shows the text of a decoding: each token in the colour of its origin where the terminal has colours.

An accepted token was drafted; a corrected one is the target's own, in place of a rejected one; a bonus is the target's
own after a draft that was kept whole. All other tokens are the target's own, too, and have no colour.
"""

import sys
from collections.abc import Iterator

from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.models.pieces import Pieces
from speclab.system.terminal import harmless, wants_colour

PLAIN = "plain"
ORIGINS = {  # the colour of each origin, and what it means; plain tokens have no colour
    "accepted": ("32", "drafted and kept"),
    "corrected": ("35", "the target's own, in place of a rejected token"),
    "bonus": ("36", "the target's own, after a draft that was kept whole"),
}


def parts(round_: Round) -> Iterator[tuple[str, list[int]]]:
    """Yield the origins of a round's tokens, each with its tokens, in the order of the text."""
    accepted, own = round_.tokens[: round_.n_accepted], round_.tokens[round_.n_accepted :]
    if accepted:
        yield "accepted", accepted
    if own:
        yield PLAIN if not round_.n_drafted else "corrected" if round_.n_rejected else "bonus", own


class Text:
    """Prints the text of one decoding.

    pieces: hold back what may still change, as half a character does. at_once: print each piece as soon as it is
    known; else the whole text at the end. It then has no colours.
    """

    def __init__(self, pieces: Pieces, at_once: bool):
        self._pieces, self._at_once = pieces, at_once
        self._colours = at_once and wants_colour(sys.stdout)
        self._held: list[str] = []

    def add(self, round_: Round) -> None:
        for origin, tokens in parts(round_):
            self._show(self._pieces.add(tokens), origin)

    def end(self) -> None:
        """Show what was held back, and end the line."""
        self._show(self._pieces.rest(), PLAIN)
        print(harmless("".join(self._held)), flush=True)

    def _show(self, text: str, origin: str) -> None:
        if not self._at_once:
            self._held.append(text)
        elif text:
            print(painted(harmless(text), origin) if self._colours else harmless(text), end="", flush=True)


def painted(text: str, origin: str) -> str:
    return f"\x1b[{ORIGINS[origin][0]}m{text}\x1b[0m" if origin in ORIGINS else text


def legend() -> str | None:
    """Return the line that explains the colours; None where standard output shows none."""
    if not wants_colour(sys.stdout):
        return None
    return "colours " + "; ".join(f"{painted(name, name)}: {meaning}" for name, (_, meaning) in ORIGINS.items())


def passes_line(n_tokens: int, counts: Counts) -> str:
    """Say how many passes of the target the tokens took, and how many the baseline takes for them.

    n_tokens: all of them, those included that the passes over the prompts gave, which both need.
    """
    n_passes = counts.n_rounds + counts.n_replays
    passes = f"{n_passes} pass{'es' * (n_passes != 1)}"
    tokens = f"{n_tokens} token{'s' * (n_tokens != 1)}"
    return f"{tokens} in {passes} of the target; one by one it takes {counts.n_emitted}"
