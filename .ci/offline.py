"""Run a script with every network connection refused: `python .ci/offline.py compare.py --quick`.

A script that needs the network fails here; the lab's own pair must not.
"""

import runpy
import socket
import sys
from pathlib import Path


def refuse(*_args, **_kwargs):
    raise OSError("the network was used")


for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.create_connection = refuse

sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
runpy.run_path(sys.argv[0], run_name="__main__")
