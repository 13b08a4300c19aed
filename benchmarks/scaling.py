"""Does the cost of a token stay what it is while things grow?

A decoder that copies its cache, searches its whole text, or keeps lists that nobody empties is fast in a short demo and
slow in use. Here four things grow, one at a time, and every number is a ratio inside one run:

    length    tokens generated so far (200 against 1,900); beside it a prompt of the same length, so that what the
              growing cache costs and what generating costs can be told apart
    context   tokens of the prompt (64 to 3,500)
    k         draft length (0 to 16), with the host's share of a round: everything but drafting and verifying
    size      several targets, with --sizes

What comes out: for each, the cost of a token and of a round over that of the first row, and in words whether it is flat
or by how much it grows.

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

import torch

from benchmarks import common
from benchmarks.common import COUNT, MAYBE, NUMBER, SECONDS, TEXT
from speclab.cli import flags, parsing
from speclab.cli.flags import add_draft_flag
from speclab.cli.parsing import numbers
from speclab.core.rounds import Drafter
from speclab.core.sampling import Sampling
from speclab.drafts.select import drafter_name, make_drafters
from speclab.lab.harness import Bench, Decoding, take_turns
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.samples import BASELINE, Arm
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress_bar
from speclab.theory.formulas import ratio_interval

DIALS = ("length", "context", "k", "size")
LONGEST = 2**20  # tokens of a text
BASE = 64  # tokens of the prompt that the dial `length` starts from
WARM_UP = 8  # tokens before the clock counts
BLOCK = 16  # turns: as many as a GPU's baseline fetches at once
FLAT = 0.03  # a change this small is called flat even where the interval knows better


@dataclass
class Job:
    """What the dials turn on."""

    args: argparse.Namespace
    setup: Setup
    drafter: str
    bench: Bench
    prompts: list[Prompt]  # of the dials k and size
    text: list[int]  # ids of a long text, prompts are cut from it

    def arms(self) -> list[Arm]:
        return [BASELINE, Arm(self.drafter, self.drafter, self.args.draft_length)]

    def prompt(self, n_tokens: int) -> Prompt:
        return as_prompt(self.text[:n_tokens])


def as_prompt(ids: list[int]) -> Prompt:
    return Prompt("text", "", torch.tensor([ids]))


# --- turns ------------------------------------------------------------------------------------------------------------


def run_to(decoding: Decoding, n_tokens: int) -> None:
    """Advance, untimed, until so many tokens are there."""
    while len(decoding.tokens) < n_tokens:
        decoding.advance()


def alternate(decodings: list[Decoding], turns: int) -> list[list[tuple[float, int]]]:
    """A step or a round of each in turns, forwards and backwards.  -> (seconds, tokens) of every turn, per decoding"""
    logs: list[list[tuple[float, int]]] = [[] for _ in decodings]
    for turn in range(turns):
        order = range(len(decodings)) if turn % 2 == 0 else reversed(range(len(decodings)))
        for place in order:
            decoding = decodings[place]
            seconds, n_tokens = decoding.decode_seconds, len(decoding.tokens)
            decoding.advance()
            logs[place].append((decoding.decode_seconds - seconds, len(decoding.tokens) - n_tokens))
    return logs


def in_blocks(log: list[tuple[float, int]]) -> list[tuple[float, int, int]]:
    """-> seconds, tokens and rounds of every block of turns; what is left over joins the last one"""
    starts = range(0, max(1, len(log) - BLOCK + 1), BLOCK)
    ends = [*list(starts)[1:], len(log)]
    parts = [log[a:b] for a, b in zip(starts, ends, strict=True)]
    return [(sum(s for s, _ in part), sum(n for _, n in part), len(part)) for part in parts]


# --- points of the record ---------------------------------------------------------------------------------------------

POINT = {
    "dial": {"enum": list(DIALS)},
    "series": TEXT,
    "x": {"type": ["integer", "string"]},
    "draft_length": COUNT,
    "n_tokens": COUNT,
    "n_rounds": COUNT,
    "seconds": SECONDS,
    "token_ratio": NUMBER,  # cost of a token over that of the series' first point
    "round_ratio": NUMBER,
    "round_low": MAYBE,
    "round_high": MAYBE,
    "speedup": MAYBE,  # over the baseline at the same place
    "host_seconds": MAYBE,  # of a round; what is neither draft nor verify
    "host_share": MAYBE,
}
SCHEMA = common.one_of({**common.HEAD, "models": {"type": "object"}, "points": common.list_of(POINT)})


def point(dial: str, series: str, x: int | str, draft_length: int, log: list, first: list, **more) -> dict:
    """One row: what a log of turns cost, beside the first log of its series."""
    seconds, tokens, rounds = (sum(column) for column in zip(*in_blocks(log), strict=True))
    seconds_0, tokens_0, rounds_0 = (sum(column) for column in zip(*in_blocks(first), strict=True))
    mine, theirs = ([s / n for s, _, n in in_blocks(part)] for part in (log, first))
    paired = log is not first and len(mine) == len(
        theirs
    )  # decodings that took other numbers of rounds have no blocks in common
    low, high = (ratio_interval(mine, theirs) if paired else None) or (None, None)
    return {
        "dial": dial,
        "series": series,
        "x": x,
        "draft_length": draft_length,
        "n_tokens": tokens,
        "n_rounds": rounds,
        "seconds": seconds,
        "token_ratio": seconds / tokens / (seconds_0 / tokens_0),
        "round_ratio": seconds / rounds / (seconds_0 / rounds_0),
        "round_low": low,
        "round_high": high,
        **dict.fromkeys(("speedup", "host_seconds", "host_share")),
        **more,
    }


def per_token(log: list[tuple[float, int]]) -> float:
    return sum(s for s, _ in log) / sum(n for _, n in log)


# --- the dials --------------------------------------------------------------------------------------------------------


def length_dial(job: Job) -> Iterator[dict]:
    """Short, long, and as long a prompt, in turns; the same for the baseline and the draft."""
    long = job.args.lengths[-1]
    base = job.prompt(BASE)
    most = (job.args.draft_length + 1) * job.args.turns + 1
    for arm in job.arms():
        decodings = []
        for length in job.args.lengths:
            decoding = job.bench.decoding(arm, Sampling(), base, budget=length + 2 * job.args.draft_length + most)
            run_to(decoding, length)
            decodings.append(decoding)
        grown = as_prompt(base.id_list + decodings[-1].tokens)
        fresh = job.bench.decoding(arm, Sampling(), grown, budget=most + job.args.draft_length)
        run_to(fresh, 1)
        logs = alternate([*decodings, fresh], job.args.turns)
        names = [*job.args.lengths, f"prompt of {long}"]
        for name, log in zip(names, logs, strict=True):
            yield point("length", arm.method, name, arm.draft_length, log, logs[0])
        # The long decoding over a prompt of the same length: here the cache is equal, only who wrote it differs.
        yield point("length", arm.method, f"{long} ÷ prompt", arm.draft_length, logs[-2], logs[-1])


def context_dial(job: Job) -> Iterator[dict]:
    """Prompts of several lengths, cut from one text, in turns, both arms of each side by side."""
    arms, room = job.arms(), (job.args.draft_length + 1) * (job.args.turns + 1) + WARM_UP
    decodings = []
    for n_tokens in job.args.contexts:
        for arm in arms:
            decoding = job.bench.decoding(arm, Sampling(), job.prompt(n_tokens), budget=room)
            run_to(decoding, WARM_UP)
            decodings.append(decoding)
    logs = alternate(decodings, job.args.turns)
    for place, arm in enumerate(arms):
        mine = logs[place :: len(arms)]
        for n_tokens, log, plain in zip(job.args.contexts, mine, logs[:: len(arms)], strict=True):
            speedup = per_token(plain) / per_token(log) if arm.speculative else None
            yield point("context", arm.method, n_tokens, arm.draft_length, log, mine[0], speedup=speedup)


def k_dial(job: Job) -> Iterator[dict]:
    """Every draft length over the same texts, timed whole and, beside it, phase by phase."""
    name, budget = job.drafter, job.args.turns + 1
    whole: dict[int, list[tuple[float, int]]] = {k: [] for k in job.args.draft_lengths}
    host: dict[int, list[tuple[float, float]]] = {k: [] for k in job.args.draft_lengths}
    plain: list[tuple[float, int]] = []
    for prompt in job.prompts:
        for warm in (True, False):
            timed = [job.bench.decoding(Arm(name, name, k), Sampling(), prompt, budget=budget) for k in whole]
            phased = [
                job.bench.decoding(Arm("instrument", name, k), Sampling(), prompt, budget=budget, lengths=[k])
                for k in host
            ]
            baseline = job.bench.decoding(BASELINE, Sampling(), prompt, budget=budget)
            take_turns([baseline, *timed, *phased])
            if warm:  # the first time every shape is met
                continue
            plain += decode_log(baseline)
            for k, decoding in zip(whole, timed, strict=True):
                whole[k] += decode_log(decoding)
            for k, decoding in zip(host, phased, strict=True):
                host[k] += [host_time(seconds, round_.seconds) for _, seconds, round_ in decoding.log]
    first = whole[next(iter(whole))]
    for k, log in whole.items():
        ours, all_of_it = (sum(column) for column in zip(*host[k], strict=True))
        more = {"host_seconds": ours / len(host[k]), "host_share": ours / all_of_it}
        yield point("k", name, k, k, log, first, speedup=per_token(plain) / per_token(log), **more)


def decode_log(decoding: Decoding) -> list[tuple[float, int]]:
    """(seconds, tokens) of every round after prefill."""
    return [(seconds, len(round_.tokens)) for _, seconds, round_ in decoding.log]


def host_time(seconds: float, phases: dict[str, float]) -> tuple[float, float]:
    """-> seconds of a round that were neither drafting nor verifying, and all of them"""
    return seconds - phases["draft"] - phases["verify"], seconds


def size_point(job: Job, first: dict[str, list] | None) -> tuple[list[dict], dict[str, list]]:
    """One target among several: the cost of its tokens, and what speculation makes of it."""
    logs: dict[str, list[tuple[float, int]]] = {}
    for prompt in job.prompts:
        for warm in (True, False):
            decodings = [job.bench.decoding(arm, Sampling(), prompt, budget=job.args.turns + 1) for arm in job.arms()]
            take_turns(decodings)
            for decoding in decodings if not warm else []:
                logs.setdefault("draft" if decoding.arm.speculative else "baseline", []).extend(decode_log(decoding))
    first = first or logs
    label = size_label(job.setup)
    points = []
    for arm, (name, log) in zip(job.arms(), logs.items(), strict=True):
        speedup = per_token(logs["baseline"]) / per_token(log) if arm.speculative else None
        points.append(point("size", arm.method, label, arm.draft_length, log, first[name], speedup=speedup))
    return points, first


def size_label(setup: Setup) -> str:
    """Short enough for a column; what stands behind it is listed above the tables."""
    return f"{sum(p.numel() for p in setup.target.model.parameters()) / 1e6:.1f} M"


# --- views of the record ----------------------------------------------------------------------------------------------

TITLES = {
    "length": "Tokens generated so far",
    "context": "Tokens of the prompt",
    "k": "Draft length",
    "size": "Size of the target",
}


def dial_table(points: list[dict], markdown: bool) -> str:
    with_speedup = any(p["speedup"] is not None for p in points)
    with_host = any(p["host_seconds"] is not None for p in points)
    headers = ["arm", "at", "ms/token", "token", "ms/round", "round", "95 %"]
    headers += ["speedup"] * with_speedup + ["host µs", "share"] * with_host
    lines = []
    for p in points:
        arm = f"{p['series']} k={p['draft_length']}" if p["draft_length"] else p["series"]
        line = [
            p["series"] if p["dial"] == "k" else arm,
            str(p["x"]),
            f"{p['seconds'] / p['n_tokens'] * 1e3:.3g}",
            f"{p['token_ratio']:.2f}x",
            f"{p['seconds'] / p['n_rounds'] * 1e3:.3g}",
            f"{p['round_ratio']:.2f}x",
            common.interval(p["round_low"], p["round_high"]),
        ]
        line += [common.times(p["speedup"])] * with_speedup
        if with_host:
            line += [f"{p['host_seconds'] * 1e6:.0f}", f"{p['host_share']:.0%}"]
        lines.append(line)
    return common.table(lines, headers, markdown, n_words=2)


def verdict(p: dict) -> str:
    """flat, grows or shrinks: of the cost of a round or step."""
    change = p["round_ratio"] - 1
    spread = f" (95 %: {common.interval(p['round_low'], p['round_high'])})" if p["round_low"] is not None else ""
    covers_one = p["round_low"] is not None and p["round_low"] <= 1 <= p["round_high"]
    if abs(change) <= FLAT:
        return f"flat, {p['round_ratio']:.2f}x{spread}"
    word = "grows by" if change > 0 else "shrinks by"
    return f"{word} {abs(change):.0%}{spread}" + (", may be noise" if covers_one else "")


def words(points: list[dict]) -> list[str]:
    """Flat, or by how much it grows."""
    dial, found = points[0]["dial"], []
    for series in dict.fromkeys(p["series"] for p in points):
        mine = [p for p in points if p["series"] == series]
        unit = "round" if mine[0]["draft_length"] or dial == "k" else "step"
        if dial == "length":
            long = mine[-3]
            found.append(
                f"{series}: cost of a token at {long['x']:,} generated tokens / at {mine[0]['x']:,}: "
                f"{long['token_ratio']:.2f}x; of a {unit}: {verdict(long)}"
            )
            found.append(
                f"{series}: {long['x']:,} generated tokens against a prompt of that length, a {unit}: "
                f"{verdict(mine[-1])}; this is what generating costs beyond the longer context"
            )
        elif dial == "context":
            found.append(f"{series}: a {unit} from {mine[0]['x']:,} to {mine[-1]['x']:,} tokens: {verdict(mine[-1])}")
        elif dial == "k":
            most = max(p["host_share"] for p in mine)
            low, high = min(mine, key=lambda p: p["host_seconds"]), max(mine, key=lambda p: p["host_seconds"])
            found.append(
                f"{series}: the host's part of a round is {low['host_seconds'] * 1e6:.0f} µs at k = {low['x']}, at "
                f"most {high['host_seconds'] * 1e6:.0f} µs (k = {high['x']}), at most {most:.0%} of a round"
            )
            best = max(mine, key=lambda p: p["speedup"])
            found.append(f"{series}: best at k = {best['x']}: {best['speedup']:.2f}x the baseline's speed")
        else:
            found += [
                f"{series}: a token at {p['x']} parameters costs {p['token_ratio']:.2f}x the first one's"
                for p in mine[1:]
            ]
    return found


def page(run: dict, markdown: bool) -> str:
    blocks = ["# What grows", common.provenance(run)] if markdown else []
    blocks.append(common.sentences([f"{role}: {text}" for role, text in run["models"].items()], markdown))
    for dial in dict.fromkeys(p["dial"] for p in run["points"]):
        points = [p for p in run["points"] if p["dial"] == dial]
        blocks += [common.heading(TITLES[dial], markdown), dial_table(points, markdown)]
        blocks.append(common.sentences(words(points), markdown))
    legend = (
        "token, round: cost over that of the first row of the same arm (a round of the baseline is one token); 95 %: "
        "of the round's ratio; host: all of a round but drafting and verifying, measured with a clock on each phase. "
        "A speculative token also gets dearer where fewer drafts are right; a round does not"
    )
    return "\n\n".join([*blocks, common.sentences([legend], markdown)]) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
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


def make_job(args: argparse.Namespace, setup: Setup) -> Job:
    drafters: dict[str, Drafter] = make_drafters([args.draft], setup, args.seed)
    prompts = flags.read_prompts(args, setup.tokenizer)
    everyone = copy.copy(args)
    everyone.limit = 0
    text = [i for prompt in flags.read_prompts(everyone, setup.tokenizer) for i in prompt.id_list]
    longest = max(*args.contexts, BASE)
    text *= longest // len(text) + 1
    bench = Bench(setup, drafters, args.turns + 1, args.seed)
    return Job(args, setup, drafter_name(args.draft), bench, prompts, text[:longest])


def check_room(job: Job, dials: list[str]) -> None:
    """Longest text of every dial against the context that both models were built for."""
    drafter = job.bench.drafters[job.drafter]
    rooms = [m.max_length for m in (job.setup.target, getattr(drafter, "draft", job.setup.target)) if m.max_length]
    room, spare = min(rooms, default=None), (job.args.draft_length + 1) * (job.args.turns + 4) + WARM_UP
    needed = {"length": ("--lengths", job.args.lengths[-1] + BASE), "context": ("--contexts", job.args.contexts[-1])}
    for dial, (flag, longest) in needed.items():
        if dial in dials and room is not None and longest + spare > room:
            raise UsageProblem(
                f"{flag}: {longest} tokens and {spare} new ones do not fit the model's context of {room}; give smaller "
                "numbers, or fewer --turns"
            )
    longest, turns = max(prompt.ids.shape[1] for prompt in job.prompts), job.args.turns
    if {"k", "size"} & set(dials) and room is not None and longest + turns + 1 > room:
        raise UsageProblem(
            f"--turns {turns}: with a prompt of {longest} tokens they do not fit the model's context of {room}; give "
            "fewer --turns, or a shorter prompt"
        )


def turn_dials(job: Job, dials: list[str]) -> Iterator[list[dict]]:
    """The points of one dial after the other, all of one target."""
    known = {"length": length_dial, "context": context_dial, "k": k_dial}
    for dial in progress_bar(dials, desc="dials", leave=False):  # between the dials, never inside one
        yield known[dial](job)


def describe_models(job: Job) -> dict[str, str]:
    models = {"target": loading.describe_model(job.setup.target_name, job.setup.target.model)}
    if draft := getattr(job.bench.drafters[job.drafter], "draft", None):
        models["draft"] = loading.describe_model(job.drafter, draft.model, "draft")
    return models


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    dials = fill_in(args)
    common.check_result_flags(args, "scaling")
    sizes = common.sizes(args) if "size" in dials else []
    settings = {
        "draft": drafter_name(args.draft),
        "draft_length": args.draft_length,
        "turns": args.turns,
        "dials": dials,
    }
    points, models, top, first = [], {}, None, None
    with common.kept(points) as stops:
        if inside := [d for d in dials if d != "size"]:
            setup = flags.setup_from(args)
            job = make_job(args, setup)
            check_room(job, inside)
            note(setup.describe())
            models = describe_models(job)
            top = common.head("scaling", args, setup, {"target": setup.target_name, **settings})
            for found in turn_dials(job, inside):
                points += found
            del setup, job
            common.free()
        for setup in common.setups(args, sizes):
            job = make_job(args, setup)
            check_room(job, ["size"])
            note(setup.describe())
            found, first = size_point(job, first)
            points += found
            models[f"size {size_label(setup)}"] = loading.describe_model(setup.target_name, setup.target.model)
            top = top or common.head("scaling", args, setup, {"target": setup.target_name, **settings})
            del setup, job  # or the next model would be loaded beside this one
    return common.finish(args, {**top, "models": models, "points": points}, SCHEMA, page, stops)


if __name__ == "__main__":
    sys.exit(main())
