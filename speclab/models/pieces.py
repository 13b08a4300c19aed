"""The text of new ids in pieces: no piece is ever taken back, and joined they are the text, however the ids are split.

**The text of new ids** is what the tokenizer decodes from the prompt and the new ids together, without what it decodes
from the prompt alone. So the first new word keeps the space before it, which SentencePiece leaves out where a text
begins. Special tokens are left out, and spaces stay as they are: "cleaning up" is off. Where the new ids change the end
of the prompt's text (its last bytes were no whole character), their text begins where the change begins.

What may still change is held back. A decoder decides what that is, and `pieces` knows these:

- byte-level (GPT-2, Llama 3): the bytes of a character that is not complete.
- byte fallback (Llama 2, Mistral, Gemma): a run of byte tokens becomes text as a whole, or U+FFFD for every byte where
  it is no UTF-8. So a run is held back until another token ends it.
- `Replace`, `Fuse`, `Strip`, `Metaspace`, `WordPiece`, `BPEDecoder`, or no decoder: every token has a text of its own,
  which depends on its neighbours only where it is the first or the last one.

Of any other decoder, and of a tokenizer that decodes in Python in its own way, nothing is known: all is held back until
the end.

No id is decoded more than a few times, however long the text is: bytes once, other ids with the newest ones before them
that are enough to have a text of their own, and nothing while all is held back.
"""

import codecs
import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from speclab.core.rounds import Round

BYTE_TOKEN_LENGTH = len("<0x00>")


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], special: bool = False) -> str:
    """Return the text that the tokenizer decodes from ids, with the spaces as they are.  special: keep the special
    tokens"""
    if not ids:
        return ""
    return str(tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False))


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return the ids that are no text, with their names."""
    added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in tokenizer.all_special_ids}
    return added | named


def _letters_of_bytes() -> dict[str, int]:
    """Return the alphabet of byte-level vocabularies: bytes that are no visible letter of Latin-1 have those from 256
    on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _letters_of_bytes()


class Pieces(Protocol):
    """The text of ids that come after others, in pieces."""

    def add(self, ids: Sequence[int]) -> str:
        """Return the text that can be shown after these further ids."""

    def rest(self) -> str:
        """Return the text that was held back, where no id follows."""

    def fork(self) -> Self:
        """Return the pieces of ids that might come next, as if the text of all before them had been shown."""


class _AtTheEnd:
    """The pieces for a decoder about which nothing is known: all text is held back until the end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int], special: bool):
        self._tokenizer, self._special = tokenizer, special
        # `_ids` are decoded again with every piece, and `_shown` of their text was shown; the first `_n_old` are older
        # than the newest piece.
        self._ids, self._n_old = list(before), len(before)
        self._shown = text_of(tokenizer, before, special)

    def add(self, ids: Sequence[int]) -> str:
        self._ids += ids
        return ""

    def rest(self) -> str:
        return _after(self._shown, text_of(self._tokenizer, self._ids, self._special))

    def fork(self) -> Self:
        other = copy.copy(self)
        other._ids, other._shown = list(self._ids), text_of(self._tokenizer, self._ids, self._special)
        return other


class _ByToken(_AtTheEnd):
    """The pieces for a decoder that gives every token a text of its own, except in runs of byte tokens.  parts: the
    steps of the decoder"""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int], special: bool, parts: list[dict]):
        self._falls_back = any(part["type"] == "ByteFallback" for part in parts)
        self._suffix = next((part["suffix"] for part in parts if part["type"] == "BPEDecoder"), "")
        self._names = _Names(tokenizer, special)
        super().__init__(tokenizer, [i for i, _ in self._names.of(before)], special)

    def add(self, ids: Sequence[int]) -> str:
        named = self._names.of(ids)
        self._ids += [i for i, _ in named]
        return self._next() if named and self._is_whole(named[-1][1]) else ""

    def _is_whole(self, name: str) -> bool:
        """Tell whether the text that ends with this token stays as it is, whatever follows."""
        if self._falls_back and name.startswith("<0x") and len(name) == BYTE_TOKEN_LENGTH:
            return False
        # The suffix of a text's last token is left out and others become spaces, which may only stand at the end.
        return not self._suffix or self._suffix not in name or name.index(self._suffix) == len(name) - len(self._suffix)

    def _next(self) -> str:
        text = text_of(self._tokenizer, self._ids, self._special)
        piece = _after(self._shown, text)
        # Where the newest ids have a text of their own, no later one is the first of a text: what it adds after them is
        # what it adds after all ids, and the older ones are needed no more.
        newest = text_of(self._tokenizer, self._ids[self._n_old :], self._special)
        if newest:
            del self._ids[: self._n_old]
            self._n_old = len(self._ids)
        self._shown = newest or text
        return piece


class _ByByte:
    """The pieces for a byte-level vocabulary: the bytes that its tokens spell, decoded as UTF-8."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int], special: bool):
        self._names = _Names(tokenizer, special)
        self._held, self._shown = b"", ""
        self._decode(before, end=False)
        self._shown = self._incomplete()

    def add(self, ids: Sequence[int]) -> str:
        return self._decode(ids, end=False)

    def rest(self) -> str:
        return self._decode((), end=True)

    def fork(self) -> Self:
        other = copy.copy(self)
        other._shown = self._incomplete()
        return other

    def _incomplete(self) -> str:
        """Return the text that stands for the bytes that are held back, where a text ends with them."""
        return codecs.utf_8_decode(self._held, "replace", True)[0]

    def _decode(self, ids: Sequence[int], end: bool) -> str:
        bytes_ = self._held + b"".join(_spelled(name) for _, name in self._names.of(ids))
        text, n_decoded = codecs.utf_8_decode(bytes_, "replace", end)
        self._held = bytes_[n_decoded:]
        piece = _after(self._shown, text)
        if text:
            self._shown = ""
        return piece


class _Names:
    """The names of ids in the vocabulary. Ids that are not decoded have no name here."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, special: bool):
        added = tokenizer.added_tokens_decoder
        self._tokenizer, self._skipped = tokenizer, {i for i in added if added[i].special and not special}

    def of(self, ids: Iterable[int]) -> list[tuple[int, str]]:
        """Return the (id, name) pairs of the ids that are decoded."""
        shown = [i for i in ids if i not in self._skipped]
        names = self._tokenizer.convert_ids_to_tokens(shown)
        return [(i, name) for i, name in zip(shown, names, strict=True) if name is not None]


def _spelled(name: str) -> bytes:
    """Return the bytes of a token of a byte-level vocabulary.

    An added one may have other letters, and is a text itself.
    """
    if all(letter in BYTES for letter in name):
        return bytes(BYTES[letter] for letter in name)
    return name.encode()


def _after(shown: str, text: str) -> str:
    """Return the part of `text` that follows the beginning that it shares with `shown`."""
    if text.startswith(shown):
        return text[len(shown) :]
    pairs = enumerate(zip(shown, text, strict=False))
    return text[next((i for i, (old, new) in pairs if old != new), len(text)) :]


def pieces(tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = (), special: bool = False) -> Pieces:
    """Return the text of ids that come after the ids `before`, as far as it is known what they may still change.

    special: show special tokens too.
    """
    parts = _parts(tokenizer)
    if parts is None:
        return _AtTheEnd(tokenizer, before, special)
    if [part["type"] for part in parts] == ["ByteLevel"]:
        return _ByByte(tokenizer, before, special)
    return _ByToken(tokenizer, before, special, parts)


def added(tokenizer: PreTrainedTokenizerBase, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text that ids add to the text of the ids before them; special tokens are shown."""
    made = pieces(tokenizer, before, special=True)
    return made.add(ids) + made.rest()


def _parts(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]] | None:
    """Return the steps of the decoder, none where tokens are joined with spaces; None where it is not one of those
    above."""
    own, library = type(tokenizer), PreTrainedTokenizerFast
    if not isinstance(tokenizer, library) or own._decode is not library._decode:
        return None
    # Where a class of the library leaves `_decode` as it is, its own `decode` passes on what is asked for here:
    # CodeGen's (Phi-1, 1.5 and 2) cuts a text at patterns, and none is given. Of other classes nothing is known.
    if not own.decode.__module__.startswith("transformers."):
        return None
    decoder = tokenizer.backend_tokenizer.decoder
    if decoder is None:
        return []
    try:
        parts = _flat(json.loads(decoder.__getstate__()))
    except Exception:  # the library raises a plain one for a decoder that is written in Python
        return None
    kinds = [part["type"] for part in parts]
    joined = kinds[kinds.index("Fuse") :] if "Fuse" in kinds else []  # what works on the text as a whole
    local = all(map(_is_local, parts)) and set(joined) <= {"Fuse", "Replace", "Strip"}
    return parts if local or kinds in (["ByteLevel"], ["WordPiece"], ["BPEDecoder"]) else None


def _flat(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a step of a decoder, or the steps in it."""
    return [step for inner in part["decoders"] for step in _flat(inner)] if part["type"] == "Sequence" else [part]


def _is_local(part: dict[str, Any]) -> bool:
    """Tell whether a step of a decoder changes every letter by itself, except for the first ones of a text.

    What is replaced with a space does not become the name of a byte token.
    """
    match part:
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
            return len(pattern) == 1 and content.isspace()
        case {"type": "Strip", "stop": stop}:
            return stop == 0
        case {"type": kind}:
            return kind in ("ByteFallback", "Fuse", "Metaspace")
    return False


def with_text(rounds: Iterable[Round], made: Pieces) -> Iterator[Round]:
    """Return the rounds, each with the text that it adds."""
    for round_ in rounds:
        text = made.add(round_.tokens)
        yield round_._replace(text=text + made.rest() if round_.finish else text)
