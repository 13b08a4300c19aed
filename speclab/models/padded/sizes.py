"""`lab:SIZE`, `lab:SIZE:vROWS`, `lab:SIZE:eEkK`: names of lab models that cost as much as larger ones.

lab:200m           padded to 200 million parameters (speclab/models/padded/padding.py)
lab:8b:v128256     the same with so many rows in the output layer
lab:200m:e8k2      the same with each MLP copied 8 times, of which a token uses 2 (speclab/models/padded/experts.py)
"""

import re
from typing import NamedTuple

from speclab.system.errors import UsageProblem

PREFIX = "lab:"
SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9}
OWN = {"target": "10 M", "draft": "1.6 M"}  # parameters of the lab's pair, which is padded
MOST_EXPERTS = 512
LONGEST = 40  # characters of a name


class Experts(NamedTuple):
    """Copies of each MLP, and how many of them a token uses."""

    n: int
    n_used: int


class Size(NamedTuple):
    """The size that a name asks for."""

    n_parameters: int  # of the model whose MLPs are copied, where there are experts
    vocab_size: int | None = None  # rows of the output layer; None: the lab's
    experts: Experts | None = None


def is_lab_size(name: str) -> bool:
    """Tell whether this name asks for a padded lab model."""
    return name.startswith(PREFIX)


def parse_name(text: str) -> Size:
    """Read "200m", "1.5b", "lab:8b:v128256" or "lab:200m:e8k2" as a Size. Raises UsageProblem for other names."""
    pattern = r"(\d+\.?\d*|\.\d+)([kmb])(?::v(\d+))?(?::e(\d+)k(\d+))?"
    match = re.fullmatch(pattern, text.removeprefix(PREFIX).lower(), flags=re.ASCII)
    n_parameters = round(float(match[1]) * SUFFIXES[match[2]]) if match and len(text) < LONGEST else 0
    if not match or n_parameters == 0:
        raise UsageProblem(
            f"{PREFIX}{text.removeprefix(PREFIX)} is not a size; give a number with k, m or b, for example lab:200m"
        )
    experts = Experts(int(match[4]), int(match[5])) if match[4] else None
    if experts and not (2 <= experts.n <= MOST_EXPERTS and 1 <= experts.n_used <= experts.n):
        raise UsageProblem(
            f"{text} has {experts.n} experts, of which a token uses {experts.n_used}; give 2 to {MOST_EXPERTS} and no "
            "more used than there are, for example lab:200m:e8k2"
        )
    return Size(n_parameters, int(match[3]) if match[3] else None, experts)


def parse_size(text: str) -> int:
    """Return the number of parameters that a size asks for."""
    return parse_name(text).n_parameters


def size_name(n_parameters: int, digits: int = 3, up: bool = False, vocab_size: int | None = None) -> str:
    """Return the name to type for a size, not above it (with `up`: not below it).  7_996_470_000, digits=2 ->
    lab:7.9b"""
    unit = 10 ** max(0, len(str(n_parameters)) - digits)
    n_parameters = (n_parameters + (unit - 1 if up else 0)) // unit * unit
    suffix = next((s for s in "bm" if n_parameters >= SUFFIXES[s]), "k")
    return f"{PREFIX}{n_parameters / SUFFIXES[suffix]:g}{suffix}" + (f":v{vocab_size}" if vocab_size else "")


def describe_padding(name: str, role: str = "target") -> str:
    """Return the remark that belongs next to every time of a padded model. name: lab:SIZE; role: target or draft"""
    size = parse_name(name)
    price = name.removeprefix(PREFIX).partition(":")[0].upper()
    parts = [f"padded: the text of the lab's {role} of {OWN[role]} parameters at the price of {price}"]
    parts += [f"{size.vocab_size} rows in the output layer"] if size.vocab_size else []
    parts += [f"each MLP {size.experts.n} times, of which a token uses {size.experts.n_used}"] if size.experts else []
    return ", ".join(parts)
