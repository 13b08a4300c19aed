"""The files that a run leaves behind, and the lines around a text that several commands print."""

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from transformers import PreTrainedTokenizerBase

from speclab.cli.flags import check_file
from speclab.cli.parsing import DASH
from speclab.models.prompts import Prompt
from speclab.present.pictures import library
from speclab.records.files import to_json
from speclab.records.runs import Head
from speclab.system.errors import UsageProblem
from speclab.system.files import check_writable, prepare_folder, shown, write_all, write_whole
from speclab.system.terminal import harmless, note, say

NEW_TEXT = f"--- new text {'-' * 54}"  # the line between a prompt and what the target makes of it

LOSSY = (
    "LOSSY: with --rule {rule} the text does not follow the target's distribution; how far it is off is measured by\n"
    "python compare.py --rule {rule} --temperature {temperature:g}"
)

View = Callable[[], str]  # makes a text of a record
Step = Callable[[], Path | None]  # prints or writes; for `files.write_all`


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

    @property
    def plots(self) -> Path:
        return self.args.out_dir / "plots"

    def result(self, ending: str) -> Path:
        return self.args.out_dir / "results" / (self.name + ending)

    def check(self) -> None:
        """Raise a Problem where something that this run will write cannot be written, or the page would be --json."""
        for ending in (".json", ".md"):
            check_writable(self.result(ending), "--out-dir")
        prepare_folder(self.plots, "--out-dir")
        given, page = self.args.json, self.result(".md")
        check_file(given, "--json")
        if given not in (None, DASH) and os.path.realpath(given) == os.path.realpath(page):
            raise UsageProblem(f"--json and the page would be one file, {shown(given)}; give --json another place")

    def writes(self, run: Head, page: View) -> list[Step]:
        """Return the steps that write the record, and then its tables in Markdown."""
        text = functools.cache(lambda: to_json(run))
        steps: list[Step] = [lambda: write_whole(self.result(".json"), text())]
        if self.args.json == DASH:  # `redirected` has sent everything else to standard error
            steps.append(lambda: print(text(), end="", file=self.out, flush=True))
        elif self.args.json:
            steps.append(lambda: write_whole(self.args.json, text()))
        return [*steps, lambda: write_whole(self.result(".md"), harmless(page()))]

    def redirected(self) -> contextlib.redirect_stdout:
        """Send text to standard output while this is open, or to standard error if the record goes to standard
        output alone."""
        return contextlib.redirect_stdout(sys.stderr if self.args.json == DASH else sys.stdout)


def show(output: Output, record: Head, texts: Sequence[View], page: View, pictures: Sequence[Step] = ()) -> None:
    """Write the record and its page, print the texts, and draw the pictures where that can be done."""
    if pictures and not library.is_here():
        note(library.MISSING)
        pictures = ()
    old = "; files of an earlier run are replaced, --name NAME keeps them" * output.result(".json").exists()
    says: list[Step] = [functools.partial(_say, text) for text in texts]
    write_all([*output.writes(record, page), *says, *pictures], old)


def _say(text: View) -> None:
    say(text())
