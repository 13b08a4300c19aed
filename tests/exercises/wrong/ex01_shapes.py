"""Plausible wrong answers to exercise 1: name -> (hole, source). Each must fail a check (tests/exercises/)."""


def _table(k: str = "n_cached + n_new", rows: str = "n_new", head_dim: str = "d_model // n_heads", last: str = "n_new"):
    """The right table with one part of it replaced."""
    return f"""
def shapes(n_cached, n_new, d_model, n_heads, vocab_size):
    head_dim, n_asked = {head_dim}, {k}
    return {{
        "ids": ({rows},),
        "hidden": ({rows}, d_model),
        "q": (n_heads, {rows}, head_dim),
        "k": (n_heads, n_asked, head_dim),
        "v": (n_heads, n_asked, head_dim),
        "scores": (n_heads, {rows}, n_asked),
        "logits": ({last}, vocab_size),
    }}
"""


def _rows(which: str) -> str:
    return f"""
def verifying_probs(target_probs, drafted):
    k = len(drafted)
    rows = {which}
    return rows.gather(-1, torch.tensor(drafted, dtype=torch.long)[:, None])[:, 0]
"""


WRONG = {
    "attention reads only what is fed": ("shapes", _table(k="n_new")),
    "the cached tokens are fed again": ("shapes", _table(rows="n_cached + n_new", last="n_cached + n_new")),
    "each head is as wide as the model": ("shapes", _table(head_dim="d_model")),
    "a share of the width is a float": ("shapes", _table(head_dim="d_model / n_heads")),
    "one row of logits, for the last token": ("shapes", _table(last="1")),
    "the draft's own row judges it": ("verifying_probs", _rows("target_probs[len(target_probs) - k :]")),
    "drafts paired with the logits of the prompt": ("verifying_probs", _rows("target_probs[:k]")),
    "the slice ends where the drafts begin": (
        "verifying_probs",
        _rows("target_probs[-(2 * k + 1) : -(k + 1)] if len(target_probs) > 2 * k else target_probs[-(k + 1) : -1]"),
    ),
    "the bonus row judges them all": ("verifying_probs", _rows("target_probs[-1:].expand(k, -1)")),
    "the logits have no axis of fed tokens": (
        "shapes",
        """
        def shapes(n_cached, n_new, d_model, n_heads, vocab_size):
            head_dim, n_asked = d_model // n_heads, n_cached + n_new
            kv = (n_heads, n_asked, head_dim)
            return {
                "ids": (n_new,),
                "hidden": (n_new, d_model),
                "q": (n_heads, n_new, head_dim),
                "k": kv,
                "v": kv,
                "scores": (n_heads, n_new, n_asked),
                "logits": (vocab_size,),
            }
        """,
    ),
    "the largest probability of each row": (
        "verifying_probs",
        """
        def verifying_probs(target_probs, drafted):
            return target_probs[-len(drafted) - 1 : -1].max(-1).values
        """,
    ),
    "a softmax of probabilities": (
        "verifying_probs",
        """
        def verifying_probs(target_probs, drafted):
            rows = target_probs[-len(drafted) - 1 : -1].softmax(-1)
            return rows.gather(-1, torch.tensor(drafted, dtype=torch.long)[:, None])[:, 0]
        """,
    ),
    "is the draft the most probable id?": (
        "verifying_probs",
        """
        def verifying_probs(target_probs, drafted):
            return (target_probs[-len(drafted) - 1 : -1].argmax(-1) == torch.tensor(drafted)).double()
        """,
    ),
}
