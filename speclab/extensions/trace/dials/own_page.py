"""The data of a page of one decoding: its rounds on one clock, and dials for its text where it is greedy."""

from typing import Any

from speclab.core.drafter import Drafter
from speclab.drafts import registry
from speclab.extensions.trace.decoding import Loaded
from speclab.extensions.trace.dials import page, presets
from speclab.extensions.trace.dials.proposals import LONGEST, PieceTable, asked, on_dial
from speclab.extensions.trace.trace import Trace
from speclab.extensions.trace.trace_terminal import agreement, summary, times
from speclab.models.pieces import pieces
from speclab.present.run_lines import REJECTED_PLACES


def data(found: Loaded, trace: Trace, costs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the data for page.py. costs: a preset; None: a few rounds are timed.

    What was sampled has no dials, since another draft makes another text.
    """
    shown, own = of_trace(trace), dict(drafters(found))
    if trace.greedy and own and len(trace.baseline) > 1:
        shown["targets"] = [dialled(found, own)]
        shown["presets"] = [costs or timed(found, own, trace), presets.nearly_free()]
    return shown


def of_trace(trace: Trace) -> dict[str, Any]:
    """Return the data of a page without dials."""
    wrong = sum(token.against_rule for event in trace.events for token in event.drafts)
    against = f"Against the rule {wrong} drafted token{'s were' if wrong != 1 else ' was'} accepted or rejected."
    return {
        "own": True,
        "title": f"A decoding, round by round: {trace.settings['target']}",
        "lines": [
            page.settings_line(trace),
            summary(trace),
            f"{times(trace)} {agreement(trace)}",
            *[against] * bool(wrong),
        ],
        "targets": [],
        "presets": [],
        "lanes": [page.laid(trace.prompt, {trace.settings["draft"]: trace}, trace.remark)],
        "sampled": [] if trace.greedy or trace.has_trees else [page.sampled(trace)],
        "notes": [f"{REJECTED_PLACES[0].upper()}{REJECTED_PLACES[1:]}."] * trace.has_trees,
        "start": {"draft": trace.settings["draft"], "k": min(trace.settings["draft_length"], LONGEST)},
    }


def drafters(found: Loaded) -> list[tuple[str, Drafter]]:
    """Return the drafts that dials can turn: the chosen one, where its proposals follow from the text, and lookups."""
    own = [(found.name, found.drafter)] if on_dial(found.choice, found.drafter) else []
    if not found.setup.target.family.one_text:
        return own
    lookups = [name for name in registry.lookups() if name != found.name]
    return own + [(name, registry.make(name, found.setup)) for name in lookups]


def dialled(found: Loaded, own: dict[str, Drafter]) -> dict[str, Any]:
    """Return the target with this text."""
    setup, table = found.setup, PieceTable()
    one = asked(setup.target, own, found.prompt.ids.to(setup.device), found.settings)
    made = pieces(setup.tokenizer, setup.ids_before(found.prompt), special=True)
    text = {"kind": found.prompt.kind, "prompt": page.shown_prompt(found.prompt.text), **table.text(one, made)}
    return {"name": setup.target_name, "texts": [text], "pictures": table.pictures}


def timed(found: Loaded, own: dict[str, Drafter], trace: Trace) -> dict[str, Any]:
    """Time a few rounds of each length. A step takes what the baseline's took in the trace."""
    ids, step = found.prompt.ids.to(found.setup.device), trace.baseline[-1][1] / (len(trace.baseline) - 1)
    return presets.measured(found.functions, found.setup.target, own, ids, found.settings, step)
