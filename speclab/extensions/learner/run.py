"""`check.py --run`: one of the lab's scripts, in which the functions that you wrote in exercises/ decide.

    python check.py --run optimized_speculative.py              # every finished exercise that this run can use
    python check.py 2,3 --run optimized_speculative.py          # these only
    python check.py 0 --run baseline_autoregressive.py          # exercise 0 rates the run
    python check.py 4 --run compare.py --temperature 0.8        # exercise 4 decides the sampled rows
    python check.py 10 --run compare.py --temperature 0.8       # exercise 10 in its place
    python check.py 9 --run optimized_speculative.py -k auto    # exercise 9 decides when a draft stops
    python check.py 12 --run compare.py --draft block           # exercise 12 draws the tokens of a block
    python check.py --impl solutions --run compare.py           # the same with the solutions
    python check.py 2 --run NAME                                # a command of an extension that takes functions

The script's own words are read here first: they say which exercises can take part. Its main() gets the functions.
"""

import argparse
import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.cli import compare, decoding, parsing
from speclab.drafts import registry
from speclab.extensions.learner import loading, predictions
from speclab.extensions.learner.functions import BLOCK_RULE, FIELDS, WHOLE_LOOP, learner_functions
from speclab.system import extensions
from speclab.system.errors import UsageProblem
from speclab.system.terminal import note, say

BASELINE, SPECULATIVE, COMPARISON = SCRIPTS = (
    "baseline_autoregressive.py",
    "optimized_speculative.py",
    "compare.py",
)
ACCEPT_RULES = {2, 4, WHOLE_LOOP, BLOCK_RULE}
YOURS = "your code"  # no exercise has a part in drafts with branches
NOT_JUDGED = (
    "a sampled text has no baseline to equal; leave out --temperature, or judge many of them: run compare.py with the "
    "same --temperature and --draft"
)


def run(package: str, numbers: list[int], words: list[str]) -> int:
    """Run a script with the functions of these exercises.  -> the script's exit code

    numbers: none: all that are finished. words: the script, then its flags. Raises UsageProblem for another script, and
    where the script is asked for what a learner's functions have no part in; and what loading.load raises.
    """
    name = Path(words[0]).name if words else ""
    script = _command(name) if name not in SCRIPTS else importlib.import_module(name.removesuffix(".py"))
    if script is None:
        raise UsageProblem(f"--run {' '.join(words)}: give one of the lab's scripts, {', '.join(SCRIPTS)}")
    args, usable = _read(name, script, words[1:])
    chosen = loading.load(package, numbers, usable)
    _check_rule(args, chosen)
    loop = autoregressive_decode if name == BASELINE else speculative_decode
    functions = learner_functions(loop, package, *chosen)
    seen: list[tuple[Any, Any]] = []
    code = script.main(
        [*words[1:], *_defaults(name, args)], replace(functions, look_at=lambda *pair: seen.append(pair))
    )
    for run, measured in seen:
        show: Callable[[str], None] = note if args.json == parsing.DASH else say
        predictions.show(chosen.modules, run, measured, show)
    if name == SPECULATIVE and args.temperature > 0 and not code:
        print(NOT_JUDGED)
    return code


def _command(name: str) -> Any:
    """The module of an extension's command that takes functions: it can `parse` its words. None for any other name."""
    if name not in extensions.commands():
        return None
    module = importlib.import_module(f"{extensions.PACKAGE}.{name}.__main__")
    return module if hasattr(module, "parse") else None


def _read(name: str, script: Any, words: list[str]) -> tuple[argparse.Namespace, set[int]]:
    """The script's flags, and which exercises can take part in such a run."""
    if name not in SCRIPTS:
        args = script.parse(words)
        registry.check_chains(YOURS, [registry.read(args.draft)])
        usable = {1} | loading.of_decoding(args.temperature, args.draft, args.draft_length == parsing.AUTO)
        return args, {number for number in usable if FIELDS.get(number, "adapt") in args.uses}
    if name == COMPARISON:
        args = compare.make_parser(script.__doc__).parse_args(words)
        args.typed_draft = args.draft
        filled = compare.filled(args)
        kinds = _drafts(filled)
        registry.check_chains(YOURS, registry.read_all(kinds))
        temperatures = parsing.numbers(filled.temperature, float, 0, "--temperature")
        return filled, loading.of_comparison(temperatures, kinds)
    args = decoding.parse(script.__doc__, words, name == SPECULATIVE)
    if name == BASELINE:
        return args, {0}
    registry.check_chains(YOURS, [args.choice])
    auto = args.draft_length == parsing.AUTO
    return args, loading.of_decoding(args.temperature, args.draft, auto)


def _drafts(args: argparse.Namespace) -> list[str]:
    """The drafts of a comparison. Where none is named they are those that most exercises are about."""
    return (args.typed_draft or compare.USUAL_DRAFTS).split(",")


def _defaults(name: str, args: argparse.Namespace) -> list[str]:
    """What a comparison does not do by itself while a learner's functions take part in it."""
    if name != COMPARISON:
        return []
    return ["--no-padded", *([] if args.typed_draft else ["--draft", compare.USUAL_DRAFTS])]


def _check_rule(args: argparse.Namespace, chosen: loading.Chosen) -> None:
    """Raise UsageProblem where --rule names another accept rule than an exercise that takes part."""
    rule, own = getattr(args, "rule", "token"), sorted(ACCEPT_RULES & chosen.modules.keys())
    if own and rule != "token":
        raise UsageProblem(f"--rule {rule} and exercise {own[0]} decide the same; leave one of them out")
