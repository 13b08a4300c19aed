"""Sweeps: change one setting, keep the rest still, and see what the speedup and its predictions do.

    python -m speclab.extensions.sweeps acceptance       # how often the draft is right, at a draft's price and for free
    python -m speclab.extensions.sweeps output-length    # 8 to 512 new tokens, reading the prompt included
    python -m speclab.extensions.sweeps context          # prompts of 128 to 1,800 tokens
    python -m speclab.extensions.sweeps mismatch         # drafts ever less like the target, down to random weights

Sweeps of other settings are compare.py with -k 0,1,2,4,8, --temperature 0,0.4,0.8 or --draft feature, and --alone.
What comes out: a table, its predictions beside the measurement, a run record (JSON), a page in Markdown, and a picture.
A sweep takes one to five minutes on two cores; --limit 1 makes it shorter. See docs/why-not-faster.md. Exit code 1
means: a text is wrong.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
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
from speclab.drafts import registry
from speclab.extensions.sweeps.register import Dial
from speclab.lab.comparison import RunConfig, build_rows, exit_code, measure_and_judge
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.known_texts import calibrated
from speclab.lab.rows import noise_floors
from speclab.models.prompts import Prompt
from speclab.present import pictures, tables
from speclab.present.report import COSTS
from speclab.present.screen import noise_lines, provenance, remarks, rough_line
from speclab.present.tables import CELLS, Cell, Heading, Lines, Markdown, Table, interval, number, prediction
from speclab.records.files import LabRun
from speclab.records.rows import Facts, Noise, Row
from speclab.system.errors import UsageProblem, reports_problems
from speclab.theory.attribution import PREDICTORS

CONTEXTS = (128, 256, 512, 1024, 1800)  # prompt tokens
OUTPUT_LENGTHS = (8, 16, 32, 64, 128, 512)  # new tokens
ACCURACIES = [f"dial:{i / 10:g}" for i in range(11)]
FREE_ORACLES = [f"{dial}:free" for dial in ACCURACIES]
# The defaults of what the command line leaves open: those of every sweep, and those that one sweep has of its own.
DEFAULTS = {"draft": "model,ngram", "limit": 2, "max_new_tokens": 64, "repeats": 1}
DEFAULTS |= {"draft_length": 4, "temperature": 0.0}


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


Measured = tuple[list[Row], Measurement]
Points = tuple[list[Point], list[Measurement]]


class Sweep(NamedTuple):
    """A sweep: what it asks, how it is measured and shown."""

    question: str
    points: Callable[[RunConfig], Points]
    heads: tuple[str, ...]  # of its table
    axis: str  # of its picture
    legend: str
    defaults: dict[str, Any] = {}  # noqa: RUF012


# --- measuring --------------------------------------------------------------------------------------------------------


def _rows(config: RunConfig, title: str = "measuring", alike: dict[str, str] | None = None) -> Measured:
    """Measure the rows of a small comparison, checked, and calibrated in its own turns. alike: greedy drafts -> those
    that cost the same and are calibrated in their place."""
    arms, alike = config.arms(), alike or {}
    instruments = {name: found for name, found in config.instruments(arms).items() if alike.get(name, name) == name}
    measured = measure_and_judge(config, arms, instruments, title)
    costs = calibrated(measured)
    costs |= {(name, 0.0): costs[other, 0.0] for name, other in alike.items() if costs}
    rows = build_rows(measured, costs)
    return [row for row in rows if row.draft and row.prompt_kind == "all"], measured


def _acceptance(config: RunConfig) -> Points:
    """Measure the oracle draft, from never right to always right, once at the cost of a draft model and once at
    none. It replays greedy text; its names are dial:A, dial:A:MODEL and dial:A:free."""
    dials: dict[str, Any] = config.drafters
    if not all(isinstance(dial, Dial) for dial in dials.values()):
        raise UsageProblem("the sweep acceptance turns dials; leave --draft out or give some, as in dial:0.5,dial:0.9")
    config.temperatures = [0.0]
    series = dict.fromkeys(dials, "free drafts")
    for name in (name for name, dial in dials.items() if dial.models):
        model = name.split(":", 2)[2:]  # of dial:A:MODEL
        series[name] = f"price of {model[0]}" if model else "draft's price"
    middle = {series[name]: name for name in sorted(dials, key=lambda name: -abs(dials[name].accuracy - 0.5))}
    rows, measured = _rows(config, alike={name: middle[series[name]] for name in dials})
    points = [Point(**vars(row), x=dials[row.draft or ""].accuracy, series=series[row.draft or ""]) for row in rows]
    return points, [measured]


def _by_size(runs: dict[int, RunConfig], unit: str) -> Points:
    """Do one run after the other. One that is stopped is the last one, and those before it are kept."""
    points, parts = list[Point](), list[Measurement]()
    for n, config in runs.items():
        with kept_when_stopped(lambda: "the points so far are complete" * bool(parts)) as stops:
            rows, measured = _rows(config, f"{n} {unit}")
            points += [Point(**vars(row), x=n, series=row.method) for row in rows]
            parts.append(measured)
            for line in measured.lines:  # the prompts of each run are others than those of the runs before
                line.prompt_index += 10**6 * n
        if stops:
            parts[-1].stop = stops[0]
        if parts[-1].stop:
            break
    return points, parts


def _output_length(config: RunConfig) -> Points:
    runs = {n: replace(config, max_new_tokens=n) for n in OUTPUT_LENGTHS if n <= config.max_new_tokens}
    if not runs:
        raise UsageProblem("the sweep output-length begins at 8 tokens; use --max-new-tokens 8 or more")
    return _by_size(runs, "tokens")


def _context(config: RunConfig) -> Points:
    """Prompts of growing length: the standard prompts of a kind one after the other, cut to size."""
    models = [config.setup.target, *(model for d in config.drafters.values() for model in d.models)]
    rooms = (model.room.for_prompt(config.max_new_tokens) for model in models)
    room = max(0, min((n for n in rooms if n is not None), default=sys.maxsize))
    if room < CONTEXTS[0]:
        raise UsageProblem(
            f"there is room for prompts of {room} tokens, not of {CONTEXTS[0]}; use fewer --max-new-tokens"
        )
    runs = {n: replace(config, prompts=stretched(config.prompts, n)) for n in CONTEXTS if n <= room}
    for run in runs.values():
        registry.check_prompts(config.setup.target, config.drafters.values(), run.prompts, config.max_new_tokens)
    return _by_size(runs, "tokens of context")


def stretched(prompts: list[Prompt], n: int) -> list[Prompt]:
    """Bring each prompt to exactly n tokens by putting others of its kind in front of it, as often as it takes."""
    longer = []
    for i, prompt in enumerate(prompts):
        alike = [p.ids for p in [*prompts[i + 1 :], *prompts[: i + 1]] if p.kind == prompt.kind]  # the last is its own
        ids = torch.cat(alike, dim=1)  # (1, length)
        longer.append(replace(prompt, ids=ids.repeat(1, -(-n // ids.shape[1]))[:, -n:]))
    return longer


def _mismatch(config: RunConfig) -> Points:
    """Measure the trained draft, the same with ever more noise in its weights, and one of its shape that has seen
    nothing: their passes cost the same."""
    drafts = [drafter.models[0] for drafter in config.drafters.values() if drafter.is_model]
    if not drafts:
        raise UsageProblem("the sweep mismatch starts from a draft model; give --draft model or a folder")
    source, n_ids = drafts[0].model, drafts[0].vocab_size
    models = {"trained": source, "random": random_like(source, config.seed)}
    models |= {f"noise {amount:g}": noisy(source, amount, config.seed) for amount in (0.1, 0.2, 0.4)}
    config.drafters = {name: ModelDrafter(config.setup.cached(one, n_ids)) for name, one in models.items()}
    rows, measured = _rows(config)
    rows.sort(key=lambda row: -(row.acceptance_rate or 0))
    return [Point(**vars(row), x=row.method, series=row.method) for row in rows], [measured]


def noisy(model: PreTrainedModel, amount: float, seed: int) -> PreTrainedModel:
    """Return a copy whose matrices are off by Gaussian noise of `amount` times each one's own standard deviation. Norms
    and biases stay. One seed is one direction in weight space: a larger amount goes further the same way."""
    generator, copied = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            if weight.ndim >= 2 and weight.is_floating_point():
                exact = weight.detach().cpu().double()  # the same noise on every device and in every number format
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
    """Return the points of each series, along x where x is a number, else in the record's order."""
    groups: dict[str, list[Point]] = {}
    for point in sorted(sweep.points, key=lambda point: 0 if isinstance(point.x, str) else point.x):
        groups.setdefault(point.series, []).append(point)
    return groups


def by_acceptance(points: list[Point]) -> dict[Any, Point]:
    """Return a dict: measured alpha -> the drafting point, along alpha."""
    known = {point.acceptance_rate: point for point in points if point.acceptance_rate is not None}
    return dict(sorted(known.items()))


def break_even(points: list[Point]) -> list[float | None]:
    """Return the alpha at which the measured speedup passes 1 upwards, and where its interval's two ends do; None where
    one does not pass 1 in the measured range."""
    known = by_acceptance(points)

    def first(key: str) -> float | None:
        values = [getattr(point, key) for point in known.values()]
        if not values or None in values or values[0] >= 1:
            return None
        places = pairwise(zip(known, values, strict=True))
        return next((x0 + (1 - y0) / (y1 - y0) * (x1 - x0) for (x0, y0), (x1, y1) in places if y0 < 1 <= y1), None)

    return list(map(first, ("speedup", "speedup_high", "speedup_low")))


# --- showing ----------------------------------------------------------------------------------------------------------


def lines(sweep: SweepRun) -> Lines:
    """Return the columns' legend, where each curve of acceptance breaks even, then the notes on the run."""
    filled = []
    for label, points in curves(sweep).items() if sweep.sweep == "acceptance" else ():
        alpha, low, high = break_even(points)
        said = "-" if alpha is None else f"{alpha:.2f} ({interval(low, high)})"
        filled.append(f"{label}: break-even at α = {said}")
    return Lines([SWEEPS[sweep.sweep].legend, *filled, *noise_lines(sweep.noise), *remarks(sweep), rough_line(sweep)])


def table(sweep: SweepRun) -> Table:
    rows = [replace(point, method=label) for label, curve in curves(sweep).items() for point in curve]
    return Table(rows, {head: (CELLS | COLUMNS)[head] for head in SWEEPS[sweep.sweep].heads})


def text(sweep: SweepRun, picture_path: str = "") -> str:
    """Return the sweep for the terminal, or with the path of its picture a page in Markdown."""
    question, title = SWEEPS[sweep.sweep].question, sweep.sweep.replace("-", " ").capitalize()
    if not picture_path:
        return tables.show([question, lines(sweep), table(sweep)])
    image, origin = Markdown(f"![{title}]({picture_path})"), provenance(sweep)
    return tables.show([Heading(title, 1), question, lines(sweep), image, table(sweep), origin], markdown=True)


def picture(sweep: SweepRun, folder: Path, name: str) -> Path:
    """Write folder/name.png: the speedup, a panel for each curve. Measured values are markers, predictions lines."""
    panels, axis, has_names = [], SWEEPS[sweep.sweep].axis, sweep.sweep == "mismatch"
    for label, of_curve in ({"": sweep.points} if has_names else curves(sweep)).items():
        places, points, ticks, n = [point.x for point in of_curve], of_curve, dict[Any, str](), len(PREDICTED)
        if has_names:
            ticks = {i: f"{p.x}\nα = {number(p.acceptance_rate)}\n{p.verdict}" for i, p in enumerate(points)}
            places, n = list(ticks), 1  # the last one
        elif sweep.sweep == "acceptance":
            by_alpha, ticks = by_acceptance(of_curve), {i / 5: f"{i / 5:g}" for i in range(6)}
            places, points = list(by_alpha), list(by_alpha.values())
        series = [pictures.Series("measured", dict(zip(places, map(pictures.with_interval, points), strict=True)))]
        for key, line, look, style in PREDICTED[-n:]:
            values = pictures.plain(zip(places, map(operator.attrgetter(key), points), strict=True))
            series.append(pictures.Series(line, values, look, style))
        panels.append(pictures.Panel(series, axis, tables.short(label, 16), ticks or None, log=not ticks))
    figure = pictures.draw(panels, 8.0 if len(panels) == 1 else 4.6) if sweep.points else pictures.Figure()
    return pictures.save(figure, sweep, folder, name)


PREDICTED = (  # a column that predicts the speedup, its label, colour and style
    ("book_formula", pictures.BOOK, 1, ":"),
    ("leviathan", "Leviathan, with c", 3, "-."),
    ("cost_model", "cost model", 2, "--"),
    ("forecast", "forecast", 5, "-"),
)
# Only sweeps show these columns; the others are those of every table. A round costs k c + v + o, where k is the number
# of tokens that were really drafted.
COLUMNS: dict[str, Cell] = {
    **dict.fromkeys(("right", "tokens", "prompt"), lambda point: f"{point.x:g}"),
    "verdict": lambda point: point.verdict or "-",
    "t_1 ms": lambda point: number(1e3 * point.speedup * point.seconds / point.n_emitted),
    "round": lambda point: number(
        point.verify_cost
        and point.n_drafted / point.n_rounds * (point.draft_cost or 0.0) + point.verify_cost + point.overhead
    ),
    **{head: prediction(operator.attrgetter(key)) for key, head in (PREDICTORS | {"cost_model": "cost model"}).items()},
}
MEASURED = ("speedup", "95 %", "verdict")
SWEEPS = {
    "acceptance": Sweep(
        "How often must a draft be right, and where is the book's formula right about what you gain?",
        _acceptance,
        ("draft", "right", "α", *MEASURED, "book(α)", "Leviathan", "cost model", "forecast"),
        "acceptance rate α, as measured",
        "right says how often the draft proposes the target's token.",
        {"draft_length": 2, "draft": ",".join([*FREE_ORACLES, *ACCURACIES])},
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
    args = filled(make_parser().parse_args(argv))
    registry.check_chains("a sweep", registry.read_all(args.draft.split(",")))
    still = [args.draft_length], [args.temperature]
    config, output = compare.prepare(args, f"{args.name}-sweep-{args.sweep}", *still)
    points, parts = SWEEPS[args.sweep].points(config)
    record = SweepRun(
        **config.head(parts[-1]),
        sweep=args.sweep,
        correctness=[entry for part in parts for entry in part.correctness],
        noise=noise_floors([line for part in parts for line in part.lines]),
        points=points,
    )
    views = (lambda: text(record), lambda: text(record, f"../plots/{output.name}.png"))
    compare.show(output, record, *views, [lambda: picture(record, output.plots, output.name)])
    return max(map(exit_code, parts))  # raises what ended the run early, if that can be mended


def make_parser() -> argparse.ArgumentParser:
    parser = parsing.make_parser(__doc__ or "", "python -m speclab.extensions.sweeps")
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("experiment and results")
    group.add_argument("sweep", choices=list(SWEEPS), metavar="NAME", help="what to change, see above")
    flags.add_draft_flag(group, None, "no branches (default: model,ngram; acceptance has dials)")
    lengths = "tokens per draft (default: 4; acceptance 2)"
    group.add_argument("-k", "--draft-length", type=parsing.at_least(0, parsing.LARGEST), metavar="K", help=lengths)
    group.add_argument("--temperature", type=parsing.number(float, 0), metavar="T", help="0 is greedy (default: 0)")
    flags.add_output_flags(group)
    parser.set_defaults(max_new_tokens=None)
    return parser


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the defaults of their sweep. Acceptance takes a model as the cost of dials."""
    if args.sweep == "acceptance" and args.draft:
        choices = map(registry.read, filter(None, args.draft.split(",")))
        models = [choice.text for choice in choices if not (choice.is_lookup or choice.only_greedy)]
        dials = [f"{dial}:{model}" for model in models for dial in ACCURACIES]
        args.draft = ",".join([*FREE_ORACLES, *dials]) if models else args.draft
    return flags.with_defaults(args, DEFAULTS | SWEEPS[args.sweep].defaults)


if __name__ == "__main__":
    sys.exit(main())
