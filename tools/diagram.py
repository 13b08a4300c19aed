"""The picture of one round: `python -m tools.diagram` writes plots/one-round.png. No run behind it, no number.

The same in words stands under the picture in the README, for whoever cannot see it.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from speclab.cli import parsing
from speclab.system.errors import reports_problems
from speclab.system.files import write_whole
from speclab.system.paths import ROOT

PATH = ROOT / "plots" / "one-round.png"
INK, SOFT, PAPER = "#1b1e22", "#535a61", "#ffffff"
# Okabe and Ito's colours without yellow; every kind of token has a shape of its own too.
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
TINTS = {BLUE: "#e4f0f8", VERMILLION: "#fdeee4", GREEN: "#e6f5f0", ORANGE: "#fdf3e0", SOFT: "#f1f2f4"}
PROMPT, FIRST, DRAFTS = ["def", "add(a,", "b):"], "return", ["a", "*", "b"]
OWN = ["a", "+", "b", "\\n"]  # the target's own choice in each row of its pass


def draw() -> plt.Figure:
    figure = plt.figure(figsize=(9.6, 6.3), facecolor=PAPER)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, 96), ylim=(0, 63))
    axis.axis("off")
    axis.add_patch(Rectangle((0.15, 0.15), 95.7, 62.7, fill=False, edgecolor="#c3c8ce", linewidth=1))

    _step(axis, 2.5, 46, 36, 14.5, "1  Prefill, once", "both models read the prompt;\nthe target gives the first token")
    for i, word in enumerate(PROMPT):
        _token(axis, 4.0 + 8.5 * i, 47.8, word, SOFT)
    _token(axis, 29.5, 47.8, FIRST, BLUE)

    _step(axis, 45.5, 46, 48, 14.5, "2  Draft", "the cheap model proposes k = 3 tokens,\none pass after the other")
    _token(axis, 47.0, 47.8, FIRST, BLUE)
    for i, word in enumerate(DRAFTS):
        _token(axis, 58.8 + 11.8 * i, 47.8, word, ORANGE, dashed=True)
        _arrow(axis, (55.0 + 11.8 * i, 49.6), (58.5 + 11.8 * i, 49.6))

    text = (
        "the target reads the last token and all drafts in one pass;\n"
        "each row gives what the target itself would say next"
    )
    _step(axis, 45.5, 18.5, 48, 24, "3  Verify", text)
    for i, word in enumerate([FIRST, *DRAFTS]):
        x = 51.2 + 10.6 * i
        _token(axis, x, 29.4, word, ORANGE if i else BLUE, dashed=bool(i))
        _arrow(axis, (x + 3.9, 29.2), (x + 3.9, 25.3))
        _token(axis, x, 21.4, OWN[i], BLUE)
    _words(axis, 48.6, 31.2, "fed")
    _words(axis, 48.6, 23.2, "own")

    text = "drafts are kept up to the first that fails\nits test; the target's own token replaces it"
    _step(axis, 2.5, 18.5, 36, 24, "4  Accept or reject", text)
    for i, (word, colour, sign) in enumerate(zip(DRAFTS, (GREEN, VERMILLION, SOFT), "✓✗?", strict=True)):
        _token(axis, 4.0 + 11.2 * i, 29.4, word, colour, struck=sign == "✗", dashed=sign == "?")
        _words(axis, 4.0 + 11.2 * i + 9.2, 31.2, sign, colour if sign != "?" else SOFT, size=12)
    _words(axis, 7.9, 27.6, "kept", INK)
    _words(axis, 19.1, 27.6, "refused", INK)
    _words(axis, 30.3, 27.6, "never tested", INK)
    _token(axis, 4.0, 21.4, "a", GREEN)
    _token(axis, 15.2, 21.4, "+", BLUE)
    _words(axis, 24.2, 23.2, "committed now", INK, align="left")

    _step(axis, 2.5, 2.4, 91, 12.4, "5  Roll back, next round", "")
    _words(
        axis,
        4.0,
        6.9,
        "Both caches forget what was refused: they keep all but the last committed token, here “+”. "
        "The next round drafts behind it.\n"
        "Had all three been kept, the last row would have given one more token, the bonus: "
        "a round commits 1 to k + 1 tokens,\n"
        "and with this rule the text is the target's, whatever was drafted.",
        INK,
        align="left",
    )

    _arrow(axis, (38.7, 53.2), (45.3, 53.2), wide=True)
    _arrow(axis, (69.5, 45.8), (69.5, 42.8), wide=True)
    _arrow(axis, (45.3, 30.5), (38.7, 30.5), wide=True)
    _arrow(axis, (20.5, 18.3), (20.5, 15.0), wide=True)
    loop = FancyArrowPatch(
        (93.7, 8.5), (93.7, 53.2), connectionstyle="bar,fraction=0.035", arrowstyle="-|>", mutation_scale=16,
        linewidth=2, color=INK,
    )  # fmt: skip
    axis.add_patch(loop)
    return figure


def _step(axis, x: float, y: float, width: float, height: float, title: str, text: str) -> None:
    box = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.9", fc=PAPER, ec=INK, lw=1.3)
    axis.add_patch(box)
    axis.text(x + 1.5, y + height - 2.4, title, fontsize=12.5, fontweight="bold", color=INK, va="center")
    axis.text(x + 1.5, y + height - 4.2, text, fontsize=9.5, color=INK, va="top", linespacing=1.3)


def _token(axis, x: float, y: float, word: str, colour: str, struck: bool = False, dashed: bool = False) -> None:
    width, height = 7.8, 3.6
    style = "--" if dashed else "-"
    axis.add_patch(Rectangle((x, y), width, height, fc=TINTS[colour], ec=colour, lw=1.8, linestyle=style))
    axis.text(x + width / 2, y + height / 2 - 0.1, word, family="DejaVu Sans Mono", fontsize=10, ha="center",
              va="center", color=INK)  # fmt: skip
    if struck:
        axis.plot([x, x + width], [y, y + height], color=colour, linewidth=1.5)


def _words(axis, x: float, y: float, text: str, colour: str = SOFT, size: float = 9.5, align: str = "center") -> None:
    axis.text(x, y, text, fontsize=size, color=colour, ha=align, va="center", linespacing=1.45)


def _arrow(axis, start: tuple[float, float], end: tuple[float, float], wide: bool = False) -> None:
    size, width = (16, 2.0) if wide else (9, 1.2)
    look = {"arrowstyle": "-|>", "mutation_scale": size, "linewidth": width, "color": INK, "shrinkA": 0, "shrinkB": 0}
    axis.add_patch(FancyArrowPatch(start, end, **look))


def write(path: Path = PATH) -> Path:
    """The picture, whole or not at all; the same bytes on every run."""
    buffer, figure = io.BytesIO(), draw()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    plt.close(figure)
    return write_whole(path, buffer.getvalue())


@reports_problems
def main(argv: list[str] | None = None) -> None:
    parsing.make_parser(__doc__).parse_args(argv)
    write()


if __name__ == "__main__":
    sys.exit(main())
