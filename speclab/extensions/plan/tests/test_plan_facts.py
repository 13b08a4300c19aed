"""The views of plans read only what is declared, and a committed plan is written again as it was read."""

import re
import shutil

from speclab.extensions.plan import plan_views
from speclab.extensions.plan.plan_record import PlanRun
from speclab.records.files import read
from speclab.system.paths import ROOT
from tests.records import test_facts as shared
from tests.records import test_record_files as files

VIEWS = [plan_views.text, plan_views.page]


def test_views_read_only_what_is_declared(monkeypatch):
    shared.test_views_read_only_what_is_declared("cpu-2-cores-plan", PlanRun, VIEWS, monkeypatch)


def test_what_is_read_and_written_again_is_the_same():
    files.test_what_is_read_and_written_again_is_the_same("cpu-2-cores-plan", PlanRun)


def test_chapter_six_asks_for_the_best_length_of_a_record(tmp_path, monkeypatch, capsys):
    """The chapter's code on a committed plan, with the solution in place of the learner's function."""
    text = (ROOT / "docs" / "chapters" / "06-draft-length.md").read_text("utf-8")
    code = re.search(r"```python\n(import json\n.*?)```", text, re.DOTALL)[1]
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "results" / "cpu-2-cores-plan.json", tmp_path / "results" / "local-plan.json")
    monkeypatch.chdir(tmp_path)
    exec(code.replace("from exercises.", "from solutions."), {})
    drafts = read(tmp_path / "results" / "local-plan.json", PlanRun).facts.drafts
    lines = capsys.readouterr().out.splitlines()
    for draft, line in zip(drafts, lines, strict=True):
        words = line.split()
        assert (words[0], int(words[-1])) == (draft.method, draft.best_draft_length)
        assert abs(int(words[2]) - draft.best_draft_length) <= 2, (
            "it has the same costs and an average of the acceptance"
        )
