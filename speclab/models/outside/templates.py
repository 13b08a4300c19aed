"""Chats as texts, by the template that comes with a tokenizer, which is a program that nobody here has read.

It runs in a process of its own (speclab/models/outside/chat_child.py) with limits of time and memory. Starting that
takes a fifth of a second; several chats can be given at once, and what was rendered once is remembered.
"""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from speclab.system.errors import EnvironmentProblem, first_line, setting

CHILD = Path(__file__).with_name("chat_child.py")
SECONDS, CLOCK_SECONDS = 5, 60  # of a processor's time, and by the clock
MEMORY = 2 * 2**30  # bytes of addresses, the library's own included
LONGEST = 16 * 2**20  # characters of all texts together
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # each takes addresses

Messages = list[dict[str, str]]
"""A chat, the oldest message first: each has a "role" (system, user, assistant) and a "content"."""


def rendered(chats: list[Messages], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the chats in the tokenizer's template, up to where the model answers.

    Raises EnvironmentProblem where the template does not run, refuses these messages, or takes more than the limits.
    """
    try:
        question = {
            "template": tokenizer.get_chat_template(),
            "chats": [[{k: v for k, v in m.items() if v is not None} for m in chat] for chat in chats],
            "names": {**tokenizer.special_tokens_map, "add_generation_prompt": True},
            "seconds": SECONDS,
            "memory": MEMORY,
            "longest": LONGEST,
        }
        return list(_answer(json.dumps(question, default=str)))
    except (ValueError, OSError) as error:  # several templates and none of them the default; no process to be had
        raise _unusable(f"{type(error).__name__}: {first_line(error)}") from None


@functools.lru_cache(maxsize=64)
def _answer(question: str) -> tuple[str, ...]:
    words = [sys.executable, "-P", str(CHILD)]
    environment = os.environ | ONE_THREAD
    try:
        done = subprocess.run(
            words, input=question.encode(), capture_output=True, timeout=CLOCK_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unusable(f"it does not end within {CLOCK_SECONDS} s") from None
    if done.returncode:
        late = -done.returncode in (getattr(signal, "SIGXCPU", None), getattr(signal, "SIGKILL", None))
        ended = f"it does not end within {SECONDS} s of processor time" if late else f"exit code {done.returncode}"
        raise _unusable(ended)
    answer: dict[str, Any] = json.loads(done.stdout)
    if "problem" in answer:
        raise _unusable(answer["problem"])
    return tuple(answer["texts"])


def _unusable(why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the chat template of the target's tokenizer cannot be used: {why}; use {setting('no_chat')}, or "
        "correct the template"
    )
