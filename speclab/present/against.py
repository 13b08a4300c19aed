"""One comparison beside another: machines, speedups, costs, and how much of the difference the costs explain."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from speclab.present import tables
from speclab.present.explanations import usual_context
from speclab.present.run_lines import circumstances, doubt
from speclab.present.tables import Block, Cell, Heading, Lines, Table, cells, number, speedup_of, through
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.theory.costs import Costs

KEY = attrgetter("method", "draft_length", "temperature")
SETTINGS = ("dtype", "engine", "threads", "max_new_tokens", "n_prompts", "seed", "top_k", "top_p", "rule")
EXPLAINED = (
    "here / there: of the measured speedups; forecasts: the same ratio of what each machine's costs and acceptance "
    "forecast; rest: what they do not explain, the noise of both runs included. Costs are in decode steps of the "
    "target; step in ms"
)


class Pair(NamedTuple):
    """The same draft and length in both runs."""

    here: Row
    there: Row

    @property
    def ratio(self) -> float:
        """How much larger the speedup is here."""
        return self.here.speedup / self.there.speedup

    @property
    def explained(self) -> float | None:
        """How much larger it should be by the forecasts; None where one is missing."""
        if not self.here.forecast or not self.there.forecast:
            return None
        return self.here.forecast / self.there.forecast


def pairs(here: ComparisonRun, there: ComparisonRun) -> list[Pair]:
    """The drafts that both runs measured over all prompts."""
    others = {KEY(row): row for row in there.rows if row.draft and row.prompt_kind == "all"}
    rows = (row for row in here.rows if row.draft and row.prompt_kind == "all")
    return [Pair(row, others[KEY(row)]) for row in rows if KEY(row) in others and others[KEY(row)].speedup > 0]


def text(here: ComparisonRun, there: ComparisonRun, name: str, markdown: bool = False) -> str:
    """What `--against` prints. name: of the other record"""
    blocks: list[Block] = [Heading(f"Against {name}")]
    blocks.append(Lines([f"here: {circumstances(here)}", f"there: {circumstances(there)}", _differences(here, there)]))
    for one, other in ((here, there), (here.padded, there.padded)):
        if one and other:
            blocks += _beside(one, other)
    return tables.show([*blocks, Lines([EXPLAINED])], markdown)


def _beside(here: ComparisonRun, there: ComparisonRun) -> list[Block]:
    """The tables of one target; only lines where there is nothing to compare, or where it is not to be believed."""
    blocks: list[Block] = [Heading(f"Target {here.settings['target']}", 3)]
    doubts = [f"{where}: {line}" for where, run in (("here", here), ("there", there)) if (line := doubt(run))]
    if doubts:
        return [*blocks, Lines(doubts)]
    if here.settings["target"] != there.settings["target"]:
        return [*blocks, Lines([f"there it is {there.settings['target']}: not compared"])]
    both = pairs(here, there)
    if not both:
        return [*blocks, Lines(["no draft and length in common; run the command that made that record"])]
    return [*blocks, _speedups(both), _costs(both, _steps(here), _steps(there))]


def _differences(here: ComparisonRun, there: ComparisonRun) -> str | None:
    """The settings that differ: with other texts or lengths, acceptance differs too."""
    values = [(key, here.settings.get(key), there.settings.get(key)) for key in SETTINGS]
    values.append(("prompts", here.settings.get("prompts_sha256"), there.settings.get("prompts_sha256")))
    differing = ", ".join(
        "other prompts" if key == "prompts" else f"{key} {one} / {other}" for key, one, other in values if one != other
    )
    return f"settings that differ: {differing}" if differing else None


def _speedups(both: list[Pair]) -> Table:
    columns: dict[str, Cell] = through(attrgetter("here"), cells("draft", "k", "T"))
    columns |= {"here": lambda pair: speedup_of(pair.here), "there": lambda pair: speedup_of(pair.there)}
    columns["here / there"] = lambda pair: number(pair.ratio)
    columns["forecasts"] = lambda pair: number(pair.explained)
    columns["rest"] = lambda pair: number(pair.ratio / pair.explained if pair.explained else None)
    columns |= {"α here": lambda pair: number(pair.here.acceptance_rate)}
    columns |= {"α there": lambda pair: number(pair.there.acceptance_rate)}
    return Table(both, columns)


def _costs(both: list[Pair], here: Callable[[Row], str], there: Callable[[Row], str]) -> Table:
    columns: dict[str, Cell] = through(attrgetter("here"), cells("draft", "k", "T"))
    columns |= {"step here": lambda pair: here(pair.here), "there": lambda pair: there(pair.there)}
    for head, cell in cells("c", "v", "o").items():
        for side in ("here", "there"):
            columns |= through(attrgetter(side), {f"{head} {side}": cell})
    return Table(both, columns)


def _steps(run: ComparisonRun) -> Callable[[Row], str]:
    """A decode step of the target in ms, as it was calibrated for a row's draft and temperature."""
    context = usual_context(run)
    steps = {(e["drafter"], e["temperature"]): Costs.from_json(e["costs"]).step_seconds(context) for e in run.costs}

    def step(row: Row) -> str:
        seconds = steps.get((row.method, row.temperature))
        return number(None if seconds is None else 1e3 * seconds)

    return step
