"""The lab's decoders against the library's own, in one run: same pair, prompts, dtype, token budget, greedy.

Whether a hand-written loop is worth anything is not seen from its speedup over its own baseline: a slow baseline makes
every speedup look good. So each of ours runs beside what anybody gets from `model.generate`:

    baseline    our token-by-token loop              against   generate
    model k     our speculative loop, a draft model  against   generate(assistant_model=...), the same constant k
    ngram k     our speculative loop, no draft model against   generate(prompt_lookup_num_tokens=k)

What comes out: tokens per second, each arm over `generate` and over its peer with 95 % intervals over prompts, whether
the texts agree, and what was asked for beside what was measured, missed numbers included.

    python -m benchmarks.peers                               # the lab's pair, about three minutes on two cores
    python -m benchmarks.peers -k 4 --limit 2 --repeats 1    # half a minute
    python -m benchmarks.peers --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --device cuda

Seconds are end to end, from the prompt's ids to the last token: the library does not tell prefill and decoding apart.
A cell is the median over repeats, a total the sum over prompts. The arms of a prompt run one after another in an order
that rotates, an arm always beside its peer. No arm stops at an end-of-text token.
Files: results/NAME-peers.json and .md. Exit code 1 if a text of ours differs from the baseline's and rounding cannot be
the reason.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass

from transformers.utils import logging as transformers_logging

from benchmarks import common
from draft_models import NgramDrafter
from speclab.cli import flags, parsing
from speclab.lab.decodings import Decoding, take_turns
from speclab.lab.harness import Bench, measure
from speclab.lab.output_checks import judge_greedy
from speclab.models import loading
from speclab.models.cached import check_prompt
from speclab.present.tables import interval, speedup, table
from speclab.records import files
from speclab.records.rows import Amount, Count, Part
from speclab.records.runs import Facts
from speclab.records.samples import BASELINE, GENERATE, LIBRARY, Arm, Sample
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note
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
    raw: list[PeerTiming]


# --- measuring --------------------------------------------------------------------------------------------------------


def arms_for(draft_lengths: list[int]) -> list[Arm]:
    """Each of the lab's arms, followed by its peer."""
    drafted = [(name, k) for name in ("model", "ngram") for k in draft_lengths]
    return [BASELINE, GENERATE, *(Arm(method, name, k) for name, k in drafted for method in (name, PEER[name]))]


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


@dataclass
class Ratio:
    """Times as fast, with a 95 % interval over prompts."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{speedup(self.value)} ({interval(self.low, self.high)})"


def by_arm(timings: Timings, kind: str | None = None) -> dict[tuple[str, int], Timings]:
    """Method and draft length -> their timings, of prompts of one kind or of all."""
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


def peer_ratios(run: PeersRun, kind: str | None = None) -> dict[tuple[str, int], Ratio]:
    """Each of the lab's arms over its peer."""
    arms = by_arm(run.raw, kind)
    return {(name, k): ratio(arms[PEER[name], k], arms[name, k]) for name, k in list(arms) if name in PEER}


def goals(run: PeersRun) -> list[tuple[str, int, str, float, Ratio]]:
    """Each arm over its peer, then the best length over the baseline.  -> what, k, kind of prompts, asked, measured"""
    rows = []
    for method, (kind, asked) in ASKED.items():
        for (name, k), measured in peer_ratios(run, kind).items():
            if name == method:
                rows.append((f"{name} ÷ {PEER[name]}", k, kind or "all", asked, measured))
    arms = by_arm(run.raw)
    for method in ("model", "ngram"):
        decoding = {
            k: ratio(arms[BASELINE.method, 0], arms[name, k], "decode_seconds") for name, k in arms if name == method
        }
        best = max(decoding, key=lambda k: decoding[k].value)
        n_rounds = sum(t.n_passes - 1 for t in arms[method, best])
        tokens_per_round = len(arms[method, best]) * (run.settings["max_new_tokens"] - 1) / n_rounds
        rows.append((f"{method} ÷ baseline", best, "all", ASKED_SHARE * tokens_per_round, decoding[best]))
    return rows


# --- views of the record ----------------------------------------------------------------------------------------------

ARMS = (
    "baseline: our loop, one pass for every token",
    "generate: the library's loop, model.generate",
    "model: our speculative loop with the draft model",
    "assisted: generate(assistant_model=...), constant k, no confidence stop",
    "ngram: our speculative loop with prompt lookup",
    "lookup: generate(prompt_lookup_num_tokens=k)",
    "÷: times as fast, with a 95 % interval over prompts",
    "tok/pass: new tokens per pass of the target (the library drafts already in the prompt's own pass, ours starts "
    "after it)",
    "same text: texts that are the baseline's, token for token",
)
DIFFERENCES = (
    "position: of the first token that differs",
    "near-tie: two logits so close that rounding decides; BUG: rounding cannot be the reason",
)
GOALS = (
    "asked: what this lab set itself before it measured; not surely: the interval covers what was asked",
    f"÷ baseline: decoding alone, at the best k; asked is {ASKED_SHARE:g} x the tokens per round",
)


def speed_table(run: PeersRun) -> str:
    """A line for every arm, over all prompts."""
    arms, to_peer = by_arm(run.raw), peer_ratios(run)
    same = {
        entry["arm"]: f"{entry['n_prompts'] - len(entry['differences'])} of {entry['n_prompts']}"
        for entry in run.correctness
    }
    lines = []
    for (method, k), timings in arms.items():
        n_tokens = len(timings) * run.settings["max_new_tokens"]
        lines.append(
            [
                method,
                str(k or "-"),
                f"{n_tokens / sum(typical(timings)):.1f}",
                str(ratio(arms[GENERATE.method, 0], timings)),
                str(to_peer.get((method, k), "-")),
                speedup(ratio(arms[BASELINE.method, 0], timings).value),
                f"{n_tokens / sum(t.n_passes for t in timings):.2f}",
                same.get(f"{method} k={k}" if k else method, "-"),
            ]
        )
    headers = ["arm", "k", "tok/s", "÷ generate", "÷ peer", "÷ baseline", "tok/pass", "same text"]
    return table(lines, headers, markdown=True)


def kinds_table(run: PeersRun, kinds: list[str]) -> str:
    """The lab's arms over their peers for each kind of prompt."""
    ratios = [peer_ratios(run, kind) for kind in kinds]
    lines = [
        [f"{name} ÷ {PEER[name]}", str(k or "-"), *(str(of_kind[name, k]) for of_kind in ratios)]
        for name, k in ratios[0]
    ]
    return table(lines, ["ours ÷ peer", "k", *kinds], markdown=True)


def goals_table(run: PeersRun) -> str:
    """A line for every number that was asked for, and whether it was met."""
    lines = []
    for what, k, kind, asked, measured in goals(run):
        verdict = "met" if measured.value >= asked else f"MISSED by {1 - measured.value / asked:.0%}"
        if measured.low is None or measured.high is None or measured.low < asked <= measured.high:
            verdict += ", not surely"
        lines.append([what, str(k or "-"), kind, f"{asked:.2f}x", str(measured), verdict])
    return table(lines, ["what", "k", "prompts", "asked", "measured", "verdict"], markdown=True)


def page(run: PeersRun) -> str:
    """Everything a reader gets, from the record alone."""
    settings = run.settings
    size = (
        f"{settings['n_prompts']} prompts, {settings['max_new_tokens']} new tokens each, {settings['repeats']} x, "
        "greedy; seconds end to end, reading the prompt included"
    )
    parts = [common.bullets([*(f"{role}: {text}" for role, text in run.models.items()), size])]
    parts += ["## How fast", speed_table(run), common.bullets(ARMS)]
    kinds = list(dict.fromkeys(t.prompt_kind for t in run.raw))
    if len(kinds) > 1:
        parts += ["## By kind of prompt", kinds_table(run, kinds)]
    different = [
        [entry["arm"], *(str(difference[key]) for key in ("prompt", "position", "verdict"))]
        for entry in run.correctness
        for difference in entry["differences"]
    ]
    if different:
        headers = ["arm", "prompt", "position", "verdict"]
        parts += [
            "## Other texts than the baseline's",
            table(different, headers, markdown=True),
            common.bullets(DIFFERENCES),
        ]
    parts += ["## Asked and measured", goals_table(run), common.bullets(GOALS)]
    return common.make_page("Against the library's own decoders", run, parts)


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="2,4,6", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=2, help="(default: %(default)s)")
    common.add_result_flags(parser, "peers")
    parser.set_defaults(limit=4, max_new_tokens=64)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    lengths = parsing.numbers(args.draft_length, int, 1, "-k")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    common.check_result_flags(args)
    setup = flags.setup_from(args)
    drafter = common.model_drafter(args.draft, setup, args.seed, "the library's assistant must be a model")
    prompts = flags.read_prompts(args, setup.tokenizer)
    for prompt in prompts:
        for model in (setup.target, drafter.draft):  # the library drafts to the end of the text
            check_prompt(model, prompt.ids, args.max_new_tokens)
    note(setup.describe())
    transformers_logging.set_verbosity_error()  # its advice on `generate` would break the progress bar

    bench = Bench(setup, {"model": drafter, "ngram": NgramDrafter()}, args.max_new_tokens, args.seed)
    arms = arms_for(lengths)
    measured = measure(bench, arms, [0.0], prompts, args.repeats, {}, schedule=one_after_another)
    checks = [judge_greedy(measured, arm) for arm in arms[1:]]
    draft_name = loading.short_name(args.draft)
    fields = common.head_of(args, setup) | {"interrupted": measured.interrupted}
    fields["settings"] |= {
        "draft": draft_name,
        "draft_lengths": lengths,
        "max_new_tokens": args.max_new_tokens,
        "repeats": args.repeats,
        "n_prompts": len(measured.of(BASELINE, 0.0)),
        "prompts_sha256": files.fingerprint([p.text for p in prompts]),
    }
    models = {
        "target": loading.describe_model(setup.target_name, setup.target.model),
        "draft": loading.describe_model(draft_name, drafter.draft.model, "draft"),
    }
    run = PeersRun(**fields, models=models, correctness=checks, raw=[timing(s) for s in measured.samples])
    code = common.finish(args, run, page, measured.stop)
    wrong = [arm for arm, entry in zip(arms[1:], checks, strict=True) if arm.method in PEER and not entry["passed"]]
    return code or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
