"""How an adapter for early exit learns: from the target's states after its first layers, at every position of a text.

One pass of the target gives what is read and what is to be said. The states do not depend on what is drafted, so a text
that is known is all that there is to learn from.
"""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.exit import check_split
from speclab.drafts.heads.exit import ExitAdapter, ExitConfig
from speclab.drafts.heads.files import weights_of
from speclab.models.backends.eager import decoder_layers
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem
from training.passes import Reading
from training.rollouts import Distance, distance


def fresh_adapter(target: PreTrainedModel, exit_layer: int, block: Any, seed: int) -> ExitAdapter:
    """Random, for the target's state after `exit_layer` layers. block: sizes of its layer.

    UsageProblem where the target has no such layer, EnvironmentProblem where it cannot be run in two parts.
    """
    n_layers = len(decoder_layers(target))
    if exit_layer >= n_layers:
        raise UsageProblem(
            f"--exit-layer {exit_layer}: the target has {n_layers} layers; give a number from 1 to {n_layers - 1}"
        )
    check_split(CachedModel(target), exit_layer)
    adapter = ExitAdapter(ExitConfig(exit_layer, n_layers, block), weights_of(target)[1])
    adapter.reset(seed)
    return adapter


def exit_loss(
    adapter: ExitAdapter, read: Reading, tokens: Tensor, seed: Tensor, distance: Distance = distance
) -> Tensor:
    """The mean over positions.

    read: gives what the target computes. tokens: (batch, n). seed: not used, as nothing is drawn. distance: maybe
    compiled.
    """
    states, logits = read(tokens)
    return distance(logits, adapter.of_text(states))
