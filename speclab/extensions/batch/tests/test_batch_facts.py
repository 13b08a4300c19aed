"""The views of batches read only what is declared, and an entry of another type is refused when read."""

import functools

import pytest

from speclab.extensions.batch import batch_views
from speclab.extensions.batch.batch_record import BatchRun
from tests.records import test_facts as shared

RECORD = "cpu-2-cores-sweep-batch"


def test_views_read_only_what_is_declared(monkeypatch):
    views = [batch_views.text, functools.partial(batch_views.page, picture="x")]
    shared.test_views_read_only_what_is_declared(RECORD, BatchRun, views, monkeypatch)


@pytest.mark.parametrize(("entry", "value"), [("seconds", 0.0), ("n_tokens", None)])
def test_an_entry_of_another_type_is_refused(entry, value):
    shared.test_an_entry_of_another_type_is_refused(RECORD, BatchRun, ("library", 0, entry), value)
