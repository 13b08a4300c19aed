"""Wrong answers to exercise 4 that are easy to give, most of them from public code. Every one must fail a check."""

WRONG = {
    "u <= p / q: a token of target probability 0 passes at u = 0": (
        "is_accepted",
        """
        def is_accepted(target_prob, draft_prob, uniform):
            return uniform * draft_prob <= target_prob
        """,
    ),
    "divides by the draft's probability": (
        "is_accepted",
        """
        def is_accepted(target_prob, draft_prob, uniform):
            return uniform < min(1.0, target_prob / draft_prob)
        """,
    ),
    "keeps what the target likes better than the draft does": (
        "is_accepted",
        """
        def is_accepted(target_prob, draft_prob, uniform):
            return target_prob > 0 and target_prob >= draft_prob
        """,
    ),
    "forgets that the draft had a say": (
        "is_accepted",
        """
        def is_accepted(target_prob, draft_prob, uniform):
            return uniform < target_prob
        """,
    ),
    "the correction comes from the target": (
        "residual",
        """
        def residual(target_probs, draft_probs):
            return target_probs
        """,
    ),
    "the residual is not divided by its sum": (
        "residual",
        """
        def residual(target_probs, draft_probs):
            missing = (target_probs - draft_probs).clamp(min=0)
            return missing if missing.sum() > 0 else target_probs
        """,
    ),
    "0 / 0 where the two agree": (
        "residual",
        """
        def residual(target_probs, draft_probs):
            missing = (target_probs - draft_probs).clamp(min=0)
            return missing / missing.sum()
        """,
    ),
    "a draft is kept where it is the target's most probable token": (
        "verify_draft",
        """
        def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
            for i, token in enumerate(drafted):
                if token != int(target_probs[i].argmax()):
                    return i, draw(residual(target_probs[i], draft_probs[i]), uniforms[-1])
            return len(drafted), draw(target_probs[-1], uniforms[-1])
        """,
    ),
    "the correction is drawn from the target's row in the round": (
        "verify_draft",
        """
        def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
            n = 0
            while n < len(drafted):
                token = drafted[n]
                if not is_accepted(float(target_probs[n, token]), float(draft_probs[n, token]), uniforms[n]):
                    break
                n += 1
            return n, draw(target_probs[n], uniforms[-1])
        """,
    ),
    "the bonus token is the most probable one": (
        "verify_draft",
        """
        def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
            for i, token in enumerate(drafted):
                if not is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms[i]):
                    return i, draw(residual(target_probs[i], draft_probs[i]), uniforms[-1])
            return len(drafted), int(target_probs[-1].argmax())
        """,
    ),
    "the bonus token is drawn from the draft": (
        "verify_draft",
        """
        def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
            for i, token in enumerate(drafted):
                if not is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms[i]):
                    return i, draw(residual(target_probs[i], draft_probs[i]), uniforms[-1])
            return len(drafted), draw(draft_probs[-1] if drafted else target_probs[-1], uniforms[-1])
        """,
    ),
    "drafts behind a refused one are counted": (
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
    "a used uniform draws the next token": (
        "verify_draft",
        """
        def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
            for i, token in enumerate(drafted):
                if not is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms[i]):
                    return i, draw(residual(target_probs[i], draft_probs[i]), uniforms[i])
            return len(drafted), draw(target_probs[-1], uniforms[-1])
        """,
    ),
    "each draft is tested with the row behind its own": (
        "verify_draft",
        """
        def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
            for i, token in enumerate(drafted):
                if not is_accepted(float(target_probs[i + 1, token]), float(draft_probs[i, token]), uniforms[i]):
                    return i, draw(residual(target_probs[i + 1], draft_probs[i]), uniforms[-1])
            return len(drafted), draw(target_probs[-1], uniforms[-1])
        """,
    ),
}
