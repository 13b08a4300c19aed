"""The places of weights: several devices, by the library's device_map, or quantised, as the checkpoint says.

A target that does not fit one GPU is spread over several and main memory. Layers on a GPU compute there; the weights of
the others are brought to a GPU in every pass. Nothing else changes: a pass reads all weights, from wherever they are.
"""

from collections import Counter

from transformers import PreTrainedModel


def is_sharded(model: PreTrainedModel) -> bool:
    return len(set(_map_of(model).values())) > 1


def _map_of(model: PreTrainedModel) -> dict[str, int | str]:
    return getattr(model, "hf_device_map", {})


def is_quantised(model: PreTrainedModel) -> bool:
    """Tell whether the checkpoint holds quantised weights, which stay as they are."""
    return getattr(model, "hf_quantizer", None) is not None


def describe(model: PreTrainedModel) -> str:
    """Return a note about the weights of a model, "" where they are plain and in one place."""
    said = []
    if is_sharded(model):
        places = Counter(str(place) for place in _map_of(model).values())
        said.append("modules on " + ", ".join(f"{place}: {n}" for place, n in places.items()))
    if is_quantised(model):
        said.append("quantised")
    return "; ".join(said)


def why_eager(model: PreTrainedModel) -> str:
    """Return the reason why only the eager engine runs a model, "" where other engines may."""
    if is_sharded(model):
        return "its weights lie on several devices"
    return "its weights are quantised" if is_quantised(model) else ""
