"""The first page of a GPU run, from the records that are there: the headline, the goals, what became of the stages.

It reads plain JSON and imports no slow library. What no record holds is "not measured".
"""

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Facts = dict[str, Any]  # a record as JSON
K = 4  # the length of the headline, fixed before anything is measured
NOT_MEASURED = "not measured"


class Outcome(NamedTuple):
    """What became of a stage."""

    name: str
    what: str
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether the stage ended with an error."""
        return self.what.startswith("FAILED")


class Goal(NamedTuple):
    """What was asked for before anything was measured, of the first size."""

    what: str
    asked: float
    written: str  # how numbers of it are written
    measured: Callable[["Size"], float | None]


@dataclass
class Size:
    """The records of one size; {} for one that is not there."""

    name: str
    comparison: Facts
    passes: Facts
    peers: Facts

    @classmethod
    def read(cls, folder: Path, name: str, record: str) -> "Size":
        """From the folder of the records."""
        return cls(name, *(load(folder / f"{record}{ending}.json") for ending in ("", "-roofline", "-peers")))

    def row(self, method: str, draft_length: int = 0) -> Facts:
        """The greedy row of an arm over all prompts."""
        wanted = {"method": method, "draft_length": draft_length, "temperature": 0, "prompt_kind": "all"}
        rows = self.comparison.get("rows", [])
        return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), {})

    def seconds(self, method: str, draft_length: int = 0) -> float | None:
        """Of an arm's texts from the prompt's ids to the last token: the sum of the medians over repeats."""
        raw = [t for t in self.peers.get("raw", []) if (t["method"], t["draft_length"]) == (method, draft_length)]
        return sum(statistics.median(t["seconds"]) for t in raw) if raw else None

    def over(self, other: tuple[str, int], method: str, draft_length: int = 0) -> float | None:
        """How many times as fast an arm is as another one, end to end."""
        return _ratio(self.seconds(*other), self.seconds(method, draft_length))

    @property
    def copy_bandwidth(self) -> float | None:
        """Bytes a second, read and written."""
        return self.passes.get("ceilings", {}).get("copy")

    @property
    def bandwidth_share(self) -> float | None:
        """Of the copy bandwidth, what reading the weights once a token takes in the baseline."""
        row = self.row("baseline")
        targets = [model for model in self.passes.get("models", []) if model["role"] == "target"]
        if not row or not targets:
            return None
        return _ratio(targets[0]["weight_bytes"] * row["n_tokens"] / row["seconds"], self.copy_bandwidth)

    @property
    def share_of_tokens(self) -> float | None:
        """Speedup over the tokens of a round: 1 if a round costs what a step costs."""
        row = self.row("model", K)
        return _ratio(row.get("speedup"), row.get("tokens_per_round"))


GOALS = [
    Goal("baseline, share of the measured copy bandwidth", 0.8, "{:.0%}", lambda size: size.bandwidth_share),
    Goal(f"speedup at k = {K} / tokens of a round", 0.9, "{:.2f}", lambda size: size.share_of_tokens),
    Goal(f"speculative / baseline, model k = {K}", 2.3, "{:.2f}x", lambda size: size.row("model", K).get("speedup")),
    Goal("baseline / generate", 1.5, "{:.2f}x", lambda size: size.over(("generate", 0), "baseline")),
    Goal(f"speculative / assisted, k = {K}", 2.0, "{:.2f}x", lambda size: size.over(("assisted", K), "model", K)),
]


def load(path: Path) -> Facts:
    """A record, or {} where there is none."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None


def _written(form: str, value: float | None) -> str:
    return NOT_MEASURED if value is None else form.format(value)


# --- the page ---------------------------------------------------------------------------------------------------------


def head(folder: Path, sizes: dict[str, str], outcomes: list[Outcome]) -> str:
    """The page before the pages of the records. sizes: names and the names of their records, the headline's first"""
    measured = [Size.read(folder, name, record) for name, record in sizes.items()]
    first = measured[0]
    preflight = load(folder / "gpu-preflight.json")
    blocks = [
        f"# {first.name}: {_headline(first)}",
        _list([*_facts(first, preflight), f"the lab pair in float32: {_texts(load(folder / 'gpu-float32.json'))}"]),
        "## Goals",
        _table(
            ["asked of the first size", "asked", "measured", "verdict"], [_goal_cells(goal, first) for goal in GOALS]
        ),
        "## All sizes, greedy",
        _table(
            ["target", "draft", f"k = {K}", "95 %", "k = 6", "α", "ngram k = 4"], [_size_cells(s) for s in measured]
        ),
        "## Stages",
        _table(["stage", "what became of it", "s"], [[o.name, o.what, f"{o.seconds:.0f}"] for o in outcomes]),
    ]
    return "\n\n".join(blocks) + "\n"


def _headline(size: Size) -> str:
    row = size.row("model", K)
    if not row:
        return NOT_MEASURED
    interval = f" ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})" if row["speedup_low"] is not None else ""
    return f"{row['speedup']:.2f}x{interval} at k = {K}, greedy, {_texts(size.comparison)}"


def _texts(comparison: Facts) -> str:
    """What the checks of a comparison say."""
    if not comparison:
        return NOT_MEASURED
    checks = comparison["correctness"]
    if comparison.get("unchecked") or not checks:
        return "texts not checked"
    if not all(check["passed"] for check in checks):
        return "WRONG TEXTS"
    differences = sum(len(check.get("differences", [])) for check in checks)
    return f"{differences} texts differ at near-ties" if differences else "same texts"


def _facts(size: Size, preflight: Facts) -> list[str]:
    """What stands under the headline."""
    record = size.comparison or size.passes or preflight
    machine, versions, row = record.get("machine", {}), record.get("versions", {}), size.row("model", K)
    settings = size.comparison.get("settings", {})
    state = ", ".join(f"{key} {value}" for key, value in (machine.get("gpu_state") or {}).items())
    graphs = settings.get("graphs")
    bandwidth = size.copy_bandwidth
    return [
        f"machine: {machine.get('gpu') or machine.get('cpu') or NOT_MEASURED}" + (f"; {state}" if state else ""),
        ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers", "commit") if versions.get(name)),
        *(f"{role}: {line}" for role, line in size.comparison.get("models", {}).items()),
        f"engine: {settings.get('engine', '-')}; {settings.get('dtype', '-')}",
        f"texts: {_texts(size.comparison)}",
        f"α: {_written('{:.2f}', row.get('acceptance_rate'))}; tokens of a round: "
        f"{_written('{:.2f}', row.get('tokens_per_round'))}",
        f"forecast: {_written('{:.2f}x', row.get('forecast'))}; measured: {_written('{:.2f}x', row.get('speedup'))}",
        f"copy bandwidth: {_written('{:.0f} GB/s', bandwidth / 1e9 if bandwidth else None)}; the baseline reaches "
        f"{_written('{:.0%}', size.bandwidth_share)} of it",
        "CUDA graphs recorded in timed turns: "
        + (f"{graphs['in_turns']} ({graphs['before']} before them)" if graphs else NOT_MEASURED),
    ]


def _goal_cells(goal: Goal, size: Size) -> list[str]:
    value = goal.measured(size)
    verdict = "-" if value is None else "met" if value >= goal.asked else "MISSED"
    return [goal.what, f">= {goal.written.format(goal.asked)}", _written(goal.written, value), verdict]


def _size_cells(size: Size) -> list[str]:
    row, longer, ngram = size.row("model", K), size.row("model", 6), size.row("ngram", K)
    low, high = row.get("speedup_low"), row.get("speedup_high")
    return [
        size.name,
        row.get("draft") or NOT_MEASURED,
        _written("{:.2f}x", row.get("speedup")),
        "-" if low is None else f"{low:.2f} to {high:.2f}",
        _written("{:.2f}x", longer.get("speedup")),
        _written("{:.2f}", row.get("acceptance_rate")),
        _written("{:.2f}x", ngram.get("speedup")),
    ]


def with_title(page: Path) -> str:
    """A record's page under its own name, without its pictures."""
    text = re.sub(r"^!\[.*\n+", "", page.read_text("utf-8"), flags=re.MULTILINE)
    return f"\n# {page.stem}\n\n{text.strip()}\n"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines if line)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *([cell.replace("|", "/") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
