"""Prompts: the standard set in `prompts/`, a file, standard input, or a text.

A model that is trained to answer expects what a person says inside its chat template, a small program that comes with
the tokenizer. The library runs it in its sandbox.
"""

import errno
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from speclab.models.names import PROMPTS
from speclab.system import files
from speclab.system.errors import EnvironmentProblem, UsageProblem, first_line, setting
from speclab.system.terminal import harmless

KINDS = ("code", "prose", "copy")
SEPARATOR = "%%"
EMPTY = "a prompt is empty; give at least one word, for example 'def main():'"
LARGEST_FILE = 16 * 2**20  # bytes; no model here reads a text of that length

Messages = list[dict[str, str]]
"""A chat, the oldest message first: each has a "role" (system, user, assistant) and a "content"."""


@dataclass(frozen=True)
class Prompt:
    """One prompt. `kind` groups rows of a table; `text` is what was typed; `ids` is (1, length) on the CPU.

    chat: the ids hold the text inside the tokenizer's chat template.
    """

    kind: str
    text: str
    ids: Tensor
    chat: bool = False

    @property
    def id_list(self) -> list[int]:
        return self.ids[0].tolist()


def split(text: str) -> list[str]:
    """Return the texts between lines that hold only `%%`; the line end before a separator is not part of a prompt."""
    texts = re.split(rf"^[^\S\n]*{SEPARATOR}[^\S\n]*$\n?", text, flags=re.MULTILINE)  # lines end at \n alone
    return [stripped for stripped in (t.removesuffix("\n").removesuffix("\r") for t in texts) if stripped.strip()]


def standard() -> list[tuple[str, str]]:
    """Return (kind, text) of each of the lab's own prompts."""
    return [(kind, text) for kind in KINDS for text in split((PROMPTS / f"{kind}.txt").read_text("utf-8"))]


def from_file(name: str) -> list[tuple[str, str]]:
    """Read (kind, text) from a file, or from standard input where `name` is "-". The kind is the file's stem."""
    source = "standard input" if name == "-" else name
    try:
        text = _read(name).decode("utf-8-sig")  # a byte order mark is no part of a prompt
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or bytes that are not UTF-8
        undecodable = isinstance(error, UnicodeDecodeError)
        reason = "it is not UTF-8 text" if undecodable else getattr(error, "strerror", None) or error
        raise UsageProblem(
            f"cannot read the prompts file {name}: {reason}; give a text file or - for standard input"
        ) from None
    texts = split(text.replace("\r\n", "\n").replace("\r", "\n"))
    if not texts:
        raise UsageProblem(
            f"there is no prompt in {source}; put one text in it, or several with lines of %% between them"
        )
    return [("stdin" if name == "-" else " ".join(harmless(Path(name).stem).split()), t) for t in texts]


def _read(name: str) -> bytes:
    if name != "-":
        return files.read_bytes(Path(name), LARGEST_FILE)
    if sys.stdin is None:
        raise OSError(errno.EBADF, "standard input is closed")
    return files.at_most(sys.stdin.buffer.read(LARGEST_FILE + 1), LARGEST_FILE)


def from_arguments(arguments: list[str]) -> list[tuple[str, str]]:
    """Return (kind, text) of texts from the command line: their own bytes, whatever the locale has made of them."""
    try:
        return [("prompt", os.fsencode(argument).decode("utf-8")) for argument in arguments]
    except UnicodeError:
        advice = f"save it as UTF-8 and use {setting('prompts', 'FILE')}"
        raise UsageProblem(f"a prompt is not UTF-8 text; {advice}") from None


def encode(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, chat: bool = False) -> list[Prompt]:
    """Tokenise (kind, text) pairs. An empty prompt is refused, and so is one that the tokenizer has no ids for.

    chat: each text is what a user says, and is put into the tokenizer's chat template.
    """
    texts = [text for _, text in pairs]
    if not all(text.strip() for text in texts):
        raise UsageProblem(EMPTY)
    if chat:
        ids = chats_ids([[{"role": "user", "content": text}] for text in texts], tokenizer)
    else:
        ids = [_ids(tokenizer, text, special=True) for text in texts]
    return [Prompt(kind, text, own, chat) for (kind, text), own in zip(pairs, ids, strict=True)]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, special: bool) -> Tensor:
    """Return the ids of a text, (1, length). special: with the special tokens that the tokenizer puts around every
    text."""
    try:
        ids = (tokenizer(text) if special else tokenizer(text, add_special_tokens=False)).input_ids
    except Exception as error:  # the tokenizers library raises plain ones
        why = harmless(" ".join(str(error).split())) or type(error).__name__
        raise UsageProblem(f"the tokenizer refuses a prompt: {why}; give a text of words that it knows") from None
    if not ids:
        raise UsageProblem(EMPTY)
    return torch.tensor([ids])


def chats_ids(chats: list[Messages], tokenizer: PreTrainedTokenizerBase) -> list[Tensor]:
    """Return the ids of each chat, (1, length), up to where the model answers.

    Raises UsageProblem where there is no template, and EnvironmentProblem where it cannot be used.
    """
    if not tokenizer.chat_template:
        raise UsageProblem(
            f"the target's tokenizer has no chat template; give a bare text without {setting('chat')}, or choose a "
            "model with one"
        )
    try:
        made = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    except Exception as error:  # a template is a program, and may raise anything
        raise EnvironmentProblem(
            f"the chat template of the target's tokenizer cannot be used: {type(error).__name__}: {first_line(error)}; "
            f"use {setting('no_chat')}, or correct the template"
        ) from None
    return [_ids(tokenizer, str(text), special=False) for text in made]  # the template has written those already


def first_of_each_kind(prompts: list[Prompt], limit: int) -> list[Prompt]:
    """Return at most `limit` prompts of every kind, in order; 0 keeps all."""
    kept: list[Prompt] = []
    for prompt in prompts:
        if not limit or sum(other.kind == prompt.kind for other in kept) < limit:
            kept.append(prompt)
    return kept
