"""The list of all accept rules that can be chosen by name, for a help, too: nothing heavy is imported.

Extensions add to it, each from its register.py. The rules themselves are `Rule`s (speclab/core/rules.py).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from speclab.system import extensions
from speclab.system.errors import UsageProblem

if TYPE_CHECKING:
    from speclab.core.rules import Rule


class RuleKind(NamedTuple):
    """The form of a rule as it may be typed, and what the rule is made from."""

    usage: str  # NAME, or NAME:ARGUMENT and which arguments there are
    made_from: Rule | Callable[[str], Rule] | str
    """The rule; or a function of the argument behind the colon, which raises ValueError for a wrong one; or
    "module:name" of either, which is imported when the rule is asked for."""
    line: str = ""  # says what the rule does

    def rule(self, argument: str | None) -> Rule:
        """Make the rule with this argument, None where none was typed. Raises ValueError for a wrong argument."""
        made_from = pkgutil.resolve_name(self.made_from) if isinstance(self.made_from, str) else self.made_from
        if callable(made_from):
            return made_from(argument or "")
        if argument is not None:
            raise ValueError(f"{made_from.name} takes no argument")
        return made_from


RULES: dict[str, RuleKind] = {}


def add_rule(name: str, made_from: Rule | Callable[[str], Rule] | str, line: str, arguments: str = "") -> None:
    """Add a further rule to the list; `line` describes it. The register.py of an extension calls this."""
    if name in RULES:
        raise ValueError(f"two rules are called {name}")
    RULES[name] = RuleKind(name + arguments, made_from, line)


add_rule("token", "speclab.core.rules:TOKEN", "drafted tokens are judged one by one")


def all_rules() -> dict[str, RuleKind]:
    """Return RULES together with the rules of the extensions."""
    extensions.load()
    return RULES


def rule_of(name: str) -> Rule:
    """Return the rule of a name, with its argument behind a colon where it takes one.

    Raises UsageProblem where there is none.
    """
    kind, colon, argument = name.partition(":")
    if kind in all_rules():
        try:
            return RULES[kind].rule(argument if colon else None)
        except ValueError:
            pass
    *others, last = [kind.usage for kind in RULES.values()]
    raise UsageProblem(
        f"there is no accept rule {name!r}; give {' or '.join([', '.join(others), last] if others else [last])}"
    )
