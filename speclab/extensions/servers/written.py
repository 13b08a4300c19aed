"""The answer from what somebody has written down: two /metrics pages, or an acceptance, and milliseconds per token."""

import argparse

from speclab.extensions.servers import counters, screen
from speclab.extensions.servers.ask.client import PAGE_BYTES
from speclab.extensions.servers.ask.inputs import text_of
from speclab.extensions.servers.diagnosis import diagnose
from speclab.extensions.servers.measured import Measured, of_pages
from speclab.extensions.servers.shapes import shape_of
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.terminal import say


def show(args: argparse.Namespace) -> int:
    """Print the answer.  -> exit code"""
    plain, seconds = (value and value / 1e3 for value in (args.plain_ms, args.spec_ms))
    if args.before and args.after:
        label, found = _from_pages(args, plain, seconds)
    elif args.acceptance is not None and args.draft_length:
        label = screen.labelled("written", f"acceptance {args.acceptance:g} of drafts of {args.draft_length} tokens")
        found = Measured(fraction=args.acceptance, draft_length=args.draft_length, plain_seconds=plain, seconds=seconds)
    else:
        raise UsageProblem(
            "give --url of a server, or --before and --after with two /metrics pages, or --acceptance and -k; see "
            "python -m speclab.extensions.servers --help"
        )
    shape = shape_of(found.counts, found.n_rounds) if found.counts else None
    shapes = [shape] if shape else []
    blocks = [
        [label],
        [screen.table({}, found, {})],
        [*screen.position_lines(found), *screen.shape_lines(shapes)],
        screen.answer_lines(diagnose(found, shapes, kind=args.kind or "")),
    ]
    say(screen.joined(blocks))
    return 0


def _from_pages(args: argparse.Namespace, plain: float | None, seconds: float | None) -> tuple[str, Measured]:
    before, after = (
        counters.read(text_of(path, PAGE_BYTES, flag))
        for flag, path in (("--before", args.before), ("--after", args.after))
    )
    found = counters.between(before, after)
    counts = found.speculation
    if counts is None:
        raise EnvironmentProblem(
            f"these pages of {after.engine} count no speculation; take them from the server that speculates"
        )
    if not counts.n_drafts:
        raise EnvironmentProblem(
            "no round drafted anything between the two pages; take them before and after some requests"
        )
    longest = len(counts.accepted_at)
    if args.draft_length and longest and args.draft_length != longest:
        raise UsageProblem(f"-k {args.draft_length}: the pages count drafts of {longest} tokens; give -k {longest}")
    n_rounds = f"{counts.n_drafts} rounds drafted {counts.n_drafted / counts.n_drafts:.3g} tokens each"
    return screen.labelled("pages", f"{after.engine}: {n_rounds}"), of_pages(found, plain, seconds, after.n_running)
