"""`lab:SIZE`: the names and shapes of lab models that cost as much as larger ones, as in lab:200m.

lab:800m:v128256 and lab:8b:v128256 have as many rows in the output layer as Llama 3 has ids.
"""

from typing import NamedTuple

from speclab.system.errors import UsageProblem

PREFIX = "lab:"


class Shape(NamedTuple):
    """The shape of a padded model; a head is 64 wide, as the lab's are."""

    width: int
    kv_heads: int
    units: int  # of the MLP
    layers: int


# Millions of parameters, and the shape of a target and of a draft, within 5 % of that. Width and depth grow with the
# cube root of the size and meet Llama 3's: 2048 wide at 1b, 4096 at 8b. A padded model is never shallower than its lab
# model, so small targets are deep. A draft, whose lab model has one layer, is the shallower of the two at equal size:
# on a GPU its layers, one after the other, are what a pass costs. The first two are sizes of drafts alone. Four query
# heads share a key-value head, as in large models, where the lab's own heads find place in that.
SIZES: dict[str, tuple[int, Shape | None, Shape]] = {
    "5m": (5, None, Shape(384, 6, 1344, 2)),
    "10m": (10, None, Shape(384, 6, 1472, 4)),
    "20m": (20, Shape(384, 6, 896, 12), Shape(512, 4, 1536, 6)),
    "50m": (50, Shape(512, 4, 1792, 14), Shape(768, 4, 2816, 6)),
    "100m": (100, Shape(768, 4, 2880, 12), Shape(896, 7, 2752, 10)),
    "200m": (200, Shape(1024, 4, 3776, 14), Shape(1280, 5, 4096, 10)),
    "800m": (800, shape := Shape(1792, 7, 5888, 20), shape),
    "1b": (1_000, shape := Shape(2048, 8, 7296, 18), shape),
    "2b": (2_000, shape := Shape(2560, 10, 8704, 24), shape),
    "8b": (8_000, shape := Shape(4096, 16, 14656, 36), shape),
    "800m:v128256": (800, shape := Shape(1792, 7, 6080, 14), shape),
    "8b:v128256": (8_000, shape := Shape(4096, 16, 14464, 34), shape),
}
OWN = {"target": "10 M", "draft": "1.6 M"}  # parameters of the lab's pair, which is padded


def is_lab_size(name: str) -> bool:
    return name.startswith(PREFIX)


def millions_of(name: str) -> int:
    """Return the millions of parameters that a name such as lab:200m asks for. Raises UsageProblem for no size."""
    if (size := SIZES.get(name.removeprefix(PREFIX))) is None:
        raise UsageProblem(f"{name} is not a size; give lab: and one of {', '.join(SIZES)}, for example lab:200m")
    return size[0]


def rows_of(name: str) -> int:
    """Return the rows of the output layer, 0 where they are the lab's."""
    return int(name.partition(":v")[2] or 0)


def shape_of(name: str, role: str) -> Shape:
    """Return the shape of a padded target or draft. Raises UsageProblem where the lab's own is larger."""
    millions_of(name)
    shape = SIZES[name.removeprefix(PREFIX)][1 + (role == "draft")]
    if shape is None:
        raise UsageProblem(f"{name} is too small for the lab's {role}; use a larger one, for example lab:200m")
    return shape


def describe_padding(name: str, role: str = "target") -> str:
    """Return the remark that belongs next to every time of a padded model. name: lab:SIZE; role: target or draft"""
    size, rows = name.split(":")[1].upper(), rows_of(name)
    said = f"padded: the text of the lab's {role} of {OWN[role]} parameters at the price of {size}"
    return said + f", {rows} rows in the output layer" * bool(rows)
