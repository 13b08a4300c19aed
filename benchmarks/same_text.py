"""Does the text stay the same, and where are drafts wrong? Greedy texts, and the margins of the target's choices.

Every prompt is decoded in each dtype: by the baseline, by the speculative loop at several draft lengths, with a draft
that is right four times out of five, so that rounds end everywhere, and by the library. Where a text leaves the
baseline's, the first difference is judged by uncached passes in the run's dtype and in the next higher precision: a tie
within rounding, or a bug (`judge_divergence` in speclab/theory/losslessness.py).

With --draft, the float32 texts of the baseline are read once more: the margin of each token, which is the target's
highest logit minus its second one, and what the drafts would have proposed there. No clock is looked at.

    python -m benchmarks.same_text --limit 4                                             # the lab's target
    python -m benchmarks.same_text --limit 4 --draft model,ngram                         # and where these are wrong
    python -m benchmarks.same_text --target smollm2 --texts served --limit 1

Files: results/NAME-same-text.json and .md. Exit code 1 where a difference is a bug.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.core.drafter import Drafter
from speclab.core.sampling import GREEDY
from speclab.drafts import registry
from speclab.lab import harness
from speclab.lab.bench import Bench
from speclab.lab.harness import kept_when_stopped
from speclab.lab.output_checks import judge_greedy
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Lines, Table, number
from speclab.records.rows import BASELINE, GENERATE, Arm, Count, Facts, RecordPart
from speclab.system.errors import reports_problems
from speclab.theory.forecast import AcceptProbs

DRAFT = "dial:0.8:free"
DTYPES = ("float32", "bfloat16")
K = 4  # of the rounds that are replayed along the margins
EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # the lower ends of the groups of margins, in logits

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Group(RecordPart):
    """The places whose margin lies in one group, with what one draft does there.

    n_proposed, n_right: places where a draft that begins there proposes a token, and where it is the target's. n_ends:
    rounds that end with a rejection there.
    """

    low: float
    n_places: Count = 0
    n_proposed: Count = 0
    n_right: Count = 0
    n_ends: Count = 0


@dataclass(kw_only=True)
class Margins(RecordPart):
    """One draft along the texts."""

    draft: str
    n_tokens: Count = 0
    n_rounds: Count = 0
    groups: list[Group]


@dataclass(kw_only=True)
class SameTextRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.same_text`."""

    correctness: list[Facts]  # of speclab/lab/output_checks.py, one entry for every dtype and arm but the baseline
    margins: list[Margins] = field(default_factory=list)


# --- margins ----------------------------------------------------------------------------------------------------------


def count_margins(
    rows: dict[str, Margins], setup: Setup, drafters: dict[str, Drafter], prompt: Prompt, text: list[int]
) -> None:
    """Add what a replay of the rounds along a greedy text accepts, to the row of each draft."""
    target, before = setup.target, torch.tensor([text[:-1]], dtype=torch.long, device=setup.device)
    with torch.inference_mode():
        logits = target.family.logits_after(target.model, prompt.ids.to(setup.device), before)
    logits = logits[0, :, : target.vocab_size].float()  # (n, vocab)
    first, second = logits.topk(2).values.unbind(-1)
    margins = (first - second).tolist()
    for name, drafter in drafters.items():
        law = drafter.law(target, prompt.id_list, text, GREEDY, K)
        row = rows.setdefault(name, Margins(draft=name, groups=[Group(low=low) for low in EDGES]))
        count(row, margins, law.accept_probs(lambda: GREEDY.probs(logits).cpu(), text), K)


def count(row: Margins, margins: Sequence[float], accepted: AcceptProbs, k: int) -> None:
    """Add one draft on one text to its row.

    margins: of all places, the first one included, whose token comes with the prompt. accepted: for each beginning of a
    round, whether its proposals are, 1 or 0.
    """
    places = [next(group for group in reversed(row.groups) if margin >= group.low) for margin in margins]
    for group, proposed in zip(places[1:], accepted[1:], strict=True):
        group.n_places += 1
        group.n_proposed += len(proposed[:1])
        group.n_right += sum(map(bool, proposed[:1]))
    start = 1
    while start < len(margins):
        drafted = accepted[start][: min(k, len(margins) - start - 1)]
        n_accepted = next((i for i, is_right in enumerate(drafted) if not is_right), len(drafted))
        if n_accepted < len(drafted):
            places[start + n_accepted].n_ends += 1
        start, row.n_rounds = start + n_accepted + 1, row.n_rounds + 1
    row.n_tokens += len(margins) - 1


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, lengths: list[int]) -> tuple[SameTextRun, BaseException | None]:
    checks, margins, fields = list[Facts](), dict[str, Margins](), dict[str, Any]()
    choices = registry.read_all(args.draft.split(",")) if args.draft else []
    registry.check_chains("the command", choices)
    arms = [BASELINE, GENERATE, *(Arm(DRAFT, DRAFT, k) for k in lengths)]
    about: dict[str, Any] = {"dtype": " and ".join(DTYPES), "draft": DRAFT, "draft_lengths": lengths}
    with kept_when_stopped(lambda: "what is measured is kept" if checks else "") as stops:
        for dtype in DTYPES:
            chosen = copy.copy(args)
            chosen.dtype = dtype
            setup, prompts = flags.load(chosen, temperature=0.0)
            fields = fields or common.head_of(args, setup, prompts, max_new_tokens=args.max_new_tokens, **about)
            drafters = registry.make_all(choices, setup, args.seed) if dtype == DTYPES[0] else {}
            registry.check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
            bench = Bench(setup, {DRAFT: registry.make(DRAFT, setup, args.seed)}, args.max_new_tokens, args.seed)
            measured = harness.measure(bench, arms, [0.0], prompts, 1, {}, title=dtype)
            checks += [{"dtype": dtype, **judge_greedy(measured, arm)} for arm in arms[1:]]
            for prompt in prompts if drafters else ():
                count_margins(margins, setup, drafters, prompt, bench.whole_text(prompt))
            if measured.stop:
                raise measured.stop
    run = SameTextRun(**fields | {"interrupted": bool(stops)}, correctness=checks, margins=list(margins.values()))
    return run, stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "A text is beside the baseline's of the same prompt and dtype, token for token. k is the draft length of the "
    "speculative loop; generate is the library's own greedy loop.",
    "A near-tie: in the higher precision both tokens lie within the tolerance of the highest logit, which "
    "rounding explains at this place. Everything else is called BUG.",
    "gap: how far the two tokens are apart in the higher precision, in logits.",
]
OF_MARGINS = [
    "margin: the target's highest logit minus its second one. places and ends are the shares of the text's places and "
    "of the rejections; α is the share of right tokens among the first ones that a draft proposes there.",
    f"tok/rnd is what a replay of the rounds gives, with k = {K}.",
]


def page(run: SameTextRun) -> list[Block]:
    def judged(check: Facts, verdict: str) -> str:
        return str(sum(one["verdict"] == verdict for one in check["differences"]))

    shares: dict[str, Cell] = {
        "dtype": lambda check: check["dtype"],
        "against the baseline": lambda check: check["arm"],
        "texts": lambda check: str(check["n_prompts"]),
        "identical": lambda check: str(check["n_prompts"] - len(check["differences"])),
        "near-ties": lambda check: judged(check, "near-tie"),
        "BUG": lambda check: judged(check, "BUG"),
    }
    each: dict[str, Cell] = {
        "dtype": lambda pair: pair[0]["dtype"],
        "against": lambda pair: pair[0]["arm"],
        "prompt": lambda pair: str(pair[1]["prompt"] + 1),
        "token": lambda pair: str(pair[1]["position"] + 1),
        "tokens": lambda pair: " / ".join(map(repr, pair[1]["tokens"])),
        "gap": lambda pair: number(pair[1]["gap"], 4),
        "verdict": lambda pair: pair[1]["verdict"],
    }
    found = [(check, one) for check in run.correctness for one in check["differences"]]
    about = f"target {run.settings['target']}, at most {run.settings['max_new_tokens']} tokens of each text"
    blocks = [*common.begin("Does the text stay the same?", run), about, Table(run.correctness, shares, n_words=2)]
    blocks += [Table(found, each, n_words=2) if found else "No text differs.", Lines(LEGEND)]
    return [*blocks, margin_table(run), Lines(OF_MARGINS)] if run.margins else blocks


def margin_table(run: SameTextRun) -> Table:

    def share(part: int, whole: int) -> str:
        return number(part / whole if whole else None)

    cells: dict[str, Cell] = {
        "draft": lambda pair: pair[0].draft,
        "margin": lambda pair: f"from {pair[1].low:g}",
        "places": lambda pair: share(pair[1].n_places, pair[0].n_tokens),
        "α": lambda pair: share(pair[1].n_right, pair[1].n_proposed),
        "ends": lambda pair: share(pair[1].n_ends, sum(group.n_ends for group in pair[0].groups)),
        "tok/rnd": lambda pair: share(pair[0].n_tokens, pair[0].n_rounds) if pair[1].low == 0 else "",
    }
    return Table([(row, group) for row in run.margins for group in row.groups], cells, n_words=2)


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="1,4,8", metavar="K,K", help="(default: %(default)s)")
    flags.add_draft_flag(group, "", "whose margins are looked at, for example model,ngram")
    common.add_result_flags(parser, "same-text")
    parser.set_defaults(limit=10, max_new_tokens=192)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    lengths = parsing.numbers(args.draft_length, int, 1, "-k")
    common.check_result_flags(args)
    run, stop = measure(args, lengths)
    code = common.finish(args, run, page, stop)
    return code or int(not all(check["passed"] for check in run.correctness))


if __name__ == "__main__":
    sys.exit(main())
