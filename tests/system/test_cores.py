"""Whether other work uses the machine: a line about its load average."""

import os

import pytest

from speclab.system import cores


@pytest.mark.parametrize(
    ("average", "n_cores", "busy"),
    [(0.0, 2, False), (1.0, 2, False), (1.1, 2, True), (9.0, 64, False), (0.6, 1, True), (None, 2, False)],
)
def test_a_loaded_machine_is_named(average, n_cores, busy):
    line = cores.complaint(average, n_cores)
    assert (line is not None) == busy
    if line is not None:
        assert f"{average:.1f}" in line
        assert "\n" not in line


def test_a_system_without_a_load_average_has_none(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.7, 0.1), raising=False)
    assert cores.load() == 1.5
    monkeypatch.delattr(os, "getloadavg")
    assert cores.load() is None
