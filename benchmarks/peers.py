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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from transformers.utils import logging as transformers_logging

from benchmarks import common
from draft_models import NgramDrafter
from speclab.cli import flags, parsing
from speclab.cli.parsing import numbers
from speclab.core.counts import Counts
from speclab.lab.decodings import Decoding, take_turns
from speclab.lab.harness import Bench, Measurement, measure
from speclab.lab.output_checks import judge_greedy
from speclab.models import loading
from speclab.models.cached import check_prompt
from speclab.present.tables import interval, speedup, table
from speclab.records import files
from speclab.records.rows import Amount, Count, Part
from speclab.records.samples import BASELINE, GENERATE, LIBRARY, Arm, Sample
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note
from speclab.theory.formulas import ratio_interval

PEER = {"baseline": "generate", "model": "assisted", "ngram": "lookup"}  # the lab's method -> the library's
WHAT = {
    "baseline": "our loop, one pass for every token",
    "generate": "the library's loop: model.generate",
    "model": "our speculative loop with the draft model",
    "assisted": "generate(assistant_model=...), constant k, no confidence stop",
    "ngram": "our speculative loop with prompt lookup",
    "lookup": "generate(prompt_lookup_num_tokens=k)",
}
ASKED = {"baseline": 1.15, "model": 1.5, "ngram": 1.2}  # of the lab's arm over its peer; ngram on copy prompts
ASKED_SHARE = 0.8  # speedup over our own baseline, as a share of the tokens of a round

Item = TypeVar("Item")
Ratio = tuple[float, float | None, float | None]  # value, and the ends of its 95 % interval


# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ArmPart(Part):
    """What belongs to one arm."""

    method: str
    draft_length: Count


@dataclass(kw_only=True)
class PeerRow(ArmPart):
    """One arm on one kind of prompts. Ratios are of end-to-end seconds, but for `decode_to_baseline`."""

    prompt_kind: str
    n_prompts: Count
    n_tokens: Count
    seconds: Amount
    tokens_per_second: Amount
    to_generate: float
    to_generate_low: float | None
    to_generate_high: float | None
    to_peer: float | None  # None for the library's arms, and so are the ones below
    to_peer_low: float | None
    to_peer_high: float | None
    to_baseline: float
    decode_to_baseline: float | None  # without prefill
    decode_to_baseline_low: float | None
    decode_to_baseline_high: float | None
    tokens_per_pass: float
    tokens_per_round: float | None
    acceptance_rate: float | None


@dataclass(kw_only=True)
class TextDifference(Part):
    """Where a text first differs from the baseline's."""

    prompt: Count
    position: Count
    verdict: Literal["near-tie", "BUG"]


@dataclass(kw_only=True)
class Agreement(ArmPart):
    """How many texts of an arm are the baseline's, and why the others are not."""

    n: Count
    n_identical: Count
    differences: list[TextDifference]


@dataclass(kw_only=True)
class Goal(Part):
    """What was asked for beside what was measured."""

    what: str
    asked: float
    measured: float
    low: float | None
    high: float | None
    met: bool
    note: str


@dataclass(kw_only=True)
class PeerTiming(ArmPart):
    """The seconds of every repeat of one arm on one prompt."""

    prompt_index: Count
    prompt_kind: str
    n_prompt: Count
    n_passes: Count  # of the target, the prompt's own included
    seconds: list[Amount]
    decode_seconds: list[Amount | None]  # None: the library does not tell them apart


@dataclass(kw_only=True)
class PeersRun(common.BenchmarkRun):
    """`python -m benchmarks.peers`."""

    models: dict[str, str]
    rows: list[PeerRow]
    texts: list[Agreement]
    asked: list[Goal]
    raw: list[PeerTiming]


# --- measuring --------------------------------------------------------------------------------------------------------


def arms_for(draft_lengths: list[int]) -> list[Arm]:
    """Each of the lab's arms, followed by its peer."""
    arms = [BASELINE, GENERATE]
    for name in ("model", "ngram"):
        for k in draft_lengths:
            arms += [Arm(name, name, k), Arm(PEER[name], name, k)]
    return arms


def turn_order(items: list[Item], turn: int) -> list[Item]:
    """Everyone starts once, and who went first of two neighbours goes second in the next turn."""
    start = 2 * turn % len(items)  # two by two: an arm and its peer stay neighbours
    order = items[start:] + items[:start]
    return order if turn % 2 == 0 else order[::-1]


def one_after_another(decodings: list[Decoding], turn: int) -> None:
    """Finish each decoding before the next one starts: the library's cannot be interrupted."""
    for decoding in turn_order(decodings, turn):
        take_turns([decoding])


def agreements(measured: Measurement) -> list[Agreement]:
    """The texts of every arm but the baseline, beside the baseline's."""
    texts = []
    for arm, part in by_arm(s for s in measured.samples if s.arm != BASELINE).items():
        differences = [
            TextDifference(prompt=d["prompt"], position=d["position"], verdict=d["verdict"])
            for d in judge_greedy(measured, arm)["differences"]
        ]
        texts.append(
            Agreement(
                method=arm.method,
                draft_length=arm.draft_length,
                n=len(part),
                n_identical=len(part) - len(differences),
                differences=differences,
            )
        )
    return texts


# --- from samples to rows ---------------------------------------------------------------------------------------------


def by_arm(samples: Iterable[Sample]) -> dict[Arm, list[Sample]]:
    """Samples of each arm, in the order in which arms appear."""
    groups: dict[Arm, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.arm, []).append(sample)
    return groups


def all_seconds(sample: Sample) -> list[float]:
    """Of each repeat, from the prompt's ids to the last token."""
    return [prefill + decode for prefill, decode in zip(sample.prefill, sample.decode, strict=True)]


def typical_seconds(sample: Sample) -> float:
    """Median over repeats, end to end."""
    return statistics.median(all_seconds(sample))


def typical_decode_seconds(sample: Sample) -> float:
    """Median over repeats, prefill apart."""
    return statistics.median(sample.decode)


def n_passes(sample: Sample) -> int:
    """Of the target in one repeat, the prompt's own included."""
    return sample.counts.n_rounds // len(sample.texts) + 1


def ratio(over: list[Sample], under: list[Sample], seconds: Callable[[Sample], float] = typical_seconds) -> Ratio:
    """How many times as fast `under` is on the same prompts."""
    top, bottom = [seconds(s) for s in over], [seconds(s) for s in under]
    low, high = ratio_interval(top, bottom) or (None, None)
    return sum(top) / sum(bottom), low, high


def fields_of(name: str, values: Ratio | None) -> dict[str, Any]:
    """A ratio as the three fields that hold it."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), values or (None, None, None), strict=True))


def build_rows(samples: list[Sample]) -> list[PeerRow]:
    """Rows for all prompts, then for each kind of them."""
    kinds = list(dict.fromkeys(s.prompt_kind for s in samples))
    rows = []
    for kind in ["all", *kinds] if len(kinds) > 1 else ["all"]:
        groups = by_arm(s for s in samples if kind in ("all", s.prompt_kind))
        rows += [build_row(arm, groups, kind) for arm in groups]
    return rows


def build_row(arm: Arm, groups: dict[Arm, list[Sample]], kind: str) -> PeerRow:
    """One arm beside `generate`, its peer and the lab's baseline. groups: the samples of all arms on these prompts."""
    samples = groups[arm]
    n_tokens, seconds = sum(len(s.texts[0]) for s in samples), sum(map(typical_seconds, samples))
    to_peer: Ratio | None = None
    decoding: Ratio | None = None
    tested = arm.method in ("model", "ngram")
    if arm.method in PEER:
        to_peer = ratio(groups[Arm(PEER[arm.method], arm.draft, arm.draft_length)], samples)
        decoding = ratio(groups[BASELINE], samples, typical_decode_seconds)
    counts = Counts()
    for sample in samples:
        counts.merge(sample.counts)
    return PeerRow(
        method=arm.method,
        draft_length=arm.draft_length,
        prompt_kind=kind,
        n_prompts=len(samples),
        n_tokens=n_tokens,
        seconds=seconds,
        tokens_per_second=n_tokens / seconds,
        **fields_of("to_generate", ratio(groups[GENERATE], samples)),
        **fields_of("to_peer", to_peer),
        to_baseline=ratio(groups[BASELINE], samples)[0],
        **fields_of("decode_to_baseline", decoding),
        tokens_per_pass=n_tokens / sum(map(n_passes, samples)),
        tokens_per_round=counts.tokens_per_round if tested else None,
        acceptance_rate=counts.acceptance_rate if tested else None,
    )


def timing(sample: Sample) -> PeerTiming:
    """A sample without its text."""
    return PeerTiming(
        method=sample.arm.method,
        draft_length=sample.arm.draft_length,
        prompt_index=sample.prompt_index,
        prompt_kind=sample.prompt_kind,
        n_prompt=sample.n_prompt,
        n_passes=n_passes(sample),
        seconds=all_seconds(sample),
        decode_seconds=[None if sample.arm.method in LIBRARY else seconds for seconds in sample.decode],
    )


def build_goals(rows: list[PeerRow]) -> list[Goal]:
    """Every number that was asked for: each arm against its peer, then the best length against the baseline."""
    goals = []
    for row in rows:
        on = "copy" if row.method == "ngram" else "all"
        if row.method in PEER and row.prompt_kind == on:
            k = f" k={row.draft_length}" * bool(row.draft_length)
            what = f"{row.method}{k} ÷ {PEER[row.method]}{k}" + ", copy prompts" * (on == "copy")
            where = "on copy prompts" if on == "copy" else "end to end"
            goals.append(goal(what, ASKED[row.method], row, "to_peer", where))
    for method in ("model", "ngram"):
        lengths = [r for r in rows if r.method == method and r.prompt_kind == "all"]
        if lengths:
            best = max(lengths, key=lambda r: r.decode_to_baseline or 0.0)
            tokens = best.tokens_per_round or 1.0
            where = (
                f"decoding alone, best k of {len(lengths)}; asked {ASKED_SHARE:g} x {tokens:.2f} tokens per round; "
                f"end to end {best.to_baseline:.2f}x"
            )
            what = f"{method} k={best.draft_length} ÷ baseline"
            goals.append(goal(what, ASKED_SHARE * tokens, best, "decode_to_baseline", where))
    return goals


def goal(what: str, asked: float, row: PeerRow, field: str, where: str) -> Goal:
    """One number that was asked for; `field` of the row holds what was measured."""
    measured, low, high = (getattr(row, field + end) for end in ("", "_low", "_high"))
    return Goal(what=what, asked=asked, measured=measured, low=low, high=high, met=measured >= asked, note=where)


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = (
    "÷: times as fast; tok/pass: new tokens per pass of the target (the library drafts already in the prompt's own "
    "pass, ours starts after it)"
)
COLUMNS = ["arm", "k", "tok/s", "÷ generate", "95 %", "÷ peer", "95 %", "tok/pass", "same text"]


def speed_table(run: PeersRun, markdown: bool) -> str:
    """A line for every arm, over all prompts."""
    agreed = {(t.method, t.draft_length): f"{t.n_identical} of {t.n}" for t in run.texts}
    lines = [
        [
            row.method,
            str(row.draft_length or "-"),
            f"{row.tokens_per_second:.1f}",
            speedup(row.to_generate),
            "-" if row.method == "generate" else interval(row.to_generate_low, row.to_generate_high),
            speedup(row.to_peer),
            interval(row.to_peer_low, row.to_peer_high),
            f"{row.tokens_per_pass:.2f}",
            agreed.get((row.method, row.draft_length), "-"),
        ]
        for row in run.rows
        if row.prompt_kind == "all"
    ]
    return table(lines, COLUMNS, markdown)


def kinds_table(run: PeersRun, kinds: list[str], markdown: bool) -> str:
    """The lab's arms over their peers for each kind of prompt."""
    rows = {(r.method, r.draft_length, r.prompt_kind): r for r in run.rows}
    lines = []
    for method, k in dict.fromkeys((method, k) for method, k, _ in rows if method in PEER):
        cells = [rows[method, k, kind] for kind in kinds]
        ratios = [f"{speedup(c.to_peer)} ({interval(c.to_peer_low, c.to_peer_high)})" for c in cells]
        lines.append([f"{method} ÷ {PEER[method]}", str(k or "-"), *ratios])
    return table(lines, ["ours ÷ peer", "k", *kinds], markdown)


def goals_table(goals: list[Goal], markdown: bool) -> str:
    """A line for every goal, and whether it was met."""
    lines = []
    for g in goals:
        verdict = "met" if g.met else f"MISSED by {1 - g.measured / g.asked:.0%}"
        if g.low is None or g.high is None or g.low < g.asked <= g.high:  # the interval covers what was asked
            verdict += ", not surely"
        cells = [f"{g.asked:.2f}x", speedup(g.measured), interval(g.low, g.high), verdict]
        lines.append([g.what, *cells])
    return table(lines, ["what", "asked", "measured", "95 %", "verdict"], markdown)


def goal_remarks(run: PeersRun) -> list[str]:
    """What the table of goals has no column for; the missed ones are named."""
    lines = ["asked: what this lab set itself before it measured; not surely: the interval covers what was asked"]
    lines += [f"{g.what}: {g.note}" for g in run.asked if "best k" in g.note]
    if not any(r.prompt_kind == "copy" for r in run.rows):
        lines.append("no copy prompts in this run, so prompt lookup was not held against what was asked")
    missed = [g.what for g in run.asked if not g.met]
    return [*lines, f"missed: {len(missed)} of {len(run.asked)}" + f" ({'; '.join(missed)})" * bool(missed)]


def text_remarks(run: PeersRun) -> list[str]:
    """How many texts are the baseline's: the lab's, then the library's; and a line for every one that is not."""
    lines = []
    for whose, is_library in (("ours", False), ("the library's", True)):
        texts = [t for t in run.texts if (t.method in LIBRARY) == is_library]
        n, n_identical = sum(t.n for t in texts), sum(t.n_identical for t in texts)
        lines.append(f"{whose}: {n_identical} of {n} texts are the baseline's, token for token")
        lines += [
            f"{t.method} k={t.draft_length}, prompt {d.prompt}: differs from token {d.position} on, {d.verdict}"
            for t in texts
            for d in t.differences
        ]
    return [*lines, "near-tie: two logits so close that rounding decides; BUG: rounding cannot be the reason"]


def page(run: PeersRun, markdown: bool) -> str:
    """Everything a reader gets, from the record alone."""
    settings = run.settings
    size = (
        f"{settings['n_prompts']} prompts, {settings['max_new_tokens']} new tokens each, {settings['repeats']} x, "
        "greedy; seconds end to end, reading the prompt included"
    )
    methods = dict.fromkeys(r.method for r in run.rows)
    kinds = [kind for kind in dict.fromkeys(r.prompt_kind for r in run.rows) if kind != "all"]
    blocks = common.opening("Against the library's own decoders", run, markdown)
    blocks.append(common.remarks([*(f"{role}: {text}" for role, text in run.models.items()), size], markdown))
    blocks += [common.heading("How fast", markdown), speed_table(run, markdown)]
    blocks.append(common.remarks([*(f"{method}: {WHAT[method]}" for method in methods), LEGEND], markdown))
    if kinds:
        title = common.heading("By kind of prompt: times as fast as the peer (95 %)", markdown)
        blocks += [title, kinds_table(run, kinds, markdown)]
    blocks += [common.heading("Do the texts agree?", markdown), common.remarks(text_remarks(run), markdown)]
    blocks += [common.heading("Asked and measured", markdown), goals_table(run.asked, markdown)]
    blocks.append(common.remarks(goal_remarks(run), markdown))
    if run.interrupted:
        blocks.append("Stopped before the end: only prompts that every arm had finished are counted.")
    return "\n\n".join(blocks) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="2,4,6", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=2, help="(default: %(default)s)")
    common.add_result_flags(parser)
    parser.set_defaults(limit=4, max_new_tokens=64)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    lengths = numbers(args.draft_length, int, 1, "-k")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    common.check_result_flags(args, "peers")
    setup = flags.setup_from(args)
    drafter = common.model_drafter(args.draft, setup, args.seed, "the library's assistant must be a model")
    prompts = flags.read_prompts(args, setup.tokenizer)
    for prompt in prompts:
        for model in (setup.target, drafter.draft):  # the library drafts to the end of the text
            check_prompt(model, prompt.ids, args.max_new_tokens)
    note(setup.describe())
    transformers_logging.set_verbosity_error()  # its advice on `generate` would break the progress bar

    bench = Bench(setup, {"model": drafter, "ngram": NgramDrafter()}, args.max_new_tokens, args.seed)
    measured = measure(
        bench, arms_for(lengths), [0.0], prompts, args.repeats, instruments={}, schedule=one_after_another
    )
    samples = measured.samples
    draft_name = loading.short_name(args.draft)
    settings = {
        **common.shared_settings(args, setup),
        "target": setup.target_name,
        "draft": draft_name,
        "draft_lengths": lengths,
        "max_new_tokens": args.max_new_tokens,
        "repeats": args.repeats,
        "n_prompts": len({s.prompt_index for s in samples}),
        "prompts_sha256": files.fingerprint([p.text for p in prompts]),
    }
    rows = build_rows(samples)
    run = PeersRun(
        **common.head("peers", setup.device, settings),
        models={
            "target": loading.describe_model(setup.target_name, setup.target.model),
            "draft": loading.describe_model(draft_name, drafter.draft.model, "draft"),
        },
        rows=rows,
        texts=agreements(measured),
        asked=build_goals(rows),
        raw=[timing(s) for s in samples],
    )
    code = common.finish(args, run, page, measured.stop)
    wrong = [t for t in run.texts if t.method not in LIBRARY and any(d.verdict == "BUG" for d in t.differences)]
    return code or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
