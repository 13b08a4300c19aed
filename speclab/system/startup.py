"""Imported first by every script: says what takes so long, makes Ctrl-C one line, and asks for the load of the machine.

`reports_problems` takes over when main() runs. A module that is no script gets neither. Both tell the threads of OpenMP
to sleep between their jobs: by default a thread tests for milliseconds whether there is a next job, and beside another
program it keeps the core that the other thread needs.
"""

import os
import shlex
import signal
import sys
from importlib.util import find_spec

from speclab.system.terminal import note

# Of the last minute, before this program has done any work of its own; Windows has none.
LOAD: float | None = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _leave(*_: object) -> None:
    note("stopped")
    os._exit(130)


# Read when torch is loaded. A thread tests 5,000 times, some 50 us, before it sleeps: waking it takes as long.
OF_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}
SET = {name for name in OF_THREADS if name not in os.environ}  # programs that are not the lab's do without these
os.environ.update({name: OF_THREADS[name] for name in SET})

_frame = sys._getframe(1)  # of the module that imports this one
while _frame.f_back and _frame.f_globals["__name__"].startswith("importlib."):
    _frame = _frame.f_back
if _frame.f_globals["__name__"] == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore it
        signal.signal(signal.SIGINT, _leave)
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        from speclab.system.files import ROOT, shown  # here: a round does without these

        listed = shlex.quote(shown(ROOT / "requirements.txt"))
        note(f"error: {missing[0]} is not installed for this Python; type: pip install -r {listed}")
        sys.exit(3)
    note("loading PyTorch")
del _frame
