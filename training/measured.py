"""What must not be trained on: every text of the lab that is measured."""

import functools
import re

from speclab.models import prompts
from speclab.models.names import LAB_TEXTS

RUN_OF_WORDS = 13  # so many words in a row in common make a text one that is measured


def measured_texts() -> list[str]:
    """Return every text of the lab that is measured: all standard prompts, and all messages of the lab's own texts."""
    own = [message["content"] for name in LAB_TEXTS for _, messages in prompts.read_texts(name) for message in messages]
    return [*(text for _, text in prompts.standard()), *own]


def is_measured(text: str) -> bool:
    """Tell whether a text has 13 words in a row in common with one that is measured, or is a shorter one of them."""
    words = _words(text)
    return " ".join(words) in _measured_runs() or any(run in _measured_runs() for run in _runs(words))


@functools.cache
def _measured_runs() -> frozenset[str]:
    words_of = [_words(text) for text in measured_texts()]
    return frozenset(run for words in words_of for run in (*_runs(words), " ".join(words)))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _runs(words: list[str]) -> list[str]:
    return [" ".join(words[i : i + RUN_OF_WORDS]) for i in range(len(words) - RUN_OF_WORDS + 1)]
