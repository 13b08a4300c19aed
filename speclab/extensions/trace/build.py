"""Make the lab's page with dials again: docs/index.html.

    python -m speclab.extensions.trace.build

The lab's own pair and SmolLM2 decode one text of each kind. No clock runs: rounds get the seconds that the calibrated
costs of a committed record give them, so that the page comes out the same wherever the tokens are the same.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import itertools
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from optimized_speculative import speculative_decode
from speclab.cli import parsing
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.lengths import RoundCosts
from speclab.extensions.trace import page, presets
from speclab.extensions.trace.follow import Loaded, follow
from speclab.extensions.trace.presets import LENGTHS, RESULTS
from speclab.extensions.trace.proposals import PieceTable, asked
from speclab.extensions.trace.trace import Trace
from speclab.lab.instruments import LoopFunctions
from speclab.models import loading, prompts
from speclab.models.pieces import pieces
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup, load_setup
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from speclab.system.errors import reports_problems
from speclab.system.files import write_whole
from speclab.system.paths import ROOT
from speclab.system.terminal import note
from speclab.theory.costs import Costs

PAGE = ROOT / "docs" / "index.html"
LANES_RECORD = "cpu-2-cores-200m-trees"
N_POSITIONS = 96  # tokens of a text
DRAFTS = {loading.LAB_TARGET: ("model", "feature", "block", "ngram", "suffix"), "smollm2": ("ngram", "suffix")}
LANES = {"chain": "feature", "hybrid": "hybrid", "tree": "tree:best:feature"}  # name -> draft, as the record has it
SAMPLED_DRAFT, DRAFT_LENGTH, TEMPERATURE = "model", 4, 0.8


def page_data() -> dict[str, Any]:
    """Return the data of the lab's page. It takes some minutes."""
    lab = load_setup(loading.LAB_TARGET, engine="eager")
    standard = first_of_each_kind(prompts.encode(prompts.standard(), lab.tokenizer))
    targets = [dialled(lab, standard, DRAFTS[loading.LAB_TARGET], "the lab's pair")]
    real = load_setup("smollm2", engine="eager")
    served = first_of_each_kind(prompts.encode(prompts.read_texts("served"), real.tokenizer, chat=True))
    targets.append(dialled(real, served, DRAFTS["smollm2"], "SmolLM2-135M-Instruct"))
    at_temperature = DecodeSettings(N_POSITIONS, Sampling(TEMPERATURE), lab.eos)
    return {
        "own": False,
        "targets": targets,
        "presets": presets.committed(),
        "lanes": [lanes(lab, prompt) for prompt in standard],
        "sampled": [page.sampled(decoded(lab, standard[0], SAMPLED_DRAFT, DRAFT_LENGTH, at_temperature))],
        "notes": [],
    }


def first_of_each_kind(given: Iterable[Prompt]) -> list[Prompt]:
    """Return the first prompt of each kind, in the order in which the kinds come first."""
    found: dict[str, Prompt] = {}
    for prompt in given:
        found.setdefault(prompt.kind, prompt)
    return list(found.values())


def dialled(setup: Setup, given: Iterable[Prompt], drafts: Iterable[str], name: str) -> dict[str, Any]:
    """Return a target with its texts, and what its drafts would propose after every token of them."""
    drafters = {draft: registry.make(draft, setup) for draft in drafts}
    table, shown = PieceTable(), []
    settings = DecodeSettings(N_POSITIONS, eos=setup.eos)
    for prompt in given:
        note(f"{name}: {prompt.kind}")
        found = asked(setup.target, drafters, prompt.ids, settings)
        made = pieces(setup.tokenizer, prompt.id_list, special=True)
        text = table.text(found, made)
        shown.append({"kind": prompt.kind, "prompt": page.shown_prompt(prompt.text), **text})
    return {"name": name, "texts": shown, "pictures": table.pictures}


def lanes(setup: Setup, prompt: Prompt) -> dict[str, Any]:
    """Return the lanes of a text, on the clock of a record: each draft at the length at which it is fastest there."""
    run = read(RESULTS / f"{LANES_RECORD}.json", ComparisonRun)
    costs = presets.greedy_costs(run)
    found = {}
    for name, draft in LANES.items():
        rows = [row for row in run.rows if row.draft == draft and row.draft_length]
        length = max(rows, key=lambda row: row.speedup).draft_length
        trace = decoded(setup, prompt, draft, length, DecodeSettings(N_POSITIONS, eos=setup.eos), costs[draft])
        looked_up = costs.get(f"{draft}, lookup", costs[draft])
        found[f"{name}: {draft}, k = {length}"] = priced(trace, costs[draft], prompt.ids.shape[1], looked_up)
    about = (
        f"The lab's pair decodes. The seconds are the calibrated costs of results/{LANES_RECORD}.json, where its "
        "target is padded to 200 million weights; each draft has the length that was fastest there."
    )
    return page.laid(prompt.text, found, about, prompt.kind)


def decoded(
    setup: Setup, prompt: Prompt, draft: str, draft_length: int, settings: DecodeSettings, costs: Costs | None = None
) -> Trace:
    """Return a prompt decoded by both loops. costs: for a draft that chooses by them."""
    drafter = registry.make(draft, setup)
    if drafter.costs is not None and costs:
        rest = [costs.verify_seconds(n + 1, presets.CONTEXT) + costs.overhead_seconds(n) for n in LENGTHS]
        of_drafts = [costs.draft_seconds(n, presets.CONTEXT) for n in LENGTHS]
        drafter.costs[settings.sampling.temperature] = RoundCosts(tuple(of_drafts), tuple(rest))
    drafter.forget()
    return follow(Loaded(setup, drafter, draft, prompt, draft_length, settings, LoopFunctions(speculative_decode)))


def priced(trace: Trace, costs: Costs, n_prompt: int, looked_up: Costs) -> Trace:
    """Return the trace with the seconds that `costs` give to each of its rounds, and to each step of the baseline.

    looked_up: the costs of rounds in which a hybrid's lookup drafted.
    """
    events, end = [trace.events[0]], 0.0
    for before, event in itertools.pairwise(trace.events):
        own, n, context = looked_up if event.looked_up else costs, len(event.drafts), n_prompt + before.n_tokens
        drafting, passing = own.draft_seconds(n, context), own.verify_seconds(n + 1, context)
        seconds = {"draft": drafting, "verify": passing, "other": own.overhead_seconds(n)}
        end += sum(seconds.values())
        events.append(replace(event, seconds=seconds, end=end))
    steps = [costs.step_seconds(n_prompt + i) for i in range(1, len(trace.baseline))]
    ends = [0.0, *itertools.accumulate(steps)]
    baseline = [(text, at) for (text, _), at in zip(trace.baseline, ends, strict=True)]
    return replace(trace, events=events, baseline=baseline)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parsing.make_parser(__doc__ or "", "python -m speclab.extensions.trace.build").parse_args(argv)
    write_whole(PAGE, page.render(page_data()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
