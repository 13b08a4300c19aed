"""The accept rules: how drafted tokens are judged. speclab/core/rule_table.py lists all that have a name.

A rule that does not leave the target's own distribution states the one that it leaves, as `Rule.law`.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from speclab.core.accept import accept_from_logits
from speclab.core.rounds import AcceptRule


class Rule(NamedTuple):
    """A way to judge drafted tokens."""

    name: str  # as it is typed, with its argument
    accept: AcceptRule
    line: str  # says what it does
    law: Callable[[Tensor, Tensor], Tensor] | None = None
    """(target_probs, draft_probs), (..., vocab) -> the distribution of a token that it emits where it tests a drafted
    one. None: the text has the target's own distribution."""
    chains_only: bool = True  # it cannot judge a draft in which a token has several successors


TOKEN = Rule("token", accept_from_logits, "drafted tokens are judged one by one", chains_only=False)
