"""Loads and checks what compare.py is asked for, before anything is timed."""

import argparse

from optimized_speculative import speculative_decode
from speclab.cli import flags, no_effect, parsing
from speclab.cli.output import Output, describe_chat
from speclab.core.rule_table import rule_of
from speclab.drafts import registry
from speclab.drafts.hybrid import auto_length
from speclab.lab.instruments import LoopFunctions
from speclab.lab.run_config import RunConfig
from speclab.present.run_lines import timed
from speclab.records.arms import AUTO
from speclab.system.errors import UsageProblem
from speclab.system.terminal import note


def head(config: RunConfig) -> str:
    """Say what runs, on what, and how much of it."""
    drafts = [f"draft   {text}" for name, text in config.models().items() if name != "target"]
    size = f"up to {config.max_new_tokens} new tokens each, {timed(config.repeats)}, seed {config.seed}"
    chat = describe_chat(config.prompts, config.setup.tokenizer)
    about = [*config.functions.head(), *config.rule_lines(), f"prompts {len(config.prompts)}, {size}", ""]
    return "\n".join([config.setup.describe(), *drafts, *chat, *about])


def prepare(args: argparse.Namespace, functions: LoopFunctions | None = None) -> tuple[RunConfig, Output]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    lengths, auto = parsing.lengths(args.draft_length, "-k")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    check_tokens(args)
    output = Output(args, args.name)
    output.check()
    kinds = [kind for kind in args.draft.split(",") if kind]
    choices = read_drafts(kinds, temperatures)
    functions = functions or LoopFunctions(speculative_decode)
    flags.check_rule(args, temperatures, choices)
    if auto and not lengths:  # beside numbers a draft that cannot choose has those
        for choice in choices:
            choice.check_auto()
    config = load(args, choices, lengths, temperatures, functions.judged_by(rule_of(args.rule)))
    no_effect.note_flags(args, temperatures, config.setup.device)
    if auto:
        chosen = [choice.name for choice in choices if choice.no_auto is None]
        config.drafters |= {name + AUTO: auto_length(config.drafters[name]) for name in chosen}
    return config, output


def read_drafts(kinds: list[str], temperatures: list[float]) -> list[registry.Choice]:
    """Return the drafts of --draft.

    Raises UsageProblem where one cannot be had, or none of them fits the temperatures.
    """
    choices = registry.read_all(kinds)
    if taken := next((choice.text for choice in choices if choice.name.endswith(AUTO)), None):
        raise UsageProblem(f"--draft {taken}: in tables, a name that ends so means -k auto; rename the folder")
    if 0 not in temperatures and all(choice.only_greedy for choice in choices):
        raise UsageProblem(f"{choices[0].only_greedy}, or add 0 to the temperatures")
    return choices


def check_tokens(args: argparse.Namespace) -> None:
    """Raise UsageProblem where nothing is left to time."""
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")


def load(
    args: argparse.Namespace,
    choices: list[registry.Choice],
    lengths: list[int],
    temperatures: list[float],
    functions: LoopFunctions | None = None,
) -> RunConfig:
    """Load and check models and prompts. Lines name the typed draft lengths that a draft does not have.

    functions: the parts of the loop; None: the lab's own.
    """
    setup, prompts = flags.load(args, temperature=0.0)
    drafters = registry.make_all(choices, setup, args.seed)
    registry.check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    typed = lengths if args.has_typed_lengths else []
    for line in [line for name, drafter in drafters.items() for line in drafter.length_notes(name, typed)]:
        note(line)
    size = (args.max_new_tokens, args.repeats, args.seed)
    functions = functions or LoopFunctions(speculative_decode)
    return RunConfig(setup, drafters, prompts, lengths, temperatures, *size, functions)
