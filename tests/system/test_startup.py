"""Whether other work uses the machine: a line about its load average."""

import pytest

from speclab.core import clock
from speclab.system import startup


@pytest.mark.parametrize(
    ("average", "n_cores", "busy"),
    [(0.0, 2, False), (1.0, 2, False), (1.1, 2, True), (9.0, 64, False), (0.6, 1, True), (None, 2, False)],
)
def test_a_loaded_machine_is_named(monkeypatch, average, n_cores, busy):
    monkeypatch.setattr(startup, "LOAD", average)
    monkeypatch.setattr(clock.os, "cpu_count", lambda: n_cores)
    line = clock.busy()
    assert busy == (line is not None and f"{average:.1f}" in line and "\n" not in line)
