"""Further servers that are wrong on purpose, chosen when rules, thresholds and causes of the command were frozen.

This list was written down, with the answer and the cause of each, before any of its servers had been asked.
"""

import copy
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draft_models import ModelDrafter
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import AcceptResult, Draft, Target
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.servers import causes
from speclab.extensions.servers.curves import faults
from speclab.extensions.servers.curves.measuring import Lab
from speclab.extensions.servers.diagnosis import COST, LOAD, NOTHING, REJECTED, TEXT_WRONG
from speclab.extensions.servers.wrong.cases import Wrong
from speclab.extensions.servers.wrong.makers import Llama, Loop, lab_draft
from speclab.lab.training import degraded_drafts
from speclab.models.setup import Setup

SLOW_SECONDS = 0.04  # four steps of the lab's target on one core
LENIENT_RANK = 3  # of the target's most probable tokens
CODE_WORDS = ("def ", "class ", "import ", "return ")


# --- faults -----------------------------------------------------------------------------------------------------------


class ShiftedIds(FeatureDrafter):
    """Has a vocabulary table that is off by one: it proposes the id behind the one that it means."""

    def as_target_logits(self, logits: Tensor, vocab_size: int) -> Tensor:
        """Return the head's logits (n, draft vocabulary) -> (n, vocab_size), one id further."""
        return super().as_target_logits(logits, vocab_size).roll(1, dims=-1)


class SlowDraft(FeatureDrafter):
    """Drafts as it should, and takes long for it: a draft on a slow device."""

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens. uniforms (1, k), in [0, 1)."""
        time.sleep(SLOW_SECONDS)
        return super().propose(k, uniforms)


class OneKind(ModelDrafter):
    """Knows code, and of every other text as good as nothing: there a damaged copy of the draft proposes."""

    def __init__(self, lab: Lab):
        [sound] = lab.draft("model").models
        self._sound = sound
        self._damaged = lab.setup.cached(degraded_drafts.noisy(sound.model, 1.0, lab.seed), sound.vocab_size)
        self._tokenizer = lab.setup.tokenizer
        super().__init__(sound)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Read the prompt, (1, prompt length) ids."""
        text = self._tokenizer.decode(prompt[0])
        self.draft = self._sound if any(word in text for word in CODE_WORDS) else self._damaged
        super().prefill(target, prompt, sampling)


def ternary(model: Any) -> Any:
    """Return a copy whose matrices have three values each: minus, nothing and plus."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            if weight.ndim == 2:
                size = weight.abs().mean()
                weight.copy_((weight / size).round().clamp(-1, 1) * size)
    return copied.eval()


def without_last_layer(model: Any) -> Any:
    """Return a copy that lacks its last layer, as where a loader found no weights for it and went on."""
    copied = copy.deepcopy(model)
    copied.model.layers = copied.model.layers[:-1]
    copied.config.num_hidden_layers -= 1
    return copied.eval()


def altered_draft(lab: Lab, altered: Any) -> ModelDrafter:
    """Return the lab's draft model with altered weights."""
    [draft] = lab.draft("model").models
    return ModelDrafter(lab.setup.cached(altered(draft.model), draft.vocab_size))


def another_target(setup: Setup) -> Setup:
    """Return the setup with a target whose weights are a little off, as those of another precision or release are."""
    model = degraded_drafts.noisy(setup.target.model, 0.1, 0)
    return replace(setup, target=setup.cached(model, setup.target.vocab_size))


def lenient(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """Keep a drafted token that is among the target's three most probable ones."""
    likely = logits[0].topk(LENIENT_RANK).indices  # (k + 1, rank)
    n = 0
    while n < draft.size and draft.tokens[0, n] in likely[n]:
        n += 1
    return AcceptResult(torch.tensor([n]), logits[:, n].argmax(-1))


def slow_host(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """Judge as one should, and take long for it: the host's part of a round is dear."""
    time.sleep(SLOW_SECONDS)
    return accept_from_logits(draft, logits, sampling, uniforms)


# --- servers ----------------------------------------------------------------------------------------------------------

THIRD = (
    Wrong("order of layers", "the states of the right layers in another order", REJECTED,
          causes.STATES, Loop(lambda lab: lab.head(faults.Rotated), "feature head")),
    Wrong("independent places", "no place of the block knows the token before it", REJECTED,
          causes.SHALLOW, Loop(lambda lab: lab.head(faults.NoMarkov, "block"), "block head", k=7)),
    Wrong("three values", "every weight of the draft is minus, nothing or plus", REJECTED,
          causes.DAMAGED, Loop(lambda lab: altered_draft(lab, ternary), "model draft")),
    Wrong("a layer missing", "the draft has lost its last layer", REJECTED,
          causes.DAMAGED, Loop(lambda lab: altered_draft(lab, without_last_layer), "model draft")),
    Wrong("ids one off", "the table of the head's vocabulary is off by one", REJECTED,
          causes.DAMAGED, Loop(lambda lab: lab.head(ShiftedIds), "feature head")),
    Wrong("one kind", "the draft knows code, and nothing of other texts", REJECTED,
          causes.PARTIAL, Loop(OneKind, "model draft")),
    Wrong("k = 16", "sixteen drafted tokens a round", COST, causes.TOO_LONG,
          Loop(lambda lab: lab.draft("model"), "model draft", k=16)),
    Wrong("slow draft", "drafting waits 40 ms every round", COST, causes.DEAR_DRAFT,
          Loop(lambda lab: lab.head(SlowDraft), "feature head")),
    Wrong("slow host", "judging the drafted tokens waits 40 ms every round", COST,
          causes.DEAR_PASS, Loop(lambda lab: lab.draft("feature"), "feature head", rule=slow_host)),
    Wrong("lenient rule", "one of the target's three most probable tokens is kept", TEXT_WRONG,
          causes.LENIENT, Loop(lambda lab: lab.draft("feature"), "feature head", rule=lenient)),
    Wrong("another target", "the weights of the target that speculates are a little off",
          TEXT_WRONG, causes.OTHER_TARGET, Loop(lambda lab: lab.draft("model"), "model draft", served=another_target)),
    Wrong("one seed", "the server samples at T = 0.7, always with the same seed", TEXT_WRONG,
          causes.SAMPLES, Loop(lambda lab: lab.draft("feature"), "feature head", temperature=0.7, one_seed=True)),
    Wrong("six others", "six users of others ask at the same time, k = 2", LOAD, causes.BUSY,
          Llama(lab_draft, k=2, slots=8), others=6),
    Wrong("a lookup", "nothing: a lookup in the text so far", NOTHING, "",
          Loop(lambda lab: lab.draft("ngram"), "lookup")),
)  # fmt: skip
