"""A draft with branches that no extension adds, for tests of programs that refuse such drafts."""

from speclab.drafts import kind_table
from speclab.drafts.choice import Choice
from speclab.drafts.kind_table import Kind


def add_branching(monkeypatch) -> None:
    """Let --draft know `branching`, which nothing can build."""

    def build(setup, seed):
        raise AssertionError("a program that refuses it has built it")

    choice = Choice("branching", "branching", build, branches=True)
    kind = Kind("branching", "branching", "several tokens for one place", lambda argument, text: choice)
    monkeypatch.setitem(kind_table.kinds(), "branching", kind)
