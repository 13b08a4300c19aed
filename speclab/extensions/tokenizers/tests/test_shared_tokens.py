"""Which tokens two vocabularies share, and a text of one in the tokens of the other."""

import copy

import pytest

from speclab.extensions.tokenizers.shared_tokens import END, Reading, SharedTokens, shared_tokens, text_of, token_bytes
from tests.small_tokenizers import LINES, byte_level, sentence_piece, words

UNKNOWN = 9999  # what stands for a token that a draft cannot read
HALF = "\ufffd"


def shared_of(target, own) -> tuple[SharedTokens, Reading]:
    of_target, of_draft = token_bytes(target), token_bytes(own)
    shared = shared_tokens(of_target, of_draft)
    return shared, Reading(target, own, shared, of_target, of_draft, UNKNOWN)


def pairs_by_name(target, own) -> dict[str, str]:
    shared, _ = shared_of(target, own)
    names = (tokenizer.convert_ids_to_tokens for tokenizer in (target, own))
    return dict(zip(*(name(ids) for name, ids in zip(names, shared[:2], strict=True)), strict=True))


def test_the_same_words_of_two_kinds_are_pairs():
    """A space is Ġ in one vocabulary and ▁ in the other."""
    pairs = pairs_by_name(byte_level(), sentence_piece())
    assert pairs["Ġthe"] == "▁the"
    assert pairs["at"] == "at"
    assert len(pairs) > 100
    assert {other: one for one, other in pairs.items()} == pairs_by_name(sentence_piece(), byte_level())


@pytest.mark.parametrize(
    ("target", "own"),
    [(byte_level(), sentence_piece()), (sentence_piece(), byte_level()), (byte_level(), byte_level(400, 2))],
    ids=["into pieces", "into bytes", "two of a kind"],
)
def test_a_pair_adds_the_same_text(target, own):
    """Behind two different beginnings, each tokenizer's own."""
    shared, _ = shared_of(target, own)
    for start in ("a", " sat"):
        begin = [tokenizer.encode(start, add_special_tokens=False) for tokenizer in (target, own)]
        for one, other in zip(shared.target_ids, shared.draft_ids, strict=True):
            texts = text_of(target, [*begin[0], one]), text_of(own, [*begin[1], other])
            assert texts[0].strip() == texts[1].strip()
    assert len(set(shared.target_ids)) == len(set(shared.draft_ids)) == len(shared.target_ids)
    assert shared.target_ids == sorted(shared.target_ids)


def test_half_characters_are_pairs_by_their_bytes():
    pairs = pairs_by_name(byte_level(), sentence_piece())
    letters = {chr(0xE6): "<0xE6>", chr(0xC3): "<0xC3>"}  # letters of Latin-1 stand for their own bytes
    assert {name: pairs[name] for name in letters} == letters
    assert pairs["a"] == "a", "not <0x61>, which no text is cut into"
    assert token_bytes(byte_level())[byte_level().convert_tokens_to_ids("Ġ")] == b" "


def test_special_tokens_are_shared_where_both_end_a_text_with_them():
    target, own = byte_level(), sentence_piece()
    of_target, of_draft = token_bytes(target), token_bytes(own)
    assert target.eos_token_id not in of_target
    assert not {own.bos_token_id, own.eos_token_id, own.unk_token_id} & of_draft.keys()
    without, ends = shared_tokens(of_target, of_draft), (target.eos_token_id, own.eos_token_id)
    both = shared_tokens(of_target | {ends[0]: END}, of_draft | {ends[1]: END})
    assert set(zip(*both[:2], strict=True)) - set(zip(*without[:2], strict=True)) == {ends}
    assert (both.n_target, both.n_draft) == (without.n_target + 1, without.n_draft + 1)
    assert shared_tokens(of_target, of_target).share == 1


TEXTS = (*LINES, "def f(x):\n    return {'a': [1, 2.5]}  # 東京 and 🙂\n", "x", " the", "ünï")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("target", "own"),
    [(byte_level(), sentence_piece()), (sentence_piece(), byte_level()), (byte_level(400, 2), byte_level())],
    ids=["into pieces", "into bytes", "two of a kind"],
)
def test_what_is_read_is_the_text(text, target, own):
    """As a prompt, and token by token behind one, those that only the target has included."""
    _, reading = shared_of(target, own)
    ids = target.encode(text, add_special_tokens=False)
    assert text_of(own, reading.prompt(ids)).strip() == text.strip()
    for n in (1, 3):
        if not (begin := text_of(target, ids[:n])) or HALF in begin:
            continue  # a prompt has some text, and ends with a whole character
        read = [*reading.prompt(ids[:n]), *(i for token in ids[n:] for i in reading.token(token))]
        assert UNKNOWN not in read
        assert text_of(own, read).strip() == text.strip()


def test_a_prompt_is_cut_as_the_draft_cuts_it():
    """Not as the target does, and with the draft's own beginning."""
    target, own = byte_level(), sentence_piece()
    _, reading = shared_of(target, own)
    text = "the others came over there"
    assert reading.prompt(target.encode(text)) == own.encode(text)
    assert own.encode(text)[0] == own.bos_token_id
    assert reading.prompt([target.eos_token_id, *target.encode(text)]) == own.encode(text), "it has no such token"
    _, back = shared_of(own, target)
    assert back.prompt(own.encode(text)) == target.encode(text)
    _, same = shared_of(own, own)
    special = [own.bos_token_id, *own.encode(text, add_special_tokens=False), own.eos_token_id]
    assert same.prompt(special) == special
    assert [i for token in special for i in same.token(token)] == special


def test_what_cannot_be_read():
    target, own = byte_level(), words("a", "cat")
    _, reading = shared_of(target, own)
    unreadable = target.convert_tokens_to_ids(chr(0xE6))
    assert reading.token(unreadable) == [UNKNOWN]
    assert reading.prompt([target.eos_token_id]) == [UNKNOWN]
    assert copy.deepcopy(reading) is reading
