"""The places of weights: several devices, by the library's device_map, or quantised, as the checkpoint says.

A target that does not fit one GPU is spread over several, main memory and the disk. Layers on a GPU compute there; the
others compute on the first GPU, or on the CPU where there is none, and their weights are brought there in every pass.
Nothing else changes: a pass reads all weights, from wherever they are.
"""

import functools
import importlib.util
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from speclab.models.outside.device_maps import DeviceMap
from speclab.system.errors import EnvironmentProblem


def map_options(device_map: DeviceMap | None) -> dict[str, Any]:
    """Return the options of `from_pretrained` for a device map. Raises EnvironmentProblem where the package that the
    library needs is missing."""
    if device_map is None:
        return {}
    if importlib.util.find_spec("accelerate") is None:
        raise EnvironmentProblem("a device map needs the package accelerate; pip install accelerate")
    if isinstance(device_map, dict):
        for device in device_map.values():
            if isinstance(device, int) and device >= torch.cuda.device_count():
                raise EnvironmentProblem(
                    f"there is no GPU {device} here, which the device map names; correct the file, or give auto"
                )
    return {"device_map": device_map}


Loaded = tuple[PreTrainedModel, dict[str, Any]]  # the model, and the library's report


def load_placed(load: Callable[..., Loaded], options: dict[str, Any]) -> Loaded:
    """Call `load(**options)`, with a folder for weights on the disk that is deleted together with the model.

    Raises EnvironmentProblem where the embeddings do not lie where passes run.
    """
    if not options:
        return load()
    folder = tempfile.mkdtemp(prefix="weights-")
    delete = functools.partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        model, report = load(**options, offload_folder=folder)
        if model.device.type == "meta":
            raise EnvironmentProblem(
                "the embeddings must lie where passes run, on a GPU or, where there is none, on cpu; correct the "
                "device map"
            )
    except BaseException:
        delete()
        raise
    weakref.finalize(model, delete)
    return model, report


def is_sharded(model: PreTrainedModel) -> bool:
    """Tell whether the weights of a model lie in several places."""
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
