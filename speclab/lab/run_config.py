"""What the flags of compare.py ask for, loaded and checked before anything is timed, and the files it leaves behind."""

import argparse
import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import torch

from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.cli import flags
from speclab.cli.parsing import DASH
from speclab.core.rounds import Drafter
from speclab.drafts.oracle import OracleDraft
from speclab.drafts.select import check_prompts, make_drafters
from speclab.lab.harness import Bench, Measurement, is_model
from speclab.learner import functions
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import record
from speclab.records.samples import BASELINE, GENERATE, Arm
from speclab.system.errors import UsageProblem
from speclab.system.files import check_writable, prepare_folder, shown, write_whole
from speclab.system.terminal import harmless

LARGEST = 256  # of what -k and --temperature take; every draft length up to the longest is calibrated


@dataclass
class Job:
    """One target, its drafts and prompts, and the settings to try."""

    args: argparse.Namespace
    setup: Setup
    drafters: dict[str, Drafter]
    prompts: list[Prompt]
    draft_lengths: list[int]
    temperatures: list[float]
    theirs: functions.Learner = functions.LAB  # which parts a reader's own functions decide
    out: TextIO = field(default_factory=lambda: sys.stdout)

    @property
    def common(self) -> dict:
        """What all rows share."""
        return {"target": self.setup.target_name, "device": self.setup.device.type, "dtype": self.setup.dtype_name}

    def bench(self, max_new_tokens: int | None = None) -> Bench:
        budget = max_new_tokens or self.args.max_new_tokens
        return Bench(self.setup, self.drafters, budget, self.args.seed, self.theirs.functions(speculative_decode))

    def arms(self, lengths: list[int] | None = None) -> list[Arm]:
        """The baseline, then every draft at every length."""
        return [BASELINE] + [
            Arm(self.method(name), name, k) for name in self.drafters for k in lengths or self.draft_lengths
        ]

    def method(self, name: str) -> str:
        """The only model among the drafts is called just that."""
        models = [name for name, drafter in self.drafters.items() if is_model(drafter)]
        return "model" if [name] == models else name

    def models(self) -> dict[str, str]:
        found = {"target": loading.describe_model(self.setup.target_name, self.setup.target.model)}
        for name, drafter in self.drafters.items():
            if isinstance(drafter, ModelDrafter):
                eager = "; on the eager engine" if drafter.draft.engine != self.setup.engine else ""
                found[name] = loading.describe_model(name, drafter.draft.model, "draft") + eager
        return found

    def describe(self) -> str:
        drafts = [f"draft   {text}" for name, text in self.models().items() if name != "target"]
        args = self.args
        size = f"prompts {len(self.prompts)}, {args.max_new_tokens} new tokens each, {args.repeats} x, seed {args.seed}"
        return "\n".join([self.setup.describe(), *drafts, *self.theirs.describe(), size, ""])

    def head(self, found: Measurement) -> dict:
        """The part of a record that says what, where and how."""
        args = self.args
        return {
            "schema_version": record.SCHEMA_VERSION,
            "created": record.today(),
            "interrupted": found.interrupted,
            **({"unchecked": found.unchecked} if found.unchecked else {}),
            "machine": record.machine(self.setup.device),
            "versions": record.versions(),
            "settings": {
                **self.common,
                "draft_lengths": self.draft_lengths,
                "temperatures": self.temperatures,
                "max_new_tokens": args.max_new_tokens,
                "repeats": args.repeats,
                "n_prompts": len(self.prompts),
                "prompts_sha256": record.fingerprint([p.text for p in self.prompts]),
                "seed": args.seed,
                "top_k": args.top_k,
                "top_p": args.top_p,
                "threads": torch.get_num_threads(),
                "engine": self.setup.engine,
                "reasons": self.setup.reasons,
                "unapplied_generation_settings": self.setup.unapplied,
                **({"impl": self.theirs.to_json()} if self.theirs else {}),
            },
            "models": self.models(),
        }

    @property
    def name(self) -> str:
        """What the names of this run's files begin with."""
        return file_name(self.args)

    @property
    def plots(self) -> Path:
        return self.args.out_dir / "plots"

    def writes(self, run: dict, page: Callable[[], str]) -> list[Callable[[], Path | None]]:
        """What writes the record, and then its tables in Markdown, for `files.do_all`."""
        text = functools.cache(lambda: record.to_json(run))
        steps = [lambda: write_whole(_result(self.args, ".json"), text())]
        if self.args.json == DASH:
            # `talk` has sent everything else to standard error
            steps.append(lambda: print(text(), end="", file=self.out, flush=True))
        elif self.args.json:
            steps.append(lambda: write_whole(self.args.json, text()))
        return [*steps, lambda: write_whole(_result(self.args, ".md"), harmless(page()))]

    def talk(self) -> contextlib.redirect_stdout:
        """Where words go while this is open: standard output, unless the record is wanted there, alone."""
        return contextlib.redirect_stdout(sys.stderr if self.args.json == DASH else sys.stdout)


def file_name(args: argparse.Namespace) -> str:
    """Each kind of run has files of its own."""
    what = "-plan" if args.plan or args.verify_plan else f"-sweep-{args.sweep}" if args.sweep else ""
    return args.name + what


def _result(args: argparse.Namespace, ending: str) -> Path:
    return args.out_dir / "results" / (file_name(args) + ending)


def prepare(args: argparse.Namespace) -> Job:
    """Everything that can be wrong with the flags is said here."""
    lengths = numbers(args.draft_length, int, 0, "-k")
    temperatures = numbers(args.temperature, float, 0, "--temperature")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    check_files(args)
    theirs = functions.load(getattr(args, "impl", None), functions.of_comparison(args))
    args.temperature = 0.0  # the scripts' flag is one number, and `flags.setup_from` reads it
    setup = flags.setup_from(args)
    drafters = make_drafters([kind for kind in args.draft.split(",") if kind], setup, args.seed)
    prompts = flags.read_prompts(args, setup.tokenizer)
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    if 0 not in temperatures and all(isinstance(d, OracleDraft) for d in drafters.values()):
        raise UsageProblem("the dial only replays greedy output; add 0 to --temperature")
    return Job(args, setup, drafters, prompts, lengths, temperatures, theirs)


def check_files(args: argparse.Namespace) -> None:
    """That everything this run will write can be written, each into a file of its own."""
    for ending in (".json", ".md"):
        check_writable(_result(args, ending), "--out-dir")
    prepare_folder(args.out_dir / "plots", "--out-dir")
    if args.json not in (None, DASH):
        check_writable(args.json, "--json")
    taken = {}
    flags = {f"--{name}": getattr(args, name, None) for name in ("json", "profile", "trace")}
    for name, path in {"the record": _result(args, ".json"), "the page": _result(args, ".md"), **flags}.items():
        if path in (None, DASH):
            continue
        other = taken.setdefault(os.path.realpath(path), name)
        if other != name and (other, name) != ("the record", "--json"):
            raise UsageProblem(f"{name} and {other} would be one file, {shown(path)}; give {name} another place")


def instruments(job: Job, arms: list[Arm]) -> dict[str, list[int]]:
    """For every draft the lengths its instrumented decoding goes through: all of them, those in use three times."""
    used = {name: [a.draft_length for a in arms if a.draft == name] for name in job.drafters}
    return {name: [*range(max(lengths) + 1), *lengths, *lengths] for name, lengths in used.items() if lengths}


def with_generate(job: Job, arms: list[Arm]) -> list[Arm]:
    return [*arms, GENERATE] if 0 in job.temperatures else arms


def numbers(text: str, kind: type, smallest: float, flag: str, largest: float = LARGEST) -> list:
    """A comma-separated list from the command line, sorted, without repeats."""
    try:
        values = sorted({kind(word) for word in text.split(",")})
    except ValueError:
        raise UsageProblem(f"{flag} {text}: give numbers with commas between them, for example {flag} 2,4,8") from None
    if values[0] < smallest:
        raise UsageProblem(f"{flag} {text}: {values[0]} is too small, give {smallest} or more")
    if not all(map(math.isfinite, values)):
        raise UsageProblem(f"{flag} {text}: give finite numbers")
    if values[-1] > largest:
        raise UsageProblem(f"{flag} {text}: {values[-1]} is too large, give {largest} or less")
    return values
