"""The views of a record of margins: tables, page and picture."""

from pathlib import Path

from speclab.extensions.margins.margin_record import EDGES, SURE, Group, MarginRun, Margins, added
from speclab.present.pictures import figures
from speclab.present.pictures.figures import Panel, Series, plain
from speclab.present.run_lines import circumstances
from speclab.present.tables import Block, Cell, Heading, Lines, Markdown, Table, number, show

LEGEND = [
    "The margin is the target's highest logit minus its second one, in an uncached pass along its own greedy text. α "
    "is the share of right tokens among the first ones that a draft proposes at such places.",
    "places is the share of the text, and ends the share of the rejections, that fall on such places.",
    f"under {SURE:g} is the share of places with a smaller margin. tok/rnd is what a replay of the rounds gives, and "
    f"sure what it would give with a draft that is right wherever the margin is {SURE:g} or more. An oracle has k + 1 "
    "in all rounds but the last.",
]


def by_draft(run: MarginRun) -> dict[str, list[Margins]]:
    """Return the rows of each draft."""
    names = dict.fromkeys(row.draft for row in run.margins)
    return {name: [row for row in run.margins if row.draft == name] for name in names}


def share(part: float, whole: float) -> float | None:
    """Return a share; None of nothing."""
    return part / whole if whole else None


def group_name(low: float) -> str:
    """Return the name of a group of margins."""
    high = next((edge for edge in EDGES if edge > low), None)
    return f"{low:g} to {high:g}" if high else f"{low:g} or more"


def blocks(run: MarginRun) -> list[Block]:
    """Return both tables."""
    sums = [added(rows) for rows in by_draft(run).values()]
    by_margin = [(total, group) for total in sums for group in total.groups]

    def of(total: Margins, name: str) -> int:
        return sum(vars(group)[name] for group in total.groups)

    margins: dict[str, Cell] = {
        "draft": lambda pair: pair[0].draft,
        "margin": lambda pair: group_name(pair[1].low),
        "places": lambda pair: number(share(pair[1].n_places, of(pair[0], "n_places"))),
        "α": lambda pair: number(alpha([pair[1]])),
        "ends": lambda pair: number(share(pair[1].n_ends, of(pair[0], "n_ends"))),
    }
    kinds = [row for rows in by_draft(run).values() for row in (*kinds_of(rows), added(rows))]
    by_kind: dict[str, Cell] = {
        "draft": lambda row: row.draft,
        "kind": lambda row: row.kind,
        "tokens": lambda row: str(row.n_tokens),
        f"under {SURE:g}": lambda row: number(share(sum(g.n_places for g in unsure(row)), row.n_tokens)),
        "α there": lambda row: number(alpha(unsure(row))),
        "α elsewhere": lambda row: number(alpha([group for group in row.groups if group.low >= SURE])),
        "ends there": lambda row: number(share(sum(g.n_ends for g in unsure(row)), of(row, "n_ends"))),
        "tok/rnd": lambda row: number(share(row.n_tokens, row.n_rounds)),
        "sure": lambda row: number(share(row.n_tokens, row.n_sure_rounds)),
    }
    return [Table(by_margin, margins, n_words=2), Table(kinds, by_kind, n_words=2), Lines(LEGEND)]


def kinds_of(rows: list[Margins]) -> list[Margins]:
    """Return the sums by kind of text."""
    kinds = dict.fromkeys(row.kind for row in rows)
    return [added([row for row in rows if row.kind == kind], kind) for kind in kinds]


def unsure(row: Margins) -> list[Group]:
    """Return the groups of the margins under SURE."""
    return [group for group in row.groups if group.low < SURE]


def alpha(groups: list[Group]) -> float | None:
    """Return the share of right tokens among those that are proposed."""
    return share(sum(group.n_right for group in groups), sum(group.n_proposed for group in groups))


def page(run: MarginRun, picture_path: str | None = None) -> str:
    """Return the record's page in Markdown."""
    settings = run.settings
    about = (
        f"{circumstances(run)}. Target {settings['target']}; {settings['n_prompts']} prompts, "
        f"{settings['max_new_tokens']} new tokens each, greedy, k = {settings['draft_length']}."
    )
    shown: list[Block] = [Markdown(f"![Margins]({picture_path})")] if picture_path else []
    return show([Heading("Where drafts are wrong", 1), about, *shown, *blocks(run)], markdown=True)


def text(run: MarginRun) -> str:
    """Return the tables for a terminal."""
    return show(blocks(run))


def picture(run: MarginRun, folder: Path, name: str) -> Path:
    """Draw acceptance against the margin, and where the places and the rejections are, into folder/name.png."""
    sums = [added(rows) for rows in by_draft(run).values()]
    ticks = {i: group_name(low).replace(" or more", "+").replace(" to ", "–") for i, low in enumerate(EDGES)}
    x_label = "margin of the target's first choice, in logits"

    def of(groups: list[Group], name: str) -> dict:
        whole = sum(vars(group)[name] for group in groups)
        return plain((i, share(vars(group)[name], whole)) for i, group in enumerate(groups))

    curves = [
        Series(row.draft, plain((i, alpha([group])) for i, group in enumerate(row.groups)), look)
        for look, row in enumerate(sums)
    ]
    bars = [Series("places of the text", of(sums[0].groups, "n_places"), len(sums))]
    bars += [Series(f"rejections of {row.draft}", of(row.groups, "n_ends"), look) for look, row in enumerate(sums)]
    panels = [
        Panel(curves, x_label, "α, share of right tokens", "how often a draft is right", ticks),
        Panel(bars, x_label, "share", "where rounds end", ticks, bars=True),
    ]
    return figures.save(figures.draw(panels, 5.4, 4.2), run, folder, name)
