"""A draft with branches that no extension adds, for tests of programs that refuse such drafts."""

from speclab.drafts import registry
from speclab.drafts.registry import Choice, Kind


def add_branching(monkeypatch) -> None:
    """Let --draft know `branching`, which nothing can build."""

    def build(setup, seed):
        raise AssertionError("a program that refuses it has built it")

    choice = Choice("branching", "branching", build, branches=True)
    kind = Kind("branching", lambda argument, text: choice, "several tokens for one place")
    monkeypatch.setitem(registry.kinds(), "branching", kind)
