"""The views of sweeps read only what is declared, and their records are written again as they were read."""

import functools

from speclab.extensions.sweeps import sweep_views
from speclab.extensions.sweeps.sweep_record import SweepRun
from tests.records import test_facts as shared
from tests.records import test_record_files as files

VIEWS = [sweep_views.text, functools.partial(sweep_views.page, picture_path="x")]


def test_views_read_only_what_is_declared(monkeypatch):
    shared.test_views_read_only_what_is_declared("cpu-2-cores-sweep-mismatch", SweepRun, VIEWS, monkeypatch)


def test_what_is_read_and_written_again_is_the_same():
    files.test_what_is_read_and_written_again_is_the_same("cpu-2-cores-sweep-context", SweepRun)
