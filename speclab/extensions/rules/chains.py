"""The rules that judge only chains of tokens share this part."""

from collections.abc import Callable

from torch import Tensor

from speclab.core.accept import judge
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling
from speclab.system.errors import UsageProblem


def judge_chain(
    name: str,
    draft: Draft,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    rule: Callable[..., AcceptResult],
    numbers: tuple[float, ...] = (),
) -> AcceptResult:
    """Call `judge` of speclab/core/accept.py for a draft that is a chain; raise UsageProblem for another one."""
    if draft.parents is not None:
        raise UsageProblem(f"--rule {name} judges chains of tokens, and this draft is none; leave it out")
    return judge(draft, logits, sampling, uniforms, rule, numbers)
