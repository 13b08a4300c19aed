"""Which tokens top-k and top-p keep, where the logits are known up to a rounding error.

A decoder and its judge compute the same logits in passes of different widths, so their logits differ by rounding, and
near the edge of a filter they may keep different tokens: in bfloat16 logits are often equal, and the k-th token is then
a matter of chance. So a token is one of three kinds here. It is kept whatever the rounding, or it may be kept, or no
rounding explains it. This kind depends on the text before the token alone, never on which token was drawn.
"""

import torch
from torch import Tensor

from speclab.core.sampling import Sampling

CHUNK = 32  # rows at a time: sorting needs several copies of them
NEVER = 40.0  # a token that is e^40 times less probable than the most probable one is not drawn
MASS_ERROR = 64 * torch.finfo(torch.float32).eps  # of a sum of float32 probabilities
# The largest ratio, as a logarithm, between two probabilities that rounding may change and that still can be tested.
RESOLVED = 1.0


def kept(logits: Tensor, error: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The tokens that are surely kept, and those that may be kept.

    logits (n, vocab); error (n,), the most that a logit of the row may be off -> (n, vocab) of bool, twice

    Rows whose rounding error is too large at this temperature have no token that is surely kept (`RESOLVED`).
    Raises nothing; the temperature must be above 0.
    """
    halves = [_kept(*part, sampling) for part in zip(logits.split(CHUNK), error.split(CHUNK), strict=True)]
    sure, possible = zip(*halves, strict=True)
    return torch.cat(sure), torch.cat(possible)


def _kept(logits: Tensor, error: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    scaled = logits.double() / sampling.temperature
    ordered, order = (scaled - scaled.amax(-1, keepdim=True)).sort(dim=-1, descending=True)  # (n, vocab)
    slack = (
        2 * error.double()[:, None] / sampling.temperature
    )  # two logits, each off by `error`, in opposite directions
    n_above_surely = torch.searchsorted(-ordered, -ordered - slack)  # tokens that are more probable by any rounding
    n_above_perhaps = torch.searchsorted(-ordered, -ordered + slack, right=True) - 1  # all others that may be
    possible = -ordered <= slack + NEVER
    sure = (slack <= RESOLVED).expand_as(possible)
    if sampling.top_k > 0:
        sure, possible = sure & (n_above_perhaps < sampling.top_k), possible & (n_above_surely < sampling.top_k)
    if sampling.top_p < 1:
        lowest, highest = _mass_above(ordered, slack, n_above_surely, n_above_perhaps, sampling.top_k)
        sure = sure & (highest < sampling.top_p - MASS_ERROR)
        possible = possible & (lowest < sampling.top_p + MASS_ERROR)
    return tuple(torch.zeros_like(mask).scatter(-1, order, mask) for mask in (sure, possible))  # type: ignore[return-value]


def _mass_above(
    ordered: Tensor, slack: Tensor, n_above_surely: Tensor, n_above_perhaps: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """Bounds of the probability of all tokens that stand before each one in the order of top-p. (n, vocab), twice

    ordered: logits at the run's temperature, the largest first and 0. slack: (n, 1), the most by which the difference
    of two of them may be off. Probabilities are those after top-k.
    """
    vocab, factor = ordered.shape[-1], slack.exp()
    weights = ordered.exp()
    up_to = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))  # (n, vocab + 1), the mass of the first i tokens
    most = (n_above_surely < top_k).sum(-1, keepdim=True) if top_k else torch.full_like(n_above_surely[:, :1], vocab)
    least = (n_above_perhaps < top_k).sum(-1, keepdim=True) if top_k else most
    above = up_to.gather(-1, n_above_surely)
    lowest = above / (above + (up_to.gather(-1, most) - above).clamp(min=0) * factor)
    through = up_to.gather(-1, n_above_perhaps + 1)  # the token itself is among these
    above, below = through - weights, weights + (up_to.gather(-1, least) - through).clamp(min=0)
    highest = above * factor / (above * factor + below)
    return lowest, highest
