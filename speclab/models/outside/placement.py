"""The places of weights: several devices, by the library's device_map, or quantised, as the checkpoint says.

A target that does not fit one GPU is spread over several and main memory. Layers on a GPU compute there; the weights of
the others are brought to a GPU in every pass. Nothing else changes: a pass reads all weights, from wherever they are.
"""

from collections import Counter

from transformers import PreTrainedModel


def places_of(model: PreTrainedModel) -> Counter[str]:
    """Return the devices of the model's parts, with the number of parts on each; none where the library spread none."""
    return Counter(map(str, getattr(model, "hf_device_map", {}).values()))


def is_sharded(model: PreTrainedModel) -> bool:
    return len(places_of(model)) > 1


def is_quantised(model: PreTrainedModel) -> bool:
    return getattr(model, "hf_quantizer", None) is not None


def describe(model: PreTrainedModel) -> str:
    """Return a note about the weights of a model, "" where they are plain and in one place."""
    modules = ", ".join(f"{place}: {n}" for place, n in places_of(model).items())
    return "; ".join([f"modules on {modules}"] * is_sharded(model) + ["quantised"] * is_quantised(model))


def why_eager(model: PreTrainedModel) -> str:
    """Return the reason why only the eager engine runs a model, "" where other engines may."""
    if is_sharded(model):
        return "its weights lie on several devices"
    return "its weights are quantised" if is_quantised(model) else ""
