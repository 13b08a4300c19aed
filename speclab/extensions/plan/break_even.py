"""The acceptance rate from which a draft pays. Pure."""

from collections.abc import Callable

from speclab.theory.formulas import model_speedup


def break_even_acceptance(
    draft_cost: float,
    verify_cost: Callable[[int], float],
    overhead: float,
    longest: int = 16,
    rejected_round_extra: float = 0.0,
) -> float | None:
    """Return the smallest acceptance rate, to 1e-6, at which some k in 1 … `longest` is not slower than plain decoding.

    `verify_cost` takes the width of the pass, k + 1, and gives v; all costs in decode steps of the target.
    rejected_round_extra: what a round costs more in which not all drafts are accepted. None: not even a draft that is
    always right pays, because a round costs more than the k + 1 tokens it makes.
    """

    def pays_at(acceptance: float, k: int) -> bool:
        rest = overhead + rejected_round_extra * (1 - acceptance**k)
        return model_speedup(acceptance, k, draft_cost, verify_cost(k + 1), rest) >= 1

    def pays(acceptance: float) -> bool:
        return any(pays_at(acceptance, k) for k in range(1, longest + 1))

    if not pays(1):
        return None
    if pays(0):
        return 0.0
    low, high = 0.0, 1.0  # tokens per round grow with it, so there is one place where it begins to pay
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
