"""Sweeps: change one setting, keep the rest still, and see what the speedup and its predictions do.

    python -m speclab.extensions.sweeps acceptance       # how often the draft is right, at a draft's price and for free
    python -m speclab.extensions.sweeps output-length    # 8 to 512 new tokens, reading the prompt included
    python -m speclab.extensions.sweeps context          # prompts of 128 to 1,800 tokens
    python -m speclab.extensions.sweeps mismatch         # drafts ever less like the target, down to random weights
    python -m speclab.extensions.sweeps all              # all of them, one after the other

Sweeps of other settings are compare.py with -k 0,1,2,4,8, --temperature 0,0.4,0.8 or --draft feature, and --alone.
What comes out: a table, its predictions beside the measurement, a run record (JSON), a page in Markdown, and a picture.
A sweep takes one to five minutes on two cores; --limit 1 makes it shorter. See docs/why-not-faster.md. Exit code 1 if a
greedy difference is not a near-tie, or a sampled row fails its statistics.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import functools
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from draft_models import ModelDrafter
from speclab.cli import compare, flags, parsing
from speclab.cli.compare import show
from speclab.drafts import registry
from speclab.drafts.registry import check_prompts
from speclab.lab.comparison import build_rows, measure_and_judge
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.known_texts import calibrated
from speclab.lab.output_checks import exit_code
from speclab.lab.rows import noise_floors
from speclab.lab.run_config import RunConfig
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.present import tables
from speclab.present.pictures import figures
from speclab.present.pictures.figures import Panel, Series, Value, column, plain, with_interval
from speclab.present.report import COSTS
from speclab.present.screen import noise_lines, provenance, remarks, rough_line
from speclab.present.tables import CELLS, Block, Cell, Heading, Lines, Markdown, Table, interval, number, prediction
from speclab.records.files import LabRun
from speclab.records.rows import Facts, Noise, Row
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note
from speclab.theory import attribution

ALL = "all"
CONTEXTS = (128, 256, 512, 1024, 1800)  # prompt tokens
OUTPUT_LENGTHS = (8, 16, 32, 64, 128, 512)  # new tokens
ACCURACIES = [f"dial:{i / 10:g}" for i in range(11)]
FREE_ORACLES = [f"{dial}:free" for dial in ACCURACIES]
# The defaults of what the command line leaves open: those of every sweep, and those that one sweep has of its own.
DEFAULTS = {"draft": "model,ngram", "limit": 2, "max_new_tokens": 64, "repeats": 1}
DEFAULTS |= {"draft_length": "4", "temperature": "0"}


@dataclass(kw_only=True)
class Point(Row):
    """A row of a sweep: where it stands on the axis, and in which line."""

    x: int | float | str
    series: str


@dataclass(kw_only=True)
class SweepRun(LabRun):
    """The record of `python -m speclab.extensions.sweeps NAME`."""

    sweep: str
    correctness: list[Facts]
    noise: list[Noise]
    points: list[Point]


Points = tuple[list[Point], Measurement]


class Sweep(NamedTuple):
    """A sweep: what it asks, how it is measured and shown."""

    question: str
    points: Callable[[RunConfig], Points]
    heads: tuple[str, ...]  # of its table
    axis: str  # of its picture
    legend: str
    defaults: dict[str, Any] = {}  # noqa: RUF012


# --- measuring --------------------------------------------------------------------------------------------------------


def _rows(config: RunConfig, title: str = "measuring") -> tuple[list[Row], Measurement]:
    """Measure the rows of a small comparison, checked, and calibrated in its own turns."""
    arms = config.arms()
    measured = measure_and_judge(config, arms, config.instruments(arms), title)
    return build_rows(measured, calibrated(measured)), measured


def _points(rows: list[Row], x: Callable[[Row], float | str], series: Callable[[Row], str]) -> list[Point]:
    of_all = [row for row in rows if row.draft and row.prompt_kind == "all"]
    return [Point(**vars(row), x=x(row), series=series(row)) for row in of_all]


def _acceptance(config: RunConfig) -> Points:
    """Measure the oracle draft, from never right to always right, once at the cost of a draft model and once at
    none. It replays greedy text; its names are dial:A, dial:A:MODEL and dial:A:free."""
    if not all(drafter.needs_text for drafter in config.drafters.values()):
        raise UsageProblem(
            "the sweep acceptance turns a dial; leave --draft away or give dials, as in dial:0.5,dial:0.9"
        )
    config.temperatures = [0.0]
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
    found = calibrated(measured)
    costs = {(name, 0.0): found[calibrated_by[series(name)], 0.0] for name in accuracy if found}
    rows = build_rows(measured, costs)
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
        points += [replace(one, x=n) for one in _points(rows, lambda row: 0, operator.attrgetter("method"))]
        if total is None:
            total = measured
        else:
            n_before = len(total.prompts)
            total.lines += [replace(line, prompt_index=line.prompt_index + n_before) for line in measured.lines]
            total.prompts = [*total.prompts, *measured.prompts]
            total.correctness += measured.correctness
            total.stop = total.stop or measured.stop
        if measured.interrupted:
            break
    assert total is not None  # there is at least one size
    return points, total


def _output_length(config: RunConfig) -> Points:
    lengths = [n for n in OUTPUT_LENGTHS if n <= config.max_new_tokens]
    if not lengths:
        raise UsageProblem("the sweep output-length begins at 8 tokens; use --max-new-tokens 8 or more")
    return _by_size(lengths, lambda n: _rows(replace(config, max_new_tokens=n), f"{n} tokens"))


def _context(config: RunConfig) -> Points:
    """Prompts of growing length: the standard prompts of a kind one after the other, cut to size."""
    models = [config.setup.target, *(model for d in config.drafters.values() for model in d.models)]
    rooms = (model.room.for_prompt(config.max_new_tokens) for model in models)
    room = min((n for n in rooms if n is not None), default=sys.maxsize)
    if room < CONTEXTS[0]:
        raise UsageProblem(
            f"the models have room for {max(0, room)} tokens of prompt and the sweep context needs {CONTEXTS[0]}; use "
            "fewer --max-new-tokens"
        )

    def run(n: int) -> tuple[list[Row], Measurement]:
        prompts = stretched(config.prompts, n)
        check_prompts(config.setup.target, config.drafters.values(), prompts, config.max_new_tokens)
        return _rows(replace(config, prompts=prompts), f"{n} tokens of context")

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


def _mismatch(config: RunConfig) -> Points:
    """Measure the trained draft, the same with ever more noise in its weights, and one of its shape that has seen
    nothing: their passes cost the same."""
    trained = next((drafter for drafter in config.drafters.values() if drafter.is_model), None)
    if trained is None:
        raise UsageProblem("the sweep mismatch starts from a draft model; give --draft model or a folder")
    [draft] = trained.models
    source = draft.model
    models = {
        "trained": source,
        **{f"noise {amount:g}": noisy(source, amount, config.seed) for amount in (0.1, 0.2, 0.4)},
        "random": random_like(source, config.seed),
    }
    config.drafters = {name: ModelDrafter(config.setup.cached(one, draft.vocab_size)) for name, one in models.items()}
    rows, measured = _rows(config)
    points = _points(rows, operator.attrgetter("method"), lambda row: "draft")
    return sorted(points, key=lambda p: -(p.acceptance_rate or 0)), measured


def noisy(model: PreTrainedModel, amount: float, seed: int) -> PreTrainedModel:
    """Return a copy whose matrices are off by Gaussian noise of `amount` times each matrix's own standard deviation: a
    worse draft at the same cost of a pass. Norms and biases stay. One seed is one direction in weight space: a larger
    amount goes further the same way."""
    generator, copied = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            if weight.ndim >= 2 and weight.is_floating_point():
                # On the CPU in double precision: the same noise on every device and in every number format.
                exact = weight.detach().cpu().double()
                noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64)
                weight.copy_(exact + amount * exact.std() * noise)
    return copied.eval()


def random_like(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Return a model of the same class and configuration with fresh weights, drawn by its own initialisation."""
    with torch.random.fork_rng(devices=[]):  # it is built on the CPU, whose generator gets its state back
        torch.random.default_generator.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    return fresh.to(device=model.device, dtype=model.dtype).eval()  # type: ignore[call-arg]


# --- along a curve ----------------------------------------------------------------------------------------------------


def curves(sweep: SweepRun) -> dict[str, list[Point]]:
    """Return a dict: name of a curve -> its points, along x where x is a number, else in the record's order.

    k and T are part of a name where the sweep has several.
    """
    by_name = sweep.sweep == "mismatch"
    several_k = len({point.draft_length for point in sweep.points}) > 1
    several_t = len({point.temperature for point in sweep.points}) > 1
    groups: dict[str, list[Point]] = {}
    for point in sweep.points if by_name else sorted(sweep.points, key=lambda point: point.x):
        parts = [str(point.x if by_name else point.series)]
        parts += [f"k={point.draft_length}"] * several_k + [f"T={point.temperature:g}"] * several_t
        groups.setdefault(", ".join(parts), []).append(point)
    return groups


def verdict(point: Point) -> str:
    """Return faster, slower or unclear; where the prompts are too few for an interval, their number in words."""
    if point.speedup_low is None and point.verdict == "unclear":
        return tables.row_interval(point)
    return "unclear" if point.verdict == "unclear" else attribution.verdict(*with_interval(point))


def by_acceptance(points: list[Point]) -> dict[float, Point]:
    """Return a dict: measured alpha -> the drafting point, along alpha."""
    known = {p.acceptance_rate: p for p in points if p.acceptance_rate is not None and p.draft_length}
    return {alpha: known[alpha] for alpha in sorted(known)}


def break_even(points: list[Point]) -> Value | None:
    """Return the alpha at which the measured speedup passes 1 upwards, and where its interval's two ends do.

    None: it never does. An end is None where that end of the interval does not pass 1 in the measured range.
    """
    known = by_acceptance(points)

    def first(key: str) -> float | None:
        values = [getattr(point, key) for point in known.values()]
        if not values or None in values or values[0] >= 1:
            return None
        places = pairwise(zip(known, values, strict=True))
        return next((x0 + (1 - y0) / (y1 - y0) * (x1 - x0) for (x0, y0), (x1, y1) in places if y0 < 1 <= y1), None)

    alpha = first("speedup")
    return None if alpha is None else (alpha, first("speedup_high"), first("speedup_low"))


def round_cost(point: Point) -> float | None:
    """Return the cost of a round in decode steps of the target, k c + v + o; k is the number really drafted.
    A round pays where it brings more tokens than that."""
    if point.verify_cost is None or point.overhead is None:
        return None
    return point.n_drafted / point.n_rounds * (point.draft_cost or 0.0) + point.verify_cost + point.overhead


# --- showing ----------------------------------------------------------------------------------------------------------


def lines(sweep: SweepRun) -> Lines:
    """Return the columns' legend, where each curve of acceptance breaks even, then the notes on the run."""
    filled = []
    for label, points in curves(sweep).items() if sweep.sweep == "acceptance" else ():
        even = break_even(points)
        said = f"{even[0]:.2f} ({interval(*even[1:])})" if even else "-"
        filled.append(f"{label}: break-even at α = {said}")
    return Lines([SWEEPS[sweep.sweep].legend, *filled, *noise_lines(sweep.noise), *remarks(sweep), rough_line(sweep)])


def table(sweep: SweepRun) -> Table:
    pairs = [(label, point) for label, curve in curves(sweep).items() for point in curve]
    labels = {id(point): label for label, point in pairs}
    columns, heads = CELLS | COLUMNS | {"draft": lambda point: labels[id(point)]}, SWEEPS[sweep.sweep].heads
    return Table([point for _, point in pairs], {head: columns[head] for head in heads})


def text(sweep: SweepRun, picture_path: str = "") -> str:
    """Return the question, lines, of which some say whether the numbers can be trusted, and the table; as a page in
    Markdown with the picture at this path, and where it comes from."""
    blocks: list[Block] = [SWEEPS[sweep.sweep].question, lines(sweep), table(sweep)]
    if not picture_path:
        return tables.show(blocks)
    title = sweep.sweep.replace("-", " ").capitalize()
    image = Markdown(f"![{title}]({picture_path})")
    return tables.show([Heading(title, 1), *blocks[:2], image, blocks[2], provenance(sweep)], markdown=True)


def picture(sweep: SweepRun, folder: Path, name: str) -> Path:
    """Write folder/name.png: the speedup, a panel for each curve. Measured values are markers, predictions lines."""
    panels, by_label = [], curves(sweep)
    axis = SWEEPS[sweep.sweep].axis
    if sweep.sweep == "mismatch":
        names = dict(enumerate(f"{p.x}\nα = {number(p.acceptance_rate)}\n{verdict(p)}" for p in sweep.points))
        measured = Series("measured", dict(enumerate(map(with_interval, sweep.points))))
        forecasts = Series("forecast", plain(enumerate(p.forecast for p in sweep.points)), 5, "-")
        panels, by_label = [Panel([measured, forecasts], axis, ticks=names)], {}
    for label, points in by_label.items():
        x, shown, more = "x", points, dict[str, Any](log=True)
        if sweep.sweep == "acceptance":
            x, shown = "acceptance_rate", list(by_acceptance(points).values())
            ticks = {i / 5: f"{i / 5:g}" for i in range(6)}
            more = {"ticks": ticks}
        series = [Series("measured", {getattr(point, x): with_interval(point) for point in shown})]
        series += [Series(line, column(shown, key, x), look, style) for key, line, look, style in LINES]
        panels.append(Panel(series, axis, title=tables.short(label, 16), **more))
    figure = figures.draw(panels, 8.0 if len(panels) == 1 else 4.6) if sweep.points else figures.Figure()
    return figures.save(figure, sweep, folder, name)


LINES = (  # a column that predicts the speedup, its label, colour and style
    ("book_formula", figures.BOOK, 1, ":"),
    ("leviathan", "Leviathan, with c", 3, "-."),
    ("cost_model", "cost model", 2, "--"),
    ("forecast", "forecast", 5, "-"),
)
# Only sweeps show these columns; the others are those of every table.
COLUMNS: dict[str, Cell] = {
    **dict.fromkeys(("right", "tokens", "prompt"), lambda point: f"{point.x:g}"),
    "verdict": verdict,
    "t_1 ms": lambda point: number(1e3 * point.speedup * point.seconds / point.n_emitted),
    "round": lambda point: number(round_cost(point)),
    "book(α)": prediction(operator.attrgetter("book_formula")),
    "forecast": prediction(operator.attrgetter("forecast")),
    "Leviathan": prediction(operator.attrgetter("leviathan")),
    "cost model": prediction(operator.attrgetter("cost_model")),
}
MEASURED = ("speedup", "95 %", "verdict")
SWEEPS = {
    "acceptance": Sweep(
        "How often must a draft be right, and where is the book's formula right about what you gain?",
        _acceptance,
        ("draft", "right", "α", *MEASURED, "book(α)", "Leviathan", "cost model", "forecast"),
        "acceptance rate α, as measured",
        "right says how often the draft proposes the target's token.",
        {"draft_length": "2", "draft": ",".join([*FREE_ORACLES, *ACCURACIES])},
    ),
    "output-length": Sweep(
        "How long must an answer be before speculation pays for its start?",
        _output_length,
        ("draft", "tokens", *MEASURED, "end to end", "α", "forecast"),
        "new tokens",
        "end to end counts the prompt's own passes, too.",
        {"max_new_tokens": 512},
    ),
    "context": Sweep(
        "Does a long prompt help or hurt?",
        _context,
        ("draft", "prompt", "t_1 ms", *MEASURED, "c", "v", "o", "α"),
        "tokens of the prompt",
        f"t_1 is the time of a decode step. {COSTS}",
    ),
    "mismatch": Sweep(
        "What does a bad draft cost?",
        _mismatch,
        ("draft", *MEASURED, "α", "tok/rnd", "round", "c"),
        "draft",
        "round is the cost of a round in decode steps of the target. A round pays where tok/rnd is larger.",
        {"draft": "model"},
    ),
}


# --- the command ------------------------------------------------------------------------------------------------------


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    names = list(SWEEPS) if args.sweep == ALL else [args.sweep]
    if len(names) > 1 and args.prompts == "-":
        raise UsageProblem("--prompts - is for one sweep; run the sweeps one by one")
    code = 0
    for name in names:
        if len(names) > 1:
            note(f"sweep {name}")
        record, own_code = _run(args, name)
        code = own_code or code
        if record.interrupted:
            break
    return code


def make_parser() -> argparse.ArgumentParser:
    parser = parsing.make_parser(__doc__ or "", "python -m speclab.extensions.sweeps")
    parser.add_argument("sweep", choices=[*SWEEPS, ALL], metavar="NAME", help="what to change, see above")
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("experiment")
    kinds = "as of compare.py, but no drafts with branches (default: model,ngram; acceptance has dials)"
    flags.add_draft_flag(group, None, kinds)
    flags.add_run_flags(group, "tokens per draft (default: 4; acceptance 2)", "0 is greedy (default: 0)")
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(max_new_tokens=None)
    return parser


def filled(args: argparse.Namespace, name: str) -> argparse.Namespace:
    """Return the arguments, with the defaults of this sweep wherever the command line gives none.

    Acceptance needs an oracle draft for every model, at that model's cost; a lookup or an oracle draft has none.
    """
    asked = argparse.Namespace(**vars(args))
    choices = {kind: registry.read(kind) for kind in (args.draft or "").split(",") if kind}
    models = [kind for kind, one in choices.items() if not one.is_lookup and one.only_greedy is None]
    if name == "acceptance" and models:
        asked.draft = ",".join([*FREE_ORACLES, *(f"{dial}:{model}" for model in models for dial in ACCURACIES)])
    return flags.with_defaults(asked, DEFAULTS | SWEEPS[name].defaults)


def _run(typed: argparse.Namespace, name: str) -> tuple[SweepRun, int]:
    """Measure one sweep, show and write it; a Problem with the flags is raised before anything is timed.  -> its
    record, exit code"""
    args = filled(typed, name)
    lengths, auto = parsing.lengths(args.draft_length, "-k")
    if auto:
        raise UsageProblem("a sweep has no -k auto; give -k numbers")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    registry.check_chains("a sweep", registry.read_all(args.draft.split(",")))
    config, output = compare.prepare(args, f"{args.name}-sweep-{name}", lengths, temperatures)
    points, measured = SWEEPS[name].points(config)
    record = SweepRun(
        **config.head(measured),
        sweep=name,
        correctness=measured.correctness,
        noise=noise_floors(measured.lines),
        points=points,
    )
    page = functools.partial(text, record, f"../plots/{output.name}.png")
    drawn = functools.partial(picture, record, output.plots, output.name)
    show(output, record, functools.partial(text, record), page, [drawn])
    return record, exit_code(measured)  # raises what ended the run early, if that can be mended


if __name__ == "__main__":
    sys.exit(main())
