"""The accept rules: how drafted tokens are judged, and the list of all that can be chosen by name. A rule that does not
leave the target's own distribution states the one that it leaves, as `Rule.law`."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from speclab.core.accept import accept_from_logits
from speclab.core.rounds import AcceptRule
from speclab.system import extensions
from speclab.system.errors import UsageProblem


class Rule(NamedTuple):
    """A way to judge drafted tokens."""

    name: str  # as it is typed, with its argument
    accept: AcceptRule
    line: str  # says what it does
    law: Callable[[Tensor, Tensor], Tensor] | None = None
    """(target_probs, draft_probs), (..., vocab) -> the distribution of a token that it emits where it tests a drafted
    one. None: the text has the target's own distribution."""
    chains_only: bool = True  # it cannot judge a draft in which a token has several successors
    distance: Callable[..., float | None] | None = None
    """(measurement, arm, temperature) -> the mean total variation distance of its tokens from the target's law"""


class Listed(NamedTuple):
    """A rule as the list has it."""

    usage: str  # NAME, or NAME:ARGUMENT and which arguments there are
    line: str
    made_from: Rule | Callable[[str], Rule]  # the rule, or what makes it from the argument; ValueError for a wrong one


TOKEN = Rule("token", accept_from_logits, "drafted tokens are judged one by one", chains_only=False)
RULES = {"token": Listed("token", TOKEN.line, TOKEN)}  # by name; the register.py of an extension adds its own


def all_rules() -> dict[str, Listed]:
    extensions.modules("register")
    return RULES


def rule_of(name: str) -> Rule:
    """Return the rule of a name, with its argument behind a colon where it takes one. Raises UsageProblem."""
    kind, colon, argument = name.partition(":")
    if kind in RULES or kind in all_rules():
        made_from = RULES[kind].made_from
        with contextlib.suppress(ValueError):
            if callable(made_from) or not colon:
                rule = made_from(argument) if callable(made_from) else made_from
                assert not rule.law or rule.distance, f"{name}: a rule with another law must say its distance"
                return rule
    usages = " or ".join(kind.usage for kind in RULES.values())
    raise UsageProblem(f"there is no accept rule {name!r}; give {usages}")
