"""What the tests of other engines' servers share: a file that stands for the Python of vLLM's environment."""

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from speclab.lab.serving import installed, servers

FAKE = Path(__file__).with_name("fake_vllm.py")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Make a file that stands for the Python of vLLM's environment; call it with a script to change what it does."""
    python, plan = tmp_path / "python", tmp_path / "script.json"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv(installed.VARIABLE, str(python))
    monkeypatch.setenv("FAKE_VLLM", str(plan))
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def write(**content):
        plan.write_text(json.dumps(content))
        return plan

    write()
    return write


def started(tmp_path) -> list[int]:
    """The processes of all servers that were started, and those that these have started."""
    return list(map(int, (tmp_path / "script.json.pids").read_text().split()))


def is_running(pid: int) -> bool:
    """A process that has ended, but that nobody has waited for, does not run any more."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()
