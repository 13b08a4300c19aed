"""Sweeps: change one setting, keep the rest still.

A sweep is a list of points. Each point is a row like those of a comparison, with predictions, measured in the same
turns as all others wherever one run can hold them.
"""

import operator
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from draft_models import ModelDrafter
from speclab.core.drafter import Drafter
from speclab.drafts.registry import check_prompts
from speclab.extensions.sweeps import degraded_drafts
from speclab.extensions.sweeps.sweep_record import Point, SweepRun
from speclab.lab.comparison import build_rows, measure_and_judge, noise_at, with_costs
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.known_texts.acceptance_probs import CostTable, calibrated
from speclab.lab.noisy import noisy
from speclab.lab.run_config import RunConfig
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.records.rows import Row
from speclab.system.errors import UsageProblem
from speclab.system.terminal import note

TRAINING_SECONDS = 20.0
CONTEXTS = (128, 256, 512, 1024, 1800)  # prompt tokens
OUTPUT_LENGTHS = (8, 16, 32, 64, 128, 512)  # new tokens


def measure_sweep(config: RunConfig, name: str) -> tuple[SweepRun, Measurement]:
    """Run one sweep.  -> its record, what it is made from"""
    config, facts = SWEEPS[name].prepare(config)
    points, measured = SWEEPS[name].points(config, facts)
    noise = noise_at(measured, config.temperatures[0])
    sweep = SweepRun(
        **config.head(measured),
        sweep=name,
        facts=facts,
        correctness=measured.correctness,
        noise=[noise] if noise else [],
        points=points,
    )
    return sweep, measured


# --- what each sweep runs -------------------------------------------------------------------------------------------

Points = tuple[list[Point], Measurement]


def _rows(
    config: RunConfig, prompts: list[Prompt] | None = None, max_new_tokens: int | None = None, title: str = "measuring"
) -> tuple[list[Row], Measurement]:
    """Measure the rows of a small comparison, checked, and calibrated in its own turns."""
    arms = config.arms()
    measured = measure_and_judge(config, arms, config.instruments(arms), prompts, max_new_tokens, title)
    return with_costs(measured, lambda costs: build_rows(config, measured, costs)), measured


def _points(rows: list[Row], x: Callable[[Row], float | str], series: Callable[[Row], str]) -> list[Point]:
    return [Point(**vars(row), x=x(row), series=series(row)) for row in rows if row.draft]


def _of_all(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.prompt_kind == "all"]


def _as_it_is(config: RunConfig) -> tuple[RunConfig, dict]:
    return config, {}


def _one_run(x: str, series: str = "method", kinds: bool = False) -> Callable[[RunConfig, dict], Points]:
    """Measure a sweep that one run can hold: `x` and `series` are columns of its rows; `kinds`: those of each kind,
    too."""

    def points(config: RunConfig, facts: dict) -> Points:
        rows, measured = _rows(config)
        chosen = rows if kinds else _of_all(rows)
        return _points(chosen, operator.attrgetter(x), operator.attrgetter(series)), measured

    return points


def _oracles_only(config: RunConfig) -> tuple[RunConfig, dict]:
    """Make the run greedy, because an oracle draft replays greedy text."""
    if not all(drafter.needs_text for drafter in config.drafters.values()):
        raise UsageProblem(
            "the sweep acceptance turns a dial; leave --draft away or give dials, as in dial:0.5,dial:0.9"
        )
    return replace(config, temperatures=[0.0]), {}


def _acceptance(config: RunConfig, facts: dict) -> Points:
    """Measure the oracle draft, from never right to always right, once at the cost of a draft model and once at
    none."""
    # A sweep of acceptance has oracle drafts alone; their names are dial:A, dial:A:MODEL and dial:A:free.
    accuracy = {name: float(name.split(":")[1]) for name in config.drafters}

    def series(name: str) -> str:
        if not config.drafters[name].models:
            return "free drafts"
        model = name.split(":", 2)[2:]  # dial:A:MODEL
        return f"price of {loading.short_name(model[0])}" if model else "draft's price"

    # All oracle drafts of a series cost the same, so the costs of the middle one are used for all.
    calibrated_by = {series(name): name for name in sorted(accuracy, key=lambda n: -abs(accuracy[n] - 0.5))}
    arms = config.arms()
    instruments = config.instruments(arms)
    measured = measure_and_judge(config, arms, {name: instruments[name] for name in calibrated_by.values()})

    def build(middle_costs: CostTable) -> list[Row]:
        costs = {(name, 0.0): middle_costs[calibrated_by[series(name)], 0.0] for name in accuracy if middle_costs}
        return build_rows(config, measured, costs)

    rows = _of_all(with_costs(measured, build))
    return _points(rows, lambda r: accuracy[r.draft or ""], lambda r: series(r.draft or "")), measured


def _by_size(sizes: list[int], run: Callable[[int], tuple[list[Row], Measurement]]) -> Points:
    """Do one run after the other. If one is stopped, the finished ones are kept, as long as there are any."""
    points: list[Point] = []
    total: Measurement | None = None

    def complete() -> str:
        return "the points so far are complete" if points else ""

    for n in sizes:
        with kept_when_stopped(complete) as stops:
            rows, measured = run(n)
        if total and stops:
            total.stop = stops[0]
            break
        points += [Point(**vars(row), x=n, series=row.method) for row in _of_all(rows) if row.draft]
        if total is None:
            total = measured
        else:
            total.extend(measured)
        if measured.interrupted:
            break
    assert total is not None  # there is at least one size
    return points, total


def _output_length(config: RunConfig, facts: dict) -> Points:
    lengths = [n for n in OUTPUT_LENGTHS if n <= config.max_new_tokens]
    if not lengths:
        raise UsageProblem("the sweep output-length begins at 8 tokens; use --max-new-tokens 8 or more")
    return _by_size(lengths, lambda n: _rows(config, max_new_tokens=n, title=f"{n} tokens"))


def _context(config: RunConfig, facts: dict) -> Points:
    """Prompts of growing length: the standard prompts of a kind one after the other, cut to size."""
    models = [config.setup.target, *(model for d in config.drafters.values() for model in d.models)]
    rooms = (model.room.for_prompt(config.max_new_tokens) for model in models)
    room = min((n for n in rooms if n is not None), default=sys.maxsize)
    if room < CONTEXTS[0]:
        raise UsageProblem(
            f"the models have room for {max(0, room)} tokens of prompt and the sweep context needs {CONTEXTS[0]}; use "
            "fewer --max-new-tokens"
        )
    facts["costs"] = []

    def run(n: int) -> tuple[list[Row], Measurement]:
        prompts = stretched(config.prompts, n)
        check_prompts(config.setup.target, config.drafters.values(), prompts, config.max_new_tokens)
        rows, measured = _rows(config, prompts, title=f"{n} tokens of context")
        with measured.kept("the measurements are complete, their costs are not"):
            facts["costs"] += [
                {"context": n, "drafter": config.method(name), "costs": costs.to_json()}
                for (name, _), costs in calibrated(measured).items()
            ]
        return rows, measured

    return _by_size([n for n in CONTEXTS if n <= room], run)


def stretched(prompts: list[Prompt], n: int) -> list[Prompt]:
    """Bring each prompt to exactly n tokens by putting others of its kind in front of it, as often as it takes."""
    longer = []
    for i, prompt in enumerate(prompts):
        others = [p for p in [*prompts[i + 1 :], *prompts[: i + 1]] if p.kind == prompt.kind]  # the last is the prompt
        ids = prompt.ids.new_tensor([token for p in others for token in p.id_list])
        times = -(-n // len(ids))
        longer.append(Prompt(prompt.kind, prompt.text, ids.repeat(times)[-n:][None]))
    return longer


def _degraded(config: RunConfig) -> tuple[RunConfig, dict]:
    """Return the trained draft, the same with noise in its weights, one trained on the spot, a random one."""
    trained = next((drafter for drafter in config.drafters.values() if drafter.is_model), None)
    if trained is None:
        raise UsageProblem("the sweep mismatch starts from a draft model; give --draft model or a folder")
    [draft] = trained.models
    source, vocab = draft.model, draft.vocab_size
    note(f"training a draft for {TRAINING_SECONDS:.0f} s")
    spot, facts = degraded_drafts.trained_on_the_spot(source, config.setup.tokenizer, TRAINING_SECONDS, config.seed)
    models = {
        "trained": source,
        **{f"noise {amount:g}": noisy(source, amount, config.seed) for amount in (0.1, 0.2, 0.4)},
        f"{TRAINING_SECONDS:.0f} s of training": spot,
        "random": degraded_drafts.random_like(source, config.seed),
    }
    drafters: dict[str, Drafter] = {}
    for name, model in models.items():
        drafters[name] = ModelDrafter(config.setup.cached(model, vocab))
    return replace(config, drafters=drafters), {"training": vars(facts)}


def _mismatch(config: RunConfig, facts: dict) -> Points:
    rows, measured = _rows(config)
    points = _points(_of_all(rows), lambda r: r.method, lambda r: "draft")
    return sorted(points, key=lambda p: -(p.acceptance_rate or 0)), measured


class Sweep(NamedTuple):
    """The work of a sweep: its points, and the preparation before them."""

    points: Callable[[RunConfig, dict], Points]  # may add to the facts of the record
    prepare: Callable[[RunConfig], tuple[RunConfig, dict]] = _as_it_is  # what to run, facts for the record


SWEEPS = {
    "draft-length": Sweep(_one_run("draft_length")),
    "acceptance": Sweep(_acceptance, _oracles_only),
    "temperature": Sweep(_one_run("temperature")),
    "output-length": Sweep(_output_length),
    "context": Sweep(_context),
    "draft-kind": Sweep(_one_run("method", "prompt_kind", kinds=True)),
    "mismatch": Sweep(_mismatch, _degraded),
    "definitions": Sweep(_one_run("draft_length")),
}
