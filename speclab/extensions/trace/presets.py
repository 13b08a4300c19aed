"""The costs of a round that a page's dials start from, in decode steps of the target: those of records, or of this run.

A preset is plain JSON. `draft`, by draft, `pass` and `rest` have an entry for each of 0 to LONGEST drafted tokens: what
the whole draft costs, the target's pass over one token more, and everything else in a round. Beyond the lengths that
were measured the curves go on in a straight line (speclab/theory/costs.py).
"""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round
from speclab.extensions.trace.proposals import LONGEST
from speclab.lab.instruments import LoopFunctions
from speclab.lab.round_costs import timed_rounds
from speclab.models.cached import CachedModel
from speclab.records.files import ComparisonRun, read
from speclab.records.rows import AUTO
from speclab.system.paths import ROOT
from speclab.theory.costs import Costs

CONTEXT = 200  # tokens before the round: about the middle of a text of 96 tokens after a standard prompt
LENGTHS = range(LONGEST + 1)
RESULTS = ROOT / "results"
RECORDS = {  # the comparisons whose costs are presets
    "cpu-2-cores-default": "the lab's pair",
    "cpu-2-cores-200m-trees": "a target of 200 million weights",
    "gpu-lab-8b-v128256": "a target of 8 billion weights",
}
LIKE = {"block": "block, one pass", "ngram": "lookup", "suffix": "lookup"}  # where a preset has no costs of its own
NO_BLOCK = "No record has the block head's cost: one pass of the feature head is assumed, whatever its length."
NO_OTHER = "Any other draft is taken to cost what the draft model costs."


def preset(name: str, about: str, costs: Mapping[str, Costs], context: float = CONTEXT) -> dict[str, Any]:
    """Return the preset of one run. costs: by draft, of the same target on the same machine; at least one."""
    first = next(iter(costs.values()))
    step = first.step_seconds(context)
    drafts = {draft: [one.draft_seconds(n, context) / step for n in LENGTHS] for draft, one in costs.items()}
    if "feature" in drafts:
        drafts[LIKE["block"]] = [drafts["feature"][min(n, 1)] for n in LENGTHS]
    idle = min(one.draft_idle for one in costs.values()) / step
    return _rounded(
        name,
        about,
        step,
        {"lookup": [idle] * len(LENGTHS)} | drafts,
        [first.verify_cost(n + 1, context) for n in LENGTHS],
        [first.overhead(n, context) for n in LENGTHS],
    )


def _rounded(
    name: str, about: str, step: float | None, draft: dict[str, list[float]], pass_: list[float], rest: list[float]
) -> dict[str, Any]:
    def short(numbers: Iterable[float]) -> list[float]:
        return [float(f"{number:.4g}") for number in numbers]

    return {
        "name": name,
        "about": about,
        "step_ms": None if step is None else float(f"{1000 * step:.4g}"),
        "draft": {draft_name: short(numbers) for draft_name, numbers in draft.items()},
        "pass": short(pass_),
        "rest": short(rest),
        "like": LIKE,
    }


def greedy_costs(run: ComparisonRun) -> dict[str, Costs]:
    """Return the costs of a comparison's greedy rounds by draft; those of a hybrid's lookup as "hybrid, lookup"."""
    return {one["drafter"]: Costs.from_json(one["costs"]) for one in run.costs if one["temperature"] == 0}


def committed() -> list[dict[str, Any]]:
    """Return the presets of the lab's own page: records of two processors and of a GPU, and one that is assumed."""
    found = []
    for stem, what in RECORDS.items():
        run = read(RESULTS / f"{stem}.json", ComparisonRun)
        where = run.machine["gpu"] or f"{run.machine['cpu'].split('(')[0].split(' EPYC')[0]}, 2 cores"
        costs = {name: one for name, one in greedy_costs(run).items() if "," not in name and not name.endswith(AUTO)}
        about = f"Measured: results/{stem}.json. {NO_BLOCK if 'feature' in costs else NO_OTHER}"
        found.append(preset(f"{where}, {what}", about, costs))
    return [*found, nearly_free()]


def nearly_free() -> dict[str, Any]:
    """Return assumed costs, as a GPU has them with one text: a wider pass takes hardly longer."""
    model = [0.1 * n for n in LENGTHS]
    feature, one_pass = [0.04 * n for n in LENGTHS], [0.05 * min(n, 1) for n in LENGTHS]
    return _rounded(
        "width nearly free, as on a GPU (assumed)",
        "Assumed, not measured: a token more in the pass costs 0.005 steps, a token of the draft model 0.1, of the "
        f"feature head 0.04, a block 0.05, the rest of a round 0.03. {NO_OTHER}",
        None,
        {"lookup": [0.0] * len(LENGTHS), "model": model, "feature": feature, LIKE["block"]: one_pass},
        [1 + 0.005 * n for n in LENGTHS],
        [0.03] * len(LENGTHS),
    )


# --- of this run ------------------------------------------------------------------------------------------------------


def measured(
    functions: LoopFunctions,
    target: CachedModel,
    drafters: Mapping[str, Drafter],
    prompt: Tensor,
    settings: DecodeSettings,
    step: float,
) -> dict[str, Any]:
    """Time a few rounds of every length with each drafter.

    prompt: (1, prompt length). step: the seconds of a decode step.
    """
    costs = {
        name: costs_of(timed_rounds(functions, target, drafter, [prompt], settings), step)
        for name, drafter in drafters.items()
    }
    about = "A few rounds of each length were timed in this run: a picture, no measurement."
    return preset("this run", about, costs, prompt.shape[1])


def costs_of(timed: Iterable[tuple[Round, bool]], step: float) -> Costs:
    """Return the median seconds of rounds by length.

    timed: each round, and whether the drafter itself drafted in it.
    """
    draft: dict[int, list[float]] = {}
    verify: dict[int, list[float]] = {}
    rest = []
    for round_, own in timed:
        seconds = dict(round_.seconds or {})
        if own:
            draft.setdefault(round_.n_drafted, []).append(seconds.pop("draft"))
        verify.setdefault(round_.n_drafted + 1, []).append(seconds.pop("verify"))
        rest.append(sum(s for phase, s in seconds.items() if phase not in ("draft", "prefill")))
    by_width, by_length = ({n: median(s) for n, s in sorted(one.items())} for one in (verify, draft))
    idle = by_length.pop(0, 0.0)
    return Costs(step, 0, by_width, 0, idle, by_length or {1: 0.0}, 0, 0, median(rest), 0, 0, 0)
