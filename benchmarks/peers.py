"""The lab's decoders against the library's own, in one run: same pair, prompts, dtype, token budget, greedy.

Whether a hand-written loop is worth anything is not seen from its speedup over its own baseline: a slow baseline makes
every speedup look good. So each of ours runs beside what anybody gets from `model.generate`:

    baseline    our token-by-token loop              against   generate
    model k     our speculative loop, a draft model  against   generate(assistant_model=...), the same constant k
    ngram k     our speculative loop, no draft model against   generate(prompt_lookup_num_tokens=k)
    baseline, model k                                against   llama.cpp, plain and with the draft, if it is on the PATH

What comes out: tokens per second, each arm over `generate` and over its peer with 95 % intervals over prompts, whether
the texts agree, and what was asked for beside what was measured, missed numbers included.

    python -m benchmarks.peers                               # the lab's pair, about three minutes on two cores
    python -m benchmarks.peers -k 4 --limit 2 --repeats 1    # half a minute
    python -m benchmarks.peers --target lab:200m --draft lab:20m -k 4 --limit 2
    python -m benchmarks.peers --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --device cuda

Seconds are end to end, from the prompt's ids to the last token: the library does not tell prefill and decoding apart.
llama.cpp is timed by its own programs (benchmarks/llama_cpp.py) and compared by decoding alone, too.
A cell is the median over repeats, a total the sum over prompts. The arms of a prompt run one after another in an order
that rotates, an arm always beside its peer. No arm stops at an end-of-text token.
Files: results/NAME-peers.json and .md. Exit code 1 if a text of ours differs from the baseline's and rounding cannot be
the reason.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import contextlib
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers.utils import logging as transformers_logging

from benchmarks import common, llama_cpp
from draft_models import ModelDrafter, NgramDrafter
from speclab.cli import flags, parsing
from speclab.drafts.select import check_kind
from speclab.lab.decodings import Decoding, take_turns
from speclab.lab.harness import measure
from speclab.lab.output_checks import judge_greedy
from speclab.models import loading
from speclab.models.cached import check_prompt
from speclab.models.prompts import Prompt, describe_chat
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Heading, Lines, Table, interval, speedup
from speclab.records import files
from speclab.records.rows import Amount, Count, Part
from speclab.records.runs import Facts
from speclab.records.samples import BASELINE, GENERATE, LIBRARY, Arm, Sample
from speclab.system.errors import Problem, UsageProblem, reports_problems
from speclab.system.terminal import note
from speclab.theory.curves import Value
from speclab.theory.formulas import ratio_interval

PEER = {"baseline": "generate", "model": "assisted", "ngram": "lookup"}  # the lab's method -> the library's
# What this lab set itself before it measured, of its arm over its peer: on which prompts (None: all), and how much.
ASKED = {"baseline": (None, 1.15), "model": (None, 1.5), "ngram": ("copy", 1.2)}
ASKED_SHARE = 0.8  # speedup over our own baseline, as a share of the tokens of a round


# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class PeerTiming(Part):
    """The seconds of every repeat of one arm on one prompt."""

    method: str
    draft_length: Count
    prompt_index: Count
    prompt_kind: str
    n_prompt: Count  # tokens
    n_passes: Count  # of the target, the prompt's own included
    seconds: list[Amount]  # from the prompt's ids to the last token
    decode_seconds: list[Amount | None]  # None: the library does not tell them apart


@dataclass(kw_only=True)
class PeersRun(common.BenchmarkRun):
    """`python -m benchmarks.peers`."""

    models: dict[str, str]
    correctness: list[Facts]  # of speclab/lab/output_checks.py, one entry for every arm but the baseline
    ceiling: Amount | None = None  # tokens per second of llama-bench, which takes no prompt
    raw: list[PeerTiming]


# --- measuring --------------------------------------------------------------------------------------------------------


def arms_for(draft_lengths: list[int], llama: bool = False) -> list[Arm]:
    """Each of the lab's arms, followed by its peer; then llama.cpp's."""
    drafted = [(name, k) for name in ("model", "ngram") for k in draft_lengths]
    own = [BASELINE, GENERATE, *(Arm(method, name, k) for name, k in drafted for method in (name, PEER[name]))]
    others = [Arm(llama_cpp.METHOD), *(Arm(llama_cpp.METHOD, "model", k) for k in draft_lengths)]
    return [*own, *(others if llama else [])]


def one_after_another(decodings: list[Decoding], turn: int) -> None:
    """Finish each decoding before the next one starts: the library's cannot be interrupted.

    Everyone starts once, and who went first of two neighbours goes second in the next turn.
    """
    start = 2 * turn % len(decodings)  # two by two: an arm and its peer stay neighbours
    order = decodings[start:] + decodings[:start]
    for decoding in order if turn % 2 == 0 else order[::-1]:
        take_turns([decoding])


def timing(sample: Sample) -> PeerTiming:
    """A sample without its text."""
    return PeerTiming(
        method=sample.arm.method,
        draft_length=sample.arm.draft_length,
        prompt_index=sample.prompt_index,
        prompt_kind=sample.prompt_kind,
        n_prompt=sample.n_prompt,
        n_passes=sample.counts.n_rounds // len(sample.texts) + 1,
        seconds=[prefill + decode for prefill, decode in zip(sample.prefill, sample.decode, strict=True)],
        decode_seconds=[None if sample.arm.method in LIBRARY else seconds for seconds in sample.decode],
    )


# --- from seconds to ratios -------------------------------------------------------------------------------------------

Timings = list[PeerTiming]  # of one arm, one for each prompt
Key = tuple[str, int]  # method and draft length of an arm


class Ratio(Value):
    """Times as fast, with a 95 % interval over prompts."""

    def __str__(self) -> str:
        return speedup(self.value) + (f" ({interval(self.low, self.high)})" if self.low is not None else "")


def by_arm(timings: Timings, kind: str | None = None) -> dict[Key, Timings]:
    """The timings of every arm, on prompts of one kind or on all."""
    arms = defaultdict(list)
    for t in timings:
        if kind in (None, t.prompt_kind):
            arms[t.method, t.draft_length].append(t)
    return arms


def typical(timings: Timings, seconds: str = "seconds") -> list[float]:
    """Of every prompt, the median over repeats."""
    return [statistics.median(getattr(t, seconds)) for t in timings]


def ratio(before: Timings, after: Timings, seconds: str = "seconds") -> Ratio:
    """How many times as fast `after` is on the same prompts."""
    top, bottom = typical(before, seconds), typical(after, seconds)
    low, high = ratio_interval(top, bottom) or (None, None)
    return Ratio(sum(top) / sum(bottom), low, high)


def over_peers(run: PeersRun, kind: str | None = None) -> dict[Key, Ratio]:
    """Each of the lab's arms over its peer."""
    arms = by_arm(run.raw, kind)
    return {(name, k): ratio(arms[PEER[name], k], arms[name, k]) for name, k in list(arms) if name in PEER}


class Goal(NamedTuple):
    """What was asked for beside what was measured."""

    what: str
    draft_length: int
    prompts: str
    asked: float
    measured: Ratio

    @property
    def verdict(self) -> str:
        """Whether it was met, and whether the interval covers what was asked."""
        value, low, high = self.measured
        unsure = ", not surely" * (low is None or high is None or low < self.asked <= high)
        return ("met" if value >= self.asked else f"MISSED by {1 - value / self.asked:.0%}") + unsure


def goals(run: PeersRun) -> list[Goal]:
    """Each arm over its peer, then the best length over the baseline."""
    rows = []
    for method, (kind, asked) in ASKED.items():
        for (name, k), measured in over_peers(run, kind).items():
            if name == method:
                rows.append(Goal(f"{name} ÷ {PEER[name]}", k, kind or "all", asked, measured))
    arms = by_arm(run.raw)
    for method in ("model", "ngram"):
        lengths = [k for name, k in arms if name == method]
        decoding = {k: ratio(arms["baseline", 0], arms[method, k], "decode_seconds") for k in lengths}
        best = max(lengths, key=lambda k: decoding[k].value)
        n_rounds = sum(t.n_passes - 1 for t in arms[method, best])
        tokens_per_round = len(arms[method, best]) * (run.settings["max_new_tokens"] - 1) / n_rounds
        rows.append(Goal(f"{method} ÷ baseline", best, "all", ASKED_SHARE * tokens_per_round, decoding[best]))
    return rows


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "baseline: our loop, one pass for every token",
    "generate: the library's loop, model.generate",
    "model: our speculative loop with the draft model",
    "assisted: generate(assistant_model=...), constant k, no confidence stop",
    "ngram: our speculative loop with prompt lookup",
    "lookup: generate(prompt_lookup_num_tokens=k)",
    "÷: times as fast, with a 95 % interval over prompts",
    "tok/pass: new tokens per pass of the target (the library drafts already in the prompt's own pass, ours starts "
    "after it)",
    "same text: texts that are the baseline's, token for token; others are listed, near-tie: two logits so close that "
    "rounding decides, BUG: rounding cannot be the reason",
]
ASKED_LEGEND = [
    "asked: what this lab set itself before it measured; not surely: the interval covers what was asked",
    f"÷ baseline: decoding alone, at the best k; asked is {ASKED_SHARE:g} x the tokens per round",
]


def ratio_cell(ratios: dict[Key, Ratio]) -> Cell:
    """The ratio of an arm, a dash where it has none."""
    return lambda arm: str(ratios.get(arm, "-"))


def speed_tables(run: PeersRun) -> list[Block]:
    """A line for every arm, over all prompts; then the lab's arms over their peers for each kind of prompt."""
    arms, to_peer = by_arm(run.raw), over_peers(run)
    n_tokens = len(arms["baseline", 0]) * run.settings["max_new_tokens"]
    same = {
        check["arm"]: f"{check['n_prompts'] - len(check['differences'])} of {check['n_prompts']}"
        for check in run.correctness
    }
    keys: dict[str, Cell] = {"arm": lambda arm: arm[0], "k": lambda arm: str(arm[1] or "-")}
    speeds: dict[str, Cell] = {
        "tok/s": lambda arm: f"{n_tokens / sum(typical(arms[arm])):.1f}",
        "÷ generate": lambda arm: str(ratio(arms["generate", 0], arms[arm])),
        "÷ peer": ratio_cell(to_peer),
        "÷ baseline": lambda arm: speedup(ratio(arms["baseline", 0], arms[arm]).value),
        "tok/pass": lambda arm: f"{n_tokens / sum(t.n_passes for t in arms[arm]):.2f}",
        "same text": lambda arm: same.get(f"{arm[0]} k={arm[1]}" if arm[1] else arm[0], "-"),
    }
    kinds = {kind: ratio_cell(over_peers(run, kind)) for kind in dict.fromkeys(t.prompt_kind for t in run.raw)}
    by_kind = Table(list(to_peer), keys | kinds)
    return [Table(list(arms), keys | speeds), Lines(LEGEND), Heading("Over the peer, by kind of prompt"), by_kind]


def llama_table(run: PeersRun) -> list[Block]:
    """The lab's arms beside llama.cpp's, decoding alone; nothing where it was not measured."""
    arms = by_arm(run.raw)
    theirs = {
        ("model" if k else "baseline", k): timings for (name, k), timings in arms.items() if name == llama_cpp.METHOD
    }
    if not theirs:
        return []
    n_tokens = len(arms["baseline", 0]) * (run.settings["max_new_tokens"] - 1)  # the first comes with the prompt

    def speed(timings: Timings) -> str:
        return f"{n_tokens / sum(typical(timings, 'decode_seconds')):.1f}"

    def gain(timings: Timings, plain: Timings) -> str:
        return speedup(ratio(plain, timings, "decode_seconds").value)

    ratios = {key: ratio(timings, arms[key], "decode_seconds") for key, timings in theirs.items()}
    cells: dict[str, Cell] = {
        "arm": lambda key: key[0],
        "k": lambda key: str(key[1] or "-"),
        "ours tok/s": lambda key: speed(arms[key]),
        "llama.cpp tok/s": lambda key: speed(theirs[key]),
        "ours ÷ llama.cpp": lambda key: str(ratios[key]),
        "faster": lambda key: faster(ratios[key]),
        "our speedup": lambda key: gain(arms[key], arms["baseline", 0]),
        "its speedup": lambda key: gain(theirs[key], theirs["baseline", 0]),
    }
    legend = [
        "llama.cpp: its llama-completion, and its llama-speculative-simple with the same draft and k",
        "decoding alone, without the prompt; its own clocks, a process's start and reading the weights not counted",
        "faster: unclear where the 95 % interval covers 1; speedup: over plain decoding of the same program",
    ]
    if run.ceiling is not None:
        legend.append(f"llama-bench, plain and without a prompt: {run.ceiling:.1f} tok/s, its ceiling")
    return [Heading("Against llama.cpp"), Table(list(theirs), cells), Lines(legend)]


def faster(measured: Ratio) -> str:
    """Which of two is faster, from ours ÷ llama.cpp."""
    low, high = (measured.value if end is None else end for end in (measured.low, measured.high))
    return "ours" if low > 1 else llama_cpp.METHOD if high < 1 else "unclear"


def page(run: PeersRun) -> list[Block]:
    """Everything a reader gets, from the record alone."""
    settings = run.settings
    size = (
        f"{settings['n_prompts']} prompts, {settings['max_new_tokens']} new tokens each, {settings['repeats']} x, "
        "greedy; seconds end to end, reading the prompt included"
    )
    differences = Lines()
    for check in run.correctness:
        for one in check["differences"]:
            foreign = check["arm"].startswith(llama_cpp.METHOD) and one["verdict"] != "near-tie"
            verdict = "more than rounding in float32 explains" if foreign else one["verdict"]
            differences.append(f"{check['arm']}, prompt {one['prompt']}: from token {one['position']} on, {verdict}")
    asked: dict[str, Cell] = {
        "what": lambda goal: goal.what,
        "k": lambda goal: str(goal.draft_length or "-"),
        "prompts": lambda goal: goal.prompts,
        "asked": lambda goal: speedup(goal.asked),
        "measured": lambda goal: str(goal.measured),
        "verdict": lambda goal: goal.verdict,
    }
    return [
        *common.begin("Against the library's own decoders", run),
        Lines([*(f"{role}: {text}" for role, text in run.models.items()), size]),
        Heading("How fast"),
        *speed_tables(run),
        *llama_table(run),
        Heading("Other texts than the baseline's"),
        differences,
        Heading("Asked and measured"),
        Table(goals(run), asked),
        Lines(ASKED_LEGEND),
    ]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="2,4,6", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=2, help="(default: %(default)s)")
    group.add_argument(
        "--llama-cpp",
        action=argparse.BooleanOptionalAction,
        help="llama.cpp as a peer, too (default: where its programs are on the PATH and can decode this pair)",
    )
    for role in ("target", "draft"):
        group.add_argument(
            f"--llama-{role}",
            type=parsing.some_path,
            metavar="FILE",
            help=f"its {role} as GGUF (default: written anew)",
        )
    common.add_result_flags(parser, "peers")
    parser.set_defaults(limit=4, max_new_tokens=64)
    return parser


def llama(
    args: argparse.Namespace,
    setup: Setup,
    drafter: ModelDrafter,
    prompts: list[Prompt],
    stack: contextlib.ExitStack,
) -> llama_cpp.Programs | None:
    """llama.cpp with this pair, until `stack` closes; None where it is not wanted, or, with a note, not to be had."""
    given = (args.llama_target, args.llama_draft)
    if args.llama_cpp is False:
        return None
    try:
        programs = stack.enter_context(llama_cpp.programs(setup, drafter, given, torch.get_num_threads()))
        programs.check(prompts)
    except Problem as problem:
        if args.llama_cpp or any(given):
            raise
        note(f"without llama.cpp: {problem}")
        return None
    return programs


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    lengths = parsing.numbers(args.draft_length, int, 1, "-k")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    for flag, path in (("--llama-target", args.llama_target), ("--llama-draft", args.llama_draft)):
        if path and not path.is_file():
            raise UsageProblem(f"{flag} {path}: there is no such file; give a GGUF file, or leave it out")
    common.check_result_flags(args)
    check_kind(args.draft)
    setup, prompts = flags.load(args)
    drafter = common.model_drafter(args.draft, setup, args.seed, "the library's assistant must be a model")
    for prompt in prompts:
        for model in (setup.target, drafter.draft):  # the library drafts to the end of the text
            check_prompt(model, prompt.ids, args.max_new_tokens)
    note("\n".join([setup.describe(), *describe_chat(prompts, setup.tokenizer)]))
    transformers_logging.set_verbosity_error()  # its advice on `generate` would break the progress bar

    bench = llama_cpp.PeersBench(setup, {"model": drafter, "ngram": NgramDrafter()}, args.max_new_tokens, args.seed)
    models = {
        "target": loading.describe_model(setup.target_name, setup.target.model),
        "draft": loading.describe_model(loading.short_name(args.draft), drafter.draft.model, "draft"),
    }
    ceiling = None
    with contextlib.ExitStack() as stack:
        bench.llama = llama(args, setup, drafter, prompts, stack)
        if bench.llama:
            models[llama_cpp.METHOD] = f"{bench.llama.version()}, weights in float32, attention in float16"
            ceiling = bench.llama.ceiling(args.max_new_tokens)
        arms = arms_for(lengths, bench.llama is not None)
        measured = measure(bench, arms, [0.0], prompts, args.repeats, {}, schedule=one_after_another)
    checks = [judge_greedy(measured, arm) for arm in arms[1:]]
    fields = common.head_of(args, setup) | {"interrupted": measured.interrupted}
    fields["settings"] |= {
        "draft": loading.short_name(args.draft),
        "draft_lengths": lengths,
        "max_new_tokens": args.max_new_tokens,
        "repeats": args.repeats,
        "n_prompts": len(measured.of(BASELINE, 0.0)),
        "prompts_sha256": files.fingerprint([p.text for p in prompts]),
    }
    raw = [timing(s) for s in measured.samples]
    run = PeersRun(**fields, models=models, correctness=checks, ceiling=ceiling, raw=raw)
    code = common.finish(args, run, page, measured.stop)
    wrong = [arm for arm, entry in zip(arms[1:], checks, strict=True) if arm.method in PEER and not entry["passed"]]
    return code or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
