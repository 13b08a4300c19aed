"""`lab:SIZE` and `lab:SIZE:vROWS`: names of lab models that cost as much as larger ones.

lab:200m           padded to 200 million parameters (speclab/models/padded/padding.py)
lab:8b:v128256     the same with so many rows in the output layer
"""

import re
from typing import NamedTuple

from speclab.system.errors import UsageProblem

PREFIX = "lab:"
# Parameters, and width and layers of a target and of a draft. Both grow with the cube root of the size and meet Llama
# 3's: 2048 wide at 1b, 4096 at 8b. A padded model is never shallower than its lab model, so small targets are deep. A
# draft, whose lab model has one layer, is the shallower of the two at equal size: on a GPU its layers, one after the
# other, are what a pass costs. The first two are sizes of drafts alone.
SIZES = {
    "5m": (5_000_000, (256, 2), (384, 2)),
    "10m": (10_000_000, (256, 4), (384, 4)),
    "20m": (20_000_000, (384, 12), (512, 6)),
    "50m": (50_000_000, (512, 14), (768, 6)),
    "100m": (100_000_000, (768, 12), (896, 10)),
    "200m": (200_000_000, (1024, 14), (1280, 10)),
    "800m": (800_000_000, (1792, 20), (1792, 20)),
    "1b": (1_000_000_000, (2048, 18), (2048, 18)),
    "2b": (2_000_000_000, (2560, 24), (2560, 24)),
    "8b": (8_000_000_000, (4096, 36), (4096, 36)),
}
OWN = {"target": "10 M", "draft": "1.6 M"}  # parameters of the lab's pair, which is padded


class Size(NamedTuple):
    """The size that a name asks for. vocab_size: rows of the output layer; None: the lab's."""

    name: str
    vocab_size: int | None = None

    @property
    def n_parameters(self) -> int:
        return SIZES[self.name][0]


def is_lab_size(name: str) -> bool:
    return name.startswith(PREFIX)


def parse_name(text: str) -> Size:
    """Read "lab:200m" or "lab:8b:v128256" as a Size. Raises UsageProblem for other names."""
    match = re.fullmatch(rf"{PREFIX}({'|'.join(SIZES)})(?::v(\d{{1,9}}))?", text.lower(), flags=re.ASCII)
    if not match:
        raise UsageProblem(f"{text} is not a size; give lab: and one of {', '.join(SIZES)}, for example lab:200m")
    return Size(match[1], int(match[2]) if match[2] else None)


def describe_padding(name: str, role: str = "target") -> str:
    """Return the remark that belongs next to every time of a padded model. name: lab:SIZE; role: target or draft"""
    size, _, rows = name.removeprefix(PREFIX).partition(":v")
    said = f"padded: the text of the lab's {role} of {OWN[role]} parameters at the price of {size.upper()}"
    return said + f", {rows} rows in the output layer" * bool(rows)
