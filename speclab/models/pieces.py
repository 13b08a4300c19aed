"""The text of new ids in pieces: no piece is ever taken back, and joined they are the text, however the ids are split.

The text of new ids is what the tokenizer decodes from the prompt and the new ids together, from where it leaves what it
decodes from the prompt alone. So the first new word keeps the space before it, which SentencePiece leaves out where a
text begins. The library's stream holds back the bytes of a character that is not complete, and byte tokens such as
<0x41> wait here for the end of their run. Where nothing can be said (a prompt that ends inside a character, a tokenizer
without the library's decoder), all is held back until the end.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from speclab.core.rounds import Round

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # of SentencePiece, for characters that it has no token for


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], special: bool = False) -> str:
    """Return the text that the tokenizer decodes from ids, with spaces as they are. special: keep special tokens"""
    options = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
    return str(tokenizer.decode(list(ids), **options)) if ids else ""


def added(tokenizer: PreTrainedTokenizerBase, before: Sequence[int], ids: Sequence[int], special: bool = True) -> str:
    """Return the text that ids add to the text of the ids before them."""
    old, whole = (text_of(tokenizer, one, special) for one in (before, [*before, *ids]))
    n_same = min(len(old), len(whole))
    return whole[next((i for i in range(n_same) if old[i] != whole[i]), n_same) :]


class Pieces:
    """The text of ids that come after the ids `before`, in pieces. special: show special tokens too."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = (), special: bool = False):
        self._tokenizer, self._before, self._special = tokenizer, list(before), special
        self._ids: list[int] = []
        self._held: list[int] = []  # not given to the stream yet
        self._n_shown = 0  # characters
        self._skipped = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special and not special}
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        knows = self._backend is not None and not text_of(tokenizer, self._before, special).endswith("\ufffd")
        self._stream = DecodeStream(self._before, skip_special_tokens=not special) if knows else None

    def add(self, ids: Sequence[int]) -> str:
        """Return the text that can be shown after these further ids."""
        self._ids += ids
        self._held += ids
        last = self._tokenizer.convert_ids_to_tokens([i for i in ids[-1:] if i not in self._skipped])
        if self._stream is None or last in ([], [None]) or BYTE_TOKEN.fullmatch(last[0]):
            return ""
        try:
            text = self._stream.step(self._backend, self._held) or ""
        except Exception:  # the library raises a plain one where the text so far would change
            self._stream = None
            return ""
        self._held, self._n_shown = [], self._n_shown + len(text)
        return text

    def rest(self) -> str:
        """Return the text that was held back, where no id follows."""
        return added(self._tokenizer, self._before, self._ids, self._special)[self._n_shown :]

    def fork(self) -> "Pieces":
        """Return the pieces of ids that might come next, as if the text of all before them had been shown."""
        return Pieces(self._tokenizer, self._before + self._ids, self._special)


def with_text(rounds: Iterable[Round], made: Pieces) -> Iterator[Round]:
    for round_ in rounds:
        text = made.add(round_.tokens)
        yield round_._replace(text=text + made.rest() if round_.finish else text)
