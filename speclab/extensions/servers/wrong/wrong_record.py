"""The record of `python -m speclab.extensions.servers.wrong`: servers that are wrong on purpose, and what the command
said of each."""

from dataclasses import dataclass, field
from typing import Literal

from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.records.facts import RunSettings
from speclab.records.rows import Amount, Count, RecordPart
from speclab.records.runs import Head


@dataclass(kw_only=True)
class WrongServer(RecordPart):
    """One server. half: before where it is of the first set and after where it is of the second one, both of which
    were known when rules and thresholds were made; third and vllm where it is of a set that was written down later."""

    name: str
    half: Literal["before", "after", "third", "vllm"]
    engine: str
    model: str
    fault: str  # what is wrong in truth
    flags: str
    expected: str  # the answer that is right for this fault; empty where its cause alone counts
    answer: str  # about its speed
    right: bool
    cause: str  # the true one, in the words of causes.py; empty: nothing is wrong
    named: bool  # whether it is among the causes that are shown; where nothing is wrong, whether none is
    screen: list[str]
    # What follows is of a server that was measured, and not refused.
    causes: list[str] = field(default_factory=list)  # those that are shown, at most two
    shapes: list[str] = field(default_factory=list)
    advice: str = ""
    n_same: Count = 0  # greedy texts that are the plain server's
    n_tied: Count = 0
    n_texts: Count = 0
    tokens_per_round: float | None = None
    round_cost: float | None = None
    speedup: float | None = None
    n_drafts: Count = 0
    n_drafted: Count = 0
    n_accepted: Count = 0
    by_kind: dict[str, EngineCounts] = field(default_factory=dict)  # of prompts; rules of later days can be tried on it
    equal_rounds: str = ""  # against the lab's own loop, prompt by prompt; empty where the lab was not asked
    expected_changed: str = ""  # how expected or cause were changed when the server had been run


@dataclass(kw_only=True)
class LoadTry(RecordPart):
    """One measurement under load. checks: the names of those that failed. ended_early: not all loads were asked."""

    name: str
    engine: str
    model: str
    flags: str
    window_seconds: Amount  # at least
    checks: list[str]
    screen: list[str]
    ended_early: bool = False


@dataclass(kw_only=True)
class WrongRun(Head):
    """All servers of one run. thresholds: of `diagnosis.py` and `shapes.py`, as they were."""

    schema_version: Literal[3]
    settings: RunSettings
    thresholds: dict[str, float]
    wrong: list[WrongServer]
    loads: list[LoadTry]
