"""Bugs in the reading of GGUF files: a head that is believed, and conversions left half or taken for others."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from speclab.extensions.gguf import entries, head, source
from speclab.system import cache
from tests.mutants.bugs import mutant

BUGS = {46: "a GGUF file believed, or its conversion left half or taken for another's"}


@mutant(46, "a_file_that_ends_too_early_is_refused", file="test_gguf_head")
def believes_that_tensors_lie_in_the_file() -> None:
    """does not look whether a tensor ends behind the end of the file"""
    right = head._tensor

    def anywhere(place: head._Bytes) -> tuple[str, str, int, int, int]:
        name, kind, n_numbers, *_ = right(place)
        return name, kind, n_numbers, 0, 0

    head._tensor = anywhere


@mutant(46, "a_file_is_converted_once_and_again_when_it_changes", file="test_gguf_models")
def names_a_conversion_after_the_file() -> None:
    """takes the model of another file of the same name from the cache"""

    class Named:
        """hashlib, whose digest of a file is that of its name."""

        sha256 = staticmethod(hashlib.sha256)

        @staticmethod
        def file_digest(file: Any, kind: str) -> Any:
            return hashlib.sha256(Path(file.name).name.encode())

    source.hashlib = Named


@mutant(46, "a_stopped_conversion_leaves_nothing_and_the_next_one_clears_up", file="test_gguf_models")
def converts_in_place() -> None:
    """writes into the folder that later runs read"""

    @contextlib.contextmanager
    def in_place(folder: Path) -> Iterator[Path]:
        folder.mkdir()
        yield folder

    source.whole_folder = in_place


@mutant(46, "nothing_is_read_where_others_can_write", file="test_gguf_models")
def trusts_every_folder() -> None:
    """reads a cache into which others can write"""
    cache.is_own = lambda path: True


@mutant(46, "the_model_is_that_of_a_config_written_by_hand[yarn]", file="test_gguf_entries")
def drops_entries_of_the_rotation() -> None:
    """takes rotary positions as the library's converter does"""
    entries._set_rope = lambda left, settings, rope, factors: [left.pop(e) for e in list(left) if e.startswith("rope")]


@mutant(46, "a_text_ends_at_every_end_that_the_file_names", file="test_gguf_entries")
def knows_one_end() -> None:
    """reads on behind the end of a turn"""
    entries.ENDS = entries.ENDS[:1]
