"""Imported first by every script: Ctrl-C while the slow imports run is one line and exit code 130, not a traceback.

Nothing is measured yet, so the process ends on the spot. `reports_problems` takes over when main() runs.
"""

import os
import signal


def _leave(*_: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore it
    signal.signal(signal.SIGINT, _leave)
