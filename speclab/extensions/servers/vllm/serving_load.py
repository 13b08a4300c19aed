"""Another engine's servers under load: tables, lines and the picture."""

from pathlib import Path

from speclab.extensions.servers.vllm.server_record import LoadRow, LoadSide, ServingRun
from speclab.present.pictures import figures
from speclab.present.pictures.figures import Panel, Series, draw
from speclab.present.tables import (
    Block,
    Cell,
    Heading,
    Lines,
    Table,
    interval,
    number,
    rate,
    speedup,
    temperature_name,
    with_verdict,
)
from speclab.records.knees import KneeEntry
from speclab.theory.attribution import Value

COLUMNS = (
    "tok/s: of all requests together; passes: speedups with the plain server first and with the other one first; "
    "first, token: milliseconds to the first chunk and per token after it, the median and the 95th percentile over "
    "requests; good/s: requests a second that met both limits; plain: the server without speculation, same load"
)


def name_of(row: LoadRow) -> str:
    """model k = 4, or model, k by load."""
    return f"{row.method}, k by load" if row.schedule else f"{row.method} k = {row.draft_length}"


def by_arm(run: ServingRun) -> list[list[LoadRow]]:
    """The rows of each arm."""
    arms: dict[str, list[LoadRow]] = {}
    for row in run.load:
        arms.setdefault(name_of(row), []).append(row)
    return list(arms.values())


def load_table(run: ServingRun, rows: list[LoadRow]) -> Table:
    """One line per number of requests at a time."""

    def both(name: str, of_plain: bool, digits: int) -> Cell:
        def cell(row: LoadRow) -> str:
            side = row.plain if of_plain else row.speculative
            return " / ".join(number(1e3 * getattr(side, f"{name}_{end}"), digits) for end in ("p50", "p95"))

        return cell

    def best_fixed(row: LoadRow) -> str:
        same = [o for o in run.load if (o.method, o.concurrency, o.schedule) == (row.method, row.concurrency, None)]
        best = max(same, key=lambda other: other.speedup)
        return f"{speedup(best.speedup)}, k = {best.draft_length}" if best.speedup > 1 else "1.00x, k = 0"

    columns: dict[str, Cell] = {
        "at a time": lambda row: str(row.concurrency),
        "requests": lambda row: str(row.n_requests),
        "plain tok/s": lambda row: rate(row.plain.n_tokens / row.plain.seconds),
        "tok/s": lambda row: rate(row.speculative.n_tokens / row.speculative.seconds),
        "speedup": _speedup,
        "passes": lambda row: interval(min(row.speedups), max(row.speedups)),
        "f": lambda row: number(row.drafted_fraction),
        "plain same text": lambda row: _same(row, row.plain),
        "same text": lambda row: _same(row, row.speculative),
        "plain first": both("first", of_plain=True, digits=0),
        "first": both("first", of_plain=False, digits=0),
        "plain token": both("token", of_plain=True, digits=1),
        "token": both("token", of_plain=False, digits=1),
        "plain good/s": lambda row: number(row.plain.n_good / row.plain.seconds),
        "good/s": lambda row: number(row.speculative.n_good / row.speculative.seconds),
    }
    if rows[0].schedule:
        columns["best fixed k"] = best_fixed
    return Table(rows, columns, n_words=0)


def _speedup(row: LoadRow) -> str:
    return with_verdict(speedup(row.speedup), row.verdict)


def _same(row: LoadRow, side: LoadSide) -> str:
    return "-" if side.n_same is None else f"{side.n_same}/{row.n_requests}"


def load_blocks(run: ServingRun) -> list[Block]:
    """Where each draft stops paying, and for every arm its table."""
    blocks: list[Block] = [Lines([*knee_lines(run), *schedule_lines(run), limits_line(run), COLUMNS])]
    for rows in by_arm(run):
        blocks += [Heading(f"{name_of(rows[0])}, {temperature_name(rows[0].temperature)}", 3), load_table(run, rows)]
    return blocks


def limits_line(run: ServingRun) -> str | None:
    """What counts as good."""
    limits = run.limits
    if limits is None:
        return None
    where = "as given" if limits.given else "multiples of the plain server's medians at one request at a time"
    return (
        f"limits of good/s: first chunk within {1e3 * limits.first:.0f} ms, {1e3 * limits.token:.1f} ms per token "
        f"after it ({where})"
    )


def load_summary(run: ServingRun) -> Table:
    """One line per number of requests at a time, with the speedups of all arms."""
    arms = [name_of(rows[0]) for rows in by_arm(run)]

    def of_arm(arm: str) -> Cell:
        def cell(level: list[LoadRow]) -> str:
            row = next((row for row in level if name_of(row) == arm), None)
            return "-" if row is None else f"{speedup(row.speedup)} ({interval(min(row.speedups), max(row.speedups))})"

        return cell

    columns: dict[str, Cell] = {
        "at a time": lambda level: str(level[0].concurrency),
        "plain tok/s": lambda level: rate(
            sum(row.plain.n_tokens for row in level) / sum(row.plain.seconds for row in level)
        ),
    }
    columns |= {arm: of_arm(arm) for arm in arms}
    levels = dict.fromkeys(row.concurrency for row in run.load)
    return Table([[row for row in run.load if row.concurrency == n] for n in levels], columns, n_words=0)


def load_lines(run: ServingRun) -> list[str]:
    """How many greedy texts under load are the lab's own."""
    sides = [
        (row.n_requests, side.n_same)
        for row in run.load
        for side in (row.plain, row.speculative)
        if side.n_same is not None
    ]
    n_texts, n_same = sum(n for n, _ in sides), sum(same for _, same in sides if same is not None)
    return [f"under load, greedy: {n_same} of {n_texts} texts are the lab's own"] if sides else []


def knee_lines(run: ServingRun) -> Lines:
    """Where each draft stops paying."""
    return Lines(
        f"{entry.draft}: speculation pays up to so many requests at a time: {_knee(run, entry)}" for entry in run.knees
    )


def _knee(run: ServingRun, entry: KneeEntry) -> str:
    """Where the speedup falls to 1; unclear where the passes on one side of that place do not agree."""
    verdicts = {
        row.concurrency: row.verdict
        for row in run.load
        if row.schedule is None
        and row.method == entry.draft
        and row.draft_length == entry.best[str(row.concurrency)][0]
    }
    levels = sorted(verdicts)
    if entry.below:
        sides, expected, says = levels, ["slower"] * len(levels), "none"
    elif entry.batch is None:
        sides, expected, says = levels[-1:], ["faster"], f"more than {levels[-1]}"
    else:
        small = max(n for n in levels if n <= entry.batch)
        sides, expected, says = (
            [small, min(n for n in levels if n > small)],
            ["faster", "slower"],
            number(entry.batch, 1),
        )
    doubtful = [str(n) for n, verdict in zip(sides, expected, strict=True) if verdicts[n] != verdict]
    return f"unclear, the passes do not agree at {', '.join(doubtful)}" if doubtful else says


def schedule_lines(run: ServingRun) -> Lines:
    """Which k at how many requests at a time."""
    lines = []
    for one in run.schedules:
        parts = (f"{first} to {last} k = {k}" if first < last else f"{last} k = {k}" for first, last, k in one.ranges)
        left_out = f"; not run: {one.left_out}" if one.left_out else ""
        lines.append(f"{one.method}, k by load: at {', '.join(parts)}{left_out}")
    return Lines(lines)


def picture(run: ServingRun, folder: Path, name: str) -> Path:
    """Write folder/name.png: the speedup of every arm against requests at a time, the passes as its ends."""
    series = []
    for look, rows in enumerate(by_arm(run)):
        values = {row.concurrency: Value(row.speedup, min(row.speedups), max(row.speedups)) for row in rows}
        series.append(Series(name_of(rows[0]), values, look))
    panel = Panel(series, "requests at a time", "speedup of tokens a second, all requests", title="vLLM", log=True)
    return figures.save(draw([panel]), run, folder, name)
