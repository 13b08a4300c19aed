"""The pictures of the chapters, which `python -m tools.plots` draws: every number in them follows from a formula of its
chapter, and none is measured. The solutions of the exercises make the numbers, so a picture says what these say.
"""

from collections.abc import Callable
from pathlib import Path

from solutions import ex09_stop_when_unsure as ex09
from solutions import ex13_batch_knee as ex13
from speclab.present import pictures
from speclab.present.pictures import Figure, NullLocator

BLUE, ORANGE, GREEN, PINK, *_, BLACK = pictures.COLOURS
GREY = "#BBBBBB"
SOURCE = "computed by tools/chapter_pictures.py from the formulas of the chapter; nothing here is measured"


# --- chapter 9: what a longer draft is worth --------------------------------------------------------------------------

DRAWN, LATER, RATE = [0.95] * 7, [0.95] * 7, 4.0
NARROW_PASS, WIDE_PASS, UP_TO = 1.0, 1.4, 8  # a pass costs this much up to so many tokens, and that much beyond
DRAFT_COST, OVERHEAD = 0.05, 0.1


def cost(n: int) -> float:
    """Return what a round with n drafted tokens costs, in steps: its pass has n + 1 tokens."""
    return OVERHEAD + DRAFT_COST * n + (NARROW_PASS if n + 1 <= UP_TO else WIDE_PASS)


def worths() -> dict[int, float]:
    """Return what drafts of seven tokens and more are worth, by their length."""
    lengths = range(len(DRAWN), len(DRAWN) + len(LATER) + 1)
    tokens = ex09.expected_tokens(DRAWN, LATER)
    return {n: expected - RATE * cost(n) for n, expected in zip(lengths, tokens, strict=True)}


def worth() -> Figure:
    """Draw worth(n) of chapter 9, where a pass costs more from nine tokens on."""
    found = worths()
    now = found[len(DRAWN)]
    figure, [axis] = pictures.blank(1, 6.4, 3.9)
    axis.axhline(now, color=GREY, linewidth=1)
    axis.axvline(UP_TO - 0.5, color=BLACK, linewidth=1, linestyle=":")
    better = {n: value for n, value in found.items() if value > now}
    worse = {n: value for n, value in found.items() if value <= now and n > len(DRAWN)}
    axis.plot(list(found), list(found.values()), color=GREY, linewidth=1, zorder=1)
    axis.plot([len(DRAWN)], [now], "o", color=BLACK, label=f"stop now, with {len(DRAWN)} tokens")
    axis.plot(list(worse), list(worse.values()), "s", color=ORANGE, label="longer, and worth less than stopping")
    axis.plot(list(better), list(better.values()), "^", color=BLUE, label="longer, and worth more")
    for n, value in found.items():
        pictures.note(axis, n, value, f"{value:.2f}", 6)
    axis.annotate(
        f"a pass over {UP_TO + 1} tokens\ncosts {WIDE_PASS:g} steps, not {NARROW_PASS:g}",
        (UP_TO - 0.5, min(found.values())),
        (-8, 0),
        textcoords="offset points",
        fontsize=8,
        ha="right",
        va="bottom",
    )
    axis.set_xticks(list(found))
    axis.set_xlim(min(found) - 2.2, max(found) + 0.4)
    axis.margins(y=0.18)
    axis.set_xlabel("drafted tokens n")
    axis.set_ylabel("worth(n) = tokens(n) - rate x cost(n)")
    pictures.legend_above(axis, f"each token is accepted with 0.95 if all before it are; rate {RATE:g}")
    return figure


# --- chapter 13: the knee ---------------------------------------------------------------------------------------------

MACHINE, TARGET = ex13.Machine(2e12, 300e12), ex13.Model(8e9, 131072)
WIDTHS = [round(2 ** (i / 4)) for i in range(41)]  # 1 to 1024 tokens in a pass


def knee_tokens() -> float:
    """Return the tokens of a pass at which reading weights and arithmetic take equally long: operations / bytes."""
    return MACHINE.flops / MACHINE.bandwidth


def attained(n_tokens: int) -> float:
    """Return the operations a second of a pass over so many tokens, without any context."""
    return 2 * TARGET.weights * n_tokens / ex13.step_time(MACHINE, TARGET, n_tokens, 1, 0)


def roofline() -> Figure:
    figure, [axis] = pictures.blank(1, 6.4, 3.9)
    axis.plot(WIDTHS, [attained(n) / 1e12 for n in WIDTHS], color=BLUE, label="a pass of the target")
    knee = knee_tokens()
    axis.axvline(knee, color=BLACK, linewidth=1, linestyle=":")
    pictures.note(axis, knee, 3, f"knee: {knee:g} tokens", 0, 6, ha="left")
    marks = {1: "one text", 5: "one text, k = 4", 150: "30 texts, k = 4", 300: "60 texts, k = 4"}
    for (n, said), look, mark in zip(marks.items(), (BLACK, ORANGE, GREEN, PINK), pictures.MARKERS, strict=False):
        said = f"{said}: {1e3 * ex13.step_time(MACHINE, TARGET, n, 1, 0):.0f} ms"
        axis.plot([n], [attained(n) / 1e12], mark, color=look, label=said, zorder=3)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=10)
    axis.set_xticks([1, 5, 16, 64, 150, 300, 1024], ["1", "5", "16", "64", "150", "300", "1024"])
    ticks = [2, 5, 10, 20, 50, 100, 300]
    axis.set_yticks(ticks, list(map(str, ticks)))
    for side in (axis.xaxis, axis.yaxis):
        side.set_minor_locator(NullLocator())
    axis.set_xlabel("tokens in a pass, of all texts together")
    axis.set_ylabel("10¹² operations a second")
    axis.text(9, 9, "as fast as weights are read", fontsize=8, color="#555555")
    axis.text(420, 340, "arithmetic", fontsize=8, color="#555555")
    axis.set_ylim(top=500)
    pictures.legend_above(axis, "2e12 bytes, 300e12 operations a second; 8e9 weights")
    return figure


# --- all of them ------------------------------------------------------------------------------------------------------


PICTURES: dict[str, tuple[str, Callable[[], Figure]]] = {  # name -> the chapter's page, and what paints
    "chapter-09-worth": ("09-stop-when-unsure", worth),
    "chapter-13-roofline": ("13-batch-knee", roofline),
}


def draw(folder: Path, name: str) -> Path:
    """Paint a picture and write it as folder/name.png.  -> its path"""
    figure = PICTURES[name][1]()
    figure.supxlabel(SOURCE, fontsize=7, color="#555555")
    return pictures.written(figure, folder / f"{name}.png")
