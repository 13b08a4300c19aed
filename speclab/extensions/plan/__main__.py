"""How fast will speculation be here, at which draft length? A run of the baseline and calibrated costs give the answer.

    python -m speclab.extensions.plan               # for every draft a table of k = 0 to 16, and which k to take
    python -m speclab.extensions.plan --quick       # k up to 8, two prompts of a kind
    python -m speclab.extensions.plan --verify      # planned on half of the prompts, measured on the other half
    python -m speclab.extensions.plan --target FOLDER --draft FOLDER,ngram
    python -m speclab.extensions.plan --draft model --acceptance-profile FILE     # acceptance as a server counted it

What comes out: verdicts and tables, a run record (JSON), a page in Markdown, and a picture. See docs/why-not-faster.md.
Exit code 1 if --verify decodes a greedy difference that is not a near-tie, or a sampled row fails its statistics.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys

from speclab.cli import compare, flags, parsing
from speclab.cli.output import Output, show
from speclab.drafts import registry
from speclab.extensions.plan import plan_views, plans, profiles
from speclab.extensions.plan.plan_flags import make_parser
from speclab.extensions.plan.profiles import Profile
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, say

PROFILE = "--acceptance-profile"

# The defaults of what the command line leaves open. limit 0 means all prompts.
SIZES = {
    "a plan": {"limit": 4, "max_new_tokens": 64, "repeats": 3, "longest": 16},
    "its check": {"limit": 0, "max_new_tokens": 64, "repeats": 2, "longest": 16},
    "quick": {"limit": 2, "max_new_tokens": 48, "repeats": 2, "longest": 8},
    "full": {"limit": 0, "max_new_tokens": 128, "repeats": 3, "longest": 16},
    "full check": {"limit": 0, "max_new_tokens": 128, "repeats": 2, "longest": 16},
}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Make a plan, show and write it.  -> exit code"""
    args = filled(make_parser(__doc__).parse_args(argv))
    config, output, given = _prepare(args)
    with output.redirected():
        config.look_at_cores()
        say(compare.head(config))
        record, measured = plans.make(config, args.verify, given)
        text = functools.partial(plan_views.text, record)
        page = functools.partial(plan_views.page, record)
        picture = functools.partial(plan_views.picture, record, output.plots, output.name)
        show(output, record, [text], page, [picture])
    return exit_code(measured)  # raises what ended the run early, if that can be mended


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments, with the defaults of the size that was asked for wherever the command line gives none."""
    long = "full check" if args.verify else "full"
    name = "quick" if args.quick else long if args.full else "its check" if args.verify else "a plan"
    size = dict(SIZES[name])
    lengths = ",".join(map(str, range(size.pop("longest") + 1)))
    asked = flags.with_defaults(args, {"draft_length": lengths} | size)
    asked.has_typed_lengths = args.draft_length is not None
    return asked


def _prepare(args: argparse.Namespace) -> tuple[RunConfig, Output, Profile | None]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    lengths = parsing.numbers(args.draft_length, int, 0, "-k")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    compare.check_tokens(args)
    output = Output(args, f"{args.name}-plan")
    output.check()
    kinds = [kind for kind in args.draft.split(",") if kind]
    given = profiles.read(args.acceptance_profile, PROFILE) if args.acceptance_profile else None
    if given and len(kinds) != 1:
        raise UsageProblem(
            f"{PROFILE}: it is of one draft, and --draft names {len(kinds)}; give one, such as --draft model"
        )
    choices = compare.read_drafts(kinds, temperatures)
    registry.check_chains("a plan", choices)
    config = compare.load(args, choices, lengths, temperatures)
    plans.check(config, args.verify)
    if given and min(lengths) > given.draft_length:
        raise UsageProblem(f"{PROFILE}: it knows drafts of {given.draft_length} tokens; give -k {given.draft_length}")
    if given and max(lengths) > given.draft_length:
        note(f"  the profile knows drafts of {given.draft_length} tokens: no longer ones are planned")
    return config, output, given


if __name__ == "__main__":
    sys.exit(main())
