"""A chat template, run in a process of its own: `speclab/models/outside/templates.py` starts this file.

A template is a program from outside, and the library's sandbox bounds neither how long it runs nor how much it writes.
Standard input has a question as JSON, standard output gets the answer. On Linux the kernel ends this process after
`seconds` of processor time and refuses it more than `memory` bytes of addresses. macOS does not enforce the second one,
and Windows has neither: there the clock of the parent ends it.
"""

import contextlib
import importlib
import importlib.util
import json
import math
import sys
import time
import types
from collections.abc import Callable
from typing import Any

LIBRARY = "transformers.utils.chat_template_utils"


def renderer() -> Callable[..., Any]:
    """Return the library's function.

    Importing the whole library takes three times as long, so empty packages stand for it.
    """
    packages = ("transformers", "transformers.utils")
    try:
        for name in packages:
            found = importlib.util.find_spec(name)
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = list(found.submodule_search_locations)  # type: ignore[union-attr,arg-type]
        return importlib.import_module(LIBRARY).render_jinja_template
    except Exception:  # another version of the library, whose module needs more of it
        for name in [name for name in sys.modules if name.startswith("transformers")]:
            del sys.modules[name]
        return importlib.import_module(LIBRARY).render_jinja_template


def limit(seconds: int, memory: int) -> None:
    """Bound what this process may take from here on, where the system can. A stricter bound stays."""
    try:
        import resource
    except ImportError:  # Windows
        return
    until = math.ceil(time.process_time()) + seconds
    for what, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, until, until + 1),
        (resource.RLIMIT_AS, memory, memory),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (soft, hard))


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of the chats, or why there are none."""
    render = renderer()
    limit(question["seconds"], question["memory"])
    try:
        texts, _ = render(question["chats"], chat_template=question["template"], **question["names"])
        if sum(map(len, texts)) <= question["longest"]:
            return {"texts": texts}
        return {"problem": f"it writes more than {question['longest'] // 2**20} Mi characters"}
    except MemoryError:
        return {"problem": f"it needs more than {question['memory'] // 2**30} GiB of memory"}
    except Exception as error:  # a template is a program, and may raise any exception
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        return {"problem": f"{type(error).__name__}: {first}"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answered(json.load(sys.stdin))))
