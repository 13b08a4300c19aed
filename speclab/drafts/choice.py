"""A draft as it was chosen: what is known of it before a model is loaded, and how it is made.

What a program asks of a draft before it is built is a field of its choice, so nobody compares names.
"""

from collections.abc import Callable
from dataclasses import dataclass

from speclab.core.drafter import Drafter
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem

OTHER_FAMILY = "use as draft a FOLDER with a model of its family, ngram, or hybrid:ngram+FOLDER"

Build = Callable[[Setup, int], Drafter]  # a checked target and the seed of a run -> the drafter


@dataclass(frozen=True)
class Choice:
    """One draft as `--draft` names it, checked as far as that is possible before a model is loaded.

    text: what was typed. name: what tables and records call it, never an absolute path. build: makes the drafter.
    parts: the choices that it is made of, whose limits it has, too.

    is_lookup: it copies from the text, so that a hybrid can have it in front of a model.
    is_model: it is a draft model with the target's ids, and nothing else.
    branches: its drafts have several tokens for one place.
    draws_children: its drafts are trees whose tokens are drawn by the drafter's function `children`.
    can_branch: it says what comes after each of several tokens, so that it can have branches.
    in_hybrid: a hybrid can have it behind a lookup.
    any_family: it works with a target of any family; else it needs a decoder-only one.
    changes_engine: it may change the engine of the target, so it is built before others.
    draws_when_greedy: random numbers decide what it proposes at temperature 0, too.
    no_auto: why `-k auto` cannot choose its lengths, a part of a sentence; None where it can.
    only_greedy: why it needs temperature 0; None where it does not.
    """

    text: str
    name: str
    build: Build
    parts: tuple["Choice", ...] = ()
    is_lookup: bool = False
    is_model: bool = False
    branches: bool = False
    draws_children: bool = False
    can_branch: bool = False
    in_hybrid: bool = False
    any_family: bool = True
    changes_engine: bool = False
    draws_when_greedy: bool = False
    no_auto: str | None = None
    only_greedy: str | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            object.__setattr__(self, "any_family", self.any_family and part.any_family)
            object.__setattr__(self, "changes_engine", self.changes_engine or part.changes_engine)
            object.__setattr__(self, "no_auto", self.no_auto or part.no_auto)
            object.__setattr__(self, "only_greedy", self.only_greedy or part.only_greedy)

    def check_greedy(self, greedy: bool) -> None:
        """Raise UsageProblem where a run samples and this draft cannot."""
        if self.only_greedy and not greedy:
            raise UsageProblem(self.only_greedy)

    def check_auto(self) -> None:
        """Raise UsageProblem where `-k auto` cannot choose its lengths."""
        if self.no_auto:
            raise UsageProblem(f"-k auto: {self.no_auto}; give -k a number")

    def make(self, setup: Setup, seed: int = 0) -> Drafter:
        """Make the drafter for this target. seed: the seed of the numbers that a greedy run draws.

        Raises UsageProblem and EnvironmentProblem where they do not fit.
        """
        self.check_greedy(setup.sampling.greedy)
        if not self.any_family:
            check_family(setup.target.model, f"the draft {self.text}", OTHER_FAMILY, crops=False)
        return self.build(setup, seed)
