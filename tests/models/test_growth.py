"""The bound on how much longer a tokenizer makes a text: never too low, and no usual tokenizer is refused."""

import base64
import contextlib
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from speclab.models.loading import LAB_TARGET, load_tokenizer
from speclab.models.outside import growth
from speclab.system.errors import Panic, panics_as_errors
from tests import small_tokenizers

SHORT = st.text("ab é", max_size=4)
STEPS = st.one_of(
    st.tuples(SHORT.filter(bool), SHORT).map(lambda pair: normalizers.Replace(*pair)),
    st.tuples(st.sampled_from(["a*", "[ab]", r"\s", "(?=a)", ".", "a{2,}", "é{1,}", "b{0,}"]), SHORT).map(
        lambda pair: normalizers.Replace(Regex(pair[0]), pair[1])
    ),
    SHORT.map(normalizers.Prepend),
    st.sampled_from([getattr(normalizers, name)() for name in ("ByteLevel", "BertNormalizer", "Lowercase", "Strip")]),
    st.sampled_from([normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]),
)
NORMALIZERS = st.recursive(STEPS, lambda inner: st.lists(inner, max_size=4).map(normalizers.Sequence), max_leaves=6)


GROWING = "ab é東\ufdfa\u0130\u0390\U0001d160각"  # the letters that grow most in a form of Unicode or a lower case


@given(NORMALIZERS, st.text(GROWING, min_size=1, max_size=6))
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


@pytest.mark.parametrize(
    ("decoder", "tokens"),
    [
        (decoders.BPEDecoder(suffix=""), ["abc", "d"]),
        (decoders.CTC(pad_token="x", word_delimiter_token=""), ["abc", "d"]),
        (decoders.WordPiece(), ["a"] * 9),
    ],
)
def test_nor_does_a_decoder_that_puts_in_spaces(decoder, tokens):
    assert len(decoder.decode(tokens)) <= growth.factor(json.loads(decoder.__getstate__())) * len("".join(tokens))


def charsmap(longest):
    """A map of SentencePiece: the size of its index, the index, and texts."""
    data = struct.pack("<I", 8) + b"\x01" * 8 + b"a\0" + b"b" * longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def test_the_longest_text_of_a_map_counts():
    assert growth.factor(charsmap(50)) == 50


TEXT, START = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}


def template(*pieces, n_ids=40):
    special = {"<s>": {"id": "<s>", "ids": list(range(n_ids)), "tokens": ["<s>"] * n_ids}}
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [], "special_tokens": special}


def test_copies_of_a_text_multiply_and_special_tokens_are_added():
    assert growth.around(template(TEXT)) == (1, 0)
    assert growth.around(template(*[TEXT] * 7)) == (7, 0)
    assert growth.around(template(START, TEXT, START)) == (1, 80)
    row = [template(START, TEXT, n_ids=2), template(TEXT, TEXT, START, n_ids=3)]
    assert growth.around({"type": "Sequence", "processors": row}) == (2, 7)


def of_sentence_piece(space, *before):
    """As the library converts models of SentencePiece; the longest text of their map stands for U+FDFA."""
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": space}
    row = [*before, charsmap(len("\ufdfa".encode()) * 11), {"type": "Strip"}, spaces]
    return {
        "normalizer": {"type": "Sequence", "normalizers": row},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": template(TEXT, START, START, n_ids=1),
    }


@pytest.mark.parametrize(
    ("content", "margin"),
    [(of_sentence_piece("▁"), 100), (of_sentence_piece(" ", {"type": "NFKD"}, {"type": "Lowercase"}), 10)],
)
def test_what_the_library_makes_of_sentence_piece_is_far_below_the_bound(content, margin, monkeypatch):
    """NLLB, XLM-R, mBART and T5; then XLNet and ALBERT."""
    monkeypatch.setattr(growth, "MOST", growth.MOST / margin)
    growth.check_growth(content)


USUAL = [
    small_tokenizers.byte_level,
    small_tokenizers.sentence_piece,
    lambda: small_tokenizers.with_first_space("prepend"),
    lambda: small_tokenizers.with_first_space("first"),
    lambda: load_tokenizer(LAB_TARGET),
]


@pytest.mark.parametrize("make", USUAL)
def test_usual_tokenizers_are_far_below_the_bound(make, monkeypatch):
    monkeypatch.setattr(growth, "MOST", growth.MOST / 100)
    growth.check_growth(json.loads(make().backend_tokenizer.to_str()))


@pytest.mark.parametrize("which", ["normalizer", "decoder"])
def test_a_row_of_parts_that_multiply_is_refused_unread(which):
    library, tokenizer = (normalizers if which == "normalizer" else decoders), Tokenizer(models.BPE())
    setattr(tokenizer, which, library.Sequence([library.Replace("a", "aa")] * 40))
    with pytest.raises(ValueError, match=f"its {which}s? may make millions of bytes of one"):
        growth.check_growth(json.loads(tokenizer.to_str()))
