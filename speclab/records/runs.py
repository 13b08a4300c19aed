"""The run records as dataclasses. Every table and picture is a view of one.

A comparison keeps its log, and the rows that speclab/lab/rows.py makes of it. A record names the machine by what it is,
never by its host or user name, and holds no absolute path. speclab/records/files.py reads and writes these classes.
"""

from dataclasses import dataclass
from typing import Literal

from speclab.records.log import Line
from speclab.records.rows import Amount, Count, Facts, RecordPart, Row

SCHEMA_VERSION = 2


@dataclass(kw_only=True)
class CoreProbe(RecordPart):
    """Whether other work used the cores before the run (speclab/system/cores.py)."""

    free: bool
    load: float | None  # load average of the minute before


@dataclass(kw_only=True)
class Machine(RecordPart):
    """The machine on which the numbers were measured."""

    cpu: str
    cores: int | None
    threads: int
    memory_gib: int | None
    gpu: str | None
    system: str
    probe: CoreProbe | None = None  # absent where nothing looked, as on a GPU
    gpu_state: Facts | None = None  # driver, clocks, power and temperature as nvidia-smi tells them; PyTorch's switches


@dataclass(kw_only=True)
class Versions(RecordPart):
    """The versions of everything that moves the numbers, and the commit of the lab itself."""

    python: str
    torch: str
    transformers: str
    commit: str | None
    uncommitted_changes: bool | None


@dataclass(kw_only=True)
class Head(RecordPart):
    """The part of every record that says what ran, where and how."""

    schema_version: int
    created: str
    interrupted: bool
    machine: Machine
    versions: Versions
    settings: Facts


@dataclass(kw_only=True)
class LabRun(Head):
    """All records of compare.py have these entries. settings: those of speclab/lab/run_config.py."""

    schema_version: Literal[2]
    models: dict[str, str]
    unchecked: list[str] | None = None  # arms whose texts were not checked; absent where all were


@dataclass(kw_only=True)
class Noise(RecordPart):
    """The ratio of the baseline's time to that of its own second run at one temperature."""

    temperature: Amount
    ratio: Amount
    low: float | None
    high: float | None


@dataclass(kw_only=True)
class ComparisonRun(LabRun):
    """The record of `python compare.py`."""

    prompts: Facts  # n, kinds, n_cut: greedy texts that are cut where they begin to repeat
    correctness: list[Facts]  # of speclab/lab/output_checks.py
    noise: list[Noise]
    costs: list[Facts]  # of each draft and temperature, as speclab/theory/costs.py writes them
    phases: Facts  # seconds of the instrumented rounds, and the share of them that the phases cover
    headline: Row | None
    rows: list[Row]
    raw: list[Line]
    weight_bytes: Count | None = None  # that each target pass reads; absent with experts and in older records
    bandwidth: Amount | None = None  # bytes a second that the machine reads; absent in older records
    best_plain: str | None = None  # method of the fastest plain decoding; absent in older records
    ended: list[Row] | None = None  # greedy answers up to their end token; absent where no chat was decoded
    padded: "ComparisonRun | None" = None  # a short run of the same pair at the price of a larger one
