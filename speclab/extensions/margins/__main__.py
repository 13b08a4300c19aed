"""What is reachable? Acceptance against the margin between the target's first two choices, by kind of text.

    python -m speclab.extensions.margins                                          # the lab pair
    python -m speclab.extensions.margins --target smollm2 --texts served --draft int8,ngram

The target decodes every prompt greedily. Along each text, the command looks at the margin of every token and at what
the drafts would have proposed, and replays their rounds. No clock is looked at.
What comes out: two tables, a run record (JSON), a page in Markdown, and a picture. See docs/why-not-faster.md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys

from speclab.cli import flags
from speclab.cli.output import Output, show
from speclab.drafts import registry
from speclab.extensions.margins import margin_views
from speclab.extensions.margins.margin_flags import make_parser
from speclab.extensions.margins.margin_record import MarginRun, Margins
from speclab.extensions.margins.measuring import measure
from speclab.lab.harness import kept_when_stopped
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import files
from speclab.system.errors import reports_problems
from speclab.system.terminal import note, progress


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser(__doc__).parse_args(argv)
    choices = registry.read_all([name for name in args.draft.split(",") if name])
    registry.check_chains("the command", choices)
    output = Output(args, f"{args.name}-margins")
    output.check()
    setup, prompts = flags.load(args, temperature=0.0)
    drafters = registry.make_all(choices, setup, args.seed)
    registry.check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    note(setup.describe())
    found: list[Margins] = []
    with (
        kept_when_stopped(lambda: "what is measured is kept" if found else "") as stops,
        progress(len(prompts), "prompt", "replaying") as bar,
    ):
        for prompt in prompts:
            found += measure(setup, drafters, prompt, args.draft_length, args.max_new_tokens)
            bar.update()
    run = _record(args, setup, prompts, bool(stops), found)
    page = functools.partial(margin_views.page, run, f"../plots/{output.name}.png")
    picture = functools.partial(margin_views.picture, run, output.plots, output.name)
    with output.redirected():
        show(output, run, [functools.partial(margin_views.text, run)], page, [picture])
    if stops and not isinstance(stops[0], KeyboardInterrupt):
        raise stops[0]
    return 0


def _record(
    args: argparse.Namespace, setup: Setup, prompts: list[Prompt], interrupted: bool, found: list[Margins]
) -> MarginRun:
    settings = {
        **setup.recorded,
        "seed": args.seed,
        "draft_length": args.draft_length,
        "max_new_tokens": args.max_new_tokens,
        **files.prompt_settings([prompt.text for prompt in prompts]),
    }
    made = files.when_and_where(setup.device)
    return MarginRun(schema_version=1, interrupted=interrupted, settings=settings, margins=found, **made)


if __name__ == "__main__":
    sys.exit(main())
