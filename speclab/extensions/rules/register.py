"""Adds the rules to the lab. All of them but `follow` judge chains of tokens alone."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from speclab.core.accept import judge
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.rules import RULES, Listed, Rule
from speclab.core.sampling import Sampling
from speclab.extensions.rules.block import accept_block
from speclab.extensions.rules.distance import measure
from speclab.extensions.rules.follow import accept_follow
from speclab.extensions.rules.lossy import accept_lenient, accept_typical, lenient_law, typical_law
from speclab.system.errors import UsageProblem


def of_chains(name: str, line: str, rule: Callable, law: Callable | None = None, *numbers: float) -> Rule:
    """Return a Rule for drafts that are chains; it raises UsageProblem for others. numbers: of `rule` and `law`."""

    def accept(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        if draft.parents is not None:
            raise UsageProblem(f"--rule {name} judges chains of tokens, and this draft is none; leave it out")
        return judge(draft, logits, sampling, uniforms, rule, numbers)

    return Rule(name, accept, line, law and (lambda *rows: law(*rows, *numbers)), distance=measure)


def add_lossy(kind: str, about: str, line: str, rule: Callable, law: Callable, exact_at_1: bool) -> None:
    """Add a rule that takes a number between 0 and 1. exact_at_1: with 1 it is the token rule, and lossless."""

    def made(argument: str) -> Rule:
        number = float(argument or "nan")
        if not (0 < number < 1 or (exact_at_1 and number == 1)):
            raise ValueError(f"{argument} is not between 0 and 1")
        name = f"{kind}:{number!r}".removesuffix(".0")  # it is written in one way, whatever was typed
        return of_chains(name, line, rule, law if number < 1 else None, number)

    RULES[kind] = Listed(f"{kind}:{about}", line, made)


def _follow(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    return judge(replace(draft, probs=None), logits, sampling, uniforms, accept_follow)


BLOCK = of_chains("block", "drafted tokens are judged together (block verification)", accept_block)
FOLLOWED = "the target's own draw is followed as long as the draft has it, in trees too"
FOLLOW = Rule("follow", _follow, FOLLOWED, chains_only=False)
RULES |= {rule.name: Listed(rule.name, rule.line, rule) for rule in (BLOCK, FOLLOW)}
SCALED = "the draft's probability is scaled by L in the test"
KEPT = "tokens above min(E, sqrt(E) exp(-entropy)) are kept"
add_lossy("lenient", "L (LOSSY, 0 < L <= 1, as in lenient:0.5)", SCALED, accept_lenient, lenient_law, True)
add_lossy("typical", "E (LOSSY, 0 < E < 1, as in typical:0.09)", KEPT, accept_typical, typical_law, False)
