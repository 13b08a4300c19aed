"""Ids become text in pieces: joined they are the tokenizer's text, for many kinds of tokenizer and every split."""

import copy
import functools
import itertools
from argparse import Namespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from speclab.core.rounds import Round
from speclab.core.sampling import Sampling
from speclab.models.pieces import Pieces, added, with_text
from speclab.models.prompts import encode
from speclab.models.setup import Setup
from tests import small_tokenizers
from tests.small_tokenizers import LINES, byte_level, sentence_piece, with_first_space

MANY = settings(max_examples=200)


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
    groups = st.lists(st.lists(ids, max_size=4), max_size=10)
    return tokenizer, before, draw(groups | ids.map(lambda one: [[one]] * 20))  # or one token for ever


def setup_with(tokenizer, encodes: bool) -> Setup:
    target = Namespace(family=Namespace(one_text=not encodes))
    return Setup(target, tokenizer, "tiny", Sampling(), torch.device("cpu"), torch.float32)


def right_text(tokenizer, before: list[int], ids: list[int], special: bool) -> str:
    """By its definition: what both together are decoded to, after what it shares with the text before."""
    options = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
    old, whole = (tokenizer.decode(one, **options) if one else "" for one in (before, before + ids))
    n_same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, whole, strict=False)))
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
        assert joined(Pieces(tokenizer, before, special), split) == right
        rounds = [*map(Round, split), Round([], finish="length")]
        assert "".join(round_.text for round_ in with_text(rounds, Pieces(tokenizer, before, special))) == right


@MANY
@given(texts(), st.data())
def test_a_fork_shows_what_might_come_next_and_changes_nothing(case, data):
    tokenizer, before, groups = case
    n = data.draw(st.integers(0, len(groups)))
    made = Pieces(tokenizer, before, special=True)
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
    made, shown = Pieces(tokenizer, prompt), ""
    for n, i in enumerate(ids, 1):
        shown += made.add([i])
        assert shown == right_text(tokenizer, prompt, ids[:n], False)


@pytest.mark.parametrize("encodes", [False, True])
def test_the_first_new_word_keeps_its_space(encodes):
    """Where the prompt is another text, the output begins one."""
    tokenizer, right = tokenizer_of("byte fallback, first space"), "cat" if encodes else " cat"
    [prompt], new = encode([("prompt", "the")], tokenizer), tokenizer("cat", add_special_tokens=False).input_ids
    setup = setup_with(tokenizer, encodes)
    assert joined(setup.pieces(prompt), [new]) == setup.token_text(prompt, [], new[0]) == right
