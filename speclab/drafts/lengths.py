"""How far to draft: the price of a round by its length."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RoundCosts:
    """What a round costs by the number n of tokens that it drafts, in seconds; measured here, with this draft.

    draft: [n] all of a draft of n tokens. rest: [n] everything else: the pass over n + 1 tokens, accept rule, rollback,
    host. Both from n = 0, of the same length.
    """

    draft: tuple[float, ...]
    rest: tuple[float, ...]
