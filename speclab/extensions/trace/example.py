"""Make the example of the trace page again, and its animation: docs/example-trace.html and docs/trace.svg.

    python -m speclab.extensions.trace.example

The lab's own pair decodes one prompt. No clock runs: rounds and baseline get the seconds that the calibrated costs of
a committed record give them, so that both files come out the same wherever the tokens are the same.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import itertools
import sys
from dataclasses import replace

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.cli import parsing
from speclab.core.rounds import DecodeSettings
from speclab.drafts import registry
from speclab.extensions.trace import follow, trace_page, trace_svg
from speclab.extensions.trace.trace import Event, Trace
from speclab.lab.instruments import LoopFunctions
from speclab.models import loading, prompts
from speclab.models.setup import load_setup
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from speclab.system.errors import reports_problems
from speclab.system.files import do_all, write_whole
from speclab.system.paths import ROOT
from speclab.theory.costs import Costs

PAGE, ANIMATION = ROOT / "docs" / "example-trace.html", ROOT / "docs" / "trace.svg"
RECORD = ROOT / "results" / "cpu-2-cores.json"
PROMPT, DRAFT_LENGTH, N_TOKENS = "def read_config(path):", 4, 47


def decoded() -> tuple[Trace, int]:
    """The prompt decoded greedily by the lab's own pair on the eager engine.  -> trace, tokens of the prompt"""
    setup = load_setup(loading.LAB_TARGET, engine="eager")
    (prompt,) = prompts.encode([("prompt", PROMPT)], setup.tokenizer)
    settings = DecodeSettings(N_TOKENS, eos=setup.eos)
    loops = (autoregressive_decode, LoopFunctions(speculative_decode))
    trace = follow.follow(setup, registry.make("model", setup), "model", prompt, DRAFT_LENGTH, settings, *loops)
    return trace, prompt.ids.shape[1]


def priced(trace: Trace, costs: Costs, n_prompt: int) -> Trace:
    """The trace with the seconds that `costs` give to each of its rounds, and to each step of the baseline."""
    events, end = [trace.events[0]], 0.0
    for before, event in itertools.pairwise(trace.events):
        seconds = _seconds(event, costs, n_prompt + before.n_tokens)
        end += sum(seconds.values())
        events.append(replace(event, seconds=seconds, end=end))
    steps = [costs.step_seconds(n_prompt + i) for i in range(1, len(trace.baseline))]
    ends = [0.0, *itertools.accumulate(steps)]
    baseline = [(text, at) for (text, _), at in zip(trace.baseline, ends, strict=True)]
    remark = f"No clock ran: the times are the calibrated costs of results/{RECORD.name}."
    return replace(trace, events=events, baseline=baseline, remark=remark)


def _seconds(event: Event, costs: Costs, context: int) -> dict[str, float]:
    n = len(event.drafts)
    return {
        "draft": costs.draft_seconds(n, context),
        "verify": costs.verify_seconds(n + 1, context),
        "other": costs.overhead_seconds(n),
    }


def example() -> Trace:
    """The trace that both files show."""
    trace, n_prompt = decoded()
    entries = read(RECORD, ComparisonRun).costs
    entry = next(one for one in entries if (one["drafter"], one["temperature"]) == ("model", 0))
    return priced(trace, Costs.from_json(entry["costs"]), n_prompt)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    parsing.make_parser(__doc__ or "", "python -m speclab.extensions.trace.example").parse_args(argv)
    trace = example()
    pages = ((PAGE, trace_page.page(trace)), (ANIMATION, trace_svg.draw(trace)))
    return do_all([functools.partial(write_whole, path, text) for path, text in pages])


if __name__ == "__main__":
    sys.exit(main())
