"""Can a model read the branches of a tree? A short random text proves it before anything is timed."""

import torch
from torch import Tensor

from speclab.extensions.trees.draft import reads
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import check_passes, check_rows, text_longer_than_windows


def check_tree(target: CachedModel) -> None:
    """Prove that a pass over two branches gives the uncached logits of one of them, and that the text goes on behind
    it when it is kept; raise EnvironmentProblem where they differ. The text is longer than a window, where such a
    pass is quick."""
    model, cached, reason = target.model, target.with_own_cache(), "cannot be given the branches of a tree"
    check_rows(model, reason)
    text = text_longer_than_windows(model)
    n = text.shape[1] - 5

    def logits() -> Tensor:
        cached.prefill(text[:, :n])
        wrong = text[:, :2]  # the text's beginning does not continue it here
        tokens = torch.cat([text[:, n : n + 1], wrong, text[:, n + 1 : n + 3]], dim=1)
        parents = torch.tensor([[-1, 0, -1, 2]], device=text.device)
        tree_logits = cached.forward(tokens, reads(parents))
        cached.keep([2, 3])
        return torch.cat([tree_logits[:, [0, 3, 4]], cached.forward(text[:, n + 3 :])], dim=1)

    check_passes(model, reason, logits, [text], 5)
