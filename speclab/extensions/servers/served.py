"""What a comparison with vLLM starts or asks, and all that came back."""

from dataclasses import dataclass, field

from speclab.extensions.servers.client import Order
from speclab.extensions.servers.installed import Installed, ServerSettings
from speclab.extensions.servers.load import Level
from speclab.extensions.servers.own import OwnRounds, OwnText
from speclab.extensions.servers.server_record import Limits, LoadRow, Refused, Schedule
from speclab.extensions.servers.server_turns import Sent
from speclab.lab.harness import mixed
from speclab.lab.run_config import RunConfig
from speclab.records.arms import BASELINE, Arm
from speclab.records.facts import Facts

Ranges = list[tuple[int, int, int]]  # (first, last, k): so many requests at a time, and how much is drafted then


@dataclass(frozen=True)
class Plan:
    """What to start, or whom to ask. urls: of a server without speculation and of one with it, which run already."""

    installed: Installed | None
    settings: ServerSettings
    concurrency: list[int]
    urls: tuple[str, ...] = ()
    limits: Limits | None = None  # None: multiples of what the plain server takes
    schedule: bool = False  # whether every draft runs once more with a k that follows the load


@dataclass(frozen=True)
class Loaded:
    """All answers of two servers at one level. indexes: the prompts of the requests."""

    arm: Arm
    ranges: Ranges | None  # of its schedule; None: always the arm's k
    temperature: float
    concurrency: int
    indexes: list[int]
    level: Level


@dataclass
class Served:
    """What was measured of a run."""

    config: RunConfig
    plan: Plan
    texts: list[OwnText] = field(default_factory=list)  # the lab's own greedy ones
    own: dict[tuple[Arm, int], OwnRounds] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    load: list[LoadRow] = field(default_factory=list)
    limits: Limits | None = None
    schedules: list[Schedule] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)
    stop: BaseException | None = None  # what ended it early

    @property
    def arms(self) -> list[Arm]:
        """All arms that sent something, the baseline first."""
        return list(dict.fromkeys([BASELINE] * bool(self.sent) + [one.arm for one in self.sent]))

    def orders(self, temperature: float) -> dict[int, Order]:
        """What is asked for every prompt, the kinds of prompts taking turns."""
        config, n_ids = self.config, self.config.setup.target.vocab_size
        what = config.max_new_tokens, config.setup.sampling_at(temperature)
        return {
            index: Order(config.prompts[index].id_list, *what, config.seed * 1009 + index, n_ids)
            for index in mixed(config.prompts)
        }
