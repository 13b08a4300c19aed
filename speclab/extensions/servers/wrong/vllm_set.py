"""Servers of vLLM, sound ones and two that are wrong on purpose, with the lab's pair and with a real model.

No rule and no threshold was made with these servers.
"""

from speclab.extensions.servers.causes import STATES, TOO_LONG
from speclab.extensions.servers.diagnosis import COST, NOTHING, REJECTED
from speclab.extensions.servers.wrong.cases import LAB_PAIR_NAME, LAYERS, Wrong, lookup, vllm
from speclab.models.loading import LAB_PAIR
from speclab.system.paths import ROOT

SMOLLM2 = "SmolLM2-135M-Instruct, float32"

VLLM = (
    Wrong("draft model in vLLM", "vllm", LAB_PAIR_NAME, "nothing: the lab's draft model", NOTHING, "",
          vllm(lambda place: LAB_PAIR / "draft"), referee="model"),
    Wrong("lookup in vLLM", "vllm", LAB_PAIR_NAME, "nothing: a lookup in the text so far", NOTHING, "",
          vllm(lookup), referee="ngram"),
    Wrong("head in vLLM", "vllm", LAB_PAIR_NAME, "nothing: the lab's feature head", NOTHING, "",
          vllm(lambda place: LAB_PAIR / "feature"), referee="feature"),
    Wrong("k = 12 in vLLM", "vllm", LAB_PAIR_NAME, "twelve drafted tokens a round", COST, TOO_LONG,
          vllm(lambda place: LAB_PAIR / "draft", 12), k=12),
    Wrong("wrong layers in vLLM", "vllm", LAB_PAIR_NAME, "the head's config.json names the layers 1, 2 and 3",
          REJECTED, STATES, vllm(lambda place: place.altered_head("other-layers", **{LAYERS: [1, 2, 3]}))),
    Wrong("SmolLM2 with a lookup in vLLM", "vllm", SMOLLM2, "nothing: a lookup, which finds little in most chats",
          NOTHING, "", vllm(lookup, smollm2=True)),
    Wrong("SmolLM2 with its head in vLLM", "vllm", SMOLLM2, "nothing: the lab's head for it", NOTHING, "",
          vllm(lambda place: ROOT / "models" / "smollm2" / "feature", 2, smollm2=True)),
)  # fmt: skip
