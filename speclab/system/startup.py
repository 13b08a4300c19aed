"""Imported first by every script: Ctrl-C while the slow imports run, or a library that is missing, is one line.

Nothing is measured yet, so the process ends on the spot, with exit code 130 or 3. `reports_problems` takes over when
main() runs.

Threads of OpenMP are told to sleep between their jobs. By default they look for the next one for milliseconds: beside
another process, each waits on the core that the other one needs (a round of the lab pair: 40 ms in place of 10).
"""

import os
import signal
import sys
from importlib.util import find_spec

from speclab.system.files import install_advice


def _leave(*_: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore it
    signal.signal(signal.SIGINT, _leave)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # looks before that, some 50 us: waking a thread takes as long
if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
    sys.stderr.write(f"error: {missing[0]} is not installed for this Python; type: {install_advice()}\n")
    sys.exit(3)
