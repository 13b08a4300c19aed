"""Wrong answers to exercise 10 that are easy to give, several of them from public code: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where a round of it explains every answer
they got: of several that do, the first.
"""


def _round(
    bounds: str = "ratios[k] if i == k else threshold(ratios[i], target_probs[i], draft_probs[i])",
    test: str = "uniforms[i - 1] < bound",
    otherwise: str = "pass",
    left: str = "(ratios[kept] * target_probs[kept] - draft_probs[kept]).clamp(min=0)",
    after_all: str = "k, draw(target_probs[k], uniforms[k])",
    start: str = "",
) -> str:
    """The right round with one part of it replaced."""
    return f"""
def verify_block(drafted, draft_probs, target_probs, uniforms, draw):
    k, kept = len(drafted), 0
    ratios = running_ratios(drafted, draft_probs, target_probs)
    {start}
    for i in range(1, k + 1):
        bound = {bounds}
        if {test}:
            kept = i
        else:
            {otherwise}
    if kept == k:
        return {after_all}
    left = {left}
    return kept, draw(left / left.sum() if left.sum() > 0 else target_probs[kept], uniforms[k])
"""


def _ratios(line: str, start: str = "1.0") -> tuple[str, str]:
    return (
        "running_ratios",
        f"""
def running_ratios(drafted, draft_probs, target_probs):
    ratios = [{start}]
    for i, token in enumerate(drafted):
        p, q = float(target_probs[i, token]), float(draft_probs[i, token])
        ratios.append({line})
    return ratios
""",
    )


def _threshold(*lines: str) -> tuple[str, str]:
    return "threshold", "\n    ".join(["def threshold(ratio, target_row, draft_row):", *lines])


LEFT = "left = float((ratio * target_row - draft_row).clamp(min=0).sum())"
WRONG = {
    "the search stops at the first length that may not be kept": ("verify_block", _round(otherwise="break")),
    "u <= the bound keeps a text of target probability 0 at u = 0": (
        "verify_block",
        _round(test="uniforms[i - 1] <= bound"),
    ),
    "the residual leaves the running ratio out: max(0, p - q) is for a single token": (
        "verify_block",
        _round(left="(target_probs[kept] - draft_probs[kept]).clamp(min=0)"),
    ),
    "the correction is drawn from the target's row, not from the residual": (
        "verify_block",
        _round(left="target_probs[kept]"),
    ),
    "the residual has the ratio of the whole draft, not of what is kept": (
        "verify_block",
        _round(left="(ratios[k] * target_probs[kept] - draft_probs[kept]).clamp(min=0)"),
    ),
    "every length is tested against its running ratio; only the last one is": (
        "verify_block",
        _round(bounds="ratios[i]"),
    ),
    "the last length is tested against a threshold of one token more; its bound is the running ratio": (
        "verify_block",
        _round(bounds="threshold(ratios[i], target_probs[i], draft_probs[min(i, k - 1)])"),
    ),
    "each token is tested by itself, as in exercise 4": (
        "verify_block",
        _round(
            bounds="float(target_probs[i - 1, drafted[i - 1]]) / float(draft_probs[i - 1, drafted[i - 1]])",
            otherwise="break",
            left="(target_probs[kept] - draft_probs[kept]).clamp(min=0)",
        ),
    ),
    "one uniform serves all tests of the round": ("verify_block", _round(test="uniforms[0] < bound")),
    "the next token is drawn with the uniform of a test": (
        "verify_block",
        _round(after_all="k, draw(target_probs[k], uniforms[0])"),
    ),
    "with all drafts kept the next token is drawn from a residual; nothing is missing then": (
        "verify_block",
        _round(
            after_all="k, draw((target_probs[k] - draft_probs[k - 1]).clamp(min=0) if k else target_probs[k], "
            "uniforms[k])"
        ),
    ),
    "the ratio is not capped at 1": _ratios("ratios[-1] * p / q"),
    "the ratio of each token alone: the ones before it are not multiplied in": _ratios("min(1.0, p / q)"),
    "the product is capped once, not after every token": (
        "running_ratios",
        """
def running_ratios(drafted, draft_probs, target_probs):
    product, ratios = 1.0, [1.0]
    for i, token in enumerate(drafted):
        product *= float(target_probs[i, token]) / float(draft_probs[i, token])
        ratios.append(min(1.0, product))
    return ratios
""",
    ),
    "q / p in place of p / q": _ratios("min(1.0, ratios[-1] * q / p) if p else 1.0"),
    "b_0 is left out": (
        "running_ratios",
        _ratios("min(1.0, ratios[-1] * p / q)")[1].replace("return ratios", "return ratios[1:]"),
    ),
    "the threshold leaves the ratio out of the sum": _threshold(
        "left = float((target_row - draft_row).clamp(min=0).sum())",
        "rest = left + 1 - ratio",
        "return left / rest if rest > 0 else 1.0",
    ),
    "the threshold is the sum itself, not divided": _threshold(LEFT, "return left"),
    "the threshold is divided by sum + 1": _threshold(LEFT, "return left / (left + 1)"),
    "0 / 0 gives 0: where the two agree nothing but the last length is kept": _threshold(
        LEFT, "rest = left + 1 - ratio", "return left / rest if rest > 0 else 0.0"
    ),
    "divides by zero where the two agree": _threshold(LEFT, "return left / (left + 1 - ratio)"),
    "adds up what is below 0, too": _threshold(
        "left = float((ratio * target_row - draft_row).sum())",
        "rest = left + 1 - ratio",
        "return left / rest if rest > 0 else 1.0",
    ),
    "only k and k - 1 tokens can be kept": ("verify_block", _round(test="i >= k - 1 and uniforms[i - 1] < bound")),
    "the products are capped after the first three tokens alone": _ratios(
        "min(1.0, ratios[-1] * p / q) if i < 3 else ratios[-1] * p / q"
    ),
    "the residual is written into the target's rows": (
        "verify_block",
        _round(left="target_probs[kept].mul_(ratios[kept]).sub_(draft_probs[kept]).clamp_(min=0)"),
    ),
}
