"""Is a greedy text the same in bfloat16 and in float32? Where do two texts part, and by which margin?

The reference is the library's own greedy text in float32. In both dtypes the baseline's text is held against it, and
against the baseline's those of the library and of the speculative loop at several draft lengths, with a draft that is
right four times out of five, so that rounds end everywhere. Where two texts part, the first difference has a margin,
the highest logit minus the second one, and a verdict: a near-tie, which rounding explains at this place, or a bug
(`judge_divergence` in speclab/theory/losslessness.py). The margins of all places of the reference are counted, and with
--draft how often a draft is right there. No clock is looked at.

    python -m benchmarks.same_text                             # the lab's target, two or three minutes
    python -m benchmarks.same_text --quick --draft feature,ngram
    python -m benchmarks.same_text --target smollm2 --texts served --limit 1

Files: results/NAME-same-text.json and .md. Exit code 1 where a difference is a bug.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys
from dataclasses import dataclass, field

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.core.sampling import GREEDY
from speclab.drafts import registry
from speclab.lab.bench import Bench
from speclab.lab.harness import take_turns
from speclab.lab.known_texts import probs_along
from speclab.models.checks import Reference
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Lines, Table, number
from speclab.records import files
from speclab.records.rows import BASELINE, GENERATE, Amount, Arm, Count, Facts, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import progress
from speclab.theory.losslessness import APART, judge_divergence

DRAFT = "dial:0.8:free"
DTYPES = ("float32", "bfloat16")
REFERENCE = (DTYPES[0], GENERATE.label)
EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # the lower ends of the groups of margins, in logits
USUAL = {"limit": 4, "max_new_tokens": 192, "draft_length": "1,4,8"}
QUICK = {"limit": 1, "max_new_tokens": 48, "draft_length": "1,4"}

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Difference(RecordPart):
    """The first place where two texts part. Logits are those of an uncached pass in float32."""

    prompt: Count  # its number, from 0
    position: Count  # tokens before it
    tokens: list[str]  # the other text's and this one's
    margin: Amount  # the highest logit minus the second one
    tolerance: Amount  # below the highest logit, as far as rounding explains
    verdict: str  # near-tie or BUG


@dataclass(kw_only=True)
class Compared(RecordPart):
    """All texts of one way of decoding, beside the baseline's of the same dtype; and the baseline's beside the
    reference's."""

    dtype: str
    arm: str
    n_texts: Count
    n_as_reference: Count = 0  # texts that are the reference's, whatever they stand beside
    differences: list[Difference] = field(default_factory=list)


@dataclass(kw_only=True)
class Group(RecordPart):
    """The places of the reference's texts whose margin is `low` or more, below the next group's. By draft: at how many
    of them it proposes a token, and where that is the text's own."""

    low: float
    n_places: Count = 0
    n_proposed: dict[str, Count]
    n_right: dict[str, Count]


@dataclass(kw_only=True)
class SameTextRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.same_text`."""

    compared: list[Compared]
    margins: list[Group]


# --- measuring --------------------------------------------------------------------------------------------------------


def margins_of(setup: Setup, prompt: Prompt, text: list[int]) -> tuple[list[float], list[float]]:
    """Return the margin after the prompt and after each token of a text, and the tolerance there."""
    logits, deviations = setup.reference.with_deviations(prompt.id_list, text, setup.target.vocab_size)
    first, second = logits.topk(2).values.unbind(-1)
    return (first - second).tolist(), (APART * deviations).tolist()


def differences(setup: Setup, index: int, prompt: Prompt, other: list[int], text: list[int]) -> list[Difference]:
    """Return the first difference of a prompt's text from another one, or nothing."""
    found = judge_divergence(setup.reference, prompt.id_list, other, text, setup.target.vocab_size)
    if found is None:
        return []
    same, pair = other[: found.position], (found.baseline_token, found.speculative_token)
    margin, tolerance = (each[-1] for each in margins_of(setup, prompt, same))
    tokens = [setup.token_text(prompt, same, token) if token >= 0 else "" for token in pair]
    about: Facts = {"prompt": index, "position": found.position, "tokens": tokens, "margin": margin}
    return [Difference(**about, tolerance=tolerance, verdict="near-tie" if found.numerical else "BUG")]


def count_margins(groups: list[Group], bench: Bench, prompt: Prompt, text: list[int]) -> None:
    """Add the places of a text of the reference. The first token comes with the prompt's own pass and is left out."""
    margins, _ = margins_of(bench.setup, prompt, text[:-1])
    rows = {draft: probs_along(bench, 1, draft, GREEDY, prompt, text) for draft in groups[0].n_right}
    for place, margin in list(enumerate(margins))[1:]:
        group = next(group for group in reversed(groups) if margin >= group.low)
        group.n_places += 1
        for draft, row in rows.items():
            group.n_proposed[draft] += len(row[place][:1])
            group.n_right[draft] += sum(map(bool, row[place][:1]))


def measure(args: argparse.Namespace, lengths: list[int]) -> SameTextRun:
    choices = registry.read_all(args.draft.split(",")) if args.draft else []
    registry.check_chains("the command", choices)
    in_dtype = [argparse.Namespace(**vars(args) | {"dtype": dtype}) for dtype in DTYPES]
    exact, prompts = flags.load(in_dtype[0], temperature=0.0)
    setups = {DTYPES[0]: exact, DTYPES[1]: flags.setup_from(in_dtype[1], exact.sampling, exact.tokenizer)}
    drafts = {choice.name: choice.make(exact, args.seed) for choice in choices}
    registry.check_prompts(exact.target, drafts.values(), prompts, args.max_new_tokens)
    benches = dict[str, Bench]()
    for dtype, setup in setups.items():
        setup.reference = Reference(setup.target.model, exact.target.model)
        own = {DRAFT: registry.make(DRAFT, setup, args.seed)} | (drafts if setup is exact else {})
        benches[dtype] = Bench(setup, own, args.max_new_tokens, args.seed)
    arms = {BASELINE.label: BASELINE, GENERATE.label: GENERATE} | {f"k = {k}": Arm(DRAFT, DRAFT, k) for k in lengths}
    n, ways = len(prompts), [(dtype, name) for dtype in DTYPES for name in arms]
    rows = {way: Compared(dtype=way[0], arm=way[1], n_texts=n) for way in ways if way != REFERENCE}
    groups = [Group(low=low, n_proposed=dict.fromkeys(drafts, 0), n_right=dict.fromkeys(drafts, 0)) for low in EDGES]
    with progress(n, "prompt", "texts") as bar:
        for index, prompt in enumerate(prompts):
            work = {way: benches[way[0]].decoding(arms[way[1]], GREEDY, prompt) for way in ways}
            take_turns(list(work.values()))
            texts = {way: decoding.tokens for way, decoding in work.items()}
            for (dtype, name), row in rows.items():
                other = texts[REFERENCE if name == BASELINE.label else (dtype, BASELINE.label)]
                row.differences += differences(setups[dtype], index, prompt, other, texts[dtype, name])
                row.n_as_reference += texts[dtype, name] == texts[REFERENCE]
            count_margins(groups, benches[DTYPES[0]], prompt, texts[REFERENCE])
            bar.update()
    about = files.prompt_settings([prompt.text for prompt in prompts]) | {"dtype": " and ".join(DTYPES), "draft": DRAFT}
    about |= {"engine": " and ".join(dict.fromkeys(setup.engine for setup in setups.values()))}
    about |= {"draft_lengths": lengths, "max_new_tokens": args.max_new_tokens}
    return SameTextRun(**common.head_of(args, exact, **about), compared=list(rows.values()), margins=groups)


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "The reference is the library's own greedy text in float32. The baseline's texts stand beside it, token for token, "
    "and all others beside the baseline's of their dtype. baseline: the lab's plain decoding. generate: the library's "
    "own greedy loop. k: the draft length of the speculative loop.",
    "margin: the highest logit minus the second one, in an uncached pass in float32. At a near-tie both tokens lie "
    "within the tolerance of the highest logit, which rounding explains at this place. All else is called BUG.",
    "places: their share in the reference's texts. Of a draft: the share of right tokens of those it proposes there.",
]


def share(part: int, whole: int) -> str:
    return number(part / whole if whole else None)


def page(run: SameTextRun) -> list[Block]:
    n_places, drafts = sum(group.n_places for group in run.margins), run.margins[0].n_right
    texts: dict[str, Cell] = {
        "dtype": lambda row: row.dtype,
        "text of": lambda row: row.arm,
        "beside": lambda row: "reference" if row.arm == BASELINE.label else BASELINE.label,
        "texts": lambda row: str(row.n_texts),
        "identical": lambda row: str(row.n_texts - len(row.differences)),
        "near-ties": lambda row: str(sum(one.verdict != "BUG" for one in row.differences)),
        "BUG": lambda row: str(sum(one.verdict == "BUG" for one in row.differences)),
        "as the reference": lambda row: str(row.n_as_reference),
    }
    found = [(row, one) for row in run.compared for one in row.differences]
    each: dict[str, Cell] = {
        "dtype": lambda pair: pair[0].dtype,
        "text of": lambda pair: pair[0].arm,
        "prompt": lambda pair: str(pair[1].prompt + 1),
        "token": lambda pair: str(pair[1].position + 1),
        "tokens": lambda pair: " / ".join(map(repr, pair[1].tokens)),
        "margin": lambda pair: number(pair[1].margin, 4),
        "tolerance": lambda pair: number(pair[1].tolerance, 4),
        "verdict": lambda pair: pair[1].verdict,
    }
    places: dict[str, Cell] = {
        "margin": lambda group: f"from {group.low:g}",
        "places": lambda group: share(group.n_places, n_places),
    } | {name: lambda group, name=name: share(group.n_right[name], group.n_proposed[name]) for name in drafts}
    about = f"target {run.settings['target']}, {run.settings['max_new_tokens']} tokens of each text"
    blocks = [*common.begin("Does the text stay the same?", run), about, Table(run.compared, texts, n_words=3)]
    blocks += [Table(found, each, n_words=2) if found else "No text differs.", Table(run.margins, places)]
    return [*blocks, Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", metavar="K,K", help="(default: 1,4,8)")
    flags.add_draft_flag(group, None, "also look where these are wrong, for example feature,ngram")
    group.add_argument("--quick", action="store_true", help="a prompt of a kind, 48 tokens, k = 1, 4")
    common.add_result_flags(parser, "same-text")
    parser.set_defaults(max_new_tokens=None)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    args = flags.with_defaults(args, QUICK if args.quick else USUAL)
    if args.dtype != "auto":
        raise UsageProblem(f"texts are compared in {' and '.join(DTYPES)}; leave out --dtype")
    lengths = parsing.numbers(args.draft_length, int, 1, "-k")
    output = common.check_result_flags(args)
    run = measure(args, lengths)
    common.finish(output, run, page)
    return int(any(one.verdict == "BUG" for row in run.compared for one in row.differences))


if __name__ == "__main__":
    sys.exit(main())
