"""The rule that draws the target's own token at every place, and keeps what was drafted as long as it is that token.

Every token that comes out is the target's own, whatever the draft, as long as the draft was made before: it may be the
drafter's most probable tokens, and it may have branches. It keeps a sampled token less often than the token rule does.
"""

from torch import Tensor

from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import draw


def accept_follow(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Draw the target's token and follow it as long as the draft has it.

    target_probs: (batch, n + 1, vocab), a row for each row of the target's pass.
    uniforms: (batch, n + 1) in [0, 1): number d draws the token after d kept ones.

    One draw for a place, however many drafted tokens stand there. All rows of a depth share a uniform, and at most one
    of them is visited. draft.probs is not read.
    """
    at_depth = uniforms.gather(-1, draft.depths())  # (batch, n + 1) the uniform of each row
    own = draw(target_probs.flatten(0, 1), at_depth.flatten()).view_as(at_depth)
    return draft.matching(own)
