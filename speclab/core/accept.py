"""The rule that accepts or rejects drafted tokens, and the list of all rules that --rule names.

`accept` is the token rule, a pure function, tensors in and tensors out, batch first. Extensions add further rules to
RULES. A rule that does not leave the target's own distribution states the one that it leaves, as `Rule.law`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.rounds import AcceptResult, AcceptRule, Draft, n_leading
from speclab.core.sampling import Sampling, draw, graphed, most_probable
from speclab.system import extensions
from speclab.system.errors import UsageProblem


def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Token-by-token rejection rule: the output follows the target's distribution exactly, whatever the draft.

    target_probs: (batch, n + 1, vocab), row i is the target's distribution after i drafted tokens.
    uniforms: (batch, n + 1) in [0, 1): n acceptance tests and the draw of the next token.

    Keep drafted token x while u * q(x) < p(x), with p = target_probs and q = draft.probs. Strict and without a
    division: a token of target probability 0 is never kept. At the first rejection the next token comes from
    norm(max(0, p - q)), after none from the target's last row.
    Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.
    """
    tokens, size, draft_probs = draft.tokens, draft.size, draft.probs
    batch, n = tokens.shape
    target_of_token = target_probs[:, :n].gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    if draft_probs is None:
        draft_of_token = torch.ones_like(target_of_token)
    else:
        draft_of_token = draft_probs.gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    n_accepted = n_leading(uniforms[:, :n] * draft_of_token < target_of_token, size)

    row = torch.arange(batch, device=tokens.device)
    target_here = target_probs[row, n_accepted]  # (batch, vocab) where the next token is drawn
    if n == 0:
        return AcceptResult(n_accepted, draw(target_here, uniforms[:, 0]))
    rejected = n_accepted.clamp(max=n - 1)  # index of the rejected token, where there is one
    if draft_probs is None:
        draft_here = torch.zeros_like(target_here).scatter_(-1, tokens[row, rejected][:, None], 1.0)
    else:
        draft_here = draft_probs[row, rejected]
    residual = (target_here - draft_here).clamp(min=0)
    # Nothing was rejected: this is the bonus token. Or p and q agree to the last bit, so the residual has no mass.
    whole = (n_accepted == size) | (residual.sum(-1) <= 0)
    return AcceptResult(n_accepted, draw(torch.where(whole[:, None], target_here, residual), uniforms[:, n]))


@functools.singledispatch
def accept_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept` from the target's logits, (batch, n + 1, vocab). A kind of draft with its own rule registers it here.

    Against a one-hot target the rule keeps exactly the leading drafted tokens that are the target's own, whatever the
    uniforms and the draft's probabilities, and what follows is the target's own next token: no row is built for that.
    """
    return judge(draft, logits, sampling, uniforms, accept)


def judge(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, rule: Callable, numbers: tuple[float, ...] = ()
) -> AcceptResult:
    """Call `rule(draft, target_probs, uniforms, *numbers)`; greedy, keep what is the target's own without asking it."""
    # The draft goes on without the fields that no rule reads: shapes, and so the CUDA graph, then depend on n only.
    return _judged(logits, draft.bare(), sampling, uniforms[:, : logits.shape[1]], rule, numbers)


@graphed
def _judged(
    logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Tensor, rule: Callable, numbers: tuple[float, ...]
) -> AcceptResult:
    if sampling.greedy:
        return draft.matching(most_probable(logits))
    return rule(draft, sampling.probs(logits), uniforms, *numbers)


# --- the rules by their names -----------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """A way to judge drafted tokens."""

    name: str  # as --rule writes it
    accept: AcceptRule
    line: str  # says what it does
    law: Callable[[Tensor, Tensor], Tensor] | None = None
    """(target_probs, draft_probs), (..., vocab) -> the distribution of a token that it emits where it tests a drafted
    one. None: the text has the target's own distribution."""
    chains_only: bool = True  # it cannot judge a draft in which a token has several successors


class RuleKind(NamedTuple):
    """The form of a rule that may be typed behind --rule, and the function that makes a rule from it."""

    usage: str  # NAME, or NAME:ARGUMENT and which arguments there are
    make: Callable[[str | None], Rule]  # from the argument behind the colon; raises ValueError for a wrong one


RULES: dict[str, RuleKind] = {}


def add_rule(name: str, make: Callable[[str | None], Rule], arguments: str = "") -> None:
    """Let --rule know a further rule. Called by the register.py of an extension."""
    if name in RULES:
        raise ValueError(f"two rules are called {name}")
    RULES[name] = RuleKind(name + arguments, make)


def add_plain_rule(rule: Rule) -> None:
    """Let --rule know a further rule that takes no argument."""

    def make(argument: str | None) -> Rule:
        if argument is not None:
            raise ValueError(f"{rule.name} takes no argument")
        return rule

    add_rule(rule.name, make)


TOKEN = Rule("token", accept_from_logits, "drafted tokens are judged one by one", chains_only=False)
add_plain_rule(TOKEN)


def all_rules() -> dict[str, RuleKind]:
    """RULES, together with the rules of the extensions."""
    extensions.load()
    return RULES


def rule_of(name: str) -> Rule:
    """The rule of a name, with its argument behind a colon where it takes one. UsageProblem where there is none."""
    kind, colon, argument = name.partition(":")
    if kind in all_rules():
        try:
            return RULES[kind].make(argument if colon else None)
        except ValueError:
            pass
    *others, last = [kind.usage for kind in RULES.values()]
    raise UsageProblem(
        f"there is no accept rule {name!r}; give {' or '.join([', '.join(others), last] if others else [last])}"
    )
