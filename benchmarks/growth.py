"""How much training is enough? Acceptance of heads against the tokens that they learned from, and against time.

    python -m benchmarks.growth models/smollm2/feature build/heads/out --name NAME

Every folder holds a head that `python -m training.heads` made, with its training.json: the scores of each tenth of the
time, on held-out answers of the target. Nothing is trained here and nothing is timed.

Files: results/NAME-growth.json and .md, plots/NAME-growth.png.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from speclab.cli import parsing
from speclab.present.pictures import figures
from speclab.present.tables import Block, Cell, Heading, Lines, Table, number
from speclab.records import files
from speclab.records.rows import Amount, Count, RecordPart
from speclab.records.runs import Machine, Versions
from speclab.system.errors import UsageProblem, first_line, reports_problems
from speclab.system.files import check_writable, read_bytes, shown
from speclab.system.terminal import say
from speclab.theory.positions import break_even_acceptance
from training.course import K

MOST_BYTES = 2**20  # of a training.json
MOST_SCORES = 1000
# Places on the axes of minutes and of tokens.
MARKS = {x: f"{x:g}" for x in (0.5, 1, 2, 5, 10, 20, 60, 180)} | {10**i: f"{10**i:,}" for i in range(4, 9)}


@dataclass(kw_only=True)
class Score(RecordPart):
    """A score of a head in training: after so many tokens and minutes of learning, replayed at k = 4.

    training: its place in the record's trainings.
    """

    training: Count
    tokens: Count
    minutes: Amount
    tokens_per_round: float

    @property
    def alpha(self) -> float:
        """Return the α at which a round has so many tokens, if each drafted token is accepted by itself."""
        return break_even_acceptance(K, self.tokens_per_round) or 0.0


@dataclass(kw_only=True)
class Training(RecordPart):
    """One training: of what, where, and from how many texts of the target."""

    kind: str
    target: str
    answers: Count
    machine: Machine
    versions: Versions

    @property
    def label(self) -> str:
        """Return what tables and the legend call it."""
        where = self.machine.gpu or f"{self.machine.cpu}, {self.machine.threads} threads"
        return f"{self.kind}, {self.target.rsplit('models/')[-1].removesuffix('/target')}, {where}"


@dataclass(kw_only=True)
class GrowthRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.growth`."""

    trainings: list[Training]
    raw: list[Score] = field(default_factory=list)

    def of(self, training: int) -> list[Score]:
        """Return the scores of one training, in their order."""
        return [score for score in self.raw if score.training == training]


def read(folder: Path, place: int) -> tuple[Training, list[Score]]:
    """Read the training.json of a head's folder. place: the number that its scores name.

    Raises UsageProblem where there is none, where it has no scores, or where they are not numbers of such scores.
    """
    path = folder / "training.json"
    try:
        about: dict[str, Any] = json.loads(read_bytes(path, MOST_BYTES))
        training = {name: about[name] for name in ("kind", "target", "machine", "versions")}
        training["answers"] = about["own_texts"]["answers"]
        names = ("tokens", "minutes", "tokens_per_round")
        scores = [{"training": place, **{name: row[name] for name in names}} for row in about["growth"][:MOST_SCORES]]
        found = [files.parsed(Score, json.dumps(score)) for score in scores]
        made = files.parsed(Training, json.dumps(training))
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageProblem(
            f"{path} tells no growth of a head ({first_line(error)}); give the folder of a head that "
            "`python -m training.heads` made"
        ) from None
    if not found:
        raise UsageProblem(f"{path} has no scores; give the --out folder of `python -m training.heads`")
    return made, found


# --- views of the record ----------------------------------------------------------------------------------------------


def page(run: GrowthRun) -> list[Block]:
    """The whole page, from the record alone."""
    blocks: list[Block] = [Heading("How much training is enough?", 1)]
    cells: dict[str, Cell] = {
        "tokens learned from": lambda score: f"{score.tokens:,}",
        "minutes": lambda score: f"{score.minutes:.1f}",
        f"tok/rnd at k={K}": lambda score: number(score.tokens_per_round),
        "α": lambda score: number(score.alpha),
    }
    for place, training in enumerate(run.trainings):
        commit = (training.versions.commit or "unknown")[:12]
        blocks += [
            Heading(training.label, 2),
            f"{training.answers:,} answers of the target at the end; torch {training.versions.torch}, commit {commit}.",
            Table(run.of(place), cells),
        ]
    return [
        *blocks,
        Lines(
            [
                "The head is scored on held-out answers of its target, which it does not learn from. tok/rnd are "
                "tokens of a greedy round, replayed; α is the acceptance at which a round has so many, if each drafted "
                "token is accepted by itself.",
                "minutes are those of learning; the writing of the target's answers is part of them where a training "
                "does both in turn.",
            ]
        ),
    ]


def picture(run: GrowthRun, folder: Path, name: str) -> Path:
    """Draw α and tokens per round against tokens and against minutes into folder/name.png."""
    places: dict[str, Callable[[Score], float]] = {
        "tokens learned from": lambda score: score.tokens,
        "minutes": lambda score: score.minutes,
    }
    heights: dict[str, Callable[[Score], float]] = {
        f"tokens per round, k = {K}": lambda score: score.tokens_per_round,
        "α": lambda score: score.alpha,
    }
    figure, axes = figures.blank(4, 3.4, 4.4)
    for axis, ((y_label, height), (x_label, place)) in zip(
        axes, itertools.product(heights.items(), places.items()), strict=True
    ):
        for i, training in enumerate(run.trainings):
            scores = run.of(i)
            look = {"color": figures.colour(i), "marker": figures.MARKERS[i % len(figures.MARKERS)], "markersize": 6}
            axis.plot(list(map(place, scores)), list(map(height, scores)), ls="", label=training.label, **look)
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        marks = {mark: name for mark, name in MARKS.items() if low <= mark <= high}
        axis.set_xticks(list(marks), list(marks.values()))
        axis.set_xticks([], minor=True)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.set_ylim(bottom=1.0 if "round" in y_label else 0.0)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figures.as_png(figure, folder / f"{name}.png")


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("folders", nargs="+", type=parsing.some_path, metavar="FOLDER", help="of a trained head")
    common.add_result_flags(parser, "growth")
    args = parser.parse_args(argv)
    common.check_result_flags(args)
    plots, name = args.out_dir / "plots", f"{args.name}-growth"
    check_writable(plots / f"{name}.png", "--out-dir")
    found = [read(folder, place) for place, folder in enumerate(args.folders)]
    fields = common.head(args, torch.device("cpu"), {})
    run = GrowthRun(**fields, trainings=[one for one, _ in found], raw=[row for _, rows in found for row in rows])
    code = common.finish(args, run, page)
    say(f"wrote {shown(picture(run, plots, name))}")
    return code


if __name__ == "__main__":
    sys.exit(main())
