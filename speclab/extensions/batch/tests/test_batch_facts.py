"""The views of batches read only what is declared."""

import functools

from speclab.extensions.batch import batch_views
from speclab.extensions.batch.batch_record import BatchRun
from tests.records import test_facts as shared

RECORD = "cpu-2-cores-sweep-batch"


def test_views_read_only_what_is_declared(monkeypatch):
    views = [batch_views.text, functools.partial(batch_views.page, picture="x")]
    shared.test_views_read_only_what_is_declared(RECORD, BatchRun, views, monkeypatch)
