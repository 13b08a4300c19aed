"""The curves as a table, a page and a picture: views of their record."""

from pathlib import Path

from speclab.extensions.servers import shapes
from speclab.extensions.servers.curves.curve_record import CurveEntry, CurvesRun
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.present.pictures import figures
from speclab.present.pictures.library import Figure, plt
from speclab.present.run_lines import circumstances
from speclab.present.tables import Block, Heading, Lines, Markdown, Table, number, show
from speclab.theory import positions

FINE = "-"
COLUMNS = (
    "The first number of a position is its conditional rate, the share of the rounds that kept the position before it. "
    "f is accepted / drafted, and tok/rnd is 1 + accepted / rounds. The last column is what the test of shapes says of "
    "this one curve; a dash means that it names nothing."
)
SHOWN = 8  # positions of the table
# The panels of the picture: title, curves.
PANELS = {
    "fine": ("feature", "block", "model"),
    "nothing is kept from the first position on": ("one off", "not loaded"),
    "a cliff after the first position": ("stale token", "row off, feature", "row off, model"),
    "each position less often than the one before": ("independent",),
    "the last positions bring next to nothing": ("k = 16",),
    "everything is kept": ("target", "unverified", "loop"),
    "low, and neither zero nor a cliff": ("noise 0.4", "T = 1, certain"),
    "fine, then nothing: by the place in the text": ("buffer: before", "buffer: behind"),
    "the same prompt again": ("cached: first", "cached: second"),
    "f falls, tokens of a round do not": ("threshold", "no threshold"),
    "wrong layers: the first position is low": ("feature", "other layers", "order of layers"),
    "too little to be named": ("model", "noise 0.2", "T = 1", "word lists"),
}


def by_name(run: CurvesRun) -> dict[str, CurveEntry]:
    """Return the curves by their names."""
    return {entry.name: entry for entry in run.curves}


def between(run: CurvesRun) -> list[str]:
    """Return a line for every shape that needs two curves, with the pair that has it."""
    found = {name: entry.counts for name, entry in by_name(run).items()}
    tests = (
        ("buffer: before", "buffer: behind", lambda a, b: shapes.shape_of_two(a, b, shapes.ENDS)),
        ("cached: first", "cached: second", lambda a, b: shapes.shape_of_two(a, b, shapes.FORGETS)),
        ("threshold", "no threshold", shapes.fell_by_threshold),
        ("row off, feature", "row off, model", shapes.same_with_both),
    )
    lines = []
    for one, other, test in tests:
        if one in found and other in found:
            shape = test(found[one], found[other])
            lines.append(f"{one} and {other}: {shape.name if shape else 'no shape'}")
    return lines


def table(run: CurvesRun) -> Table:
    """Return one line for each curve."""

    def at(place: int):
        return lambda one: _rate(one.counts, place)

    longest = max((len(one.counts.accepted_at) for one in run.curves), default=0)
    columns = {
        "curve": lambda one: one.name,
        "draft": lambda one: one.draft,
        "k": lambda one: str(one.draft_length),
        "rounds": lambda one: str(one.counts.n_drafts),
        "f": lambda one: number(one.counts.n_accepted / max(1, one.counts.n_drafted)),
        "tok/rnd": lambda one: number(1 + one.counts.n_accepted / max(1, one.counts.n_drafts)),
        **{str(place + 1): at(place) for place in range(min(longest, SHOWN))},
        "shape": _shape,
    }
    return Table(run.curves, columns, n_words=2)


def _shape(entry: CurveEntry) -> str:
    shape = shapes.shape_of(entry.counts)
    return shape.name if shape else FINE


def _rate(counts: EngineCounts, place: int) -> str:
    rates = positions.conditional_rates(counts.n_drafts, counts.accepted_at)
    return number(rates[place]) if place < len(rates) else "-"


def page(run: CurvesRun, picture: str) -> str:
    """Return results/NAME.md."""
    faults = Lines(f"{one.name}: {one.fault or 'nothing is wrong'}" for one in run.curves)
    blocks: list[Block] = [Markdown("# Curves that are wrong on purpose"), Lines([f"{circumstances(run)}."])]
    blocks += [Markdown(f"![Acceptance by position]({picture})"), Heading("Curves"), table(run), Lines([COLUMNS])]
    blocks += [Heading("Pairs of curves"), Lines(between(run)), Heading("What is wrong"), faults]
    return show(blocks, markdown=True)


def text(run: CurvesRun) -> str:
    """Return what the terminal shows."""
    return show([table(run), Lines(between(run))])


def figure(run: CurvesRun) -> Figure:
    """Return twelve panels: conditional acceptance by position, with two standard errors."""
    found, width = by_name(run), 4
    drawn, axes = plt.subplots(-(-len(PANELS) // width), width, figsize=(16, 10), sharey=True, layout="constrained")
    for axis, (title, names) in zip(axes.flat, PANELS.items(), strict=True):
        for look, name in enumerate(name for name in names if name in found):
            counts = found[name].counts
            before = [counts.n_drafts, *counts.accepted_at]
            shares = [shapes.Share(kept, n) for kept, n in zip(counts.accepted_at, before, strict=False) if n]
            places, rates = range(1, len(shares) + 1), [share.part / share.whole for share in shares]
            errors = [shapes.ERRORS * share.variance**0.5 for share in shares]
            style = {"color": figures.colour(look), "marker": figures.MARKERS[look], "linestyle": figures.STYLES[look]}
            axis.errorbar(places, rates, errors, capsize=2, label=f"{name} ({counts.n_drafts})", **style)
        longest = max(len(found[name].counts.accepted_at) for name in names if name in found)
        axis.set_xticks(range(1, longest + 1, 1 + (longest > 8)))
        axis.set_title(title, fontsize=10)
        axis.set_ylim(-0.03, 1.05)
        axis.set_xlabel("position; in brackets: rounds" if title == "fine" else "position", fontsize=8)
        axis.legend(fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("kept of the rounds that reach it", fontsize=8)
    return drawn


def picture(run: CurvesRun, folder: Path, name: str) -> Path:
    """Draw them."""
    return figures.save(figure(run), run, folder, name)
