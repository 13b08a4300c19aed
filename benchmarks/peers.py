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
that rotates, an arm always beside its peer. End-of-text tokens stop nobody. Files: results/NAME-peers.json and .md.
Exit code 1 if a text of ours differs from the baseline's and rounding cannot be the reason.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from baseline_autoregressive import autoregressive_decode
from benchmarks import common
from benchmarks.common import COUNT, MAYBE, NUMBER, SECONDS, TEXT
from draft_models import ModelDrafter, NgramDrafter
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.cli.flags import add_draft_flag
from speclab.cli.parsing import numbers
from speclab.core.counts import Counts
from speclab.core.rounds import DecodeSettings, Drafter
from speclab.core.sampling import Sampling
from speclab.lab.harness import STOPS, library_generate, mixed, warm_up_runs
from speclab.models import loading
from speclab.models.cached import check_prompt
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import record
from speclab.records.samples import BASELINE, GENERATE, Arm
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress_bar
from speclab.theory import losslessness
from speclab.theory.formulas import ratio_interval

PEER = {"baseline": "generate", "model": "assisted", "ngram": "lookup"}  # ours -> the library's
WHAT = {
    "baseline": "our loop, one pass for every token",
    "generate": "the library's loop: model.generate",
    "model": "our speculative loop with the draft model",
    "assisted": "generate(assistant_model=...), constant k, no confidence stop",
    "ngram": "our speculative loop with prompt lookup",
    "lookup": "generate(prompt_lookup_num_tokens=k)",
}
ASKED = {"baseline": 1.15, "model": 1.5, "ngram": 1.2}  # ours over its peer; ngram on copy prompts
ASKED_SHARE = 0.8  # speedup over our own baseline, as a share of the tokens of a round


@dataclass
class Bench:
    """One pair and how long to decode."""

    setup: Setup
    drafters: dict[str, Drafter]  # "model" and "ngram"
    max_new_tokens: int


@dataclass
class Outcome:
    """One decoding."""

    seconds: float  # prompt's ids to last token
    tokens: list[int]
    n_passes: int  # of the target, the prompt's own included
    decode_seconds: float | None = None  # without prefill; the library does not tell
    counts: Counts | None = None


@dataclass
class Sample:
    """What an arm did with one prompt, one outcome for each repeat."""

    arm: Arm
    prompt_index: int
    kind: str
    n_prompt: int
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(o.seconds for o in self.outcomes)

    @property
    def decode_seconds(self) -> float:
        return statistics.median(o.decode_seconds for o in self.outcomes)


def arms_for(draft_lengths: list[int]) -> list[Arm]:
    """Each of ours followed by its peer."""
    arms = [BASELINE, GENERATE]
    for name in ("model", "ngram"):
        for k in draft_lengths:
            arms += [Arm(name, name, k), Arm(PEER[name], name, k)]
    return arms


def turn_order(arms: list[Arm], turn: int) -> list[Arm]:
    """Everyone starts once, and who went first of two neighbours goes second in the next turn."""
    start = 2 * turn % len(arms)  # two by two: an arm and its peer stay neighbours
    order = arms[start:] + arms[:start]
    return order if turn % 2 == 0 else order[::-1]


# --- one decoding -----------------------------------------------------------------------------------------------------


def decode(bench: Bench, arm: Arm, prompt: Prompt) -> Outcome:
    ids = prompt.ids.to(bench.setup.device)
    return ours(bench, arm, ids) if arm.method in PEER else theirs(bench, arm, ids)


def ours(bench: Bench, arm: Arm, ids: Tensor) -> Outcome:
    """As the lab's two scripts decode: the same target and drafter, prompt after prompt."""
    target, budget, tokens, counts = bench.setup.target, bench.max_new_tokens, [], Counts()
    first = None
    start = time.perf_counter()
    if arm.speculative:
        rounds = speculative_decode(target, bench.drafters[arm.draft], ids, arm.draft_length, DecodeSettings(budget))
    else:
        rounds = autoregressive_decode(target, ids, DecodeSettings(budget), bench.setup.chunk)
    for round_ in rounds:
        first = first or time.perf_counter()
        tokens += round_.tokens
        counts.add(round_)
    end = time.perf_counter()  # tokens are on the host, so the device has nothing left to do
    return Outcome(end - start, tokens, target.n_passes, end - first, counts if arm.speculative else None)


def theirs(bench: Bench, arm: Arm, ids: Tensor) -> Outcome:
    """The library's greedy decoding, with a draft model or prompt lookup where the arm says so."""
    model, extra = bench.setup.target.model, {}
    if arm.method == "assisted":
        extra["assistant_model"] = constant_k(bench.drafters[arm.draft].draft.model, arm.draft_length)
    elif arm.method == "lookup":
        extra["prompt_lookup_num_tokens"] = arm.draft_length
    with counted_passes(model) as widths:
        seconds, tokens = library_generate(model, ids, bench.max_new_tokens, **extra)
    return Outcome(seconds, tokens, len(widths))


def constant_k(draft: PreTrainedModel, k: int) -> PreTrainedModel:
    """Tell the library to draft k tokens in every round: its defaults are 20, a changing k, and a confidence stop."""
    draft.generation_config = GenerationConfig(
        pad_token_id=0,
        num_assistant_tokens=k,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    return draft


@contextlib.contextmanager
def counted_passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """Widths of the passes of `model` while this is open. A microsecond a pass: not seen in any number here."""
    widths: list[int] = []

    def count(module, args: tuple, kwargs: dict) -> None:
        widths.append((args[0] if args else kwargs["input_ids"]).shape[1])

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()


# --- all of them ------------------------------------------------------------------------------------------------------


def measure(bench: Bench, arms: list[Arm], prompts: list[Prompt], repeats: int) -> tuple[list[Sample], bool]:
    """All arms over all prompts.  -> samples, and whether Ctrl-C came: then prompts that all arms finished are kept"""
    turns = [(repeat, index) for repeat in range(repeats) for index in mixed(prompts)]
    samples: dict[tuple[int, Arm], Sample] = {}
    interrupted = False
    with progress_bar(total=len(turns) + 1, unit="turn", desc="measuring", leave=False) as bar:
        try:
            for _, prompt in warm_up_runs(
                bench.setup, [Sampling()], prompts
            ):  # meet every shape before the clock counts
                for arm in arms:
                    decode(bench, arm, prompt)
            bar.update()
            for turn, (_, index) in enumerate(turns):
                prompt = prompts[index]
                found = {arm: decode(bench, arm, prompt) for arm in turn_order(arms, turn)}
                for arm, outcome in found.items():
                    blank = Sample(arm, index, prompt.kind, prompt.ids.shape[1])
                    samples.setdefault((index, arm), blank).outcomes.append(outcome)
                bar.update()
        except STOPS:
            if not samples:
                raise
            interrupted = True
    order = {arm: place for place, arm in enumerate(arms)}
    return sorted(samples.values(), key=lambda s: (s.prompt_index, order[s.arm])), interrupted


def judged(bench: Bench, samples: list[Sample], prompts: list[Prompt]) -> list[dict]:
    """For every arm but the baseline: how many texts are the baseline's, and why the others are not."""
    baseline = {s.prompt_index: s.outcomes[0].tokens for s in samples if s.arm == BASELINE}
    entries = []
    for arm in dict.fromkeys(s.arm for s in samples if s.arm != BASELINE):
        entry = {"method": arm.method, "draft_length": arm.draft_length, "n": 0, "n_identical": 0, "differences": []}
        for sample in (s for s in samples if s.arm == arm):
            theirs = baseline[sample.prompt_index]
            text = next((o.tokens for o in sample.outcomes if o.tokens != theirs), theirs)
            entry["n"] += 1
            if text == theirs:
                entry["n_identical"] += 1
                continue
            prompt = prompts[sample.prompt_index].id_list
            found = losslessness.judge_divergence(
                bench.setup.reference, prompt, theirs, text, bench.setup.target.vocab_size
            )
            verdict = "near-tie" if found.numerical else "BUG"
            place = {"prompt": sample.prompt_index, "position": found.position, "verdict": verdict}
            entry["differences"].append(place)
        entries.append(entry)
    return entries


# --- the record -------------------------------------------------------------------------------------------------------

ROW = {
    "method": TEXT,
    "draft_length": COUNT,
    "prompt_kind": TEXT,
    "n_prompts": COUNT,
    "n_tokens": COUNT,
    "seconds": SECONDS,
    "tokens_per_second": SECONDS,
    "to_generate": NUMBER,
    "to_generate_low": MAYBE,
    "to_generate_high": MAYBE,
    "to_peer": MAYBE,
    "to_peer_low": MAYBE,
    "to_peer_high": MAYBE,
    "to_baseline": NUMBER,
    "decode_to_baseline": MAYBE,
    "decode_to_baseline_low": MAYBE,
    "decode_to_baseline_high": MAYBE,
    "tokens_per_pass": NUMBER,
    "tokens_per_round": MAYBE,
    "acceptance_rate": MAYBE,
}
TEXTS = {
    "method": TEXT,
    "draft_length": COUNT,
    "n": COUNT,
    "n_identical": COUNT,
    "differences": {"type": "array", "items": {"type": "object"}},
}
GOAL = {
    "what": TEXT,
    "asked": NUMBER,
    "measured": NUMBER,
    "low": MAYBE,
    "high": MAYBE,
    "met": {"type": "boolean"},
    "note": TEXT,
}
RAW = {
    "method": TEXT,
    "draft_length": COUNT,
    "prompt_index": COUNT,
    "prompt_kind": TEXT,
    "n_prompt": COUNT,
    "n_passes": COUNT,
    "seconds": {"type": "array", "items": SECONDS},
    "decode_seconds": {"type": "array", "items": {"type": ["number", "null"]}},
}
SCHEMA = common.one_of(
    {
        **common.HEAD,
        "models": {"type": "object"},
        "rows": common.list_of(ROW),
        "texts": common.list_of(TEXTS),
        "asked": common.list_of(GOAL),
        "raw": common.list_of(RAW),
    }
)


def ratio(over: list[Sample], under: list[Sample], attribute: str = "seconds") -> list[float | None]:
    """How many times faster `under` is on the same prompts.  -> ratio, low, high"""
    top, bottom = [getattr(s, attribute) for s in over], [getattr(s, attribute) for s in under]
    low, high = ratio_interval(top, bottom) or (None, None)
    return [sum(top) / sum(bottom), low, high]


def build_rows(samples: list[Sample]) -> list[dict]:
    """Rows for all prompts, then for each kind of them."""
    kinds = list(dict.fromkeys(s.kind for s in samples))
    built = []
    for kind in ["all", *kinds] if len(kinds) > 1 else ["all"]:
        by_arm: dict[Arm, list[Sample]] = {}
        for sample in samples:
            if kind in ("all", sample.kind):
                by_arm.setdefault(sample.arm, []).append(sample)
        built += [_row(arm, by_arm, kind) for arm in by_arm]
    return built


def _row(arm: Arm, by_arm: dict[Arm, list[Sample]], kind: str) -> dict:
    mine, counts = by_arm[arm], Counts()
    for sample in mine:
        for outcome in sample.outcomes:
            counts.merge(outcome.counts or Counts())
    n_tokens, seconds = sum(len(s.outcomes[0].tokens) for s in mine), sum(s.seconds for s in mine)
    to_peer = decoding = [None, None, None]
    if arm.method in PEER:
        peer = GENERATE if arm == BASELINE else Arm(PEER[arm.method], arm.draft, arm.draft_length)
        to_peer = ratio(by_arm[peer], mine)
        decoding = ratio(by_arm[BASELINE], mine, "decode_seconds")
    return {
        "method": arm.method,
        "draft_length": arm.draft_length,
        "prompt_kind": kind,
        "n_prompts": len(mine),
        "n_tokens": n_tokens,
        "seconds": seconds,
        "tokens_per_second": n_tokens / seconds,
        **_three("to_generate", ratio(by_arm[GENERATE], mine)),
        **_three("to_peer", to_peer),
        "to_baseline": ratio(by_arm[BASELINE], mine)[0],
        **_three("decode_to_baseline", decoding),
        "tokens_per_pass": n_tokens / sum(s.outcomes[0].n_passes for s in mine),
        "tokens_per_round": counts.tokens_per_round,
        "acceptance_rate": counts.acceptance_rate,
    }


def _three(name: str, values: list[float | None]) -> dict:
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def asked(rows: list[dict]) -> list[dict]:
    """What was asked for beside what was measured."""
    goals = []
    for row in rows:
        method, kind, k = row["method"], row["prompt_kind"], row["draft_length"]
        if method in PEER and kind == ("copy" if method == "ngram" else "all"):
            name = "baseline ÷ generate" if method == "baseline" else f"{method} k={k} ÷ {PEER[method]} k={k}"
            name += ", copy prompts" if method == "ngram" else ""
            values = [row["to_peer"], row["to_peer_low"], row["to_peer_high"]]
            where = "on copy prompts" if method == "ngram" else "end to end"
            goals.append(_goal(name, ASKED[method], values, where))
    for method in ("model", "ngram"):
        mine = [r for r in rows if r["method"] == method and r["prompt_kind"] == "all"]
        if mine:
            best = max(mine, key=lambda r: r["decode_to_baseline"])
            values = [best[f"decode_to_baseline{end}"] for end in ("", "_low", "_high")]
            tau = best["tokens_per_round"]
            where = (
                f"decoding alone, best k of {len(mine)}; asked {ASKED_SHARE:g} x {tau:.2f} tokens per round; "
                f"end to end {best['to_baseline']:.2f}x"
            )
            goals.append(_goal(f"{method} k={best['draft_length']} ÷ baseline", ASKED_SHARE * tau, values, where))
    return goals


def _goal(what: str, wanted: float, values: list[float | None], note: str) -> dict:
    measured, low, high = values
    met = measured >= wanted
    return {"what": what, "asked": wanted, "measured": measured, "low": low, "high": high, "met": met, "note": note}


def raw(sample: Sample) -> dict:
    return {
        "method": sample.arm.method,
        "draft_length": sample.arm.draft_length,
        "prompt_index": sample.prompt_index,
        "prompt_kind": sample.kind,
        "n_prompt": sample.n_prompt,
        "n_passes": sample.outcomes[0].n_passes,
        "seconds": [o.seconds for o in sample.outcomes],
        "decode_seconds": [o.decode_seconds for o in sample.outcomes],
    }


# --- views of it ------------------------------------------------------------------------------------------------------

LEGEND = (
    "÷: times as fast; tok/pass: new tokens per pass of the target (the library drafts already in the prompt's own "
    "pass, ours starts after it)"
)
COLUMNS = ["arm", "k", "tok/s", "÷ generate", "95 %", "÷ peer", "95 %", "tok/pass", "same text"]


def speed_table(run: dict, markdown: bool) -> str:
    agreed = {(t["method"], t["draft_length"]): f"{t['n_identical']} of {t['n']}" for t in run["texts"]}
    lines = [
        [
            row["method"],
            str(row["draft_length"] or "-"),
            f"{row['tokens_per_second']:.1f}",
            common.times(row["to_generate"]) if row["method"] != "generate" else "1.00x",
            common.interval(row["to_generate_low"], row["to_generate_high"]) if row["method"] != "generate" else "-",
            common.times(row["to_peer"]),
            common.interval(row["to_peer_low"], row["to_peer_high"]),
            f"{row['tokens_per_pass']:.2f}",
            agreed.get((row["method"], row["draft_length"]), "-"),
        ]
        for row in run["rows"]
        if row["prompt_kind"] == "all"
    ]
    return common.table(lines, COLUMNS, markdown)


def kinds_table(run: dict, markdown: bool) -> str | None:
    """Ours over its peer for each kind of prompt; None where there is one kind."""
    kinds = [k for k in dict.fromkeys(r["prompt_kind"] for r in run["rows"]) if k != "all"]
    if not kinds:
        return None
    found = {(r["method"], r["draft_length"], r["prompt_kind"]): r for r in run["rows"]}
    lines = []
    for method, k in dict.fromkeys((m, k) for m, k, _ in found if m in PEER):
        cells = [found[method, k, kind] for kind in kinds]
        both = [f"{common.times(c['to_peer'])} ({common.interval(c['to_peer_low'], c['to_peer_high'])})" for c in cells]
        lines.append([f"{method} ÷ {PEER[method]}", str(k or "-"), *both])
    return common.table(lines, ["ours ÷ peer", "k", *kinds], markdown)


def goals_table(goals: list[dict], markdown: bool) -> str:
    lines = []
    for goal in goals:
        verdict = "met" if goal["met"] else f"MISSED by {1 - goal['measured'] / goal['asked']:.0%}"
        if goal["low"] is None or goal["low"] < goal["asked"] <= goal["high"]:  # the interval covers what was asked
            verdict += ", not surely"
        asked_for = f"{goal['asked']:.2f}x"
        spread = common.interval(goal["low"], goal["high"])
        lines.append([goal["what"], asked_for, common.times(goal["measured"]), spread, verdict])
    return common.table(lines, ["what", "asked", "measured", "95 %", "verdict"], markdown)


def goal_words(run: dict) -> list[str]:
    """What the table of goals cannot say in a column."""
    words = ["asked: what this lab set itself before it measured; not surely: the interval covers what was asked"]
    words += [f"{g['what']}: {g['note']}" for g in run["asked"] if "best k" in g["note"]]
    if not any(r["prompt_kind"] == "copy" for r in run["rows"]):
        words.append("no copy prompts in this run, so prompt lookup was not held against what was asked")
    missed = [g["what"] for g in run["asked"] if not g["met"]]
    return [*words, f"missed: {len(missed)} of {len(run['asked'])}" + (f" ({'; '.join(missed)})" if missed else "")]


def text_words(run: dict) -> list[str]:
    """Agreement in words: the lab's arms, then the library's."""
    words = []
    for side, mine in (("ours", True), ("the library's", False)):
        entries = [t for t in run["texts"] if (t["method"] in PEER) == mine]
        n, same = sum(t["n"] for t in entries), sum(t["n_identical"] for t in entries)
        words.append(f"{side}: {same} of {n} texts are the baseline's, token for token")
        for entry in entries:
            for d in entry["differences"]:
                name = f"{entry['method']} k={entry['draft_length']}" if entry["draft_length"] else entry["method"]
                why = "a near-tie, rounding decides" if d["verdict"] == "near-tie" else "NOT explained by rounding"
                words.append(f"{name}, prompt {d['prompt']}: differs from token {d['position']} on, {why}")
    return words


def page(run: dict, markdown: bool) -> str:
    """Everything a reader gets, from the record alone."""
    settings, models = run["settings"], run["models"]
    size = (
        f"{settings['n_prompts']} prompts, {settings['max_new_tokens']} new tokens each, {settings['repeats']} x, "
        "greedy; seconds end to end, reading the prompt included"
    )
    blocks = ["# Against the library's own decoders", common.provenance(run)] if markdown else []
    blocks.append(common.sentences([*(f"{role}: {text}" for role, text in models.items()), size], markdown))
    blocks.append(common.heading("How fast", markdown))
    blocks.append(speed_table(run, markdown))
    arms = dict.fromkeys(r["method"] for r in run["rows"])
    blocks.append(common.sentences([f"{name}: {WHAT[name]}" for name in arms], markdown))
    blocks.append(common.sentences([LEGEND], markdown))
    by_kind = kinds_table(run, markdown)
    if by_kind:
        blocks += [common.heading("By kind of prompt: times as fast as the peer (95 %)", markdown), by_kind]
    blocks += [common.heading("Do the texts agree?", markdown), common.sentences(text_words(run), markdown)]
    blocks += [common.heading("Asked and measured", markdown), goals_table(run["asked"], markdown)]
    blocks.append(common.sentences(goal_words(run), markdown))
    if run["interrupted"]:
        blocks.append("Stopped before the end: only prompts that every arm had finished are counted.")
    return "\n\n".join(blocks) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    add_draft_flag(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="2,4,6", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=2, help="(default: %(default)s)")
    common.add_result_flags(parser)
    parser.set_defaults(limit=4, max_new_tokens=64)
    return parser


def models(setup: Setup, drafter: ModelDrafter, kind: str) -> dict[str, str]:
    draft = loading.describe_model(loading.short_name(kind), drafter.draft.model, "draft")
    return {"target": loading.describe_model(setup.target_name, setup.target.model), "draft": draft}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    lengths = numbers(args.draft_length, int, 1, "-k")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    common.check_result_flags(args, "peers")
    setup = flags.setup_from(args)
    drafter = common.model_drafter(args.draft, setup, args.seed, "the library's assistant must be a model")
    prompts = flags.read_prompts(args, setup.tokenizer)
    for prompt in prompts:
        for model in (setup.target, drafter.draft):
            check_prompt(model, prompt.ids, args.max_new_tokens)
    note(setup.describe())
    transformers_logging.set_verbosity_error()  # its advice on `generate` would break the progress bar

    bench = Bench(setup, {"model": drafter, "ngram": NgramDrafter()}, args.max_new_tokens)
    arms = arms_for(lengths)
    samples, interrupted = measure(bench, arms, prompts, args.repeats)
    settings = {
        "target": setup.target_name,
        "draft": loading.short_name(args.draft),
        "draft_lengths": lengths,
        "max_new_tokens": args.max_new_tokens,
        "repeats": args.repeats,
        "n_prompts": len({s.prompt_index for s in samples}),
        "prompts_sha256": record.fingerprint([p.text for p in prompts]),
    }
    rows = build_rows(samples)
    run = {
        **common.head("peers", args, setup, settings, interrupted),
        "models": models(setup, drafter, args.draft),
        "rows": rows,
        "texts": judged(bench, samples, prompts),
        "asked": asked(rows),
        "raw": [raw(s) for s in samples],
    }
    code = common.finish(args, run, SCHEMA, page)
    wrong = [t for t in run["texts"] if t["method"] in PEER and any(d["verdict"] == "BUG" for d in t["differences"])]
    return code or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
