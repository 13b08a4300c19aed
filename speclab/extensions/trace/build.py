"""Make the lab's page with dials again: docs/index.html.

    python -m speclab.extensions.trace.build

The lab's own pair and SmolLM2 decode one text of each kind. No clock runs: rounds get the seconds that the calibrated
costs of a committed record give them, so that the page comes out the same wherever the tokens are the same.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from speclab.cli import parsing
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.lengths import RoundCosts
from speclab.extensions.trace import page
from speclab.extensions.trace.follow import Loaded, follow
from speclab.extensions.trace.proposals import LONGEST, PieceTable, asked
from speclab.extensions.trace.trace import Trace
from speclab.lab.bench import SPECULATIVE
from speclab.models import loading, prompts
from speclab.models.pieces import Pieces
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup, load_setup
from speclab.records.files import ComparisonRun, read
from speclab.records.rows import AUTO
from speclab.system.errors import reports_problems
from speclab.system.files import ROOT, write_whole
from speclab.system.terminal import note
from speclab.theory.costs import Costs

PAGE, RESULTS = ROOT / "docs" / "index.html", ROOT / "results"
LANES_RECORD = "cpu-2-cores-c-200m"
N_POSITIONS = 96  # tokens of a text
DRAFTS = {loading.LAB_TARGET: ("model", "feature", "block", "ngram", "suffix"), "smollm2": ("ngram", "suffix")}
LANES = {"chain": "feature", "hybrid": "hybrid", "tree": "tree:best:feature"}  # name -> draft, as the record has it
SAMPLED_DRAFT, DRAFT_LENGTH, TEMPERATURE = "model", 4, 0.8
CONTEXT = 200  # tokens before a round: about the middle of a text of 96 tokens after a standard prompt
LENGTHS = range(LONGEST + 1)
RECORDS = {  # the comparisons whose costs the dials start from, and the part of each: what limits a step differs
    ("cpu-2-cores-c", "eager"): "the lab's pair on PyTorch, operation by operation",
    ("cpu-2-cores-c", None): "the lab's pair, whole passes in C",
    ("cpu-2-cores-c-200m", None): "a target of 200 million weights",
    ("gpu-lab-8b-v128256", None): "a target of 8 billion weights",
}
LIKE = {"block": "block, one pass", "ngram": "lookup", "suffix": "lookup"}  # where a preset has no costs of its own
NO_BLOCK = "No record has the block head's cost: one pass of the feature head is assumed, whatever its length."
NO_OTHER = "Any other draft is taken to cost what the draft model costs."


def page_data() -> dict[str, Any]:
    """Return the data of the lab's page. It takes some minutes."""
    lab = load_setup(loading.LAB_TARGET, engine="eager")
    standard = prompts.first_of_each_kind(prompts.encode(prompts.standard(), lab.tokenizer), 1)
    targets = [dialled(lab, standard, DRAFTS[loading.LAB_TARGET], "the lab's pair")]
    real = load_setup("smollm2", engine="eager")
    served = prompts.encode(prompts.read_texts("served"), real.tokenizer, chat=True)
    targets.append(dialled(real, prompts.first_of_each_kind(served, 1), DRAFTS["smollm2"], "SmolLM2-135M-Instruct"))
    at_temperature = DecodeSettings(N_POSITIONS, Sampling(TEMPERATURE), lab.eos)
    return {
        "own": False,
        "targets": targets,
        "presets": presets(),
        "lanes": [lanes(lab, prompt) for prompt in standard],
        "sampled": [page.sampled(decoded(lab, standard[0], SAMPLED_DRAFT, DRAFT_LENGTH, at_temperature))],
    }


def dialled(setup: Setup, given: Iterable[Prompt], drafts: Iterable[str], name: str) -> dict[str, Any]:
    """Return a target with its texts, and what its drafts would propose after every token of them."""
    drafters = {draft: registry.make(draft, setup) for draft in drafts}
    table, shown = PieceTable(), []
    settings = DecodeSettings(N_POSITIONS, eos=setup.eos)
    for prompt in given:
        note(f"{name}: {prompt.kind}")
        found = asked(setup.target, drafters, prompt.ids, settings)
        made = Pieces(setup.tokenizer, prompt.id_list, special=True)
        text = table.text(found, made)
        shown.append({"kind": prompt.kind, "prompt": page.shown_prompt(prompt.text), **text})
    return {"name": name, "texts": shown, "pictures": table.pictures}


def lanes(setup: Setup, prompt: Prompt) -> dict[str, Any]:
    """Return the lanes of a text, on the clock of a record: each draft at the length at which it is fastest there."""
    run = read(RESULTS / f"{LANES_RECORD}.json", ComparisonRun)
    costs = greedy_costs(run)
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
        rest = [costs.verify_seconds(n + 1, CONTEXT) + costs.overhead_seconds(n) for n in LENGTHS]
        of_drafts = [costs.draft_seconds(n, CONTEXT) for n in LENGTHS]
        drafter.costs[settings.sampling.temperature] = RoundCosts(tuple(of_drafts), tuple(rest))
    drafter.forget()
    return follow(Loaded(setup, [prompt], drafter, draft, draft_length, settings, SPECULATIVE))


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


# --- costs ------------------------------------------------------------------------------------------------------------


def greedy_costs(run: ComparisonRun) -> dict[str, Costs]:
    """Return the costs of a comparison's greedy rounds by draft; those of a hybrid's lookup as "hybrid, lookup"."""
    return {one["drafter"]: costs_of(one["costs"]) for one in run.costs if one["temperature"] == 0}


def costs_of(record: Mapping[str, Any]) -> Costs:
    """Return recorded costs. Older records have other entries, and the rest of a round in three parts."""
    known = {entry.name: record[entry.name] for entry in fields(Costs) if entry.name in record}
    if "accept_at" in record:
        known["rest_at"] = record["accept_at"] + record["rollback"] + record["host"]
        known["rest_each"] = record["accept_each"]
    return Costs(**known)


def presets() -> list[dict[str, Any]]:
    found = []
    for (stem, part), what in RECORDS.items():
        run = read(RESULTS / f"{stem}.json", ComparisonRun)
        run = getattr(run, part) if part else run
        where = run.machine["gpu"] or f"{run.machine['cpu'].split('(')[0].split(' EPYC')[0]}, 2 cores"
        costs = {name: one for name, one in greedy_costs(run).items() if "," not in name and not name.endswith(AUTO)}
        about = f"Measured: results/{stem}.json. {NO_BLOCK if 'feature' in costs else NO_OTHER}"
        made = preset(f"{where}, {what}", about, costs)
        found.append(made | {"machine": machine(made, run.weight_bytes or 0, run.bandwidth or 1.0)})
    return found


def machine(preset: Mapping[str, Any], weight_bytes: int, bandwidth: float) -> dict[str, float]:
    """Return the three parts of a decode step that the machine's dials turn, as shares of it, and the bandwidth.

    `compute` is what a further token of a pass adds on average, `read` the time in which memory gives the weights, at
    most what `compute` leaves, and `start` all else: mostly the starting of operations.
    """
    compute = max(0.0, (preset["pass"][-1] - preset["pass"][0]) / LONGEST)
    reading = min(1000 * weight_bytes / bandwidth / preset["step_ms"], 1 - compute)
    return {"read": reading, "compute": compute, "start": 1 - reading - compute, "bandwidth": bandwidth}


def preset(name: str, about: str, costs: Mapping[str, Costs]) -> dict[str, Any]:
    """Return the costs of a round in decode steps of the target, as plain JSON. costs: by draft, of the same target on
    the same machine; at least one.

    `draft`, by draft, `pass` and `rest` have an entry for each of 0 to LONGEST drafted tokens: what the whole draft
    costs, the target's pass over one token more, and everything else. Beyond the lengths that were measured the curves
    go on in a straight line (speclab/theory/costs.py).
    """

    def short(numbers: Iterable[float]) -> list[float]:
        return [float(f"{number:.4g}") for number in numbers]

    first = next(iter(costs.values()))
    step = first.step_seconds(CONTEXT)
    drafts = {draft: [one.draft_seconds(n, CONTEXT) / step for n in LENGTHS] for draft, one in costs.items()}
    if "feature" in drafts:
        drafts[LIKE["block"]] = [drafts["feature"][min(n, 1)] for n in LENGTHS]
    drafts = {"lookup": [min(one.draft_idle for one in costs.values()) / step] * len(LENGTHS)} | drafts
    return {
        "name": name,
        "about": about,
        "step_ms": float(f"{1000 * step:.4g}"),
        "draft": {draft: short(numbers) for draft, numbers in drafts.items()},
        "pass": short(first.verify_seconds(n + 1, CONTEXT) / step for n in LENGTHS),
        "rest": short(first.overhead_seconds(n) / step for n in LENGTHS),
        "like": LIKE,
    }


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parsing.make_parser(__doc__ or "", "python -m speclab.extensions.trace.build").parse_args(argv)
    write_whole(PAGE, page.render(page_data()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
