"""Does the cost of a token stay the same while things grow?

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
    python -m benchmarks.scaling --sweeps k,context --draft ngram
    python -m benchmarks.scaling --sweeps size --sizes lab,lab:200m

All decodings of a sweep run side by side and take turns, a step or a round at a time, so that a slow second of the
machine meets all of them. Each is timed for the same number of turns, after its first tokens; one that makes more
tokens in a round sees more of the text. Intervals (95 %) are over blocks of such turns.
Files: results/NAME-scaling.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import functools
import sys
from collections.abc import Callable
from dataclasses import replace

from benchmarks import common
from benchmarks.scaling_page import ScalePoint, ScalingRun, Sweep, page
from benchmarks.scaling_turns import Line, Subject, as_prompt, point, room_for_turns
from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.lab.bench import Bench
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from speclab.records.arms import BASELINE, INSTRUMENT, Arm
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress_bar

LONGEST = 2**20  # tokens of a text
BASE = 64  # tokens of the prompt that the sweep `length` starts from


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


def size_sweep(subject: Subject) -> list[ScalePoint]:
    """Points for one target among several: the cost of its tokens, and the speedup of speculation."""
    lines = [Line(arm, size_label(subject.bench.setup), subject.prompts) for arm in subject.arms()]
    subject.time(lines)
    return subject.points("size", lines)


def size_label(setup: Setup) -> str:
    """A name of a target that fits a column; its meaning is listed above the tables."""
    return f"{sum(p.numel() for p in setup.target.model.parameters()) / 1e6:.1f} M"


SWEEPS: dict[Sweep, Callable[[Subject], list[ScalePoint]]] = {
    "length": length_sweep,
    "context": context_sweep,
    "k": k_sweep,
    "size": size_sweep,
}


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--sweeps", default=None, metavar="NAME,NAME", help=f"of {', '.join(SWEEPS)} (default: all)")
    group.add_argument("--sizes", metavar="NAME,NAME", help="targets of the sweep `size`; lab is the lab's own")
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
    usual = [sweep for sweep in SWEEPS if sweep != "size" or args.sizes]
    names = usual if args.sweeps is None else args.sweeps.split(",")
    if unknown := [name for name in names if name not in SWEEPS]:
        raise UsageProblem(f"--sweeps {args.sweeps}: there is no {unknown[0]!r}; use {', '.join(SWEEPS)}")
    if ("size" in names) != (args.sizes is not None):
        raise UsageProblem("the sweep size and its targets go together; use --sweeps size --sizes lab,lab:200m")
    if args.prompts == "-":
        raise UsageProblem("standard input can be read once only; give --prompts a file")
    args.draft_lengths = parsing.numbers(args.draft_lengths, int, 0, "--draft-lengths")
    args.lengths = parsing.numbers(args.lengths, int, 2, "--lengths", LONGEST)
    args.contexts = parsing.numbers(args.contexts, int, 2, "--contexts", LONGEST)
    return [sweep for sweep in SWEEPS if sweep in names]


def make_subject(
    args: argparse.Namespace, setup: Setup, sweeps: list[Sweep], firsts: dict[tuple[Sweep, str], Line]
) -> Subject:
    """The draft, and prompts and a text that are long enough for these sweeps; checked and described."""
    prompts = flags.read_prompts(args, setup.tokenizer)
    unlimited = copy.copy(args)
    unlimited.limit = 0
    text = [i for prompt in flags.read_prompts(unlimited, setup.tokenizer) for i in prompt.id_list]
    text *= max(*args.contexts, BASE) // len(text) + 1
    bench = Bench(setup, registry.make_all([registry.read(args.draft)], setup, args.seed), args.turns, args.seed)
    subject = Subject(args, bench, prompts, text, firsts)
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
    start = {"length": BASE + args.lengths[-1], "context": args.contexts[-1], "k": prompt, "size": prompt}
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
    points: list[ScalePoint] = []
    models: dict[str, str] = {}
    firsts: dict[tuple[Sweep, str], Line] = {}

    def measure(chosen: list[Sweep], setup: Setup) -> None:
        subject = make_subject(args, setup, chosen, firsts)
        role = f"size {size_label(setup)}" if chosen == ["size"] else "target"
        models[role] = loading.describe_model(setup.target_name, setup.target.model)
        for draft in draft_models(subject):
            models["draft"] = loading.describe_model(registry.read(args.draft).name, draft.model, "draft")
        for sweep in progress_bar(chosen, desc="sweeps", leave=False):  # between the sweeps, never inside one
            points.extend(SWEEPS[sweep](subject))

    one_target: list[Sweep] = [sweep for sweep in sweeps if sweep != "size"]
    targets = [(args.target, functools.partial(measure, one_target))] if one_target else []
    if "size" in sweeps:
        targets += [(size, functools.partial(measure, ["size"])) for size in common.listed_sizes(args.sizes)]
    fields, stop = common.measure_targets(args, targets, points)
    fields["settings"] |= {"draft": registry.read(args.draft).name, "draft_length": args.draft_length}
    fields["settings"] |= {"turns": args.turns, "sweeps": sweeps}
    return common.finish(args, ScalingRun(**fields, models=models, points=points), page, stop)


if __name__ == "__main__":
    sys.exit(main())
