"""Tokens that two vocabularies have in common, and the text of one in the tokens of the other.

Two tokens are the same where they add the same bytes to a text, as their tokenizers decode them: "▁the" of
SentencePiece and "Ġthe" of a byte-level vocabulary are both " the". Half characters have no text of their own: they
are compared by the bytes that their names spell. Special tokens are left out, but for the ones that end a text.
"""

from itertools import groupby
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from speclab.models.pieces import BYTE_TOKEN, text_of

UNKNOWN = "\ufffd"  # what decoders write for bytes that are no character
BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}  # the alphabet of byte-level vocabularies
END = b""  # stands for the bytes of the token that ends a text
BREAK = "\n"  # a text behind it is tokenized as in the middle of a line


class SharedTokens(NamedTuple):
    """The pairs of ids that mean the same, by the target's id, and how many tokens of either vocabulary could be in a
    pair."""

    target_ids: list[int]
    draft_ids: list[int]
    n_target: int
    n_draft: int

    @property
    def share(self) -> float:
        """Return the number of shared tokens divided by the number of tokens of the smaller vocabulary."""
        return len(self.target_ids) / max(1, min(self.n_target, self.n_draft))

    def describe(self) -> str:
        n = len(self.target_ids)
        return f"tokens in both vocabularies: {n} (of the draft's {self.n_draft} and the target's {self.n_target})"


def start_of_text(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the special token that the tokenizer puts before every text, if it does."""
    start = tokenizer.bos_token_id
    return [start] if start is not None and tokenizer.encode("a")[:1] == [start] else []


def tokenized_inside(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text that follows another one: some tokenizers add a space where a text begins."""
    before, whole = (tokenizer.encode(BREAK + tail, add_special_tokens=False) for tail in ("", text))
    if whole[: len(before)] == before and len(whole) > len(before):
        return whole[len(before) :]
    return tokenizer.encode(text, add_special_tokens=False)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return the ids that are no text, with their names."""
    added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in tokenizer.all_special_ids}
    return added | named


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    """Return the bytes that each id adds to a text that has begun, by the id; SentencePiece's byte tokens come last.

    Special ids are left out, and so are ids whose bytes cannot be found out.
    """
    special = special_ids(tokenizer)
    names = {i: name for name, i in tokenizer.get_vocab().items() if i not in special}
    names = dict(sorted(names.items(), key=lambda item: (BYTE_TOKEN.fullmatch(item[1]) is not None, item[0])))
    alone = ((i, text_of(tokenizer, [i])) for i in names)
    first, before = next(((i, text) for i, text in alone if text.strip() and UNKNOWN not in text), (0, ""))
    found = {}
    for i, name in names.items() if before else ():
        whole = text_of(tokenizer, [first, i])
        added = _bytes_of(name, whole.removeprefix(before)) if whole.startswith(before) else b""
        if added:
            found[i] = added
    return found


def _bytes_of(name: str, added: str) -> bytes | None:
    """Return the bytes of a token of this name that decodes to this text; None where the text has half characters and
    the name does not spell them."""
    if UNKNOWN not in added:
        return added.encode()
    if byte := BYTE_TOKEN.fullmatch(name):
        spelled = bytes([int(byte[1], 16)])
    elif all(letter in BYTES for letter in name):
        spelled = bytes(BYTES[letter] for letter in name)
    else:
        return None
    return spelled if spelled.decode("utf-8", "replace") == added else None


def shared_tokens(target_bytes: dict[int, bytes], draft_bytes: dict[int, bytes]) -> SharedTokens:
    """Return the intersection of two vocabularies, as `token_bytes` gives them. Of ids with the same bytes the first
    counts."""
    target_id, draft_id = ({added: i for i, added in reversed(by_id.items())} for by_id in (target_bytes, draft_bytes))
    pairs = sorted((i, draft_id[added]) for added, i in target_id.items() if added in draft_id)
    return SharedTokens([i for i, _ in pairs], [i for _, i in pairs], len(target_bytes), len(draft_bytes))


class Reading:
    """The target's text in the draft's ids. How it is read changes what is accepted, not the output's distribution.

    A prompt is tokenized anew for the draft, since models read best what is tokenized as in their training. Behind
    it every token is read by itself, whatever stands around it: a shared one is the draft's token of the same bytes,
    and the text of another one is tokenized for the draft. So the draft reads one text in one way, wherever a
    round begins, its cache never holds anything that is read otherwise later, and a text that is drafted and accepted
    stays as it was drafted. Half characters become the draft's bytes, where it has them.

    unknown: the draft's id in the place of a token that it cannot read.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        own: PreTrainedTokenizerBase,
        shared: SharedTokens,
        target_bytes: dict[int, bytes],
        draft_bytes: dict[int, bytes],
        unknown: int,
    ):
        self._tokenizer, self._own, self._target_bytes, self._unknown = tokenizer, own, target_bytes, [unknown]
        self._special, own_special = special_ids(tokenizer), {name: i for i, name in special_ids(own).items()}
        same = {i: own_special[name] for i, name in self._special.items() if name in own_special}
        self._same = same | dict(zip(shared.target_ids, shared.draft_ids, strict=True))
        if tokenizer.bos_token_id is not None and own.bos_token_id is not None:
            self._same.setdefault(tokenizer.bos_token_id, own.bos_token_id)
        self._byte = {added: i for i, added in reversed(draft_bytes.items()) if len(added) == 1}
        self._start = start_of_text(own)
        self._read: dict[int, list[int]] = {}  # by the target's id

    def __deepcopy__(self, memo: dict) -> "Reading":
        return self  # it is the same for every text

    def prompt(self, ids: list[int]) -> list[int]:
        """Read a prompt: the target's ids -> the draft's ids, at least one. Special tokens that the draft lacks are
        left out."""
        found: list[int] = []
        for is_special, group in groupby(ids, lambda i: i in self._special):
            part = list(group)
            if is_special:
                found += [self._same[i] for i in part if i in self._same]
            else:
                found += self._own.encode(text_of(self._tokenizer, part), add_special_tokens=False)
        found = found if found[: len(self._start)] == self._start else self._start + found
        return found or self._unknown

    def token(self, i: int) -> list[int]:
        """Read one token behind a prompt: the target's id -> the draft's ids, at least one."""
        if i not in self._read:
            self._read[i] = [self._same[i]] if i in self._same else self._tokenized(self._target_bytes.get(i, b""))
        return self._read[i]

    def _tokenized(self, added: bytes) -> list[int]:
        try:
            text = added.decode()
        except UnicodeDecodeError:
            byte_ids = [self._byte.get(added[i : i + 1]) for i in range(len(added))]
            return self._unknown if None in byte_ids else [i for i in byte_ids if i is not None]
        return tokenized_inside(self._own, text) or self._unknown
