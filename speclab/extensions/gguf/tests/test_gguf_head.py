"""The head of a GGUF file is read within bounds: whatever stands there, it is a head or one line."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclab.extensions.gguf import head
from speclab.extensions.gguf.head import Head, read_head
from speclab.extensions.gguf.tests.gguf_files import plain
from speclab.system.errors import EnvironmentProblem

pytest.importorskip("gguf", reason="the package gguf is not installed; type: pip install gguf")
U64, U32 = (lambda n: struct.pack("<Q", n)), (lambda n: struct.pack("<I", n))
HUGE = 2**60


@pytest.fixture(scope="module")
def right(tmp_path_factory, pair_folder):
    """A whole file, and a path for its variants."""
    path = tmp_path_factory.mktemp("head") / "x.gguf"
    return plain(pair_folder / "target", path), path


def begun(n_tensors: int, n_entries: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + U32(version) + U64(n_tensors) + U64(n_entries) + rest


def text(value: str) -> bytes:
    return U64(len(value)) + value.encode()


def tensor(sizes: list[int], kind: int = 0, offset: int = 0, name: str = "a") -> bytes:
    return text(name) + U32(len(sizes)) + b"".join(map(U64, sizes)) + U32(kind) + U64(offset)


def test_it_counts_the_numbers_of_all_tensors(right, pair_folder):
    data, path = right
    path.write_bytes(data)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair_folder / "target")
    found = read_head(path)
    assert found.types == {"F32": sum(p.numel() for p in model.parameters())}
    assert len(found.tensors) == len(list(model.parameters()))
    assert Head({}, {}, {"F32": 1, "Q4_1": 399, "Q8_0": 100}).quantisation() == "Q4_1 80%, Q8_0 20%, F32 below 1%"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"GGU", "does not begin"),
        (b"PK\3\4" + bytes(100), "does not begin"),
        (begun(1, 1, version=1), "version 1"),
        (begun(HUGE, 0), "tensors"),
        (begun(1, HUGE), "entries"),
        (begun(1, 1, U64(HUGE)), "bytes of one text"),
        (begun(1, 1, text("k") + U32(9) + U32(8) + U64(HUGE)), "items of one array"),
        (begun(1, 1, text("k") + U32(9) + U32(0) + U64(1000)), "truncated"),
        (begun(1, 1, text("k") + U32(9) + U32(9) + U64(1) + U32(4) + U64(1)), "array of the unknown type 9"),
        (begun(1, 1, text("k") + U32(99)), "unknown type 99"),
        (begun(1, 2, (text("k") + U32(4) + U32(1)) * 2), "twice"),
        (begun(0, 0), "no tensors"),
        (begun(2, 0, tensor([8]) * 2 + bytes(256)), "two tensors of one name"),
        (begun(1, 0, tensor([8] * 5)), "5 dimensions"),
        (begun(1, 0, tensor([])), "0 dimensions"),
        (begun(1, 0, tensor([8], kind=77)), "type 77"),
        (begun(1, 0, tensor([33, 2], kind=8)), "do not fit"),
        (begun(1, 0, tensor([0])), "do not fit"),
        (begun(1, 0, tensor([8]) + bytes(31)), "truncated"),
        (begun(1, 0, tensor([8], offset=HUGE) + bytes(512)), "truncated"),
        (begun(1, 0, tensor([HUGE, HUGE]) + bytes(512)), "truncated"),
        (begun(1, 1, text("general.alignment") + U32(4) + U32(3) + tensor([8]) + bytes(512)), "no power of two"),
    ],
)
def test_what_is_no_whole_file_is_refused_with_its_reason(right, data, said):
    right[1].write_bytes(data)
    with pytest.raises(EnvironmentProblem, match=said):
        read_head(right[1])


def test_items_of_all_arrays_are_counted_together(right, monkeypatch):
    monkeypatch.setattr(head, "MOST_ITEMS", 10)
    entry = U32(9) + U32(0) + U64(6) + bytes(6)
    right[1].write_bytes(begun(1, 2, text("a") + entry + text("b") + entry))
    with pytest.raises(EnvironmentProblem, match="more than 10 items"):
        read_head(right[1])


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1))
def test_a_file_that_ends_too_early_is_refused(right, share):
    data, path = right
    path.write_bytes(data[: int(share * (len(data) - 1))])
    with pytest.raises(EnvironmentProblem):
        read_head(path)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 3000), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_head_or_one_line(right, place, byte):
    data, path = right
    path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
    with contextlib.suppress(EnvironmentProblem):
        assert read_head(path).n_numbers * 4 <= len(data)
