"""Draw the pictures of the chapters: every number in them follows from a formula of its chapter, and none is measured.

    python -m tools.chapter_pictures                # all of them, into plots/
    python -m tools.chapter_pictures --out DIR      # into another folder

What comes out: plots/chapter-*.png, one for each function in PICTURES. The numbers are made by the solutions of the
exercises, so a picture cannot say anything else than the chapter's own functions.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solutions import ex09_stop_when_unsure as ex09
from solutions import ex13_batch_knee as ex13
from solutions import ex15_token_trees as ex15
from speclab.cli import parsing
from speclab.present.pictures import figures
from speclab.present.pictures.figures import Figure, NullLocator, plt
from speclab.system.errors import reports_problems
from speclab.system.files import prepare_folder, write_all, write_whole
from speclab.system.paths import ROOT

PLOTS = ROOT / "plots"
BLUE, ORANGE, GREEN, PINK, SKY, AMBER, BLACK = figures.COLOURS
GREY, PALE = "#BBBBBB", "#EEEEEE"
SOURCE = "computed by tools/chapter_pictures.py from the formulas of the chapter; nothing here is measured"


# --- chapter 4: one position ------------------------------------------------------------------------------------------

P, Q = [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]  # the chapter's target and draft


def kept_and_missing(target: list[float], draft: list[float]) -> tuple[list[float], list[float]]:
    """Split a target's row into what accepted drafts bring, min(p, q), and what corrections bring, max(0, p - q)."""
    pairs = list(zip(target, draft, strict=True))
    return [min(pair) for pair in pairs], [max(0.0, p - q) for p, q in pairs]


def residual() -> Figure:
    kept, missing = kept_and_missing(P, Q)
    figure, (rows, left) = figures.blank(2, 4.6, 3.6, sharey=True, gridspec_kw={"width_ratios": [2, 1]})
    places, width = range(len(P)), 0.38
    at_p, at_q = ([place + aside for place in places] for aside in (-width / 2, width / 2))
    rows.bar(at_p, kept, width, color=BLUE, label="p: kept drafts bring min(p, q)")
    rows.bar(at_p, missing, width, kept, color="white", edgecolor=BLUE, hatch="//", label="p: corrections bring p - q")
    rows.bar(at_q, Q, width, color=AMBER, label="q: what the draft proposes")
    for xs, heights in ((at_p, P), (at_q, Q)):
        for x, height in zip(xs, heights, strict=True):
            figures.note(rows, x, height, f"{height:g}", 3)
    total = sum(missing)
    shares = [share / total for share in missing]
    left.bar(places, shares, 0.5, color="white", edgecolor=BLUE, hatch="//", label=f"max(0, p - q) / {total:.1f}")
    for place, share in zip(places, shares, strict=True):
        figures.note(left, place, share, f"{share:.2f}".rstrip("0").rstrip("."), 3)
    for axis, title in ((rows, "one position, three tokens"), (left, "the residual: where corrections come from")):
        axis.set_xticks(list(places), [f"token {place}" for place in places])
        axis.set_ylim(0, 1)
        figures.legend_above(axis, title)
    rows.set_ylabel("probability")
    return figure


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
    figure, [axis] = figures.blank(1, 6.4, 3.9)
    axis.axhline(now, color=GREY, linewidth=1)
    axis.axvline(UP_TO - 0.5, color=BLACK, linewidth=1, linestyle=":")
    better = {n: value for n, value in found.items() if value > now}
    worse = {n: value for n, value in found.items() if value <= now and n > len(DRAWN)}
    axis.plot(list(found), list(found.values()), color=GREY, linewidth=1, zorder=1)
    axis.plot([len(DRAWN)], [now], "o", color=BLACK, label=f"stop now, with {len(DRAWN)} tokens")
    axis.plot(list(worse), list(worse.values()), "s", color=ORANGE, label="longer, and worth less than stopping")
    axis.plot(list(better), list(better.values()), "^", color=BLUE, label="longer, and worth more")
    for n, value in found.items():
        figures.note(axis, n, value, f"{value:.2f}", 6)
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
    figures.legend_above(axis, f"each token is accepted with 0.95 if all before it are; rate {RATE:g}")
    return figure


# --- chapter 12: what a slot reads ------------------------------------------------------------------------------------

TEXT, SLOTS = ["h0", "h1", "h2", "h3"], ["last", "[mask]", "[mask]", "[mask]"]
NOT_READ, STATE, ITSELF, OTHER, BIAS = range(5)
SLOT_COLOURS = [PALE, SKY, BLACK, GREEN, AMBER]
SLOT_LABELS = {
    STATE: "the target's states of the text",
    ITSELF: "the slot itself",
    OTHER: "the other slots of the block, masks too",
    BIAS: "the drafted token before it: Markov head, in the walk alone",
}


def slot_cells() -> list[list[int]]:
    """Return for every slot of a block what it reads of the text's states, of the slots, and of the drafted tokens."""
    rows = []
    for slot in range(len(SLOTS)):
        others = [ITSELF if other == slot else OTHER for other in range(len(SLOTS))]
        drafted = [BIAS if slot == token + 1 else NOT_READ for token in range(len(SLOTS) - 1)]
        rows.append([STATE] * len(TEXT) + others + drafted)
    return rows


def slots() -> Figure:
    columns = [*TEXT, *SLOTS, *(f"d{i + 1}" for i in range(len(SLOTS) - 1))]
    figure, [axis] = figures.blank(1, 7.4, 3.7)
    cells(axis, slot_cells(), SLOT_COLOURS, columns, [f"{name}: d{i + 1}" for i, name in enumerate(SLOTS)])
    for border in (len(TEXT), len(TEXT) + len(SLOTS)):
        axis.axvline(border - 0.5, color="white", linewidth=6)
    axis.set_ylabel("slot, and what is drafted there")
    axis.set_xlabel("what it reads")
    for kind, label in SLOT_LABELS.items():
        axis.plot([], [], "s", color=SLOT_COLOURS[kind], label=label)
    figures.legend_above(axis, "a block of four slots: no slot reads what another one drafts")
    return figure


def cells(axis: Any, rows: list[list[int]], colours: list[str], columns: list[str], names: list[str]) -> None:
    """Draw a matrix of kinds as coloured cells, row by row from above."""
    for y, row in enumerate(rows):
        for x, kind in enumerate(row):
            axis.add_patch(plt.Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, color=colours[kind], linewidth=0))
    axis.set_xlim(-0.6, len(columns) - 0.4)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xticks(range(len(columns)), columns, fontsize=8)
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.tick_params(length=0)
    axis.spines[["left", "bottom"]].set_visible(False)


# --- chapter 13: the knee ---------------------------------------------------------------------------------------------

MACHINE, TARGET, DRAFT = ex13.Machine(2e12, 300e12), ex13.Model(8e9, 131072), ex13.Model(1e9, 32768)
SURVIVAL = [0.8**n for n in range(1, 9)]  # of drafts of up to eight tokens
CONTEXTS = {0: "no context", 1000: "1,000 tokens of context", 16000: "16,000 tokens of context"}
WIDTHS = [round(2 ** (i / 4)) for i in range(41)]  # 1 to 1024 tokens in a pass
BATCHES = [round(2 ** (i / 4)) for i in range(37)]  # 1 to 512 texts


def knee_tokens() -> float:
    """Return the tokens of a pass at which reading weights and arithmetic take equally long: operations / bytes."""
    return MACHINE.flops / MACHINE.bandwidth


def attained(n_tokens: int) -> float:
    """Return the operations a second of a pass over so many tokens, without any context."""
    return 2 * TARGET.weights * n_tokens / ex13.step_time(MACHINE, TARGET, n_tokens, 1, 0)


def roofline() -> Figure:
    figure, [axis] = figures.blank(1, 6.4, 3.9)
    axis.plot(WIDTHS, [attained(n) / 1e12 for n in WIDTHS], color=BLUE, label="a pass of the target")
    knee = knee_tokens()
    axis.axvline(knee, color=BLACK, linewidth=1, linestyle=":")
    figures.note(axis, knee, 3, f"knee: {knee:g} tokens", 0, 6, ha="left")
    marks = {1: "one text", 5: "one text, k = 4", 150: "30 texts, k = 4", 300: "60 texts, k = 4"}
    for (n, said), look, mark in zip(marks.items(), (BLACK, ORANGE, GREEN, PINK), figures.MARKERS, strict=False):
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
    figures.legend_above(axis, "2e12 bytes, 300e12 operations a second; 8e9 weights")
    return figure


def best_speedups(context: int) -> list[float]:
    """Return the best speedup over draft lengths from 1 on for each of BATCHES, which may be below 1."""
    found = []
    for n in BATCHES:
        step = ex13.step_time(MACHINE, TARGET, n, 1, context)
        drafting = ex13.step_time(MACHINE, DRAFT, n, 1, context)
        rounds = [
            k * drafting + ex13.step_time(MACHINE, TARGET, n, k + 1, context) for k in range(1, len(SURVIVAL) + 1)
        ]
        tokens = [1 + sum(SURVIVAL[:k]) for k in range(1, len(SURVIVAL) + 1)]
        found.append(max(made * step / spent for made, spent in zip(tokens, rounds, strict=True)))
    return found


def batch() -> Figure:
    figure, [axis] = figures.blank(1, 6.4, 3.9)
    axis.axhline(1, color=BLACK, linewidth=1)
    for (context, label), look, style in zip(CONTEXTS.items(), (ORANGE, BLUE, GREEN), figures.STYLES, strict=False):
        speedups = best_speedups(context)
        axis.plot(BATCHES, speedups, style, color=look, label=label)
        knee = ex13.knee(BATCHES, speedups)
        if knee is not None:
            axis.plot([knee], [1], "o", color=look)
            figures.note(axis, knee, 1, f"knee: {knee:.0f} texts", -14, -44)
    axis.set_xscale("log", base=2)
    axis.set_xticks([2**i for i in range(10)], [str(2**i) for i in range(10)])
    axis.set_ylim(0.6, 2.4)
    axis.set_xlabel("batch: texts that are decoded side by side")
    axis.set_ylabel("best speedup over all k")
    figures.legend_above(axis, "a draft of 1e9 weights, each token accepted with 0.8")
    return figure


# --- chapter 15: a tree's mask and the cache --------------------------------------------------------------------------

PARENTS, WORDS, LENGTH, PATH = [-1, -1, 0, 1, 1], ["the", "cat", "dog", "sat", "ran", "barked"], 10, [1, 4]
CACHE, ANCESTOR, OWN, REJECTED = 1, 2, 3, 4
TREE_COLOURS = [PALE, SKY, GREEN, BLACK, ORANGE]


def mask_cells() -> list[list[int]]:
    """Return for every row of the pass what it reads of the cache, which is read whole, and of the rows."""
    seen = ex15.mask(PARENTS).tolist()
    return [
        [CACHE] * LENGTH + [OWN if x == y else ANCESTOR if reads else 0 for x, reads in enumerate(row)]
        for y, row in enumerate(seen)
    ]


def cache_cells() -> tuple[list[int], list[int]]:
    """Return what lies at each place of the cache after the pass, and after the round."""
    kept = ex15.gather(PATH, LENGTH)
    after_pass = [CACHE] * LENGTH + [ANCESTOR if LENGTH + row in kept else REJECTED for row in range(len(WORDS))]
    return after_pass, [after_pass[place] for place in kept]


def tree() -> Figure:
    figure, (mask, cache) = plt.subplots(2, 1, figsize=(7.4, 5.4), height_ratios=[3, 1.3], layout="constrained")
    positions = ex15.positions(PARENTS, LENGTH)
    names = [f"{word} (at {at})" for word, at in zip(WORDS, positions, strict=True)]
    columns = [*map(str, range(LENGTH)), *WORDS]
    cells(mask, mask_cells(), TREE_COLOURS, columns, names)
    mask.set_ylabel("row of the pass")
    labels = {CACHE: "text in the cache", ANCESTOR: "before it on its branch", OWN: "itself", 0: "not read"}
    for kind, label in labels.items():
        mask.plot([], [], "s", color=TREE_COLOURS[kind], label=label)
    mask.spines[["top", "right"]].set_visible(False)
    figures.legend_above(mask, "what each row reads: the text, and its own branch")
    after_pass, after_round = cache_cells()
    rows = [after_pass, after_round + [0] * (len(after_pass) - len(after_round))]
    cells(cache, rows, TREE_COLOURS, list(map(str, range(len(after_pass)))), ["after the pass", "after the round"])
    kept = ex15.gather(PATH, LENGTH)
    for place, word in enumerate(WORDS, start=LENGTH):
        look = {"ha": "center", "va": "center", "fontsize": 7}
        cache.text(place, 0, word, **look)
        if place in kept:
            cache.text(kept.index(place), 1, word, **look)
    for kind, label in {
        CACHE: "text",
        ANCESTOR: f"kept: the last committed token and path {PATH}",
        REJECTED: "dropped",
    }.items():
        cache.plot([], [], "s", color=TREE_COLOURS[kind], label=label)
    cache.spines[["top", "right"]].set_visible(False)
    cache.set_xlabel("place in the cache")
    cache.legend(ncols=3, frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.01), borderaxespad=0.2)
    return figure


# --- all of them ------------------------------------------------------------------------------------------------------


PICTURES: dict[str, tuple[str, Callable[[], Figure]]] = {  # name -> the chapter's page, and what paints
    "chapter-04-residual": ("04-rejection", residual),
    "chapter-09-worth": ("09-stop-when-unsure", worth),
    "chapter-12-slots": ("12-block-draft", slots),
    "chapter-13-roofline": ("13-batch-knee", roofline),
    "chapter-13-batch": ("13-batch-knee", batch),
    "chapter-15-tree": ("15-token-trees", tree),
}


def draw(folder: Path, name: str) -> Path:
    """Paint a picture and write it as folder/name.png.  -> its path"""
    figure = PICTURES[name][1]()
    figure.supxlabel(SOURCE, fontsize=7, color="#555555")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=figures.DPI, metadata={"Software": None})
    plt.close(figure)
    return write_whole(folder / f"{name}.png", buffer.getvalue())


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--out", type=parsing.some_path, default=PLOTS, metavar="DIR", help="folder (default: plots/)")
    args = parser.parse_args(argv)
    prepare_folder(args.out, "--out")
    write_all([functools.partial(draw, args.out, name) for name in PICTURES])
    return 0


if __name__ == "__main__":
    sys.exit(main())
