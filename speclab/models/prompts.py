"""Prompts: the standard set in `prompts/`, a file, standard input, or a text; and texts that people send to a model.

A model that is trained to answer expects what a person says inside its chat template, a small program that comes with
the tokenizer and runs in the library's sandbox. In a file of texts each line is a JSON object with "prompt", what a
person says, or "messages", a chat; "kind" groups rows of a table.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from speclab.system import files
from speclab.system.errors import EnvironmentProblem, UsageProblem, first_line
from speclab.system.terminal import harmless

PROMPTS = files.DATA / "prompts"
LAB_TEXTS = tuple(sorted(path.stem for path in PROMPTS.glob("*.jsonl")))
KINDS = ("code", "prose", "copy")
EMPTY = "a prompt is empty; give at least one word, for example 'def main():'"
LARGEST_FILE = 16 * 2**20  # bytes; no model here reads a text of that length
ROLES = ("system", "user", "assistant")
LONGEST_KIND = 24

Messages = list[dict[str, str]]
"""A chat, the oldest message first: each has a "role" (system, user, assistant) and a "content"."""


@dataclass(frozen=True)
class Prompt:
    """kind: groups rows of a table. text: as typed. ids: (1, length), on the CPU. chat: they are in a chat template."""

    kind: str
    text: str
    ids: Tensor
    chat: bool = False

    @property
    def id_list(self) -> list[int]:
        return self.ids[0].tolist()


def split(text: str) -> list[str]:
    """Return the texts between lines that hold only `%%`; the line end before a separator is not part of a prompt."""
    texts = re.split(r"^[^\S\n]*%%[^\S\n]*$\n?", text, flags=re.MULTILINE)  # lines end at \n alone
    return [stripped for stripped in (t.removesuffix("\n").removesuffix("\r") for t in texts) if stripped.strip()]


def standard() -> list[tuple[str, str]]:
    """Return (kind, text) of each of the lab's own prompts."""
    return [(kind, text) for kind in KINDS for text in split((PROMPTS / f"{kind}.txt").read_text("utf-8"))]


def from_file(name: str) -> list[tuple[str, str]]:
    """Read (kind, text) from a file, or from standard input where `name` is "-". The kind is the file's stem."""
    texts = split(_read(name).replace("\r\n", "\n").replace("\r", "\n"))
    if not texts:
        raise UsageProblem(f"there is no prompt in {name}; put texts in it, with lines of %% between them")
    return [("stdin" if name == "-" else " ".join(harmless(Path(name).stem).split()), text) for text in texts]


def _read(name: str) -> str:
    try:
        if name == "-":
            found = files.at_most(sys.stdin.buffer.read(LARGEST_FILE + 1), LARGEST_FILE)
        else:
            found = files.read_bytes(Path(name), LARGEST_FILE)
        return found.decode("utf-8-sig")  # a byte order mark is no part of a text
    except (AttributeError, OSError, ValueError) as error:  # no standard input; a NUL in the name, or no UTF-8
        reason = getattr(error, "strerror", None) or error
        way_out = "give a text file in UTF-8, or - for standard input"
        raise UsageProblem(f"cannot read {name}: {reason}; {way_out}") from None


def read_texts(name: str) -> list[tuple[str, Messages]]:
    """Return the texts of a file, or of the lab's own of that name. Raises UsageProblem with the number of the line."""
    is_own = name in LAB_TEXTS and not os.path.isfile(name)
    path, texts = PROMPTS / f"{name}.jsonl" if is_own else Path(name), []
    # At \n alone: splitlines also cuts at what may stand inside a JSON string, such as U+2028.
    for number, line in enumerate(_read(str(path)).split("\n"), 1):
        if line.strip():
            try:
                texts.append(_text(from_json(line), path.stem))
            except ValueError as error:
                raise UsageProblem(
                    f"line {number} of {name}: {str(error)[:200]}; give lines such as "
                    '{"kind": "chat", "prompt": "Hello"} or {"messages": [{"role": "user", "content": "Hello"}]}'
                ) from None
    if not texts:
        raise UsageProblem(f"{name} holds no text; give a JSONL file, or {' or '.join(LAB_TEXTS)}")
    return texts


def _text(entry: Any, stem: str) -> tuple[str, Messages]:
    """Check one line. Raises ValueError, with what is wrong."""
    names = {"kind", "prompt", "messages"}
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry) or entry.keys() - names:
        raise ValueError('it is no JSON object with one of "prompt" and "messages", and perhaps "kind"')
    if not isinstance(kind := entry.get("kind", stem), str):
        raise ValueError("its kind is no word")
    try:
        messages = entry["messages"] if "messages" in entry else [{"role": "user", "content": entry["prompt"]}]
        said = [(message["role"], message["content"].strip()) for message in messages]
    except (AttributeError, KeyError, TypeError):
        raise ValueError('a prompt is no text, or a message lacks its "role" or its "content"') from None
    if not said or not all(role in ROLES and content for role, content in said):
        raise ValueError(f"a text is empty, or a role is none of {', '.join(ROLES)}")
    if said[-1][0] == "assistant":
        raise ValueError("its last message is the model's own, so there is nothing to answer")
    kind = " ".join(harmless(kind).split())[:LONGEST_KIND]
    if kind in ("", "all"):  # which names a group of rows
        raise ValueError('its kind is empty, or "all"')
    return kind, messages


def encode(
    pairs: Sequence[tuple[str, str | Messages]], tokenizer: PreTrainedTokenizerBase, chat: bool = False
) -> list[Prompt]:
    """Tokenise (kind, text) pairs; one without ids is refused. chat: each text is what a user says, or a whole chat,
    and is put into the tokenizer's chat template."""
    texts = [text if isinstance(text, str) else "\n".join(said["content"] for said in text) for _, text in pairs]
    if not all(text.strip() for text in texts):
        raise UsageProblem(EMPTY)
    if chat:
        chats = [[{"role": "user", "content": text}] if isinstance(text, str) else text for _, text in pairs]
        ids = chats_ids(chats, tokenizer)
    else:
        ids = [_ids(tokenizer, text) for text in texts]
    return [Prompt(kind, text, own, chat) for (kind, _), text, own in zip(pairs, texts, ids, strict=True)]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, **options: bool) -> Tensor:
    """Return (1, length) ids, with those that the tokenizer puts around every text unless the options say otherwise."""
    try:
        ids = tokenizer(text, **options).input_ids
    except Exception as error:  # the tokenizers library raises plain ones
        why = harmless(" ".join(str(error).split())) or type(error).__name__
        raise UsageProblem(f"the tokenizer refuses a prompt: {why}; give a text of words that it knows") from None
    if not ids:
        raise UsageProblem(EMPTY)
    return torch.tensor([ids])


def chats_ids(chats: list[Messages], tokenizer: PreTrainedTokenizerBase) -> list[Tensor]:
    """Return the ids of each chat, (1, length), up to where the model answers. Raises UsageProblem where there is no
    template, and EnvironmentProblem where it cannot be used."""
    if not tokenizer.chat_template:
        raise UsageProblem("the target's tokenizer has no chat template; use --no-chat, or choose a model with one")
    try:
        made = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    except Exception as error:  # a template is a program, and may raise anything
        raise EnvironmentProblem(
            f"the chat template of the target's tokenizer cannot be used: {type(error).__name__}: {first_line(error)}; "
            f"use --no-chat, or correct the template"
        ) from None
    return [_ids(tokenizer, str(text), add_special_tokens=False) for text in made]  # the template has written those


def first_of_each_kind(prompts: list[Prompt], limit: int) -> list[Prompt]:
    """Return at most `limit` prompts of every kind, in order; 0 keeps all."""
    kept: list[Prompt] = []
    for prompt in prompts:
        if not limit or sum(other.kind == prompt.kind for other in kept) < limit:
            kept.append(prompt)
    return kept
