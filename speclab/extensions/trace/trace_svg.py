"""A decoding as an animated picture: what the draft proposes, what the target keeps, and the baseline beside it.

One SVG file with CSS animations, which a browser also plays where a page shows it as an image. It loops. Where motion
is not wanted, or not known, it shows the end. Both clocks are slowed down alike, and stand still after each round.
"""

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from speclab.extensions.trace.trace import Event, Token, Trace, visible
from speclab.system.terminal import harmless

WIDTH, LINE, CHAR, LEFT = 760, 18, 7.4, 18  # pixels: the picture, a line, a character, the margin
SLOWER, PAUSE, AT_END = 40.0, 0.9, 4.0  # how much slower than the clock; seconds after each round and at the end
LOST = ("rejected", "untested", "after_eos")
STYLE = """
svg { --page: #fff; --ink: #1b1e22; --soft: #5a6169; --line: #c3c8ce; --accepted: #009e73; --corrected: #d55e00;
  --bonus: #0072b2; --draft: #e69f00; }
@media (prefers-color-scheme: dark) {
  svg { --page: #16191d; --ink: #e9ebee; --soft: #aab2ba; --line: #434a52; --bonus: #56b4e9; --corrected: #ff8c3a; }
}
text { font: 12.3px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink); }
.s { fill: var(--soft); font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.b { font-weight: 600; fill: var(--ink); }
.accepted { fill: var(--accepted); } .corrected { fill: var(--corrected); } .bonus { fill: var(--bonus); }
.draft { fill: var(--draft); } .verify { fill: var(--bonus); } .other { fill: var(--soft); }
.first, .plain { fill: var(--soft); }
.chip { fill: none; stroke: var(--draft); }
.wait { fill: var(--bonus); opacity: .15; } .struck { stroke: var(--corrected); }
.struck.untested { stroke: var(--soft); stroke-dasharray: 2 2; }
.g { opacity: 0; }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; } }
"""


class Piece(NamedTuple):
    """A part of a token on one line of the text: where it begins, and its characters."""

    row: int
    column: int
    text: str


class Film:
    """Collects elements and when each is seen. Times come in as seconds of the trace's clock."""

    def __init__(self, trace: Trace):
        self.ends = [event.end for event in trace.events]  # the clock stands still at each, but the first
        self.length = self.at(max(self.ends[-1], trace.baseline[-1][1])) + AT_END
        self.elements: list[str] = []
        self.rules: dict[str, str] = {}  # keyframes -> class

    def at(self, seconds: float, paused: bool = False) -> float:
        """The picture's time at one of the clock. paused: after the pause that begins then."""
        pauses = sum(end < seconds or (paused and end == seconds) for end in self.ends[1:])
        return seconds * SLOWER + pauses * PAUSE

    def add(self, element: str, start: float = 0.0, end: float | None = None) -> None:
        """Show an element from `start` to `end`, in seconds of the picture; to its end without one."""
        if start <= 0 and end is None:
            self.elements.append(element)
            return
        frames = "0%{opacity:0}" * (start > 0) + f"{self._percent(start)}{{opacity:1}}"
        frames += "" if end is None else f"{self._percent(end)}{{opacity:0}}"
        name = self.rules.setdefault(frames, f"a{len(self.rules)}")
        self.elements.append(f'<g class="{name}{" g" * (end is not None)}">{element}</g>')

    def _percent(self, time: float) -> str:
        return f"{100 * time / self.length:.2f}%"

    def cursor(self, x: float, y: float, height: int, width: float, total: float) -> None:
        """A line that goes over a strip of `total` seconds with the clock."""
        stops = [(0.0, 0.0)]
        for end in [*self.ends[1:], total]:
            stops += [(self.at(end), end), (self.at(end, paused=True), end)]
        stops.append((self.length, total))
        frames = "".join(
            f"{self._percent(at)}{{transform:translateX({width * seconds / total:.1f}px)}}"
            for at, seconds in dict(stops).items()
        )
        name = self.rules.setdefault(frames, f"a{len(self.rules)}")
        place = f'x="{x - 1}" y="{y}" width="2" height="{height}"'
        self.elements.append(f'<rect class="b {name}" style="animation-timing-function:linear" {place}/>')

    def svg(self, height: int, label: str) -> str:
        """The whole file."""
        frames = "".join(f"@keyframes {name}{{{text}}}\n" for text, name in self.rules.items())
        names = ",".join(f".{name}" for name in self.rules.values())
        moves = "".join(f".{name}{{animation-name:{name}}}" for name in self.rules.values())
        timing = f"{names}{{animation:{self.length:.2f}s step-end infinite}}\n"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="{escape(label)}">\n<style>{STYLE}{frames}{timing}{moves}</style>\n'
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="var(--page)"/>\n'
            + "\n".join(self.elements)
            + "\n</svg>\n"
        )


def draw(trace: Trace) -> str:
    """The picture as one SVG file."""
    film = Film(trace)
    pieces = _laid_out([trace.prompt, *(token.text for event in trace.events for token in event.tokens)])
    n_rows = max(piece.row for parts in pieces for piece in parts) + 1
    heights = n_rows * LINE
    film.add(_words(LEFT, 28, "Speculative: the draft proposes, the target checks all of it in one pass", "s b"))
    _speculative_text(film, trace, pieces, top=40)
    y = 40 + heights + 20
    for before, event, after in zip(trace.events, trace.events[1:], [*trace.events[2:], None], strict=False):
        _round(film, before, event, after, y)
    y += 62
    film.add(_words(LEFT, y, "Baseline: one pass of the target for every token", "s b"))
    _baseline_text(film, trace, top=y + 12)
    y += heights + 34
    bottom = _strip(film, trace, y)
    return film.svg(
        bottom, "A decoding round by round: drafted tokens are accepted or corrected; the baseline is slower"
    )


def _laid_out(texts: list[str]) -> list[list[Piece]]:
    """Where each text stands, one after the other, with their line ends."""
    row = column = 0
    pieces = []
    for text in texts:
        parts = []
        for i, line in enumerate(harmless(text).split("\n")):
            row, column = (row + 1, 0) if i else (row, column)
            if line:
                parts.append(Piece(row, column, line))
            column += len(line)
        pieces.append(parts)
    return pieces


def _speculative_text(film: Film, trace: Trace, pieces: list[list[Piece]], top: int) -> None:
    film.add("".join(_piece(piece, top, "first") for piece in pieces[0]))
    place = 1
    for i, event in enumerate(trace.events):
        start = film.at(event.end)
        for token in event.tokens:
            film.add("".join(_piece(piece, top, token.kind, mark=True) for piece in pieces[place]), start)
            place += 1
        passes = f"{_counted(event.n_tokens, 'token')}, {_counted(i, 'pass', 'passes')} of the target"
        end = film.at(trace.events[i + 1].end) if i + 1 < len(trace.events) else None
        film.add(_words(WIDTH - LEFT, 28, passes, "s", "end"), start, end)


def _counted(n: int, one: str, more: str = "") -> str:
    return f"{n} {one if n == 1 else more or one + 's'}"


def _baseline_text(film: Film, trace: Trace, top: int) -> None:
    pieces = _laid_out([trace.prompt, *(text for text, _ in trace.baseline)])
    film.add("".join(_piece(piece, top, "first") for piece in pieces[0]))
    ends = [film.at(seconds) for _, seconds in trace.baseline]
    for i, (parts, start) in enumerate(zip(pieces[1:], ends, strict=True)):
        film.add("".join(_piece(piece, top, "") for piece in parts), start)
        count = f"{_counted(i + 1, 'token')}, {_counted(i, 'pass', 'passes')}"
        film.add(_words(WIDTH - LEFT, top - 12, count, "s", "end"), start, ends[i + 1] if i + 1 < len(ends) else None)


def _round(film: Film, before: Event, event: Event, after: Event | None, top: int) -> None:
    """The drafts as they come, the pass over them, and what became of each; until the next round's first draft."""
    gone = None if after is None else film.at(event.end, paused=True)
    start, x, n = before.end, float(LEFT + 70), len(event.drafts)
    film.add(_words(LEFT, top + 15, f"round {event.number}", "s"), film.at(start, paused=True), gone)
    first = x
    for i, token in enumerate(event.drafts):
        text = visible(token.text)
        width = len(text) * CHAR + 12
        seen = film.at(start + event.seconds["draft"] * (i + 1) / n)
        film.add(f'<rect class="chip" x="{x:.1f}" y="{top}" width="{width:.1f}" height="21" rx="3"/>', seen, gone)
        film.add(_words(x + 6, top + 15, text, length=len(text)), seen, gone)
        film.add(_fate(token, x, top, width), film.at(event.end), gone)
        x += width + 8
    verify = film.at(start + event.seconds["draft"])
    if n:
        box = f'<rect class="wait" x="{first - 4:.1f}" y="{top - 4}" width="{x - first:.1f}" height="29" rx="4"/>'
        film.add(box, verify, film.at(event.end))
    for token in event.tokens[event.n_accepted :]:
        text = visible(token.text)
        mark = f'<rect class="{token.kind}" x="{x:.1f}" y="{top + 23}" width="{len(text) * CHAR + 12:.1f}" height="3"/>'
        shown = _words(x + 6, top + 15, text, length=len(text)) + mark
        film.add(shown + _words(x + 6, top + 38, token.kind, f"s {token.kind}"), film.at(event.end), gone)


def _fate(token: Token, x: float, top: int, width: float) -> str:
    """What became of a draft: a line under it, or through it."""
    if token.kind not in LOST:
        return f'<rect class="accepted" x="{x:.1f}" y="{top + 23}" width="{width:.1f}" height="3"/>'
    path = f'<path class="struck {token.kind}" d="M{x + 2:.1f} {top + 11}h{width - 4:.1f}" stroke-width="2"/>'
    return path + (_words(x + 2, top + 38, "rejected", "s") if token.kind == "rejected" else "")


def _strip(film: Film, trace: Trace, top: int) -> int:
    """Rounds and steps to scale, and the cursor.  -> the picture's height"""
    total = max(trace.events[-1].end, trace.baseline[-1][1])
    scale = (WIDTH - 2 * LEFT) / total
    for x, width, kind in _segments(trace):
        film.add(f'<rect class="{kind}" x="{LEFT + x * scale:.1f}" y="{top}" width="{width * scale:.1f}" height="12"/>')
    for (_, start), (_, end) in zip(trace.baseline, trace.baseline[1:], strict=False):
        place = f'x="{LEFT + start * scale:.1f}" y="{top + 16}" width="{(end - start) * scale - 1:.1f}"'
        film.add(f'<rect class="other" {place} height="8"/>')
    film.cursor(LEFT, top - 3, 30, WIDTH - 2 * LEFT, total)
    words = f"0 to {1000 * total:.0f} ms, {SLOWER:g} times slower, with a pause after each round"
    legend = '<tspan class="draft">■</tspan> draft  <tspan class="verify">■</tspan> target  '
    film.add(f'<text class="s" x="{LEFT}" y="{top + 44}">{legend}{escape(words)}</text>')
    marks = "".join(f'<tspan class="{kind}">■</tspan> {kind}  ' for kind in ("accepted", "corrected", "bonus"))
    film.add(f'<text class="s" x="{WIDTH - LEFT}" y="{top + 44}" text-anchor="end">{marks}</text>')
    return top + 58


def _segments(trace: Trace) -> Iterator[tuple[float, float, str]]:
    """Start, length and phase of every part of every round."""
    for before, event in zip(trace.events, trace.events[1:], strict=False):
        at = before.end
        for name in ("draft", "verify", "other"):
            yield at, event.seconds[name], name
            at += event.seconds[name]


def _piece(piece: Piece, top: int, kind: str, mark: bool = False) -> str:
    """A part of a token in the text, with a line under it in its kind's colour."""
    x, y, width = LEFT + piece.column * CHAR, top + piece.row * LINE + 13, len(piece.text) * CHAR
    under = f'<rect class="{kind}" x="{x:.1f}" y="{y + 3}" width="{width - 0.8:.1f}" height="2"/>' if mark else ""
    lead = len(piece.text) - len(piece.text.lstrip(" "))
    text = piece.text[lead:]
    prompt = "first" if kind == "first" and not mark else ""
    return under + (_words(x + lead * CHAR, y, text, prompt, length=len(text)) if text else "")


def _words(x: float, y: float, text: str, kind: str = "", anchor: str = "start", length: int = 0) -> str:
    """A line of text. length: characters, where it must be as wide as they are, whatever the font."""
    look = f' class="{kind}"' if kind else ""
    look += f' text-anchor="{anchor}"' if anchor != "start" else ""
    look += f' textLength="{length * CHAR:.1f}" lengthAdjust="spacingAndGlyphs"' if length else ""
    shown = text.replace(" ", "\u00a0") if length else text  # SVG joins blanks into one
    return f'<text{look} x="{x:.1f}" y="{y}">{escape(shown)}</text>'
