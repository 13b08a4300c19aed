"""What a window under load says, and whether it may be believed. Pure: requests and counters in, numbers out.

tokens a second     tokens of the window over its length. A request's tokens lie evenly between its first and last
of a user           (tokens - 1) / (last - first) over the window's requests, without the wait for the first token
achieved            requests in flight at a time, on average, beside the users who were to have one each: from their
                    sending until the server says that they are whole, which may be a pass after the last token
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from speclab.extensions.servers import counters
from speclab.extensions.servers.load.users import LEAST_ANSWERS, Request, Window
from speclab.extensions.servers.measured import of_pages
from speclab.system.errors import EnvironmentProblem

# What makes a measurement under load worthless, each with its limit.
LEAST_ACHIEVED = 0.95  # requests in flight, as a share of the users
FARTHEST_APART = 1.1  # the larger of two passes over the smaller one
MOST_CACHED = 0.25  # tokens of prompts that were not read again, since the server had them
MOST_WAITING = 0.1  # requests in the server's queue, as a share of the users
LONGEST_WAIT = 0.5  # seconds to the first token, as a share of a request's; where no counter tells the queue


class Check(NamedTuple):
    """One condition, as measured. says: what is wrong, with its number, and what to do; it is shown where it fails."""

    name: str
    value: float | None  # None: this server does not tell it
    good: bool
    says: str


@dataclass(frozen=True, kw_only=True)
class Side:
    """One server at one load, in one pass."""

    tokens_per_second: float
    user_tokens_per_second: float
    first_seconds: float  # to the first token, the median
    seconds: float  # of the window
    tokens_per_round: float | None  # by its counters
    checks: list[Check]


def side(window: Window) -> Side:
    """Return what one window says. EnvironmentProblem where not one request was answered in it."""
    inside = [one for one in window.requests if one.first < window.end and one.last > window.begin]
    length = window.end - window.begin
    decoding = sum(one.last - one.first for one in inside)
    if not inside or decoding <= 0:
        raise EnvironmentProblem("the server sent no token within the window; give a longer one: --load-seconds 60")
    waits = sorted(one.first - one.sent for one in inside)
    return Side(
        tokens_per_second=sum(_share(one, window) * one.n_tokens for one in inside) / length,
        user_tokens_per_second=sum(one.n_tokens - 1 for one in inside) / decoding,
        first_seconds=waits[len(waits) // 2],
        seconds=length,
        tokens_per_round=_tokens_per_round(window),
        checks=checks(window, inside),
    )


def _share(one: Request, window: Window) -> float:
    """Return the share of a request's tokens that lie in the window."""
    if one.last <= one.first:
        return float(window.begin <= one.first < window.end)
    return max(0.0, min(one.last, window.end) - max(one.first, window.begin)) / (one.last - one.first)


def _tokens_per_round(window: Window) -> float | None:
    if len(window.looks) < 2:
        return None
    found = counters.between(window.looks[0], window.looks[-1])
    return of_pages(found, None, None, 0).tokens_per_round if found.speculation else None


def checks(window: Window, inside: Sequence[Request]) -> list[Check]:
    """Return every condition of one window."""
    n, length = window.n_users, window.end - window.begin
    in_flight = sum(min(one.ended, window.end) - max(one.sent, window.begin) for one in inside) / length
    whole = window.n_whole
    asked = [one.prompt for one in window.requests]
    again = 1 - len(set(asked)) / len(asked)
    n_prompt = sum(one.n_prompt for one in inside)
    cached = sum(one.n_cached for one in inside) / n_prompt if n_prompt else None
    waits = sum(one.first - one.sent for one in inside) / sum(one.ended - one.sent for one in inside)
    queue = [one.n_waiting for one in window.looks if one.n_waiting is not None]
    waiting = sum(queue) / len(queue) / n if queue else None
    longer = f"--load-seconds {max(2, round(length * LEAST_ANSWERS / max(whole, 1) * 1.3)):d}"
    return [
        Check(
            "offered",
            in_flight / n,
            in_flight >= LEAST_ACHIEVED * n,
            f"{n} requests at a time were offered, and {in_flight:.1f} were in flight: run the client elsewhere",
        ),
        Check(
            "window",
            float(whole),
            whole >= LEAST_ANSWERS,
            f"some user has {whole} whole answers in the window of {length:.0f} s, and {LEAST_ANSWERS} of each are "
            f"wanted: {longer}",
        ),
        Check(
            "cache",
            cached,
            (cached or 0) <= MOST_CACHED,
            f"{cached or 0:.0%} of the prompts' tokens came from a prefix cache: switch it off, or say so",
        ),
        Check(
            "queue",
            waits if waiting is None else waiting,
            waits <= LONGEST_WAIT if waiting is None else waiting <= MOST_WAITING,
            (f"{waits:.0%} of the requests' time was" if waiting is None else f"{waiting * n:.1f} of {n} requests were")
            + " waiting in the server: let it answer more at a time, or ask with fewer users",
        ),
        Check(
            "prompts",
            again,
            again == 0,
            f"{again:.0%} of the requests repeat a prompt: give more prompts with --texts",
        ),
        Check(
            "failed",
            float(window.n_failed),
            window.n_failed == 0,
            f"{window.n_failed} requests failed, and no speed counts them: read the server's log",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Level:
    """So many users at a time: every pass of the server that speculates, and of the plain one where there is one."""

    n_users: int
    speculative: list[Side]
    plain: list[Side]

    @property
    def speedups(self) -> list[float]:
        """Return tokens a second over those of the plain server, pass by pass."""
        pairs = zip(self.speculative, self.plain, strict=False)
        return [ours.tokens_per_second / other.tokens_per_second for ours, other in pairs]

    @property
    def speedup(self) -> float | None:
        """Return that of all passes together."""
        if not self.plain:
            return None
        return sum(one.tokens_per_second for one in self.speculative) / sum(one.tokens_per_second for one in self.plain)

    @property
    def apart(self) -> float:
        """Return how far two passes of one server are apart: the larger over the smaller, of the worse server."""
        return max(_apart(sides) for sides in (self.speculative, self.plain))

    @property
    def checks(self) -> list[Check]:
        """Return one check of each name: its worst in any window, and whether passes agree."""
        found: dict[str, Check] = {}
        for one in (check for each in (*self.speculative, *self.plain) for check in each.checks):
            if one.name not in found or found[one.name].good:
                found[one.name] = one
        apart = self.apart
        says = f"two passes of one server are {apart:.2f} apart (the larger over the smaller): a quieter machine"
        return [*found.values(), Check("repeats", apart, apart <= FARTHEST_APART, says)]


def _apart(sides: Sequence[Side]) -> float:
    rates = [one.tokens_per_second for one in sides]
    return max(rates) / min(rates) if rates and min(rates) > 0 else 1.0


PAYS, LOSES, UNCLEAR = "pays", "does not pay", "unclear"


def verdict(level: Level) -> str | None:
    """Return whether speculation pays at this load; unclear where its passes do not agree, or where the gain is no
    larger than the distance between two passes of one server."""
    speedups = level.speedups
    if not speedups:
        return None
    if min(speedups) > 1:
        return PAYS if (level.speedup or 0) > level.apart else UNCLEAR
    return LOSES if max(speedups) < 1 else UNCLEAR


def stops_paying(levels: Sequence[Level]) -> tuple[Level | None, Level | None]:
    """Return the last load at which it pays, and the first one behind it at which it does not; None: none."""
    verdicts = [verdict(level) for level in levels]
    last = max((place for place, found in enumerate(verdicts) if found == PAYS), default=-1)
    behind = [level for level, found in zip(levels[last + 1 :], verdicts[last + 1 :], strict=True) if found == LOSES]
    return (levels[last] if last >= 0 else None), (behind[0] if behind else None)
