"""Imported first by every script: says within a second what takes so long, and makes Ctrl-C during it one line.

Nothing is measured yet, so the process ends on the spot, with exit code 130, or 3 where a library is missing.
`reports_problems` takes over when main() runs. A module that is no script gets neither.

Scripts and modules alike tell the threads of OpenMP to sleep between their jobs. By default a thread tests for
milliseconds whether there is a next job, and beside another program it keeps the core that the other thread needs.
"""

import contextlib
import os
import signal
import sys
from importlib.util import find_spec


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(2, line.encode() + b"\n")


def _leave(*_: object) -> None:
    _say("stopped")
    os._exit(130)


def _is_for_a_script() -> bool:
    """Tell whether the module that imports this one is run as a script."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].startswith((__name__, "importlib.")):
        frame = frame.f_back
    return frame.f_globals["__name__"] == "__main__"


def environment() -> dict[str, str]:
    """Return the environment for programs that are not the lab's: without what is set here."""
    return {name: value for name, value in os.environ.items() if name not in SET}


# Read when torch is loaded. A thread tests 5,000 times, some 50 us, before it sleeps: waking it takes as long.
OF_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}
SET = {name for name in OF_THREADS if name not in os.environ}
os.environ.update({name: OF_THREADS[name] for name in SET})
if _is_for_a_script():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore it
        signal.signal(signal.SIGINT, _leave)
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        from speclab.system.files import install_advice

        _say(f"error: {missing[0]} is not installed for this Python; type: {install_advice()}")
        sys.exit(3)
    _say("loading PyTorch")
