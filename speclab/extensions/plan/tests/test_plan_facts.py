"""The views of plans read only what is declared, and a committed plan is written again as it was read."""

from speclab.extensions.plan import plan_views
from speclab.extensions.plan.plan_record import PlanRun
from tests.records import test_facts as shared
from tests.records import test_record_files as files

VIEWS = [plan_views.text, plan_views.page]


def test_views_read_only_what_is_declared(monkeypatch):
    shared.test_views_read_only_what_is_declared("cpu-2-cores-plan", PlanRun, VIEWS, monkeypatch)


def test_what_is_read_and_written_again_is_the_same():
    files.test_what_is_read_and_written_again_is_the_same("cpu-2-cores-plan", PlanRun)
