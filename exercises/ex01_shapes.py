"""Exercise 1: the shapes of one round.

Chapter: docs/chapters/01-shapes.md. Check: python check.py 1
"""

from torch import Tensor  # add `import torch` if you need it

from exercises import Todo


def shapes(n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of one pass through an attention layer and the output layer: one sequence, no batch axis.

    n_cached: tokens whose keys and values already lie in the cache; 0 means that there is no cache.
    n_new: tokens fed in this pass, at least 1.
    d_model: numbers in the hidden vector of a token. The heads share them evenly; n_heads always divides d_model.
    vocab_size: ids that the output layer scores.

    Returns these seven entries, each a tuple of ints, axes in the order named here:
    "ids"       the fed tokens
    "hidden"    the fed tokens; the numbers of a hidden vector
    "q"         heads; the tokens that ask, which are the fed ones; one head's share of d_model
    "k" and "v" heads; the tokens that are asked, cached ones first, then the fed ones; one head's share of d_model
    "scores"    heads; the tokens that ask; the tokens that are asked (before the mask: masked scores count too)
    "logits"    the fed tokens; the ids of the vocabulary

    >>> shapes(n_cached=0, n_new=6, d_model=8, n_heads=2, vocab_size=1000)["scores"]
    (2, 6, 6)
    """
    raise Todo("ex01: shapes")


def verifying_probs(target_probs: Tensor, drafted: list[int]) -> Tensor:
    """The probability that the target gave to each drafted token: one number to judge each by.

    target_probs: (m, vocab), made of the logits of one pass. Row i is the target's distribution of the token that comes
    *after* the i-th fed token. The drafted tokens were fed last, after at least one committed token. With a cache
    m = k + 1. Without one m is larger, because rows of the whole prefix stand in front.
    drafted: the k drafted ids, in their order. k may be 0.

    Returns a tensor of shape (k,). Entry i is what the target gave to drafted[i] after reading everything before
    drafted[i] and not yet drafted[i] itself. The last row of target_probs judges no draft: it belongs to the bonus
    token. Leviathan et al., arXiv 2211.17192, call target_probs p.

    >>> target_probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]])
    >>> verifying_probs(target_probs, [1, 2])
    tensor([0.3000, 0.8000])
    """
    raise Todo("ex01: verifying_probs")
