"""The accept rules that leave the target's own distribution: loops and drafts are tried with each that is known.

Two stand-ins are here for tests of what surrounds a rule: one keeps every drafted token, so its law is the draft's, and
one is the token rule by another name.
"""

import torch

from speclab.core import rules
from speclab.core.accept import accept_from_logits, judge
from speclab.core.rounds import AcceptResult
from speclab.core.rules import Listed, Rule, all_rules, rule_of
from speclab.core.sampling import draw


def _without_argument() -> list[Rule]:
    return [rule_of(name) for name, listed in all_rules().items() if ":" not in listed.usage]


RULES = {rule.name: rule.accept for rule in _without_argument() if rule.law is None}
FOR_TREES = [rule.name for rule in _without_argument() if rule.law is None and not rule.chains_only]


def keep_all(draft, target_probs, uniforms):
    last = target_probs[torch.arange(len(draft.size)), draft.size]
    return AcceptResult(draft.size, draw(last, uniforms[:, draft.tokens.shape[1]]))


def law_of_drafts(target_probs, draft_probs):
    return torch.where(draft_probs.sum(-1, keepdim=True) > 0, draft_probs, target_probs)


LOSSY = Rule("credulous", lambda *asked: judge(*asked, keep_all), "every drafted token is kept", law_of_drafts)
LOSSY = LOSSY._replace(distance=lambda measured, arm, temperature: None)
LOSSLESS = Rule("renamed", accept_from_logits, "this is the token rule")


def make_known(monkeypatch) -> None:
    """Let --rule know the stand-ins."""
    for rule in (LOSSY, LOSSLESS):
        monkeypatch.setitem(rules.RULES, rule.name, Listed(rule.name, rule.line, rule))
