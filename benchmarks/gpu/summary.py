"""The first page of a GPU run, from the records that are there: the headline, the goals, what became of the stages.

It reads plain JSON and imports no slow library. What no record holds is "not measured".
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.stages import Target

Facts = dict[str, Any]  # a record as JSON
K = 4  # the length of the headline, fixed before anything is measured
NOT_MEASURED = "not measured"
COLUMNS = ["method", "draft_length", "speedup", "speedup_low", "speedup_high", "forecast", "acceptance_rate"]
BASELINE, MODEL, GENERATE, ASSISTED = ("baseline", 0), ("model", K), ("generate", 0), ("assisted", K)


class Outcome(NamedTuple):
    """The outcome of a stage."""

    what: str
    seconds: float = 0.0


class Size(NamedTuple):
    """The contents of the records of one size; what is not there is empty."""

    comparison: Facts
    passes: Facts
    rows: dict[tuple[str, int], Facts]  # of every arm, greedy, over all prompts
    seconds: dict[tuple[str, int], float]  # of every arm's greedy texts, the prompt included: medians over repeats


GOALS: list[tuple[str, float, Callable[[Size], float]]] = [  # asked of the first size before anything was measured
    ("baseline, share of the measured copy bandwidth", 0.8, lambda size: bandwidth_share(size)),
    (
        "speedup / tokens of a round",
        0.9,
        lambda size: size.rows[MODEL]["speedup"] / size.rows[MODEL]["tokens_per_round"],
    ),
    ("speculative / baseline", 2.3, lambda size: size.rows[MODEL]["speedup"]),
    ("baseline / generate", 1.5, lambda size: size.seconds[GENERATE] / size.seconds[BASELINE]),
    ("speculative / assisted", 2.0, lambda size: size.seconds[ASSISTED] / size.seconds[MODEL]),
]


def load(path: Path) -> Facts:
    """A record, or {} where there is none."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def read(folder: Path, record: str) -> Size:
    """Read the records of a size from their folder."""
    comparison, passes, peers = (load(folder / f"{record}{ending}.json") for ending in ("", "-roofline", "-peers"))
    greedy = [r for r in comparison.get("rows", []) if r["temperature"] == 0 and r["prompt_kind"] == "all"]
    seconds: dict[tuple[str, int], float] = defaultdict(float)
    for t in peers.get("raw", []):
        seconds[t["method"], t["draft_length"]] += statistics.median(t["seconds"])
    return Size(comparison, passes, {(r["method"], r["draft_length"]): r for r in greedy}, dict(seconds))


def bandwidth_share(size: Size) -> float:
    """The bandwidth at which the baseline reads the weights once a token, as a share of the copy bandwidth."""
    row, weight_bytes = size.rows[BASELINE], size.passes["models"][0]["weight_bytes"]
    return weight_bytes * row["n_tokens"] / row["seconds"] / size.passes["ceilings"]["copy"]


def goal_cells(what: str, asked: float, measure: Callable[[Size], float], size: Size) -> list[str]:
    """The cells of a goal: what was asked for beside what was measured."""
    try:
        value = measure(size)
    except LookupError:
        return [what, f">= {asked}", NOT_MEASURED, "-"]
    return [what, f">= {asked}", f"{value:.2f}", "met" if value >= asked else "MISSED"]


def texts(comparison: Facts) -> str:
    """A phrase with the verdict of the checks of a comparison."""
    if not comparison:
        return NOT_MEASURED
    checks = comparison["correctness"]
    if comparison.get("unchecked") or not checks:
        return "texts not checked"
    if not all(check["passed"] for check in checks):
        return "WRONG TEXTS"
    differences = sum(len(check.get("differences", [])) for check in checks)
    return f"{differences} texts differ at near-ties" if differences else "same texts"


def headline(size: Size) -> str:
    """A phrase with the speedup, and whether texts agree."""
    if not (row := size.rows.get(MODEL)):
        return NOT_MEASURED
    interval = f"{written(row['speedup_low'])} to {written(row['speedup_high'])}"
    return f"{row['speedup']:.2f}x ({interval}) at k = {K}, greedy, {texts(size.comparison)}"


def recorded(settings: Facts) -> str:
    """A phrase with the number of graphs that were recorded, and whether a timed turn recorded any."""
    if not (graphs := settings.get("graphs")):
        return NOT_MEASURED
    return f"{graphs['before']} recorded before the turns, {graphs['in_turns']} in them"


def head(folder: Path, targets: list[Target], outcomes: dict[str, Outcome]) -> str:
    """The beginning of the page, before the pages of the records."""
    sizes = {target.name: read(folder, target.record) for target in targets}
    first, absent = sizes[targets[0].name], {"method": NOT_MEASURED}
    graphs = recorded(first.comparison.get("settings", {}))
    arms = [(name, row) for name, size in sizes.items() for row in size.rows.values() or [absent]]
    rows = [[name, *map(written, map(row.get, COLUMNS))] for name, row in arms]
    stages = [[name, outcome.what, f"{outcome.seconds:.0f}"] for name, outcome in outcomes.items()]
    blocks = [
        f"# {targets[0].name}: {headline(first)}",
        f"- the lab pair in float32: {texts(load(folder / 'gpu-float32.json'))}\n- CUDA graphs: {graphs}",
        f"## Goals, k = {K}",
        table(["asked of the first size", "asked", "measured", "verdict"], [goal_cells(*g, first) for g in GOALS]),
        "## All sizes, greedy",
        table(["target", *(key.replace("_", " ") for key in COLUMNS)], rows),
        "## Stages",
        table(["stage", "what became of it", "s"], stages),
    ]
    return "\n\n".join(blocks) + "\n"


def written(value: Any) -> str:
    """The text of a cell of a row."""
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def with_title(page: Path) -> str:
    """A record's page under its own name, without its pictures."""
    text = re.sub(r"^!\[.*\n+", "", page.read_text("utf-8"), flags=re.MULTILINE)
    return f"\n# {page.stem}\n\n{text.strip()}\n"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """The table in Markdown."""
    cells = [heads, ["---"] * len(heads), *([cell.replace("|", "/") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
