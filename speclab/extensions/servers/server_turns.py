"""Two servers on the same prompts, one request at a time, in turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from speclab.core.clock import old_objects_frozen
from speclab.extensions.servers import counters
from speclab.extensions.servers.client import Answer, Order
from speclab.extensions.servers.server_record import EngineCounts
from speclab.extensions.servers.servers import Server, wait_until_idle
from speclab.lab.turns import take_turns
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm

WARM_UP_REQUESTS = 3  # to each server before the clock counts


@dataclass(frozen=True)
class Sent:
    """One answer, whose it is, and the arm in whose turns it was measured."""

    arm: Arm
    turns_of: Arm
    temperature: float
    index: int  # of the prompt
    answer: Answer
    counts: EngineCounts | None  # what the server counted meanwhile


@dataclass
class Asking:
    """An arm with one request to its server. It is a single step: a request under way shares the machine with none."""

    arm: Arm
    server: Server
    order: Order
    answers: list[tuple[Answer, EngineCounts | None]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the server has answered."""
        return bool(self.answers)

    @property
    def progress(self) -> int:
        """The number of answers."""
        return len(self.answers)

    def advance(self) -> None:
        """Ask, and wait for the answer."""
        self.answers.append(_counted(self.server, self.order))


def warm_up(servers: Sequence[Server], orders: Sequence[Order]) -> None:
    """A few requests to each server; what their answers are does not count."""
    for server in servers:
        with server.explained():
            for order in orders[:WARM_UP_REQUESTS]:
                server.client.ask(order)


@old_objects_frozen()
def in_turns(
    plain: Server, other: Server, arm: Arm, orders: dict[int, Order], repeats: int, done: Callable[[], None]
) -> list[Sent]:
    """Every prompt to the plain server, to the other one, and to the plain one again, in an order that rotates.

    orders: by the prompt's index. done: called after every prompt.
    """
    pairs = [(BASELINE, plain), (arm, other), (BASELINE_REPEAT, plain)]
    sent: list[Sent] = []
    for repeat in range(repeats):
        for turn, (index, order) in enumerate(orders.items()):
            # Kinds of prompts take turns, too: with three of them, turn + repeat alone would tie the order to the kind.
            first = (turn + turn // len(pairs) + repeat) % len(pairs)
            asked = [Asking(which, server, order) for which, server in pairs[first:] + pairs[:first]]
            take_turns(asked)
            temperature = order.sampling.temperature
            sent += [Sent(one.arm, arm, temperature, index, *answered) for one in asked for answered in one.answers]
            done()
    return sent


def _counted(server: Server, order: Order) -> tuple[Answer, EngineCounts | None]:
    """One request, with the counters before and after it."""
    wait_until_idle()
    with server.explained():
        before = server.client.look()
        answer = server.client.ask(order)
        after = server.client.settled(before, len(answer.tokens))
    return answer, counters.between(before, after)
