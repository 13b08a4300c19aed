"""Solution 9: stop when unsure, losslessly."""

from collections.abc import Callable

from torch import Tensor


def expected_tokens(drawn: list[float], later: list[float]) -> list[float]:
    survival, expected = 1.0, 1.0  # the target's own token comes whatever happens
    for chance in drawn:
        survival *= chance
        expected += survival
    numbers = [expected]
    for chance in later:
        survival *= chance  # it counts only if all before it are accepted
        numbers.append(numbers[-1] + survival)
    return numbers


def keep_drafting(drawn: list[float], later: list[float], costs: list[float], rate: float) -> bool:
    worth = [
        tokens - rate * cost for tokens, cost in zip(expected_tokens(drawn, later), costs[len(drawn) :], strict=True)
    ]
    # All longer drafts, not only the next one: where a pass costs the same up to eight tokens, the ninth alone does not
    # pay and four more may.
    return any(longer > worth[0] for longer in worth[1:])


def draft_until_unsure(
    next_row: Callable[[list[int]], Tensor],
    draw: Callable[[Tensor, float], int],
    uniforms: list[float],
    keep: Callable[[list[float]], bool],
) -> tuple[list[int], list[Tensor]]:
    tokens: list[int] = []
    rows: list[Tensor] = []
    probabilities: list[float] = []
    for i, uniform in enumerate(uniforms):
        row = next_row(tokens)
        token = draw(row, uniform)
        tokens, rows = [*tokens, token], [*rows, row]
        probabilities.append(float(row[token]))
        # Only now, and only about the next one. A token that is dropped because of what it is comes too seldom.
        if i + 1 < len(uniforms) and not keep(list(probabilities)):
            break
    return tokens, rows
