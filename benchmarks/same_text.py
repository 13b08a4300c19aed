"""Does the text stay the same? Greedy texts of every way to decode.

Every prompt is decoded in each dtype: by the baseline, by the speculative loop at several draft lengths, with a draft
that is right four times out of five, so that rounds end everywhere, and by the library. Where a text leaves the
baseline's, the first difference is judged by uncached passes in the run's dtype and in the next higher precision: a tie
within rounding, or a bug (`judge_divergence` in speclab/theory/losslessness.py). No clock is looked at.

    python -m benchmarks.same_text --limit 4                                             # the lab's target
    python -m benchmarks.same_text --target smollm2 --texts served --limit 1

Files: results/NAME-same-text.json and .md. Exit code 1 where a difference is a bug.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.lab import harness
from speclab.lab.bench import Bench
from speclab.lab.harness import kept_when_stopped
from speclab.lab.output_checks import judge_greedy
from speclab.present.tables import Block, Cell, Lines, Table, number
from speclab.records.rows import BASELINE, GENERATE, Arm, Facts
from speclab.system.errors import reports_problems

DRAFT = "dial:0.8:free"
DTYPES = ("float32", "bfloat16")

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class SameTextRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.same_text`."""

    correctness: list[Facts]  # of speclab/lab/output_checks.py, one entry for every dtype and arm but the baseline


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, lengths: list[int]) -> tuple[SameTextRun, BaseException | None]:
    checks, fields = list[Facts](), dict[str, Any]()
    arms = [BASELINE, GENERATE, *(Arm(DRAFT, DRAFT, k) for k in lengths)]
    about: dict[str, Any] = {"dtype": " and ".join(DTYPES), "draft": DRAFT, "draft_lengths": lengths}
    with kept_when_stopped(lambda: "what is measured is kept" if checks else "") as stops:
        for dtype in DTYPES:
            chosen = copy.copy(args)
            chosen.dtype = dtype
            setup, prompts = flags.load(chosen, temperature=0.0)
            fields = fields or common.head_of(args, setup, prompts, max_new_tokens=args.max_new_tokens, **about)
            registry.check_prompts(setup.target, [], prompts, args.max_new_tokens)
            bench = Bench(setup, {DRAFT: registry.make(DRAFT, setup, args.seed)}, args.max_new_tokens, args.seed)
            measured = harness.measure(bench, arms, [0.0], prompts, 1, {}, title=dtype)
            checks += [{"dtype": dtype, **judge_greedy(measured, arm)} for arm in arms[1:]]
            if measured.stop:
                raise measured.stop
    run = SameTextRun(**fields | {"interrupted": bool(stops)}, correctness=checks)
    return run, stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "A text is beside the baseline's of the same prompt and dtype, token for token. k is the draft length of the "
    "speculative loop; generate is the library's own greedy loop.",
    "A near-tie: in the higher precision both tokens lie within the tolerance of the highest logit, which "
    "rounding explains at this place. Everything else is called BUG.",
    "gap: how far the two tokens are apart in the higher precision, in logits.",
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
    return [*blocks, Table(found, each, n_words=2) if found else "No text differs.", Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="1,4,8", metavar="K,K", help="(default: %(default)s)")
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
