"""The command line of compare.py: a comparison, measured, shown and written down. Other comparisons use its parts."""

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.drafts.lengths import AutoLength
from speclab.lab import comparison
from speclab.lab.bench import SPECULATIVE
from speclab.lab.comparison import RunConfig, exit_code
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.instruments import LoopFunctions
from speclab.models import padding
from speclab.models.loading import LAB_TARGET
from speclab.present import pictures, report
from speclab.present.screen import screen, timed
from speclab.records.files import ComparisonRun, Head, to_json
from speclab.records.rows import AUTO, CONTROL, INSTRUMENT
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import IS_CLONE, check_writable, shown, write_all, write_whole
from speclab.system.terminal import harmless, note, say

# The defaults of what the command line leaves open, by the size of the run. limit 0 means all prompts.
SIZES = {
    "default": {"limit": 4, "max_new_tokens": 64, "draft_length": "2,4,6,auto"},
    "quick": {"limit": 2, "max_new_tokens": 48, "draft_length": "2,4"},
    "full": {"limit": 0, "max_new_tokens": 128, "draft_length": "2,4,6,auto"},
}
ALWAYS = {"repeats": 1, "temperature": "0,0.8"}
HOTTEST = 5.0  # the highest temperature: 0,8 is a list with an 8 in it, and nearly always 0.8 is meant
ANSWER_TOKENS = 192  # of an answer to one of --texts, at most
USUAL_DRAFTS = "model,ngram"
LAB_DRAFTS = "model,feature,hybrid"  # of a comparison with the lab's own target


@reports_problems
def run(docstring: str, argv: list[str] | None, functions: LoopFunctions | None = None) -> int:
    """Make a comparison, show it and write it.  -> exit code"""
    args = filled(make_parser(docstring).parse_args(argv))
    lengths, args.auto = parsing.lengths(args.draft_length, "-k")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature", HOTTEST)
    functions = (functions or SPECULATIVE).judged_by(args.rule)
    config, output = prepare(args, args.name, lengths, temperatures, functions)
    if not args.brief:
        say(head(config))
    record, measured = _measure(args, config)
    where = [f"further rows: {shown(output.result('.md'))}", *["why not faster? docs/why-not-faster.md"] * IS_CLONE]
    text = functools.partial(screen, record, args.brief, where)
    page = functools.partial(report.page, record, output.name)
    show(output, record, text, page, pictures.comparison(record, output.plots, output.name))
    return max(map(exit_code, measured))


def make_parser(docstring: str) -> argparse.ArgumentParser:
    parser = parsing.make_parser(docstring)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("experiment and results")
    flags.add_draft_flag(group, None, f"what drafts, several with commas; {flags.DRAFT_HELP}")
    flags.add_rule_flag(group)
    lengths = "tokens per draft; auto: chosen in every round (default: 2,4,6,auto)"
    flags.add_run_flags(group, lengths, "0 is greedy (default: 0,0.8)")
    size = group.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="2 prompts of a kind, 48 tokens, k = 2, 4")
    size.add_argument("--full", action="store_true", help="all prompts, 128 tokens")
    group.add_argument("--alone", action="store_true", help="leave out the short runs, eager and padded")
    group.add_argument("--brief", action="store_true", help="print the table alone")
    flags.add_output_flags(group)
    parser.set_defaults(max_new_tokens=None)
    return parser


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments, with the defaults of their size wherever the command line gives none. `others`: whether the
    lab's pair is measured eagerly and padded as well."""
    size = "quick" if args.quick else "full" if args.full else "default"
    is_lab = args.target == LAB_TARGET or args.target.startswith(padding.PREFIX)
    defaults = ALWAYS | SIZES[size] | {"draft": LAB_DRAFTS if is_lab else USUAL_DRAFTS}
    if args.texts:
        defaults["max_new_tokens"] = ANSWER_TOKENS
    found = flags.with_defaults(args, defaults)
    drafts_nothing = parsing.lengths(found.draft_length, "-k") == ([0], False)
    found.others = args.target == LAB_TARGET and size != "quick" and not drafts_nothing and not args.alone
    return found


def prepare(
    args: argparse.Namespace,
    name: str,
    lengths: list[int],
    temperatures: list[float],
    functions: LoopFunctions | None = None,
) -> tuple[RunConfig, "Output"]:
    """Load and check everything before anything is timed. name: what all files begin with"""
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    choices = registry.read_all([kind for kind in args.draft.split(",") if kind])
    if 0 not in temperatures and all(choice.only_greedy for choice in choices):
        raise UsageProblem(f"{choices[0].only_greedy}, or add 0 to the temperatures")
    flags.check_rule(args.rule, temperatures, choices)
    if not lengths:  # beside numbers a draft that cannot choose has those
        for choice in choices:
            choice.check_auto()
    output = Output(args, name)
    for path in (output.result(".json"), output.result(".md"), output.plots / "picture.png"):
        check_writable(path, "--out-dir")
    setup, prompts = flags.load(args, temperature=0.0)
    if taken := {"baseline", "generate", INSTRUMENT, CONTROL}.intersection(one.name for one in choices):
        raise UsageProblem(f"a draft cannot be called {min(taken)}, which names something else; rename its folder")
    drafters = {choice.name: choice.make(setup, args.seed) for choice in choices}
    registry.check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    if args.auto:
        chosen = [choice.name for choice in choices if choice.no_auto is None]
        drafters |= {named + AUTO: drafters[named].with_draft(AutoLength) for named in chosen}
    size = (args.max_new_tokens, args.repeats, args.seed)
    return RunConfig(setup, drafters, prompts, lengths, temperatures, *size, functions or SPECULATIVE), output


def head(config: RunConfig) -> str:
    drafts = [f"draft   {text}" for name, text in config.models().items() if name != "target"]
    size = f"up to {config.max_new_tokens} new tokens each, {timed(config.repeats)}, seed {config.seed}"
    chat = flags.describe_chat(config.prompts, config.setup.tokenizer)
    about = [*config.functions.head(), f"prompts {len(config.prompts)}, {size}", ""]
    return "\n".join([config.setup.describe(), *drafts, *chat, *about])


def _measure(args: argparse.Namespace, config: RunConfig) -> tuple[ComparisonRun, list[Measurement]]:
    run, measured = comparison.compare(config)
    if config.functions.look_at:
        config.functions.look_at(run, measured)
    found, kinds = [measured], [kind for kind in args.draft.split(",") if kind]
    for name, given in _others(config, run, kinds) if args.others and not measured.stop else ():
        with kept_when_stopped(functools.partial(str, f"the lab's pair is measured, the {name} pair is not")) as stops:
            second = comparison.short_config(config, *given)
            note(f"now a short run, {name}: {', '.join(second.models().values())}")
            other, of_other = comparison.compare(second)
            setattr(run, name, other)
            found.append(of_other)
            stops += filter(None, [of_other.stop])
        if stops and isinstance(stops[0], KeyboardInterrupt):
            run.interrupted = True
            break
    return run, found


def _others(
    config: RunConfig, run: ComparisonRun, kinds: list[str]
) -> Iterator[tuple[str, tuple[str, str, list[str]]]]:
    """Yield the name, target, engine and drafts of each short comparison."""
    if config.setup.engine != "eager":
        yield "eager", (LAB_TARGET, "eager", kinds)
    if not (size := comparison.padded_size(config, run.bandwidth or 0.0)):
        note("no padded pair: reading its weights would take too long here, or they do not fit into memory")
    elif usable := comparison.padded_kinds(kinds, size):
        yield "padded", (size, config.setup.wish, usable)
    else:
        note(f"no padded pair: no draft of {', '.join(kinds)} is known for other sizes")


@dataclass
class Output:
    """The places where a run that makes a record writes. args: has out_dir. name: what all its files begin with."""

    args: argparse.Namespace
    name: str

    @property
    def plots(self) -> Path:
        return self.args.out_dir / "plots"

    def result(self, ending: str) -> Path:
        return self.args.out_dir / "results" / (self.name + ending)


def show(
    output: Output, record: Head, text: Callable[[], str], page: Callable[[], str], pictures: Iterable[Callable]
) -> None:
    """Write the record and its page, print the text, and draw the pictures where that can be done."""
    place, written = output.result(".json"), to_json(record)
    old = "; files of an earlier run are replaced, --name NAME keeps them" * place.exists()
    files = [lambda: write_whole(place, written), lambda: write_whole(output.result(".md"), harmless(page()))]
    write_all([*files, lambda: say(text()), *pictures], old)
