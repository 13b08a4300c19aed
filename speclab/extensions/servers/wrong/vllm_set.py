"""Servers of vLLM, sound ones and two that are wrong on purpose, with the lab's pair and with a real model.

No rule and no threshold was made with these servers.
"""

import json
from pathlib import Path
from typing import Any

from speclab.extensions.servers.causes import STATES, TOO_LONG
from speclab.extensions.servers.diagnosis import COST, NOTHING, REJECTED
from speclab.extensions.servers.start.programs import Program, Served, weights
from speclab.extensions.servers.wrong.cases import Wrong
from speclab.extensions.servers.wrong.makers import InVllm, Place, lookup
from speclab.models.loading import LAB_PAIR
from speclab.system.paths import ROOT

FEW, LARGEST_BATCH = 2, 256  # requests at a time
LAYERS = "eagle_aux_hidden_state_layer_ids"  # after which layers of the target a head reads its states


def with_weights(folder: Path, k: int = 4, **more: Any) -> InVllm:
    """Return two servers of vLLM, one of which drafts with these weights."""
    return InVllm(lambda _: weights(folder), k=k, weights=folder, **more)


def for_few(place: Place) -> Served:
    """Return the lab's draft model, which drafts for FEW requests at a time and for no more: a switch of vLLM's for
    loads at which drafts do not pay."""

    def flags(program: Program, k: int) -> list[str]:
        flag, settings = weights(LAB_PAIR / "draft")(program, k)
        schedule = {"num_speculative_tokens_per_batch_size": [[1, FEW, k], [FEW + 1, LARGEST_BATCH, 0]]}
        return [flag, json.dumps(json.loads(settings) | schedule)]

    return flags


VLLM = (
    Wrong("draft model in vLLM", "nothing: the lab's draft model", NOTHING, "",
          with_weights(LAB_PAIR / "draft", referee="model")),
    Wrong("lookup in vLLM", "nothing: a lookup in the text so far", NOTHING, "",
          InVllm(lookup, referee="ngram")),
    Wrong("head in vLLM", "nothing: the lab's feature head", NOTHING, "",
          with_weights(LAB_PAIR / "feature", referee="feature")),
    Wrong("k = 12 in vLLM", "twelve drafted tokens a round", COST, TOO_LONG,
          with_weights(LAB_PAIR / "draft", 12)),
    Wrong("wrong layers in vLLM", "the head's config.json names the layers 1, 2 and 3",
          REJECTED, STATES, InVllm(lambda place: weights(place.altered_head("other-layers", **{LAYERS: [1, 2, 3]})),
                                   weights=LAB_PAIR / "feature")),
    Wrong("SmolLM2 with a lookup in vLLM", "nothing: a lookup, which finds little in most chats",
          NOTHING, "", InVllm(lookup, smollm2=True)),
    Wrong("SmolLM2 with its head in vLLM", "nothing: the lab's head for it", NOTHING, "",
          with_weights(ROOT / "models" / "smollm2" / "feature", 2, smollm2=True)),
)  # fmt: skip
