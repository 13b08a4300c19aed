"""What compare.py is asked for, loaded and checked before anything is timed."""

import argparse

from optimized_speculative import speculative_decode
from speclab.batch.select import check_kind
from speclab.cli import compare_flags, flags, no_effect, parsing
from speclab.cli.output import Output
from speclab.drafts.hybrid import auto_length
from speclab.drafts.kinds import check_auto, check_kinds, drafter_name, is_dial, is_tree, with_trees
from speclab.drafts.select import check_prompts, make_drafters
from speclab.lab.instruments import LoopFunctions
from speclab.lab.run_config import RunConfig
from speclab.learner import loading
from speclab.models.prompts import describe_chat
from speclab.records.samples import AUTO
from speclab.system.errors import UsageProblem
from speclab.system.terminal import note


def head(config: RunConfig) -> str:
    """What runs, on what, and how much of it."""
    drafts = [f"draft   {text}" for name, text in config.models().items() if name != "target"]
    n, size = len(config.prompts), f"{config.max_new_tokens} new tokens each, {config.repeats} x, seed {config.seed}"
    chat = describe_chat(config.prompts, config.setup.tokenizer)
    about = [*config.functions.lines, *config.rule_lines(), f"prompts {n}, {size}", ""]
    return "\n".join([config.setup.describe(), *drafts, *chat, *about])


def prepare(args: argparse.Namespace) -> tuple[RunConfig, Output]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    lengths, auto = parsing.lengths(args.draft_length, "-k")
    if auto and (other := parsing.first_given(args, "batch", "profile")):
        where = "a run of batches has no -k auto" if other == "--batch" else "-k auto belongs to a comparison"
        raise UsageProblem(f"{where}; leave out auto, or {other}")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    check_tokens(args)
    output = Output(args, _name_of_files(args))
    output.check()
    kinds = with_trees([kind for kind in args.draft.split(",") if kind], args.tree)
    flags.check_trees(args, kinds)
    if args.batch is not None:
        _check_batch(args, kinds, temperatures)
    exercises = loading.of_comparison(temperatures, args.draft.split(","))
    functions = loading.load(args.impl, exercises, speculative_decode)
    flags.check_rule(args, functions, temperatures, "--batch", "--trace", "--report")
    check_drafts(kinds, temperatures)
    if auto:
        for kind in kinds:
            if not lengths or not is_tree(kind):  # beside numbers a tree has those
                check_auto(kind)
    config = load(args, kinds, lengths, temperatures, functions.judged_by(args.rule))
    no_effect.note_flags(args, temperatures, config.setup.device)
    if auto:
        chains = [drafter_name(kind) for kind in kinds if not is_tree(kind)]
        config.drafters |= {name + AUTO: auto_length(config.drafters[name]) for name in chains}
    return config, output


def check_drafts(kinds: list[str], temperatures: list[float]) -> None:
    """Raise UsageProblem where --draft cannot be had, or not at these temperatures."""
    if taken := next((kind for kind in kinds if kind.endswith(AUTO)), None):
        raise UsageProblem(f"--draft {taken}: in tables, a name that ends so means -k auto; rename the folder")
    check_kinds(kinds)
    if 0 not in temperatures and all(map(is_dial, kinds)):
        raise UsageProblem("the dial only replays greedy output; add 0 to --temperature")


def check_tokens(args: argparse.Namespace) -> None:
    """Raise UsageProblem where nothing is left to time."""
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")


def load(
    args: argparse.Namespace,
    kinds: list[str],
    lengths: list[int],
    temperatures: list[float],
    functions: LoopFunctions | None = None,
) -> RunConfig:
    """Models and prompts, checked. Draft lengths that were typed and that a draft does not have are said.

    functions: the parts of the loop; None: the lab's own.
    """
    setup, prompts = flags.load(args, temperature=0.0)
    drafters = make_drafters(kinds, setup, args.seed)
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    typed = lengths if args.has_typed_lengths else []
    for line in [line for name, drafter in drafters.items() for line in drafter.length_notes(name, typed)]:
        note(line)
    size = (args.max_new_tokens, args.repeats, args.seed)
    functions = functions or LoopFunctions(speculative_decode)
    return RunConfig(setup, drafters, prompts, lengths, temperatures, *size, functions)


def _name_of_files(args: argparse.Namespace) -> str:
    """What the names of this run's files begin with: each kind of run has files of its own."""
    if args.batch is not None:
        return args.name + ("-sweep-batch" if args.thorough else "-batch")
    return args.name


def _check_batch(args: argparse.Namespace, kinds: list[str], temperatures: list[float]) -> None:
    """Raise UsageProblem where --batch comes with what looks at one text; args.batch becomes numbers."""
    if flag := parsing.first_given(args, "impl", "profile", "trace", "verbose"):
        raise UsageProblem(f"{flag} looks at one text, and --batch decodes several; leave one of the two out")
    if len(temperatures) > 1:
        raise UsageProblem("--batch takes one temperature; give --temperature one number, for example 0.8")
    for kind in kinds:
        check_kind(kind)
    args.batch = parsing.numbers(args.batch, int, 1, "--batch", compare_flags.MOST_TEXTS)
