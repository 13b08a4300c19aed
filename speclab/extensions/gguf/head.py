"""The head of a GGUF file, read within bounds before anything else reads the file.

It says how many numbers the file holds and in which types, and that its tensors lie inside the file. The library's own
reader believes every count that it finds. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from speclab.system.errors import EnvironmentProblem

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MOST_ENTRIES = 1 << 16  # and as many tensors
MOST_ITEMS = 1 << 23  # of all arrays together; a vocabulary of 262,000 words with its merges has 1.3 million
LONGEST_TEXT = 1 << 20  # bytes
LONGEST_LIST = 1 << 12  # numbers of an entry that are kept, which is one for each layer
LARGEST_DIMENSIONS = 4
ALIGNMENT = 32  # bytes, where the file names no other
NO_PACKAGE = "a GGUF file is read with the package gguf, which is not installed; type: pip install gguf"


class Head(NamedTuple):
    """The facts of a file.

    entries: numbers, texts and short lists of numbers, None for other lists. tensors: their names -> how many numbers
    each holds. types: the names of tensor types -> how many numbers the file holds in each.
    """

    entries: dict[str, Any]
    tensors: dict[str, int]
    types: dict[str, int]

    @property
    def n_numbers(self) -> int:
        """Return how many numbers all tensors hold together."""
        return sum(self.types.values())

    def quantisation(self) -> str:
        """Return the types with their shares, the largest first: "Q4_1 99%, F32 1%"."""
        by_size = sorted(self.types.items(), key=lambda item: -item[1])
        shares = ((name, n / self.n_numbers) for name, n in by_size)
        return ", ".join(f"{name} {share:.0%}" if share >= 0.01 else f"{name} below 1%" for name, share in shares)


class _Bytes:
    """A place in the bytes of a file, which only moves on inside it."""

    def __init__(self, data: mmap.mmap):
        self.data, self.place, self.n_items = data, 0, 0

    def skip(self, n: int) -> int:
        """Move on by n bytes.  -> the place before them"""
        before = self.place
        if n > len(self.data) - before:
            raise ValueError("it ends in the middle of its head: it is truncated")
        self.place += n
        return before

    def number(self, form: str) -> Any:
        """Read one number."""
        return struct.unpack_from(f"<{form}", self.data, self.skip(struct.calcsize(f"<{form}")))[0]

    def count(self, what: str, most: int) -> int:
        """Read how many there are of something."""
        n = self.number("Q")
        if n > most:
            raise ValueError(f"its head names {n} {what}, more than {most}")
        return n

    def text(self) -> str:
        """Read a text."""
        n = self.count("bytes of one text", LONGEST_TEXT)
        place = self.skip(n)
        return self.data[place : place + n].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """Read a number, a text or a short list of numbers; another array is skipped, and None is returned."""
        if kind == STRING:
            return self.text()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY:
            raise ValueError(f"its head has an entry of the unknown type {kind}")
        of, n = self.number("I"), self.count("items of one array", MOST_ITEMS)
        self.n_items += n
        if self.n_items > MOST_ITEMS:
            raise ValueError(f"its head holds more than {MOST_ITEMS} items of arrays")
        if of in SCALARS:
            if n <= LONGEST_LIST:
                return [self.number(SCALARS[of]) for _ in range(n)]
            self.skip(n * struct.calcsize(f"<{SCALARS[of]}"))
        elif of == STRING:
            for _ in range(n):
                self.skip(self.count("bytes of one text", LONGEST_TEXT))
        else:
            raise ValueError(f"its head has an array of the unknown type {of}")
        return None


def read_head(path: Path) -> Head:
    """Return the head of a GGUF file. Raises EnvironmentProblem, in one line, where it is none or is broken."""
    try:
        if not path.exists():
            raise EnvironmentProblem(f"there is no GGUF file {path.name}; give the path of one, or another name")
        if not path.is_file():
            raise ValueError("it is no regular file")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _head(_Bytes(data))
    except (OSError, ValueError) as error:  # ValueError: an empty file has no map, too
        why = getattr(error, "strerror", None) or error
        raise EnvironmentProblem(f"cannot read the GGUF file {path.name}: {why}; download it again") from None


def _head(place: _Bytes) -> Head:
    if place.data[:4] != MAGIC:
        raise ValueError("it does not begin as a GGUF file does")
    place.skip(4)
    if (version := place.number("I")) not in VERSIONS:
        raise ValueError(f"it has version {version} of the format, and {VERSIONS[0]} or {VERSIONS[1]} is read")
    n_tensors, n_entries = place.count("tensors", MOST_ENTRIES), place.count("entries", MOST_ENTRIES)
    entries = {}
    for _ in range(n_entries):
        key = place.text()
        if key in entries:
            raise ValueError(f"its head has the entry {key[:60]} twice")
        entries[key] = place.value(place.number("I"))
    tensors = [_tensor(place) for _ in range(n_tensors)]
    if len({name for name, *_ in tensors}) < n_tensors or not tensors:
        raise ValueError("it has two tensors of one name" if tensors else "it holds no tensors")
    alignment = entries.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= LONGEST_TEXT or alignment & (alignment - 1):
        raise ValueError(f"its alignment is {alignment}, no power of two")
    start, types, sizes = place.place + -place.place % alignment, Counter[str](), {}
    for name, kind, n_numbers, n_bytes, offset in tensors:
        if start + offset + n_bytes > len(place.data):
            raise ValueError(f"its tensor {name[:60]} ends behind the end of the file: it is truncated")
        types[kind] += n_numbers
        sizes[name] = n_numbers
    return Head(entries, sizes, dict(types))


def _tensor(place: _Bytes) -> tuple[str, str, int, int, int]:
    """Read where a tensor lies. -> its name, the name of its type, its numbers, its bytes, its offset"""
    quant_sizes, quant_types = _tables()
    name, n_dimensions = place.text(), place.number("I")
    if not 1 <= n_dimensions <= LARGEST_DIMENSIONS:
        raise ValueError(f"its tensor {name[:60]} has {n_dimensions} dimensions")
    sizes = [place.number("Q") for _ in range(n_dimensions)]
    kind, offset = place.number("I"), place.number("Q")
    if kind not in list(quant_types):
        raise ValueError(f"its tensor {name[:60]} has the type {kind}, which this version of gguf does not know")
    block, block_bytes = quant_sizes[quant_types(kind)]
    if 0 in sizes or sizes[0] % block:
        raise ValueError(f"the sizes {sizes} of its tensor {name[:60]} do not fit its type")
    n_numbers = math.prod(sizes)
    return name, quant_types(kind).name, n_numbers, n_numbers // block * block_bytes, offset


def _tables() -> tuple[dict, Any]:
    """Return numbers and bytes of a block by tensor type, and the types. Raises EnvironmentProblem without gguf."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:
        raise EnvironmentProblem(NO_PACKAGE) from None
    return GGML_QUANT_SIZES, GGMLQuantizationType
