"""Does the cost of a token stay the same while things grow?

A decoder that copies its cache, searches its whole text, or keeps lists that nobody empties is fast in a short demo and
slow in use. Here three things grow, one at a time, and every number is a ratio inside one run:

    length    tokens generated so far (200 against 1,900); beside it a prompt of the same length, so that what the
              growing cache costs and what generating costs can be told apart
    context   tokens of the prompt (64 to 3,500)
    k         draft length (0 to 16), with the host's share of a round: everything but drafting and verifying

What comes out: for each, the cost of a token and of a round over that of the first row, and a verdict: flat, grows or
shrinks.

    python -m benchmarks.scaling                             # the lab's pair, about two minutes on two cores
    python -m benchmarks.scaling --sweeps k,context --draft ngram

All decodings of a sweep run side by side and take turns, a step or a round at a time, so that a slow second of the
machine meets all of them. Each is timed for the same number of turns, after its first tokens; one that makes more
tokens in a round sees more of the text. Intervals (95 %) are over blocks of such turns.
Files: results/NAME-scaling.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.core.clock import old_objects_frozen
from speclab.core.rounds import Round
from speclab.core.sampling import GREEDY
from speclab.drafts import registry
from speclab.lab.bench import Bench
from speclab.lab.decodings import Decoding
from speclab.lab.harness import kept_when_stopped
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.present.tables import Block, Cell, Heading, Lines, Table, cost, interval, speedup
from speclab.records.arms import BASELINE, INSTRUMENT, Arm
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress_bar
from speclab.theory.formulas import ratio_interval

Sweep = Literal["length", "context", "k"]
TITLES: dict[Sweep, str] = {
    "length": "Tokens generated so far",
    "context": "Tokens of the prompt",
    "k": "Draft length",
}
FLAT = 0.03  # a change this small is called flat even where the interval knows better
LONGEST = 2**20  # tokens of a text
BASE = 64  # tokens of the prompt that the sweep `length` starts from
WARM_UP = 8  # tokens before the clock counts
BLOCKS = 8  # of a log, for intervals
LARGEST_CHUNK = 16  # tokens that a GPU's baseline fetches at once

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ScalePoint(RecordPart):
    """One arm at one place of a sweep. Ratios are relative to the first point of its series."""

    sweep: Sweep
    series: str
    x: int | str
    draft_length: Count
    n_tokens: Count
    n_rounds: Count
    seconds: Amount
    token_ratio: float  # cost of a token
    round_ratio: float
    round_low: float | None
    round_high: float | None
    speedup: float | None = None  # over the baseline at the same place
    host_seconds: float | None = None  # of a round; what is neither draft nor verify
    host_share: float | None = None


@dataclass(kw_only=True)
class ScalingRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.scaling`."""

    models: dict[str, str]
    points: list[ScalePoint]


# --- decodings that take turns ----------------------------------------------------------------------------------------


@dataclass
class Line:
    """One row of a table while it is measured: an arm, its place in the sweep, and the rounds that were timed."""

    arm: Arm
    x: int | str
    prompts: list[Prompt]
    n_before: int = WARM_UP  # tokens made before the clock counts
    log: list[tuple[int, float, Round]] = field(default_factory=list)  # as in Decoding

    @property
    def seconds(self) -> float:
        """The seconds of all rounds."""
        return sum(seconds for _, seconds, _ in self.log)

    @property
    def n_tokens(self) -> int:
        """The tokens of all rounds."""
        return sum(len(round_.tokens) for _, _, round_ in self.log)

    @property
    def n_rounds(self) -> int:
        """The number of rounds. A round of the baseline is one token, also where a GPU fetches several at once."""
        return len(self.log) if self.arm.speculative else self.n_tokens

    def blocks(self) -> list[float]:
        """The seconds of stretches of rounds that follow each other."""
        parts = np.array_split([seconds for _, seconds, _ in self.log], min(BLOCKS, len(self.log)))
        return [float(part.sum()) for part in parts]


@dataclass
class Subject:
    """The subject of the sweeps: one target, one draft, and texts for them."""

    args: argparse.Namespace
    bench: Bench
    prompts: list[Prompt]  # of the sweep k
    text: list[int]  # ids of a long text, prompts are cut from it

    def arms(self) -> list[Arm]:
        """The baseline, and the draft at -k."""
        return [BASELINE, *(Arm(name, name, self.args.draft_length) for name in self.bench.drafters)]

    def start(self, arm: Arm, prompt: Prompt, n_tokens: int) -> Decoding:
        """A decoding that has made so many tokens, with room for all turns. An instrument times each phase."""
        budget = n_tokens + room_for_turns(self.args, arm.draft_length)
        lengths = [arm.draft_length] if arm.method == INSTRUMENT else None
        decoding = self.bench.decoding(arm, GREEDY, prompt, budget=budget, lengths=lengths)
        while len(decoding.tokens) < n_tokens:
            decoding.advance()
        return decoding

    def time(self, lines: list[Line]) -> None:
        """Log as many turns of every line on each of its prompts, all lines side by side."""
        for i in range(len(lines[0].prompts)):
            ends = [
                line.prompts[i].ids.shape[1] + line.n_before + room_for_turns(self.args, line.arm.draft_length)
                for line in lines
            ]
            self.bench.prepare({line.arm.draft_length for line in lines}, [GREEDY], max(ends))
            decodings = [self.start(line.arm, line.prompts[i], line.n_before) for line in lines]
            starts = [len(decoding.log) for decoding in decodings]
            alternate(decodings, self.args.turns, self.bench.setup.chunk)
            for line, decoding, start in zip(lines, decodings, starts, strict=True):
                line.log += decoding.log[start:]

    def points(self, sweep: Sweep, lines: list[Line]) -> list[ScalePoint]:
        """A point for every line, beside the first one of its method. The first line is the baseline's.

        The speedup is over the baseline at the same place, or over the first line where it has no such place.
        """
        baselines = {line.x: line for line in lines if line.arm == BASELINE}
        firsts: dict[str, Line] = {}
        points = []
        for line in lines:
            points.append(point(sweep, line, firsts.setdefault(line.arm.method, line)))
            if line.arm.speculative:
                baseline = baselines.get(line.x, lines[0])
                points[-1].speedup = baseline.seconds / baseline.n_tokens / (line.seconds / line.n_tokens)
        return points


@old_objects_frozen()
def alternate(decodings: list[Decoding], turns: int, chunk: int) -> None:
    """Advance each decoding by a round, turn by turn, forwards and backwards. The baseline makes `chunk` tokens in
    every chunk-th turn."""
    for turn in range(turns):
        for decoding in decodings if turn % 2 == 0 else decodings[::-1]:
            if decoding.arm.speculative or turn % chunk == 0:
                decoding.advance()


def as_prompt(ids: list[int]) -> Prompt:
    """Make a prompt of these ids."""
    return Prompt("text", "", torch.tensor([ids]))


def room_for_turns(args: argparse.Namespace, draft_length: int) -> int:
    """The tokens that all turns of a decoding may make, and those before them that overshoot; no round is shortened."""
    return (draft_length + 1) * (args.turns + 2) + 2 * LARGEST_CHUNK


def point(sweep: Sweep, line: Line, first: Line) -> ScalePoint:
    """The cost of the rounds of a line, relative to those of another line with as many turns."""
    low, high = (None if line is first else ratio_interval(line.blocks(), first.blocks())) or (None, None)
    return ScalePoint(
        sweep=sweep,
        series=line.arm.method,
        x=line.x,
        draft_length=line.arm.draft_length,
        n_tokens=line.n_tokens,
        n_rounds=line.n_rounds,
        seconds=line.seconds,
        token_ratio=line.seconds / line.n_tokens / (first.seconds / first.n_tokens),
        round_ratio=line.seconds / line.n_rounds / (first.seconds / first.n_rounds),
        round_low=low,
        round_high=high,
    )


# --- the sweeps -------------------------------------------------------------------------------------------------------


def length_sweep(subject: Subject) -> list[ScalePoint]:
    """Points for a short text, a long one, and a prompt as long as the long one; for the baseline and for the draft."""
    base, lengths = as_prompt(subject.text[:BASE]), subject.args.lengths
    grown = as_prompt(base.id_list + subject.start(BASELINE, base, lengths[-1]).tokens[: lengths[-1]])
    series = [
        [*(Line(arm, n, [base], n) for n in lengths), Line(arm, f"prompt of {lengths[-1]}", [grown], 1)]
        for arm in subject.arms()
    ]
    subject.time([line for lines in series for line in lines])
    points = []
    for lines in series:
        points += subject.points("length", lines)
        # The long decoding over a prompt of the same length: here the cache is equal, only who wrote it differs.
        points.append(point("length", replace(lines[-2], x=f"{lengths[-1]} ÷ prompt"), lines[-1]))
    return points


def context_sweep(subject: Subject) -> list[ScalePoint]:
    """Points for prompts of several lengths, cut from one text."""
    places = [(arm, n) for arm in subject.arms() for n in subject.args.contexts]
    lines = [Line(arm, n, [as_prompt(subject.text[:n])]) for arm, n in places]
    subject.time(lines)
    return subject.points("context", lines)


def k_sweep(subject: Subject) -> list[ScalePoint]:
    """Points for every draft length over the same prompts, timed whole and, beside it, phase by phase."""
    (name,), lengths = subject.bench.drafters, subject.args.draft_lengths
    timed, phased = ([Line(Arm(method, name, k), k, subject.prompts) for k in lengths] for method in (name, INSTRUMENT))
    baseline = Line(BASELINE, "-", subject.prompts)
    subject.time([baseline, *timed, *phased])
    points = subject.points("k", [baseline, *timed])
    for one, line in zip(points[1:], phased, strict=True):
        phases = [round_.seconds or {} for _, _, round_ in line.log]
        host = line.seconds - sum(seconds["draft"] + seconds["verify"] for seconds in phases)
        one.host_seconds, one.host_share = host / line.n_rounds, host / line.seconds
    return points


SWEEPS: dict[Sweep, Callable[[Subject], list[ScalePoint]]] = {
    "length": length_sweep,
    "context": context_sweep,
    "k": k_sweep,
}


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "token and round are costs over those of the first row of the same arm; a round of the baseline is one token. The "
    f"95 % interval and the verdict are about the round's ratio, which counts as flat within {FLAT:.0%}.",
    "A speculative token also costs more where fewer drafts are accepted; a round does not.",
    "N ÷ prompt compares N generated tokens with a prompt of that length. It shows the cost of generating beyond that "
    "of the longer context.",
    "host is everything in a round but drafting and verifying, measured with a clock on each phase.",
]


def sweep_table(points: list[ScalePoint]) -> Table:
    """A table with a line for every point of one sweep."""
    cells: dict[str, Cell] = {
        "arm": lambda p: f"{p.series} k={p.draft_length}" if p.draft_length and p.sweep != "k" else p.series,
        "at": lambda p: str(p.x),
        "ms/token": lambda p: f"{p.seconds / p.n_tokens * 1e3:.3g}",
        "token": lambda p: speedup(p.token_ratio),
        "ms/round": lambda p: f"{p.seconds / p.n_rounds * 1e3:.3g}",
        "round": lambda p: speedup(p.round_ratio),
        "95 %": lambda p: interval(p.round_low, p.round_high),
        "verdict": lambda p: verdict(p.round_ratio, p.round_low, p.round_high),
    }
    if any(p.speedup is not None for p in points):
        cells["speedup"] = lambda p: speedup(p.speedup)
    if any(p.host_seconds is not None for p in points):
        cells["host µs"] = lambda p: "-" if p.host_seconds is None else cost(p.host_seconds * 1e6, 0)
        cells["share"] = lambda p: "-" if p.host_share is None else f"{p.host_share:.0%}"
    return Table(points, cells, n_words=2)


def verdict(ratio: float, low: float | None, high: float | None) -> str:
    """The verdict on the cost of a round: flat, grows or shrinks, and whether noise may be the reason."""
    if abs(ratio - 1) <= FLAT:
        return "flat"
    may_be_noise = low is not None and high is not None and low <= 1 <= high
    return ("grows" if ratio > 1 else "shrinks") + ", may be noise" * may_be_noise


def page(run: ScalingRun) -> list[Block]:
    """The whole page, from the record alone."""
    blocks = [*common.begin("What grows", run), Lines(f"{role}: {text}" for role, text in run.models.items())]
    for sweep in dict.fromkeys(p.sweep for p in run.points):
        blocks += [Heading(TITLES[sweep]), sweep_table([p for p in run.points if p.sweep == sweep])]
    return [*blocks, Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser.add_argument_group("draft"))
    group = parser.add_argument_group("benchmark")
    group.add_argument("--sweeps", default=",".join(SWEEPS), metavar="NAME,NAME", help="(default: %(default)s)")
    group.add_argument("-k", "--draft-length", type=parsing.at_least(1), default=4, help="(default: 4)")
    group.add_argument("--draft-lengths", default="0,1,2,4,8,16", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--lengths", default="200,1900", metavar="N,N", help="generated (default: %(default)s)")
    group.add_argument("--contexts", default="64,512,1500,3500", metavar="N,N", help="(default: %(default)s)")
    group.add_argument("--turns", type=parsing.at_least(2), default=64, help="steps or rounds timed (default: 64)")
    common.add_result_flags(parser, "scaling")
    parser.set_defaults(limit=1)
    return parser


def fill_in(args: argparse.Namespace) -> list[Sweep]:
    """Check the flags that are lists.  -> the sweeps to measure"""
    names = args.sweeps.split(",")
    if unknown := [name for name in names if name not in SWEEPS]:
        raise UsageProblem(f"--sweeps {args.sweeps}: there is no {unknown[0]!r}; use {', '.join(SWEEPS)}")
    if args.prompts == "-":
        raise UsageProblem("standard input can be read once only; give --prompts a file")
    args.draft_lengths = parsing.numbers(args.draft_lengths, int, 0, "--draft-lengths")
    args.lengths = parsing.numbers(args.lengths, int, 2, "--lengths", LONGEST)
    args.contexts = parsing.numbers(args.contexts, int, 2, "--contexts", LONGEST)
    return [sweep for sweep in SWEEPS if sweep in names]


def make_subject(args: argparse.Namespace, sweeps: list[Sweep]) -> Subject:
    """The target, the draft, and prompts and a text that are long enough for these sweeps; checked and described."""
    setup = flags.setup_from(args)
    prompts = flags.read_prompts(args, setup.tokenizer)
    unlimited = copy.copy(args)
    unlimited.limit = 0
    text = [i for prompt in flags.read_prompts(unlimited, setup.tokenizer) for i in prompt.id_list]
    text *= max(*args.contexts, BASE) // len(text) + 1
    bench = Bench(setup, registry.make_all([registry.read(args.draft)], setup, args.seed), args.turns, args.seed)
    subject = Subject(args, bench, prompts, text)
    check_room(subject, sweeps)
    note(setup.describe())
    return subject


def draft_models(subject: Subject) -> list[CachedModel]:
    """The model of the draft, where it has one."""
    return [model for drafter in subject.bench.drafters.values() for model in drafter.models]


def check_room(subject: Subject, sweeps: list[Sweep]) -> None:
    """Raise UsageProblem where the longest text of a sweep does not fit the context of a model."""
    args, models = subject.args, [subject.bench.setup.target, *draft_models(subject)]
    room = min((m.max_length for m in models if m.max_length), default=sys.maxsize)
    prompt = max(prompt.ids.shape[1] for prompt in subject.prompts)
    start = {"length": BASE + args.lengths[-1], "context": args.contexts[-1], "k": prompt}
    widest = max(args.draft_length, *args.draft_lengths) if "k" in sweeps else args.draft_length
    longest = max(start[sweep] for sweep in sweeps) + room_for_turns(args, widest)
    if longest > room:
        raise UsageProblem(
            f"texts of up to {longest} tokens do not fit the model's context of {room}; give smaller --lengths or "
            f"--contexts, or fewer than --turns {args.turns}"
        )


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    sweeps = fill_in(args)
    common.check_result_flags(args)
    subject, draft = make_subject(args, sweeps), registry.read(args.draft).name
    setup = subject.bench.setup
    models = {"target": loading.describe_model(setup.target_name, setup.target.model)}
    for model in draft_models(subject):
        models["draft"] = loading.describe_model(draft, model.model, "draft")
    points: list[ScalePoint] = []
    with kept_when_stopped(lambda: "what is measured is kept" if points else "") as stops:
        for sweep in progress_bar(sweeps, desc="sweeps", leave=False):  # between the sweeps, never inside one
            points += SWEEPS[sweep](subject)
    stop = stops[0] if stops else None
    given = {"draft": draft, "draft_length": args.draft_length, "turns": args.turns, "sweeps": sweeps}
    run = ScalingRun(**common.head_of(args, setup, stop, **given), models=models, points=points)
    return common.finish(args, run, page, stop)


if __name__ == "__main__":
    sys.exit(main())
