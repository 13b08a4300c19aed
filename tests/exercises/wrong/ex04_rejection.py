"""Wrong answers to exercise 4 that are easy to give, most of them from public code: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where a round of it explains every answer
they got: of several that do, the first.
"""


def _round(
    keep: str = "is_accepted(p, q, uniforms[i])",
    rejected: str = "i, draw(residual(target_probs[i], draft_probs[i]), uniforms[k])",
    passed: str = "k, draw(target_probs[k], uniforms[k])",
) -> str:
    """The right round with one part of it replaced."""
    return f"""
def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
    k = len(drafted)
    for i, token in enumerate(drafted):
        p, q = float(target_probs[i, token]), float(draft_probs[i, token])
        if not {keep}:
            return {rejected}
    return {passed}
"""


def _is_accepted(rule: str) -> tuple[str, str]:
    return "is_accepted", f"def is_accepted(target_prob, draft_prob, uniform):\n    return {rule}"


def _residual(*lines: str) -> tuple[str, str]:
    return "residual", "\n    ".join(["def residual(target_probs, draft_probs):", *lines])


WRONG = {
    "the correction is drawn from the target's row, not from the residual": (
        "verify_draft",
        _round(rejected="i, draw(target_probs[i], uniforms[k])"),
    ),
    "a draft is kept where it is the target's most probable token; that is right for greedy decoding alone": (
        "verify_draft",
        _round(keep="token == int(target_probs[i].argmax())"),
    ),
    "u <= p / q lets a token of target probability 0 pass at u = 0": _is_accepted(
        "uniform * draft_prob <= target_prob"
    ),
    "the bonus token is the most probable one, it should be drawn": (
        "verify_draft",
        _round(passed="k, int(target_probs[k].argmax())"),
    ),
    "the bonus token is drawn from the draft's last row": (
        "verify_draft",
        _round(passed="k, draw(draft_probs[-1] if drafted else target_probs[k], uniforms[k])"),
    ),
    "the bonus token is drawn from the row of the last draft, one row too early": (
        "verify_draft",
        _round(passed="k, draw(target_probs[max(k - 1, 0)], uniforms[k])"),
    ),
    "the bonus token is forgotten": ("verify_draft", _round(passed="None")),
    "the correction is the most probable token of the residual, it should be drawn": (
        "verify_draft",
        _round(rejected="i, int(residual(target_probs[i], draft_probs[i]).argmax())"),
    ),
    "the correction is the target's most probable token, it should be drawn from the residual": (
        "verify_draft",
        _round(rejected="i, int(target_probs[i].argmax())"),
    ),
    "the correction is drawn from the draft's row": (
        "verify_draft",
        _round(rejected="i, draw(draft_probs[i], uniforms[k])"),
    ),
    "the residual is the draft minus the target, the wrong way round": _residual(
        "missing = (draft_probs - target_probs).clamp(min=0)",
        "return missing / missing.sum() if missing.sum() > 0 else target_probs",
    ),
    "the draft's probability is left out: a token is kept with probability p, not p / q": _is_accepted(
        "uniform < target_prob"
    ),
    "one uniform serves all tests of the round": ("verify_draft", _round(keep="is_accepted(p, q, uniforms[0])")),
    "the uniform that rejected a draft draws the correction too": (
        "verify_draft",
        _round(rejected="i, draw(residual(target_probs[i], draft_probs[i]), uniforms[i])"),
    ),
    "a draft is kept where the target likes it no less than the draft does; the uniform is left out": _is_accepted(
        "target_prob > 0 and target_prob >= draft_prob"
    ),
    "drafts after a rejected one are counted": (
        "verify_draft",
        """
        def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
            kept = [
                is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms[i])
                for i, token in enumerate(drafted)
            ]
            if all(kept):
                return len(drafted), draw(target_probs[-1], uniforms[-1])
            first = kept.index(False)
            return sum(kept), draw(residual(target_probs[first], draft_probs[first]), uniforms[-1])
        """,
    ),
    "each draft is tested with the row after its own": (
        "verify_draft",
        _round(
            keep="is_accepted(float(target_probs[i + 1, token]), q, uniforms[i])",
            rejected="i, draw(residual(target_probs[i + 1], draft_probs[i]), uniforms[k])",
        ),
    ),
    "the number of kept drafts is a float": (
        "verify_draft",
        _round(
            rejected="float(i), draw(residual(target_probs[i], draft_probs[i]), uniforms[k])",
            passed="float(k), draw(target_probs[k], uniforms[k])",
        ),
    ),
    "divides by the draft's probability": _is_accepted("uniform < min(1.0, target_prob / draft_prob)"),
    "the correction comes from the target": _residual("return target_probs"),
    "the residual is not divided by its sum": _residual(
        "missing = (target_probs - draft_probs).clamp(min=0)",
        "return missing if missing.sum() > 0 else target_probs",
    ),
    "0 / 0 where the two agree": _residual(
        "missing = (target_probs - draft_probs).clamp(min=0)",
        "return missing / missing.sum()",
    ),
    "a bound on the sum of the residual": _residual(
        "rest = (target_probs - draft_probs).clamp(min=0)",
        "return rest / rest.sum() if rest.sum() > 1e-3 else target_probs",
    ),
    "all or nothing: the drafts before the first rejected one are thrown away": (
        "verify_draft",
        _round(rejected="0, draw(residual(target_probs[0], draft_probs[0]), uniforms[k])"),
    ),
    "all or nothing: after a rejection the round is plain decoding": (
        "verify_draft",
        _round(rejected="0, draw(target_probs[0], uniforms[k])"),
    ),
    "the largest probabilities of the rows are compared; a draft is judged by the probabilities of its own id": (
        "verify_draft",
        _round(keep="is_accepted(float(target_probs[i].max()), float(draft_probs[i].max()), uniforms[i])"),
    ),
    "the target's largest probability is used; a draft is judged by the probability of its own id": (
        "verify_draft",
        _round(keep="is_accepted(float(target_probs[i].max()), q, uniforms[i])"),
    ),
    "every draft is tested with the target's last row, which is the bonus token's": (
        "verify_draft",
        _round(keep="is_accepted(float(target_probs[-1, token]), q, uniforms[i])"),
    ),
    "a softmax of probabilities: they are probabilities already": (
        "verify_draft",
        """
def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
    draft_probs, target_probs, k = draft_probs.softmax(-1), target_probs.softmax(-1), len(drafted)
    for i, token in enumerate(drafted):
        if not is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms[i]):
            return i, draw(residual(target_probs[i], draft_probs[i]), uniforms[k])
    return k, draw(target_probs[k], uniforms[k])
""",
    ),
}
