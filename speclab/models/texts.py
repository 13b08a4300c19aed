"""Texts that people send to a model: a file with one JSON object a line, put into the tokenizer's chat template.

A line has "prompt", what a person says, or "messages", a chat with the oldest message first, each with a "role"
(system, user, assistant) and a "content". "kind" groups rows of a table; without it the kind is the file's stem.
The lab's own are in prompts/, by the names of LAB_TEXTS.
"""

import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from speclab.models import prompts
from speclab.models.names import LAB_TEXTS, PROMPTS
from speclab.models.prompts import Messages, Prompt
from speclab.system import files
from speclab.system.errors import UsageProblem, setting
from speclab.system.terminal import harmless

ROLES = ("system", "user", "assistant")
RESERVED = ("all", "not looping")  # names of groups of rows
MOST_TEXTS, MOST_MESSAGES, LONGEST_KIND = 4096, 256, 24
Text = tuple[str, Messages]
"""The kind of a text, and its messages."""


def read(name: str) -> list[Text]:
    """Return the texts of a file, or of the lab's own of that name. Raises UsageProblem, with the line that is
    wrong."""
    is_own = name in LAB_TEXTS and not os.path.isfile(name)
    path = PROMPTS / f"{name}.jsonl" if is_own else Path(name)
    try:
        # At \n alone: splitlines also cuts at what may stand inside a JSON string, such as U+2028.
        lines = files.read_bytes(path, prompts.LARGEST_FILE).decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        own = " or ".join(LAB_TEXTS)
        raise UsageProblem(f"cannot read the texts {name}: {reason}; give a JSONL file, or {own}") from None
    stem = " ".join(harmless(path.stem).split())[:LONGEST_KIND]
    texts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                texts.append(_text(files.parse_json(line), stem))
            except ValueError as error:
                raise UsageProblem(
                    f"line {number} of {name}: {str(error)[:200]}; give lines such as "
                    '{"kind": "chat", "prompt": "Hello"} or {"messages": [{"role": "user", "content": "Hello"}]}'
                ) from None
    if not texts or len(texts) > MOST_TEXTS:
        raise UsageProblem(f"{name} holds {len(texts)} texts; give 1 to {MOST_TEXTS}")
    return texts


def _text(entry: Any, stem: str) -> Text:
    """Check one line. Raises ValueError, with what is wrong."""
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise ValueError('it is no JSON object with exactly one of "prompt" and "messages"')
    if unknown := sorted(set(entry) - {"kind", "prompt", "messages"}):
        raise ValueError(f"it has the unknown entry {unknown[0][:40]!r}")
    kind = entry.get("kind", stem)
    if not isinstance(kind, str) or not kind.strip() or not kind.isprintable() or len(kind) > LONGEST_KIND:
        raise ValueError(f"its kind is no word of 1 to {LONGEST_KIND} characters")
    if kind in RESERVED:
        raise ValueError(f"its kind is {kind!r}, which names a group of rows")
    messages = entry.get("messages", [{"role": "user", "content": entry.get("prompt")}])
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        raise ValueError(f"its messages are no list of 1 to {MOST_MESSAGES}")
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"} or message["role"] not in ROLES:
            raise ValueError(f'a message has not exactly a "content" and a "role" out of {", ".join(ROLES)}')
        if not isinstance(message["content"], str) or not message["content"].strip():
            raise ValueError("a prompt or a message is no text, or empty")
    if messages[-1]["role"] == "assistant":
        raise ValueError("its last message is the model's own, so there is nothing to answer")
    return kind, messages


def encode(texts: list[Text], tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """Put texts into the tokenizer's chat template. Raises UsageProblem where it has none."""
    if not tokenizer.chat_template:
        raise UsageProblem(
            f"the target's tokenizer has no chat template, which {setting('texts')} needs; give "
            f"{setting('prompts', 'FILE')} with bare texts, or choose a model with one"
        )
    ids = prompts.chats_ids([messages for _, messages in texts], tokenizer)
    return [Prompt(kind, _shown(messages), own, True) for (kind, messages), own in zip(texts, ids, strict=True)]


def _shown(messages: Messages) -> str:
    """Return a chat as a text: what a person says alone, or each message after its role."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
