"""The command `report`: a comparison as one HTML page that needs no network."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from speclab.cli import flags, parsing
from speclab.extensions.trace import decoding, follow, html_report
from speclab.extensions.trace.dials import own_page, presets
from speclab.extensions.trace.trace import Trace
from speclab.extensions.trace.trace_flags import CHOSEN, SETTINGS
from speclab.models import loading
from speclab.models.padded import sizes
from speclab.present import first_screen
from speclab.present.pictures import library, plots
from speclab.records.arms import AUTO
from speclab.records.files import read
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.system.errors import Problem, UsageProblem
from speclab.system.files import shown, write_whole
from speclab.system.paths import DATA
from speclab.system.terminal import note


def run(args: argparse.Namespace) -> int:
    """Run the command.  -> exit code"""
    if parsing.DASH in (args.out, args.record):
        raise UsageProblem("report reads a file and writes a file; give a path in place of -")
    flags.check_file(args.out, "--out")
    if args.out.resolve() == args.record.resolve():
        raise UsageProblem(f"the page would be written over the record, {shown(args.out)}; give --out another place")
    run = read(args.record, ComparisonRun)
    typed = {name: value for name, value in vars(args).items() if value is not None}
    made = decoded(argparse.Namespace(**vars(args) | of_record(run) | typed), run, bool(typed.keys() & set(CHOSEN)))
    costs = presets.of_record(run, "this record", "The calibrated costs of this record's greedy rounds.")
    data = own_page.data(*made, costs) if made else {}
    with tempfile.TemporaryDirectory() as folder:
        pictures = drawn(run, args.record.stem, Path(folder))
        write_whole(args.out, html_report.page(first_screen.page(run, args.record.stem), pictures, data, target(run)))
    note(f"wrote {shown(args.out)}; open it in a browser")
    return 0


def target(run: ComparisonRun) -> str:
    """The name of the record's target."""
    return str(run.settings["target"])


def of_record(run: ComparisonRun) -> dict[str, Any]:
    """What the record says of the flags of a decoding; None for models that are not here."""
    row = fastest(run)
    name = str(DATA / target(run)) if (DATA / target(run)).exists() else target(run)
    return {
        **{setting: run.settings.get(setting, 0) for setting in SETTINGS},
        "top_p": run.settings.get("top_p", 1.0),
        "target": name if loading.exists(name) or sizes.is_lab_size(name) else None,
        "draft": row.draft if row else None,
        "draft_length": row.draft_length if row else None,
        "temperature": row.temperature if row else 0.0,
    }


def fastest(run: ComparisonRun) -> Row | None:
    """The fastest row of the first draft with fixed lengths, at the first temperature; None where there is none."""
    drafts = [row.draft for row in run.rows if row.draft and row.draft_length and not row.draft.endswith(AUTO)]
    return max(first_screen.rows_of(run, drafts[0]), key=lambda row: row.speedup, default=None) if drafts else None


def decoded(args: argparse.Namespace, run: ComparisonRun, typed: bool) -> tuple[decoding.Loaded, Trace] | None:
    """The decoding, or None and a line that says why it is left out.

    typed: the flags say which models, so that a Problem with them is raised.
    """
    missing = "the page has no decoding"
    if run.settings.get("rule") or run.settings.get("functions"):
        note(f"{missing}: the record's rounds had a rule or functions that are not those of a trace")
        return None
    if args.target is None:
        note(f"{missing}: {target(run)} is not here; give --target")
        return None
    if args.draft is None or args.draft_length is None:
        note(f"{missing}: the record has no row of a draft with 1 token or more; give --draft and -k")
        return None
    try:
        found = decoding.load(args)
    except Problem as problem:
        if typed:
            raise
        note(f"{missing}: {problem}")
        return None
    return found, follow.decoded(found)


def drawn(run: ComparisonRun, name: str, folder: Path) -> list[Path]:
    """The pictures of the comparison and of its padded pair, drawn into `folder`."""
    if not library.is_here():
        note(library.MISSING)
        return []
    draws = plots.comparison(run, folder, name)
    draws += plots.comparison(run.padded, folder, f"{name}-padded") if run.padded else []
    return [path for draw in draws if (path := draw())]
