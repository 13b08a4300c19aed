"""What two real vLLM servers said of six prompts, and exercise 17 on it. No vLLM is needed.

    python -m exercises.transcript                        # your exercises/ex17_serving.py on it
    python -m exercises.transcript --impl solutions

What comes out: the servers' counts of every prompt beside the lab's rounds, then a prediction of the time per token and
what was measured. The numbers were recorded once, on a machine that other programs used, too: the counts are exact, the
times are examples. `load` reads the file.
"""

import contextlib
import importlib
import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from exercises import Todo
from exercises.guard import PACKAGES, SECONDS, NeverEnds, at_most, in_one_line
from speclab.cli import parsing
from speclab.system.errors import EnvironmentProblem, Problem, reports_problems
from speclab.system.files import ROOT, shown
from speclab.system.terminal import say

PATH = ROOT / "exercises" / "serving_transcript.json"
LATENCY = "vllm:inter_token_latency_seconds"
LEFT_OUT = ("engine", "model_name")  # labels that say whose a value is, not what it counts


class Asked(NamedTuple):
    """One prompt, the text that both servers and the lab have given, and the lab's rounds of it."""

    kind: str
    ids: list[int]
    text: list[int]
    own_rounds: list[tuple[int, int]]  # (drafted, accepted) of each that began before the text's end


class Side(NamedTuple):
    """One server. pages: before the first prompt and after each; of the plain server the first and the last one."""

    pages: list[str]
    streams: list[list[tuple[float, int]]]  # of every prompt (seconds since the request, tokens) of each chunk


class Transcript(NamedTuple):
    """All of it. costs: of the lab's own rounds, in its plain tokens: draft, verify, overhead."""

    k: int
    prompts: list[Asked]
    costs: dict[str, float]
    plain: Side
    speculative: Side


def load() -> Transcript:
    """Read the file. EnvironmentProblem where it is not what was recorded."""
    try:
        found = json.loads(PATH.read_text("utf-8"))
        prompts = [
            Asked(one["kind"], one["ids"], one["text"], [(drafted, kept) for drafted, kept in one["own_rounds"]])
            for one in found["prompts"]
        ]
        plain, speculative = (_side(found[name]) for name in ("plain", "speculative"))
        return Transcript(found["draft_length"], prompts, found["own"]["costs"], plain, speculative)
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        restore = shlex.join(["git", "checkout", "--", shown(PATH)])
        raise EnvironmentProblem(f"{shown(PATH)} is no transcript: {reason}; type: {restore}") from None


def _side(found: dict) -> Side:
    pages = ["\n".join(lines) + "\n" for lines in found["pages"]]
    return Side(pages, [[(seconds, n) for seconds, n in chunks] for chunks in found["streams"]])


def read_counters(page: str) -> dict[str, float]:
    """What a /metrics page has counted.  -> series and value, the sum over all engines behind the page

    A line `# TYPE name kind` says what the lines after it are. Those of a counter or of a histogram count; a gauge goes
    up and down, and is left out. A series is called as on the page, without the labels of LEFT_OUT.
    """
    found: dict[str, float] = {}
    counts = False
    for line in page.split("\n"):
        if line.startswith("# TYPE "):
            counts = line.split()[-1] in ("counter", "histogram")
        if not counts or not line or line.startswith("#"):
            continue
        series, number = line.rsplit(maxsplit=1)  # a label's value may have blanks, too
        labels = [label for label in re.findall(r'\w+="[^"]*"', series) if label.partition("=")[0] not in LEFT_OUT]
        name = series.partition("{")[0] + ("{" + ",".join(labels) + "}" if labels else "")
        found[name] = found.get(name, 0.0) + float(number)
    return found


class Times(NamedTuple):
    """Seconds per token, of all prompts together."""

    plain: float  # measured at the stream of the server without speculation
    expected: float  # from that, the lab's costs, and the tokens of a round
    measured: float  # at the stream of the speculative server
    page: float  # what the speculative server's own page calls inter-token latency


def prompt_by_prompt(learner: ModuleType, record: Transcript) -> list[dict[str, float]]:
    """What the speculative server counted of each prompt."""
    looks = map(read_counters, record.speculative.pages)
    return [learner.between(before, after) for before, after in itertools.pairwise(looks)]


def counted(learner: ModuleType, record: Transcript) -> dict[str, float]:
    """What it counted of all prompts."""
    first, *_, last = record.speculative.pages
    return learner.between(read_counters(first), read_counters(last))


def tokens_of_a_round(learner: ModuleType, record: Transcript) -> float:
    """Tokens of the texts for each round. The counters say more: they count what was kept behind a text's end, too."""
    return sum(len(asked.text) - 1 for asked in record.prompts) / counted(learner, record)[learner.DRAFTS]


def times(learner: ModuleType, record: Transcript) -> Times:
    """Predict, measure, and look at what the server itself says."""
    counts, costs = counted(learner, record), record.costs
    plain, measured = (_per_token(learner, side) for side in (record.plain, record.speculative))
    steps = record.k * costs["draft"] + costs["verify"] + costs["overhead"]  # of a round: chapter 5
    expected = plain * steps / tokens_of_a_round(learner, record)
    return Times(plain, expected, measured, counts[f"{LATENCY}_sum"] / counts[f"{LATENCY}_count"])


def _per_token(learner: ModuleType, side: Side) -> float:
    """The mean over prompts of equally many tokens."""
    found = [learner.from_stream(list(chunks))[1] for chunks in side.streams]
    return sum(found) / len(found)


def table(learner: ModuleType, record: Transcript) -> str:
    """What `main` prints."""
    lines = [f"{'prompt':<10}{'drafts':>8}{'drafted':>9}{'accepted':>10}{'α':>7}{'f':>6}  the lab's rounds"]
    for asked, counts in zip(record.prompts, prompt_by_prompt(learner, record), strict=True):
        numbers = [int(counts[name]) for name in (learner.DRAFTS, learner.DRAFTED, learner.ACCEPTED)]
        alpha, fraction, _ = learner.acceptance(counts, record.k)
        verdict = learner.reconcile(counts, list(asked.own_rounds), record.k)
        rate = "-" if alpha is None else f"{alpha:.2f}"
        counted_ = "{:>8}{:>9}{:>10}".format(*numbers)
        lines.append(f"{asked.kind:<10}{counted_}{rate:>7}{fraction:>6.2f}  {verdict}")
    found = times(learner, record)
    rows = {
        "plain server, from its stream": found.plain,
        "predicted with speculation": found.expected,
        "speculative server, from its stream": found.measured,
        "the same server, inter-token latency": found.page,
    }
    lines += ["", "milliseconds per token"]
    lines += [f"  {name:<38}{1e3 * seconds:8.2f}" for name, seconds in rows.items()]
    lines += ["tokens of a round"]
    by_counters = learner.acceptance(counted(learner, record), record.k)[2]
    for name, length in {"in the texts": tokens_of_a_round(learner, record), "by the counters": by_counters}.items():
        lines.append(f"  {name:<38}{length:8.2f}")
    return "\n".join(lines)


@contextlib.contextmanager
def guarded(number: int) -> Iterator[None]:
    """A learner's code for this exercise: what goes wrong in it is a line."""
    try:
        with at_most(SECONDS):
            yield
    except Todo as todo:
        raise Problem(f"still to be written: {todo}; type: python check.py {number}") from None
    except (Exception, NeverEnds) as error:
        raise Problem(f"{in_one_line(error)}; type: python check.py {number}") from None


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Print the table.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--impl", choices=PACKAGES, default="exercises", help="whose functions")
    args = parser.parse_args(argv)
    record = load()
    with guarded(17):
        text = table(importlib.import_module(f"{args.impl}.ex17_serving"), record)
    say(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
