"""What comes in besides the servers: files of texts and pages, and the key. All of it is bounded."""

import os
from pathlib import Path

from speclab.extensions.servers.ask.asking import Prompt
from speclab.extensions.servers.ask.engines import KEY
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.files import read_bytes, shown

OWN_TEXTS = Path(__file__).with_name("prompts.txt")
LARGEST_TEXTS, MOST_PROMPTS = 2**20, 1000
HEAD, LONGEST_KIND = "%%", 20


def text_of(path: Path, most: int, flag: str) -> str:
    """Return a file's text. EnvironmentProblem where it cannot be read."""
    try:
        return read_bytes(path, most).decode()
    except (OSError, ValueError) as error:
        why = (
            "it is no UTF-8 text"
            if isinstance(error, UnicodeDecodeError)
            else getattr(error, "strerror", None) or error
        )
        raise EnvironmentProblem(f"{flag} {shown(path)}: {why}; give another file") from None


def prompts_of(path: Path | None) -> list[Prompt]:
    """Return the prompts of a file, the lab's own ones where none is given. A line "%% KIND" begins each."""
    found: list[Prompt] = []
    for block in f"\n{text_of(path or OWN_TEXTS, LARGEST_TEXTS, '--texts')}".split(f"\n{HEAD}")[1:]:
        kind, _, text = block.partition("\n")
        if text.strip():
            found.append(Prompt(" ".join(kind.split())[:LONGEST_KIND] or "text", text.strip()))
    if not 0 < len(found) <= MOST_PROMPTS:
        raise EnvironmentProblem(
            f"--texts {shown(path or OWN_TEXTS)} holds {len(found)} prompts, and 1 to {MOST_PROMPTS} are wanted; begin "
            'each with a line such as "%% code"'
        )
    return found


def key() -> str | None:
    """Return the API key, which is never printed. UsageProblem where it could not stand in a request."""
    found = os.environ.get(KEY, "").strip()
    if not (found.isascii() and found.isprintable()):
        raise UsageProblem(f"{KEY} holds characters that no key has; set it to the key alone")
    return found or None
