"""The command leaves no process behind, however it ends.

Every server forks a child that ignores SIGTERM.
"""

import os
import signal
import subprocess
import sys

import pytest

from speclab.extensions.servers.tests.conftest import is_running, wait_for_processes
from speclab.system.paths import ROOT

pytestmark = [
    pytest.mark.allow_hosts(["127.0.0.1"]),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs process groups"),
]


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        pytest.param({}, 0, marks=pytest.mark.full, id="normal end"),
        pytest.param({"refuse": {"draft_model": "ValueError: no such head"}}, 3, marks=pytest.mark.full, id="refusal"),
        pytest.param({"die": {"draft_model": 4}}, 3, id="death"),
    ],
)
def test_nothing_is_left_of_a_run_that_ends(run, script, honest, tmp_path, plan, code):
    script(**honest, child=True, **plan)
    assert run()[0] == code
    pids = wait_for_processes(tmp_path, 4)
    assert len(set(pids)) == 4, "two servers and their children"
    assert not any(map(is_running, pids))


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_stopped(pair_folder, script, tmp_path, number):
    """The signal comes to the real program while the second server starts, which never gets healthy."""
    script(child=True, sick=["draft_model"])
    models = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "target"), "-k", "2"]
    words = ["--prompt", "x + 1", "--max-new-tokens", "12", "--threads", "1", "--out-dir", str(tmp_path / "out")]
    default = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    default += "from speclab.extensions.servers.__main__ import main; "
    default += "sys.exit(main(sys.argv[1:]))"  # a shell starts what runs in the background deaf to Ctrl-C
    command = [sys.executable, "-c", default, *models, *words, "--concurrency", "none"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        pids = wait_for_processes(tmp_path, 4)
        assert all(map(is_running, pids))
        program.send_signal(number)
        out, _ = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 128 + number
    assert "Traceback" not in out
    assert not any(map(is_running, pids))
