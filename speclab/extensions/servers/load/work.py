"""What users under load ask, and the order in which servers and loads take turns."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from speclab.extensions.servers.ask.asking import Prompt
from speclab.extensions.servers.ask.engines import Server
from speclab.extensions.servers.load.levels import Level, Side, side
from speclab.extensions.servers.load.users import Users, Window
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note, progress

PASSES = 2  # the plain server first, then the other one
SHORTEST = 0.6  # an answer's length, of the longest: answers of one length would end and start in waves
STRIDE = 7  # no common factor with the number of lengths: neighbours differ much
LENGTHS = 16

Ask = Callable[[Server, int, Iterator[tuple[str, int]], float], Window]
Orders = Callable[[int], Iterator[tuple[str, int]]]


def work(prompts: Sequence[Prompt], n_tokens: int, numbers: Iterator[int], alter: bool) -> Iterator[tuple[str, int]]:
    """Yield prompts without end, each with the most tokens of its answer. numbers: one for each request.

    alter: the number stands before the text, so that no two requests are the same, and no prefix cache holds one.
    Prompts that somebody gives are asked as they are, again where they do not suffice.
    """
    for number in numbers:
        text = prompts[number % len(prompts)].text
        share = SHORTEST + (1 - SHORTEST) * (number * STRIDE % LENGTHS) / (LENGTHS - 1)
        yield f"{number}. {text}" if alter else text, max(2, round(share * n_tokens))


def measure(
    speculative: Server,
    plain: Server | None,
    loads: Sequence[int],
    seconds: float,
    orders: Orders,
    chat: bool,
    ask: Ask | None = None,
) -> tuple[list[Level], BaseException | None]:
    """Return every load, in turns: two passes, the plain server first in one and the other one first in the other.

    orders: what is asked from a number on; both servers get the same of one pass. What fails after the first whole
    load ends the list and is noted, and so does Ctrl-C; it is returned beside the list.
    """
    levels: list[Level] = []
    start = itertools.count(0, 10_000)  # every window its own numbers
    with progress(len(loads) * PASSES * (2 if plain else 1), "window", "under load") as bar:
        for n_users in loads:
            sides: dict[int, list[Side]] = {id(speculative): [], id(plain): []}
            try:
                for turn in range(PASSES):
                    first = next(start)
                    servers = [server for server in (plain, speculative) if server]
                    for server in servers if turn % 2 == 0 else servers[::-1]:
                        found = (ask or _ask(chat))(server, n_users, orders(first), seconds)
                        sides[id(server)].append(side(found))
                        bar.update()
            except (EnvironmentProblem, KeyboardInterrupt) as problem:
                if not levels:
                    raise
                why = str(problem) or "stopped"
                lost = ", ".join(str(n) for n in loads[len(levels) :])
                note(f"  only up to {levels[-1].n_users} users are counted, and these loads are lost, {lost}: {why}")
                return levels, problem
            other = sides[id(plain)] if plain else []
            levels.append(Level(n_users=n_users, speculative=sides[id(speculative)], plain=other))
    return levels, None


def _ask(chat: bool) -> Ask:
    return lambda server, n_users, orders, seconds: Users(server, chat).ask(n_users, orders, seconds)
