"""The bound on how much longer a tokenizer makes a text: never too low, and no usual tokenizer is refused."""

import base64
import contextlib
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from speclab.models import growth
from speclab.models.loading import LAB_TARGET
from speclab.system.errors import Panic, panics_as_errors
from tests import small_tokenizers

SHORT = st.text("ab é", max_size=4)
STEPS = st.one_of(
    st.tuples(SHORT.filter(bool), SHORT).map(lambda pair: normalizers.Replace(*pair)),
    st.tuples(st.sampled_from(["a*", "[ab]", r"\s", "(?=a)", "."]), SHORT).map(
        lambda pair: normalizers.Replace(Regex(pair[0]), pair[1])
    ),
    SHORT.map(normalizers.Prepend),
    st.sampled_from([normalizers.ByteLevel(), normalizers.BertNormalizer(), normalizers.Strip()]),
)
NORMALIZERS = st.recursive(STEPS, lambda inner: st.lists(inner, max_size=4).map(normalizers.Sequence), max_leaves=6)


@given(NORMALIZERS, st.text("ab é東", min_size=1, max_size=6))
@settings(max_examples=150)
def test_a_normalizer_never_makes_more_than_its_factor(normalizer, text):
    bound = growth.factor(json.loads(normalizer.__getstate__())) * len(text.encode())
    with contextlib.suppress(Panic), panics_as_errors():  # the library counts wrongly now and then, and gives up
        assert len(normalizer.normalize_str(text).encode()) <= bound


@given(st.lists(st.tuples(SHORT.filter(bool), SHORT), min_size=1, max_size=4), st.text("ab é", max_size=6))
@settings(max_examples=60)
def test_nor_does_a_decoder(pairs, text):
    decoder = decoders.Sequence([decoders.Fuse(), *(decoders.Replace(*pair) for pair in pairs)])
    bound = growth.factor(json.loads(decoder.__getstate__())) * len(text.encode())
    assert len(decoder.decode([text]).encode()) <= bound


def test_the_longest_text_of_a_map_counts():
    data = struct.pack("<I", 8) + b"\x01" * 8 + b"a\0" + b"b" * 50 + b"\0"
    part = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    assert growth.factor(part) == 51


def template(*pieces):
    special = {"<s>": {"id": "<s>", "ids": list(range(40)), "tokens": ["<s>"] * 40}}
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [], "special_tokens": special}


def test_copies_of_a_text_and_special_tokens_around_it_count():
    text, start = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}
    assert growth.factor(template(text)) == 1
    assert growth.factor(template(*[text] * 7)) == 7
    assert growth.factor(template(start, text, start)) == 80


USUAL = [
    small_tokenizers.byte_level,
    small_tokenizers.sentence_piece,
    lambda: small_tokenizers.with_first_space("prepend"),
    lambda: small_tokenizers.with_first_space("first"),
]


@pytest.mark.parametrize("make", USUAL)
def test_usual_tokenizers_are_far_below_the_bound(make, tmp_path):
    (tmp_path / "tokenizer.json").write_text(make().backend_tokenizer.to_str())
    growth.check_growth(tmp_path / "tokenizer.json")
    parts = json.loads((tmp_path / "tokenizer.json").read_text())
    assert growth.factor(parts["normalizer"]) * growth.factor(parts["pre_tokenizer"]) <= growth.MOST / 10


def test_the_labs_own_is_below_it_too():
    growth.check_growth(growth.Path(LAB_TARGET) / "tokenizer.json")


@pytest.mark.parametrize("which", ["normalizer", "decoder"])
def test_a_row_of_parts_that_multiply_is_refused_unread(which, tmp_path):
    library, tokenizer = (normalizers if which == "normalizer" else decoders), Tokenizer(models.BPE())
    setattr(tokenizer, which, library.Sequence([library.Replace("a", "aa")] * 40))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=f"its {which}s? may make millions of bytes of one"):
        growth.check_growth(tmp_path / "tokenizer.json")
