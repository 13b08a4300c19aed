"""A bound on how much longer a tokenizer can make a text, computed from its parts before any of them runs.

The parts are small programs: a normalizer may write any text in the place of a letter, several stand in a row, and a
row may stand in another one. Where memory ends, the library ends the whole process. So the parts' factors are
multiplied here, each of them rather too large than too small; what is read takes that many times the text at most.
"""

import base64
import math
import re
from typing import Any

# Bytes that one byte may become. The largest product of a usual tokenizer is 2200 (XLNet: NFKD, Lowercase, a map,
# Metaspace); that of NLLB, XLM-R, mBART and T5 is 200. Rows that are made to fill the memory come to millions.
MOST = 25_000
ROWS = ("normalizers", "pretokenizers", "decoders")  # names of what a Sequence holds
# The bytes that each of these parts makes of one byte. A part named neither here nor in `factor` makes at most one.
FIXED = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 1.5, "BertNormalizer": 3}
FIXED |= {"ByteLevel": 3, "Metaspace": 4}
FIXED |= {"BPEDecoder": 3, "CTC": 3, "WordPiece": 2}  # the first two may put a space around each letter
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")  # of a tokenizer


def check_growth(tokenizer: Any) -> None:
    """Raise ValueError where the content of a tokenizer.json may make more than MOST bytes of one."""
    if not isinstance(tokenizer, dict):
        return  # the library says what is wrong
    normalizer, pre_tokenizer, post_processor, decoder = map(tokenizer.get, PARTS)
    copies, added = around(post_processor)
    reads, writes = factor(normalizer) * factor(pre_tokenizer) * copies + added, factor(decoder)
    for what, grown in (("its normalizers may make", reads), ("its decoder may make", writes)):
        if grown > MOST:
            raise ValueError(f"{what} {grown:.0f} bytes of one" if grown < 1e6 else f"{what} millions of bytes of one")


def factor(part: Any) -> float:
    """Return the number of bytes that a part of a tokenizer may make of one byte."""
    if not isinstance(part, dict):
        return 1.0
    kind = part.get("type")
    if kind == "Sequence":
        return math.prod(factor(inner) for name in ROWS for inner in _listed(part.get(name)))
    if kind == "Replace":
        replaced, written = _least_replaced(part.get("pattern")), _length(part.get("content"))
        # An expression may find nothing, at both ends, too.
        return max(1.0, written / replaced) if replaced else 1.0 + 2 * written
    if kind == "Prepend":
        return 1.0 + _length(part.get("prepend"))
    if kind == "Precompiled":
        return float(max(1, _longest_of(part.get("precompiled_charsmap"))))
    return float(FIXED.get(str(kind), 1))


def around(part: Any) -> tuple[int, int]:
    """Return two numbers: how often a post-processor repeats the text, and how many special tokens it adds to that."""
    if not isinstance(part, dict):
        return 1, 0
    copies, added = 1, 0
    if part.get("type") == "Sequence":
        for inner in _listed(part.get("processors")):
            repeats, more = around(inner)
            copies, added = copies * repeats, added * repeats + more
        return copies, added
    return _of_template(part) if part.get("type") == "TemplateProcessing" else (1, 2)


def _least_replaced(pattern: Any) -> int:
    """Return the least number of bytes in a match: of a text, or of an expression that is a plain letter, n times or
    more."""
    if not isinstance(pattern, dict):
        return 0
    repeated = re.fullmatch(r"([\w ])\{([0-9]{1,4}),\}", str(pattern.get("Regex")))
    return _length(repeated[1]) * int(repeated[2]) if repeated else _length(pattern.get("String"))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _length(value: Any) -> int:
    return len(value.encode(errors="replace")) if isinstance(value, str) else 0


def _longest_of(charsmap: Any) -> int:
    """Return the number of bytes of the longest text of a SentencePiece map: the size of its index, the index, then
    texts that end in 0."""
    data = base64.b64decode(charsmap) if isinstance(charsmap, str) else b""
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def _of_template(template: dict[str, Any]) -> tuple[int, int]:
    special = template.get("special_tokens")
    n_ids = (
        {name: len(_listed(token.get("ids"))) for name, token in special.items()} if isinstance(special, dict) else {}
    )
    pieces = [piece for piece in _listed(template.get("single")) if isinstance(piece, dict)]
    added = sum(n_ids.get(str(piece["SpecialToken"].get("id")), 1) for piece in pieces if "SpecialToken" in piece)
    return max(1, sum("Sequence" in piece for piece in pieces)), added
