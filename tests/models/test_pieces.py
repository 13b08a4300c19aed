"""Ids become text in pieces: joined they are the tokenizer's text, for many kinds of tokenizer and every split."""

import contextlib
import copy
import functools
import io
from argparse import Namespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from speclab.cli.decoding import _Decoded
from speclab.core.rounds import Round
from speclab.core.sampling import Sampling
from speclab.models.pieces import added, pieces, with_text
from speclab.models.prompts import Prompt, encode
from speclab.models.setup import Setup
from speclab.system.terminal import harmless
from tests import small_tokenizers
from tests.small_tokenizers import LINES, byte_level, sentence_piece, with_first_space

MANY = settings(max_examples=200)
HALF = [231, 187, 153, 234, 152]  # of `sentence_piece`: 世 in bytes, then two of the three bytes of another character


def llama(*more: decoders.Decoder) -> decoders.Decoder:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more])


def word_piece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=True)
    marks = ["[UNK]", "do", "n't", "##n't", "'", "##", ".", ","]
    trainer = trainers.WordPieceTrainer(vocab_size=130, special_tokens=marks[:1], show_progress=False)
    tokenizer.train_from_iterator([*LINES, "do not . don't ,"], trainer)
    tokenizer.add_tokens(marks[1:])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", clean_up_tokenization_spaces=True)


def decoding_with(tokenizer: PreTrainedTokenizerFast, decoder: decoders.Decoder | None) -> PreTrainedTokenizerFast:
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.decoder = decoder
    return other


def with_added_tokens(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Special tokens and others, with spaces around and in them, letters of several bytes, and U+FFFD."""
    other = copy.deepcopy(tokenizer)
    other.add_tokens([AddedToken("<mid>", lstrip=True, rstrip=True), "  ", "é東", " x ", "\ufffd", "▁y"])
    other.add_tokens([AddedToken("<sys>", special=True, lstrip=True), AddedToken("<ü>", special=True)])
    return other


KNOWN = {
    "byte-level": lambda: with_added_tokens(byte_level()),
    "byte fallback, first space": lambda: with_added_tokens(sentence_piece()),
    "byte fallback, two first spaces": lambda: decoding_with(sentence_piece(), llama(decoders.Strip(" ", 2, 0))),
    "byte fallback": lambda: decoding_with(sentence_piece(), llama()),
    "Metaspace, first": lambda: with_added_tokens(with_first_space("first")),
    "Metaspace, always": lambda: decoding_with(
        with_first_space("always"), decoders.Metaspace(prepend_scheme="always", split=True)
    ),
    "WordPiece, cleaned up": word_piece,
    "words": lambda: small_tokenizers.words("<unk>", "the", "cat", "sat", "é", "."),
}
UNKNOWN = {
    "spaces between words": lambda: decoding_with(
        sentence_piece(), decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("▁+"), " ")])
    ),
    "a name over two tokens": lambda: decoding_with(
        sentence_piece(), decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()])
    ),
    "repeated tokens": lambda: decoding_with(with_first_space("first"), decoders.CTC()),
}


@functools.cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    return (KNOWN | UNKNOWN)[kind]()


@st.composite
def texts(draw, kinds=(*KNOWN, *UNKNOWN)):
    """A tokenizer, the ids of a prompt and new ids in groups, among them ids that the tokenizer lacks."""
    tokenizer = tokenizer_of(draw(st.sampled_from(kinds)))
    # Few ids, so that bytes, marks and repetitions come together; or any.
    few = draw(st.lists(st.integers(0, len(tokenizer) + 1), min_size=1, max_size=6))
    ids = st.one_of(st.sampled_from(few), st.integers(0, len(tokenizer) + 1))
    before = draw(st.lists(ids, max_size=6))
    return tokenizer, before, draw(st.lists(st.lists(ids, max_size=4), max_size=10))


def setup_with(tokenizer, encodes: bool) -> Setup:
    target = Namespace(family=Namespace(one_text=not encodes))
    return Setup(target, tokenizer, "tiny", Sampling(), torch.device("cpu"), torch.float32)


def right_text(tokenizer, before: list[int], ids: list[int], special: bool) -> str:
    """By its definition: what both together are decoded to, after what it shares with the text before."""
    old, whole = (
        tokenizer.decode(one, skip_special_tokens=not special, clean_up_tokenization_spaces=False) if one else ""
        for one in (before, before + ids)
    )
    n_same = 0
    while n_same < min(len(old), len(whole)) and old[n_same] == whole[n_same]:
        n_same += 1
    return whole[n_same:]


def joined(made, groups) -> str:
    return "".join([*(made.add(group) for group in groups), made.rest()])


@MANY
@given(texts(), st.booleans())
def test_joined_pieces_are_the_tokenizers_text(case, special):
    """However the ids are split. So no piece is ever taken back: it was shown before later ids were known."""
    tokenizer, before, groups = case
    ids = [i for group in groups for i in group]
    right = right_text(tokenizer, before, ids, special)
    for split in (groups, [[i] for i in ids], [ids]):
        assert joined(pieces(tokenizer, before, special), split) == right


@MANY
@given(texts(), st.data())
def test_a_fork_shows_what_might_come_next_and_changes_nothing(case, data):
    tokenizer, before, groups = case
    n = data.draw(st.integers(0, len(groups)))
    made = pieces(tokenizer, before, special=True)
    shown = "".join(made.add(group) for group in groups[:n])
    known = before + [i for group in groups[:n] for i in group]
    drafted = [i for group in groups[n:] for i in group]
    assert joined(made.fork(), [[i] for i in drafted]) == right_text(tokenizer, known, drafted, True)
    assert added(tokenizer, known, drafted) == right_text(tokenizer, known, drafted, True)
    assert shown + joined(made, groups[n:]) == right_text(tokenizer, before, known[len(before) :] + drafted, True)


@pytest.mark.parametrize("kind", KNOWN)
def test_whole_tokens_are_shown_at_once(kind):
    tokenizer = tokenizer_of(kind)
    prompt, ids = (tokenizer(text, add_special_tokens=False).input_ids for text in ("the cat", "the dog sat there"))
    made, shown = pieces(tokenizer, prompt), ""
    for n, i in enumerate(ids, 1):
        shown += made.add([i])
        assert shown == right_text(tokenizer, prompt, ids[:n], False)


@pytest.mark.parametrize("kind", KNOWN)
def test_one_token_for_ever_is_the_text_too(kind):
    """Such as half a character or a space."""
    tokenizer, n = tokenizer_of(kind), 20
    prompt = tokenizer("the cat sat").input_ids
    for i in range(len(tokenizer)):
        assert joined(pieces(tokenizer, prompt), [[i]] * n) == right_text(tokenizer, prompt, [i] * n, False)


def test_the_first_new_word_keeps_its_space():
    tokenizer = tokenizer_of("byte fallback, first space")
    prompt, new = tokenizer("the").input_ids, tokenizer("cat", add_special_tokens=False).input_ids
    assert joined(pieces(tokenizer, prompt), [new]) == " cat"
    assert joined(pieces(tokenizer), [new]) == "cat"


@pytest.mark.parametrize("encodes", [False, True])
def test_where_the_prompt_is_another_text_the_output_begins_one(encodes):
    tokenizer = tokenizer_of("byte fallback, first space")
    [prompt], new = encode([("prompt", "the")], tokenizer), tokenizer("cat", add_special_tokens=False).input_ids
    setup, right = setup_with(tokenizer, encodes), "cat" if encodes else " cat"
    assert joined(setup.pieces(prompt), [new]) == setup.token_text(prompt, [], new[0]) == right


# --- what the scripts print ---


@given(st.lists(st.integers(0, 350), max_size=12), st.lists(st.integers(1, 5), min_size=12, max_size=12), st.booleans())
def test_both_scripts_print_one_text_for_the_same_ids(ids, sizes, stream):
    """Token by token, in rounds, in one string or as it comes, and from Python."""
    tokenizer = sentence_piece()
    [prompt] = encode([("prompt", "the")], tokenizer)
    for text in (HALF, ids):
        groups, left = [], list(text)
        for size in sizes:
            groups.append(left[:size])
            left = left[size:]
        rounds = [Round(group) for group in groups]
        rounds[-1] = rounds[-1]._replace(finish="length")
        printed = printed_by(tokenizer, prompt, rounds, stream)
        assert printed == printed_by(tokenizer, prompt, [Round([i]) for i in text], False)
        right = right_text(tokenizer, prompt.id_list, text, False)
        assert printed.endswith(f"\n{harmless(right)}\n")
        assert "".join(one.text for one in with_text(rounds, pieces(tokenizer, prompt.id_list))) == right


def printed_by(tokenizer, prompt: Prompt, rounds: list[Round], stream: bool) -> str:
    setup = setup_with(tokenizer, encodes=False)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _Decoded(setup, Namespace(stream=stream)).show(prompt, iter(rounds))
    return out.getvalue()
