"""How an adapter for early exit learns: from the target's states after its first layers, at every position of a text.

One pass of the target gives what is read and what is to be said. The states do not depend on what is drafted, so a text
that is known is all that there is to learn from.
"""

import argparse

from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads.exit import ExitAdapter, ExitConfig
from speclab.drafts.heads.files import weights_of
from speclab.drafts.heads.rollout import target_pass
from speclab.models.backends.eager import decoder_layers
from speclab.models.cached import CachedModel
from speclab.models.checks import check_split
from speclab.system.errors import UsageProblem
from training.rollouts import distance


def fresh_adapter(target: PreTrainedModel, args: argparse.Namespace) -> ExitAdapter:
    """Random, for the target's state after --exit-layer layers. UsageProblem where it has no such layer, and
    EnvironmentProblem where it cannot be run in two parts."""
    n_layers, output = len(decoder_layers(target)), weights_of(target)[1]
    if args.exit_layer >= n_layers:
        raise UsageProblem(
            f"--exit-layer {args.exit_layer}: the target has {n_layers} layers; give a number from 1 to {n_layers - 1}"
        )
    check_split(CachedModel(target), args.exit_layer)
    vocab, width = output.shape
    adapter = ExitAdapter(ExitConfig(args.exit_layer, n_layers, width, args.intermediate, vocab), output)
    adapter.reset(args.seed)
    return adapter


def exit_loss(adapter: ExitAdapter, target: PreTrainedModel, tokens: Tensor, seed: Tensor) -> Tensor:
    """The mean over positions. tokens: (batch, n). seed: not used, nothing is drawn."""
    states, logits = target_pass(target, tokens, adapter.config.layers)
    return distance(logits, adapter.logits(states))
