"""Does the cost of a token stay what it is while things grow?

A decoder that copies its cache, searches its whole text, or keeps lists that nobody empties is fast in a short demo and
slow in use. Here four things grow, one at a time, and every number is a ratio inside one run:

    length    tokens generated so far (200 against 1,900); beside it a prompt of the same length, so that what the
              growing cache costs and what generating costs can be told apart
    context   tokens of the prompt (64 to 3,500)
    k         draft length (0 to 16), with the host's share of a round: everything but drafting and verifying
    size      several targets, with --sizes

What comes out: for each, the cost of a token and of a round over that of the first row, and a verdict: flat, grows or
shrinks.

    python -m benchmarks.scaling                             # the lab's pair, about two minutes on two cores
    python -m benchmarks.scaling --dials k,context --draft ngram
    python -m benchmarks.scaling --dials size --sizes lab,lab:200m

All decodings of a dial run side by side and take turns, a step or a round at a time, so that a slow second of the
machine meets all of them. Intervals (95 %) are over blocks of such turns. Files: results/NAME-scaling.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.cli.flags import add_draft_flag
from speclab.cli.parsing import numbers
from speclab.core.sampling import GREEDY
from speclab.drafts.select import drafter_name, make_drafters
from speclab.lab.decodings import Decoding, take_turns
from speclab.lab.harness import Bench
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import interval, speedup, table
from speclab.records.rows import Amount, Count, Part
from speclab.records.samples import BASELINE, Arm
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress_bar
from speclab.theory.formulas import ratio_interval

Dial = Literal["length", "context", "k", "size"]
DIALS = get_args(Dial)
LONGEST = 2**20  # tokens of a text
BASE = 64  # tokens of the prompt that the dial `length` starts from
WARM_UP = 8  # tokens before the clock counts
BLOCK = 16  # turns: as many as a GPU's baseline fetches at once
FLAT = 0.03  # a change this small is called flat even where the interval knows better


Log = list[tuple[float, int]]  # seconds and tokens of every turn; a turn is a round, of the baseline a token


# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ScalePoint(Part):
    """One arm at one place of a dial. Ratios are over the first point of its series."""

    dial: Dial
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
    """`python -m benchmarks.scaling`."""

    models: dict[str, str]
    points: list[ScalePoint]


# --- turns ------------------------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """What the dials are turned on: one target and one draft, and texts for them."""

    args: argparse.Namespace
    drafter: str
    bench: Bench
    prompts: list[Prompt]  # of the dials k and size
    text: list[int]  # ids of a long text, prompts are cut from it

    def arms(self) -> list[Arm]:
        """The baseline, and the draft at -k."""
        return [BASELINE, Arm(self.drafter, self.drafter, self.args.draft_length)]

    def prompt(self, n_tokens: int) -> Prompt:
        """So many tokens from the start of the text."""
        return as_prompt(self.text[:n_tokens])


def as_prompt(ids: list[int]) -> Prompt:
    """A prompt of these ids."""
    return Prompt("text", "", torch.tensor([ids]))


def run_to(decoding: Decoding, n_tokens: int) -> None:
    """Advance, untimed, until so many tokens are there."""
    while len(decoding.tokens) < n_tokens:
        decoding.advance()


def turns_of(decoding: Decoding) -> Log:
    """Every round after prefill; the baseline's chunks, which a GPU fetches at once, are taken apart into tokens."""
    log: Log = []
    for _, seconds, round_ in decoding.log:
        n = len(round_.tokens)
        log += [(seconds, n)] if decoding.arm.speculative else [(seconds / n, 1)] * n
    return log


def n_turns(decoding: Decoding) -> int:
    """How many turns it has made."""
    return len(decoding.log) if decoding.arm.speculative else len(decoding.tokens) - 1


def alternate(decodings: list[Decoding], turns: int) -> list[Log]:
    """Turn by turn a step or a round of each, forwards and backwards.  -> the turns of each decoding from here on"""
    started = [(decoding, n_turns(decoding)) for decoding in decodings]
    for turn in range(1, turns + 1):
        for decoding, start in started if turn % 2 else started[::-1]:
            while n_turns(decoding) < start + turn:
                decoding.advance()
    return [turns_of(decoding)[start : start + turns] for decoding, start in started]


def decode_prompts(subject: Subject, arms: list[Arm]) -> dict[Arm, list[Decoding]]:
    """All arms over every prompt, in turns: once to meet every shape, once timed.  -> the timed decodings

    An arm whose method is "instrument" has a clock on each phase of its rounds.
    """
    decodings: dict[Arm, list[Decoding]] = {arm: [] for arm in arms}
    for prompt in subject.prompts:
        for timed in (False, True):
            queue = []
            for arm in arms:
                lengths = [arm.draft_length] if arm.method == "instrument" else None
                queue.append(subject.bench.decoding(arm, GREEDY, prompt, lengths=lengths))
            take_turns(queue)
            for decoding in queue if timed else []:
                decodings[decoding.arm].append(decoding)
    return decodings


def log_of(decodings: list[Decoding]) -> Log:
    """The turns of several decodings, one after the other."""
    return [turn for decoding in decodings for turn in turns_of(decoding)]


# --- from turns to points ---------------------------------------------------------------------------------------------


def in_blocks(log: Log) -> list[float]:
    """Seconds of a turn in every block of BLOCK turns; what is left over joins the last block."""
    starts = list(range(0, max(1, len(log) - BLOCK + 1), BLOCK))
    blocks = [log[a:b] for a, b in zip(starts, [*starts[1:], len(log)], strict=True)]
    return [sum(seconds for seconds, _ in block) / len(block) for block in blocks]


def per_token(log: Log) -> float:
    """Seconds of a token."""
    return sum(seconds for seconds, _ in log) / sum(n for _, n in log)


def per_round(log: Log) -> float:
    """Seconds of a round."""
    return sum(seconds for seconds, _ in log) / len(log)


def point(dial: Dial, series: str, x: int | str, draft_length: int, log: Log, first: Log, **more) -> ScalePoint:
    """What a log of turns cost, beside the first log of its series."""
    blocks, first_blocks = in_blocks(log), in_blocks(first)
    # Decodings that took other numbers of rounds have no blocks in common.
    paired = log is not first and len(blocks) == len(first_blocks)
    low, high = (ratio_interval(blocks, first_blocks) if paired else None) or (None, None)
    return ScalePoint(
        dial=dial,
        series=series,
        x=x,
        draft_length=draft_length,
        n_tokens=sum(n for _, n in log),
        n_rounds=len(log),
        seconds=sum(seconds for seconds, _ in log),
        token_ratio=per_token(log) / per_token(first),
        round_ratio=per_round(log) / per_round(first),
        round_low=low,
        round_high=high,
        **more,
    )


# --- the dials --------------------------------------------------------------------------------------------------------


def length_dial(subject: Subject) -> Iterator[ScalePoint]:
    """Short, long, and as long a prompt, in turns; the same for the baseline and the draft."""
    args = subject.args
    long, base = args.lengths[-1], subject.prompt(BASE)
    most = (args.draft_length + 1) * args.turns + subject.bench.setup.chunk
    for arm in subject.arms():
        decodings = []
        for length in args.lengths:
            budget = length + 2 * args.draft_length + most
            decodings.append(subject.bench.decoding(arm, GREEDY, base, budget=budget))
            run_to(decodings[-1], length)
        grown = as_prompt(base.id_list + decodings[-1].tokens)
        fresh = subject.bench.decoding(arm, GREEDY, grown, budget=most + args.draft_length)
        run_to(fresh, 1)
        logs = alternate([*decodings, fresh], args.turns)
        for x, log in zip([*args.lengths, f"prompt of {long}"], logs, strict=True):
            yield point("length", arm.method, x, arm.draft_length, log, logs[0])
        # The long decoding over a prompt of the same length: here the cache is equal, only who wrote it differs.
        yield point("length", arm.method, f"{long} ÷ prompt", arm.draft_length, logs[-2], logs[-1])


def context_dial(subject: Subject) -> Iterator[ScalePoint]:
    """Prompts of several lengths, cut from one text, in turns, both arms of each side by side."""
    args, arms = subject.args, subject.arms()
    budget = (args.draft_length + 1) * (args.turns + 1) + WARM_UP + subject.bench.setup.chunk
    decodings = []
    for n_tokens in args.contexts:
        for arm in arms:
            decodings.append(subject.bench.decoding(arm, GREEDY, subject.prompt(n_tokens), budget=budget))
            run_to(decodings[-1], WARM_UP)
    logs = alternate(decodings, args.turns)
    baselines = logs[:: len(arms)]
    for place, arm in enumerate(arms):
        series = logs[place :: len(arms)]
        for n_tokens, log, baseline in zip(args.contexts, series, baselines, strict=True):
            speedup = per_token(baseline) / per_token(log) if arm.speculative else None
            yield point("context", arm.method, n_tokens, arm.draft_length, log, series[0], speedup=speedup)


def k_dial(subject: Subject) -> Iterator[ScalePoint]:
    """Every draft length over the same texts, timed whole and, beside it, phase by phase."""
    name, lengths = subject.drafter, subject.args.draft_lengths
    timed, phased = ({k: Arm(method, name, k) for k in lengths} for method in (name, "instrument"))
    decodings = decode_prompts(subject, [BASELINE, *timed.values(), *phased.values()])
    baseline, first = log_of(decodings[BASELINE]), log_of(decodings[timed[lengths[0]]])
    for k in lengths:
        log = first if k == lengths[0] else log_of(decodings[timed[k]])
        rounds = [entry for decoding in decodings[phased[k]] for entry in decoding.log]
        host = sum(host_seconds(seconds, round_.seconds or {}) for _, seconds, round_ in rounds)
        yield point(
            "k", name, k, k, log, first,
            speedup=per_token(baseline) / per_token(log),
            host_seconds=host / len(rounds),
            host_share=host / sum(seconds for _, seconds, _ in rounds),
        )  # fmt: skip


def host_seconds(seconds: float, phases: dict[str, float]) -> float:
    """What a round of so many seconds spent neither drafting nor verifying."""
    return seconds - phases["draft"] - phases["verify"]


def size_points(subject: Subject, first: dict[Arm, Log]) -> list[ScalePoint]:
    """One target among several: the cost of its tokens, and what speculation makes of it.

    first: the logs of the first target, by arm; filled in where it is empty.
    """
    arms = subject.arms()
    logs = {arm: log_of(decodings) for arm, decodings in decode_prompts(subject, arms).items()}
    first.update({} if first else logs)
    label, points = size_label(subject.bench.setup), []
    for arm, log in logs.items():
        speedup = per_token(logs[BASELINE]) / per_token(log) if arm.speculative else None
        points.append(point("size", arm.method, label, arm.draft_length, log, first[arm], speedup=speedup))
    return points


def size_label(setup: Setup) -> str:
    """Short enough for a column; what it stands for is listed above the tables."""
    return f"{sum(p.numel() for p in setup.target.model.parameters()) / 1e6:.1f} M"


# --- views of the record ----------------------------------------------------------------------------------------------

TITLES = {
    "length": "Tokens generated so far",
    "context": "Tokens of the prompt",
    "k": "Draft length",
    "size": "Size of the target",
}
LEGEND = [
    "token, round: cost over that of the first row of the same arm (a round of the baseline is one token); 95 %: of "
    f"the round's ratio; verdict: on the round, flat within {FLAT:.0%}",
    "a speculative token also costs more where fewer drafts are accepted; a round does not",
    "N ÷ prompt: N generated tokens against a prompt of that length: what generating costs beyond the longer context",
    "host: all of a round but drafting and verifying, measured with a clock on each phase",
]


def dial_table(points: list[ScalePoint], markdown: bool) -> str:
    """A line for every point of one dial."""
    with_speedup = any(p.speedup is not None for p in points)
    with_host = any(p.host_seconds is not None for p in points)
    headers = ["arm", "at", "ms/token", "token", "ms/round", "round", "95 %", "verdict"]
    headers += ["speedup"] * with_speedup + ["host µs", "share"] * with_host
    lines = []
    for p in points:
        line = [
            f"{p.series} k={p.draft_length}" if p.draft_length and p.dial != "k" else p.series,
            str(p.x),
            f"{p.seconds / p.n_tokens * 1e3:.3g}",
            speedup(p.token_ratio),
            f"{p.seconds / p.n_rounds * 1e3:.3g}",
            speedup(p.round_ratio),
            interval(p.round_low, p.round_high),
            verdict(p.round_ratio, p.round_low, p.round_high),
        ]
        line += [speedup(p.speedup)] * with_speedup
        if p.host_seconds is not None:
            line += [f"{p.host_seconds * 1e6:.0f}", f"{p.host_share:.0%}"]
        lines.append(line)
    return table(lines, headers, markdown, n_words=2)


def verdict(ratio: float, low: float | None, high: float | None) -> str:
    """Of the cost of a round: flat, grows or shrinks, and whether noise may be the reason."""
    if abs(ratio - 1) <= FLAT:
        return "flat"
    may_be_noise = low is not None and high is not None and low <= 1 <= high
    return ("grows" if ratio > 1 else "shrinks") + ", may be noise" * may_be_noise


def page(run: ScalingRun, markdown: bool) -> str:
    """Everything a reader gets, from the record alone."""
    blocks = common.opening("What grows", run, markdown)
    blocks.append(common.remarks([f"{role}: {text}" for role, text in run.models.items()], markdown))
    for dial in dict.fromkeys(p.dial for p in run.points):
        points = [p for p in run.points if p.dial == dial]
        blocks += [common.heading(TITLES[dial], markdown), dial_table(points, markdown)]
    return "\n\n".join([*blocks, common.remarks(LEGEND, markdown)]) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    add_draft_flag(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--dials", default=None, metavar="NAME,NAME", help=f"of {', '.join(DIALS)} (default: all)")
    group.add_argument("--sizes", metavar="NAME,NAME", help="targets of the dial `size`; lab is the lab's own")
    group.add_argument("-k", "--draft-length", type=parsing.at_least(1), default=4, help="(default: 4)")
    group.add_argument("--draft-lengths", default="0,1,2,4,8,16", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--lengths", default="200,1900", metavar="N,N", help="generated (default: %(default)s)")
    group.add_argument("--contexts", default="64,512,1500,3500", metavar="N,N", help="(default: %(default)s)")
    group.add_argument("--turns", type=parsing.at_least(2), default=64, help="steps or rounds timed (default: 64)")
    common.add_result_flags(parser)
    parser.set_defaults(limit=1)
    return parser


def fill_in(args: argparse.Namespace) -> list[str]:
    """Check the flags that are lists.  -> the dials to turn"""
    dials = args.dials.split(",") if args.dials is not None else [d for d in DIALS if d != "size" or args.sizes]
    if unknown := [d for d in dials if d not in DIALS]:
        raise UsageProblem(f"--dials {args.dials}: there is no {unknown[0]!r}; use {', '.join(DIALS)}")
    if "size" in dials and not args.sizes:
        raise UsageProblem("the dial size needs targets; give them, for example --sizes lab,lab:200m")
    if args.sizes is not None and "size" not in dials:
        raise UsageProblem(f"--sizes {args.sizes} are of the dial size; add it to --dials, or leave --sizes out")
    if args.prompts == "-":
        raise UsageProblem("standard input can be read once only; give --prompts a file")
    args.draft_lengths = numbers(args.draft_lengths, int, 0, "--draft-lengths")
    args.lengths = numbers(args.lengths, int, 2, "--lengths", LONGEST)
    args.contexts = numbers(args.contexts, int, 2, "--contexts", LONGEST)
    return [d for d in DIALS if d in dials]


def make_subject(args: argparse.Namespace, setup: Setup, dials: list[str]) -> Subject:
    """The draft, and prompts and a text that are long enough for these dials; checked and described."""
    prompts = flags.read_prompts(args, setup.tokenizer)
    unlimited = copy.copy(args)
    unlimited.limit = 0
    text = [i for prompt in flags.read_prompts(unlimited, setup.tokenizer) for i in prompt.id_list]
    longest = max(*args.contexts, BASE)
    text *= longest // len(text) + 1
    bench = Bench(setup, make_drafters([args.draft], setup, args.seed), args.turns + 1, args.seed)
    subject = Subject(args, drafter_name(args.draft), bench, prompts, text[:longest])
    check_room(subject, dials)
    note(setup.describe())
    return subject


def draft_model(subject: Subject) -> CachedModel | None:
    """The draft's model where it has one."""
    return getattr(subject.bench.drafters[subject.drafter], "draft", None)


def check_room(subject: Subject, dials: list[str]) -> None:
    """Raises UsageProblem where the longest text of a dial does not fit the context of a model."""
    args, models = subject.args, (subject.bench.setup.target, draft_model(subject))
    room = min((m.max_length for m in models if m is not None and m.max_length), default=LONGEST * 2)
    spare = (args.draft_length + 1) * (args.turns + 4) + WARM_UP + subject.bench.setup.chunk
    needed = {"length": ("--lengths", args.lengths[-1] + BASE), "context": ("--contexts", args.contexts[-1])}
    for dial, (flag, longest) in needed.items():
        if dial in dials and longest + spare > room:
            raise UsageProblem(
                f"{flag}: {longest} tokens and {spare} new ones do not fit the model's context of {room}; give smaller "
                "numbers, or fewer --turns"
            )
    longest = max(prompt.ids.shape[1] for prompt in subject.prompts)
    if {"k", "size"} & set(dials) and longest + args.turns + 1 > room:
        raise UsageProblem(
            f"--turns {args.turns}: with a prompt of {longest} tokens they do not fit the model's context of {room}; "
            "give fewer --turns, or a shorter prompt"
        )


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    dials = fill_in(args)
    common.check_result_flags(args, "scaling")
    sizes = common.listed_sizes(args.sizes) if "size" in dials else []
    chosen = {"draft": drafter_name(args.draft), "draft_length": args.draft_length, "turns": args.turns, "dials": dials}
    points: list[ScalePoint] = []
    models: dict[str, str] = {}
    first: dict[Arm, Log] = {}
    settings: dict[str, Any] = {}
    device = torch.device("cpu")
    with common.kept(points) as stops:
        if inside := [d for d in dials if d != "size"]:
            setup = flags.setup_from(args)
            device, settings = setup.device, common.shared_settings(args, setup)
            settings["target"] = setup.target_name
            subject = make_subject(args, setup, inside)
            models["target"] = loading.describe_model(setup.target_name, setup.target.model)
            if draft := draft_model(subject):
                models["draft"] = loading.describe_model(subject.drafter, draft.model, "draft")
            for dial in progress_bar(inside, desc="dials", leave=False):  # between the dials, never inside one
                points += {"length": length_dial, "context": context_dial, "k": k_dial}[dial](subject)
            del setup, subject, draft
            common.free()
        for setup in common.setups(args, sizes):
            settings = settings or {**common.shared_settings(args, setup), "target": setup.target_name}
            device, subject = setup.device, make_subject(args, setup, ["size"])
            points += size_points(subject, first)
            models[f"size {size_label(setup)}"] = loading.describe_model(setup.target_name, setup.target.model)
            del setup, subject  # or the next model would be loaded beside this one
    run = ScalingRun(**common.head("scaling", device, settings | chosen), models=models, points=points)
    return common.finish(args, run, page, stops[0] if stops else None)


if __name__ == "__main__":
    sys.exit(main())
