"""The files that a run leaves behind: which they are, whether they can be written, and writing them."""

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from transformers import PreTrainedTokenizerBase

from speclab.cli.flags import check_file
from speclab.cli.parsing import DASH
from speclab.models.prompts import Prompt
from speclab.records.files import to_json
from speclab.records.log_files import LogFile
from speclab.records.runs import Head
from speclab.system.errors import UsageProblem
from speclab.system.files import check_writable, prepare_folder, shown, write_whole
from speclab.system.terminal import harmless, note

NEW_TEXT = f"--- new text {'-' * 54}"  # the line between a prompt and what the target makes of it

LOSSY = (
    "LOSSY: with --rule {rule} the text does not follow the target's distribution; how far it is off is measured by\n"
    "python compare.py --rule {rule} --temperature {temperature:g}"
)

View = Callable[[], str]  # makes a text of a record
Step = Callable[[], Path | None]  # prints or writes; for `files.do_all`


def how_many(n_tokens: int, n_decoded: int, n_prompts: int) -> str:
    """Say how many tokens a run made, and how many of them its speed is about: the pass over each prompt gives one,
    too."""
    passes = "the prompt's own pass" if n_prompts == 1 else "the prompts' own passes"
    return f"{n_tokens} tokens, {n_decoded} of them decoded after {passes}"


def prompt_heading(prompt: Prompt) -> str:
    """Return a prompt, and the line after which its new text stands."""
    line_end = "" if prompt.text.endswith("\n") else "\n"
    return f"\n=== {prompt.kind} {'=' * 60}\n{prompt.text}{line_end}{NEW_TEXT}"


def describe_chat(prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return a line of a run's head: whether the prompts are in the tokenizer's chat template.

    Empty where it has none.
    """
    if not tokenizer.chat_template:
        return []
    if prompts[0].chat:
        return ["chat    on: the prompt is in the tokenizer's chat template; --no-chat continues the bare text"]
    return ["chat    off: the prompt is continued as it is; --chat puts it into the tokenizer's chat template"]


@dataclass
class Output:
    """The places where a run that makes a record writes. args: has out_dir and json.
    name: what the names of this run's files begin with; each kind of run has files of its own.
    """

    args: argparse.Namespace
    name: str
    out: TextIO = field(default_factory=lambda: sys.stdout)
    log: LogFile | None = None

    @property
    def plots(self) -> Path:
        """Return the folder of the pictures."""
        return self.args.out_dir / "plots"

    def result(self, ending: str) -> Path:
        """Return the record (.json) or the page (.md)."""
        return self.args.out_dir / "results" / (self.name + ending)

    def check(self) -> None:
        """Raise a Problem where something that this run will write cannot be written, or two things are one file."""
        args = self.args
        for ending in (".json", ".md"):
            check_writable(self.result(ending), "--out-dir")
        prepare_folder(self.plots, "--out-dir")
        check_file(args.json, "--json")
        taken: dict[str, str] = {}
        files = {"the record": self.result(".json"), "the page": self.result(".md"), "--json": args.json}
        for name, path in files.items():
            if path in (None, DASH):
                continue
            other = taken.setdefault(os.path.realpath(path), name)
            if other != name and (other, name) != ("the record", "--json"):
                raise UsageProblem(f"{name} and {other} would be one file, {shown(path)}; give {name} another place")

    def writes(self, run: Head, page: View) -> list[Step]:
        """Return the steps that write the record, and then its tables in Markdown, for `files.do_all`."""
        text = functools.cache(lambda: to_json(run))
        steps: list[Step] = [lambda: write_whole(self.result(".json"), text())]
        if self.args.json == DASH:  # `redirected` has sent everything else to standard error
            steps.append(lambda: print(text(), end="", file=self.out, flush=True))
        elif self.args.json:
            steps.append(lambda: write_whole(self.args.json, text()))
        return [*steps, lambda: write_whole(self.result(".md"), harmless(page()))]

    def begin_log(self) -> LogFile:
        """Return the log that this run writes. One that a killed run left behind is set aside, which a note says."""
        self.log = LogFile(self.result(".log.jsonl"))
        if killed := self.log.set_aside():
            note(f"an earlier run was killed; python -m speclab.cli.unfinished {shown(killed)} shows what it measured")
        return self.log

    def redirected(self) -> contextlib.redirect_stdout:
        """Send text to standard output while this is open, or to standard error if the record goes to standard
        output alone."""
        return contextlib.redirect_stdout(sys.stderr if self.args.json == DASH else sys.stdout)
