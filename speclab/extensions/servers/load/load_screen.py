"""What a measurement under load looks like on one screen: a table, what fails, where speculation stops paying, and what
to try."""

from collections.abc import Callable, Sequence

from speclab.extensions.servers.load.levels import LOSES, PAYS, Level, Side, stops_paying, verdict
from speclab.extensions.servers.screen import compact, labelled

FINE = "fine"
READ = (
    "tok/s: of all users together, their waits for a first token included; a user: of one of them, from its first "
    "token on; speedup: tok/s over plain tok/s"
)


def table(levels: Sequence[Level]) -> str:
    """Return one line for each load. tok/s: of all users together; a user: of one, from its first token on."""
    columns: dict[str, list[str]] = {"users": [str(level.n_users) for level in levels]}
    if levels[0].plain:
        columns["plain tok/s"] = [_mean(level.plain, _together) for level in levels]
        columns["a user"] = [_mean(level.plain, _of_user) for level in levels]
    columns["tok/s"] = [_mean(level.speculative, _together) for level in levels]
    columns[" a user"] = [_mean(level.speculative, _of_user) for level in levels]
    if all(side.tokens_per_round for level in levels for side in level.speculative):
        columns["tok/rnd"] = [_mean(level.speculative, lambda side: side.tokens_per_round, 2) for level in levels]
    if levels[0].plain:
        columns["speedup"] = [f"{level.speedup:.2f}x" for level in levels]
        columns["passes"] = [f"{min(level.speedups):.2f} to {max(level.speedups):.2f}" for level in levels]
        columns["verdict"] = [verdict(level) or "-" for level in levels]
    columns["checks"] = [" ".join(one.name for one in level.checks if not one.good) or FINE for level in levels]
    return compact(columns, n_words=0)


def check_lines(levels: Sequence[Level]) -> list[str]:
    """Return a line for every check that fails: at which loads, its number at the largest one, and what to do."""
    failed: dict[str, list[tuple[int, str]]] = {}
    for level in levels:
        for one in level.checks:
            if not one.good:
                failed.setdefault(one.name, []).append((level.n_users, one.says))
    lines = []
    for name, found in failed.items():
        where = ", ".join(str(n) for n, _ in found)
        lines.append(labelled(name, f"at {where} user{'s' * (where != '1')}: {found[-1][1]}"))
    return lines


def answer(levels: Sequence[Level]) -> str:
    """Return where speculation stops paying, as far as these loads tell."""
    last, behind = stops_paying(levels)
    verdicts = [verdict(level) for level in levels]
    if verdicts[0] is None:
        return "not known: that takes the same model on a server without speculation"
    if last is None:
        if LOSES not in verdicts:
            return "not known: the passes do not agree"
        return f"it pays at no load that was asked; at {_users(levels[0])} it makes {levels[0].speedup:.2f}x"
    pays = f"{last.speedup:.2f}x at {_users(last)}"
    if behind is None:
        more = "" if verdicts[-1] == PAYS else "; behind that it is unclear"
        return f"it pays up to the largest load at which it is clear, {pays}{more}"
    fails = f"{behind.speedup:.2f}x at {behind.n_users}"
    return f"it stops paying between {last.n_users} and {_users(behind)}: {pays}, {fails}"


def advice(levels: Sequence[Level]) -> str:
    """Return the next thing to try."""
    last, behind = stops_paying(levels)
    if not levels[0].plain:
        return "start the same model without its draft, and add --plain-url URL"
    if last and behind:  # a switch inside the server may cost more than it saves, as docs/serving.md measures
        return f"a server without a draft where more than {last.n_users} requests come at a time, or a shorter k"
    if last:
        return f"more users: --load {2 * levels[-1].n_users},{4 * levels[-1].n_users}"
    if any(verdict(level) == LOSES for level in levels):
        return "the same command without --load: its answer says whether a round costs too much, or brings too little"
    return "longer windows on a quieter machine: --load-seconds 60"


def lines(levels: Sequence[Level]) -> list[list[str]]:
    """Return the blocks of the screen. An answer whose checks fail says so."""
    failed = sorted({one.name for level in levels for one in level.checks if not one.good})
    doubt = f" (not before these are mended: {', '.join(failed)})" if failed else ""
    end = [labelled("ANSWER", answer(levels) + doubt), labelled("try", advice(levels))]
    return [[table(levels), labelled("read", READ)], check_lines(levels), end]


def _together(side: Side) -> float:
    return side.tokens_per_second


def _of_user(side: Side) -> float:
    return side.user_tokens_per_second


def _mean(sides: Sequence[Side], value: Callable[[Side], float | None], digits: int = 1) -> str:
    values = [number for number in map(value, sides) if number is not None]
    return f"{sum(values) / len(values):.{digits}f}" if values else "-"


def _users(level: Level) -> str:
    return f"{level.n_users} user{'s' if level.n_users > 1 else ''}"
