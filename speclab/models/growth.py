"""How much longer a tokenizer can make a text, told from its tokenizer.json before anything of that runs.

Its parts are small programs: a normalizer may write any text in the place of a letter, several stand in a row, and a
row may stand in another one. Where memory ends, the library ends the whole process. So the parts' factors are
multiplied here, each of them rather too large than too small; what is read takes that many times the text at most.
"""

import base64
import json
import math
from pathlib import Path
from typing import Any

MOST = 1000  # bytes that one byte may become; usual tokenizers come to 200
ROWS = ("normalizers", "pretokenizers", "processors", "decoders")  # names of what a Sequence holds
FIXED = {"ByteLevel": 3, "BertNormalizer": 2, "Metaspace": 4}  # bytes of what they write for one


def check_growth(tokenizer_json: Path) -> None:
    """ValueError for a tokenizer that may make more than MOST bytes of one, and where the file is no JSON."""
    content = json.loads(tokenizer_json.read_text("utf-8"))
    if not isinstance(content, dict):
        return  # the library says what is wrong
    reads = math.prod(factor(content.get(name)) for name in ("normalizer", "pre_tokenizer", "post_processor"))
    for what, grown in (("its normalizers may make", reads), ("its decoder may make", factor(content.get("decoder")))):
        if grown > MOST:
            raise ValueError(f"{what} {grown:.0f} bytes of one" if grown < 1e6 else f"{what} millions of bytes of one")


def factor(part: Any) -> float:
    """Bytes that a part of a tokenizer may make of one byte."""
    if not isinstance(part, dict):
        return 1.0
    kind = part.get("type")
    if kind == "Sequence":
        return math.prod(factor(inner) for name in ROWS for inner in _listed(part.get(name)))
    if kind == "Replace":
        pattern, written = part.get("pattern"), _length(part.get("content"))
        replaced = _length(pattern.get("String")) if isinstance(pattern, dict) else 0
        return (
            max(1.0, written / replaced) if replaced else 1.0 + 2 * written
        )  # an expression may find nothing, at both ends, too
    if kind == "Prepend":
        return 1.0 + _length(part.get("prepend"))
    if kind == "Precompiled":
        return 1.0 + _longest_of(part.get("precompiled_charsmap"))
    if kind == "TemplateProcessing":
        return _copies(part)
    return float(FIXED.get(str(kind), 1))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _length(value: Any) -> int:
    return len(value.encode(errors="replace")) if isinstance(value, str) else 0


def _longest_of(charsmap: Any) -> int:
    """Bytes of the longest text of a SentencePiece map: the size of its index, the index, then texts that end in 0."""
    data = base64.b64decode(charsmap) if isinstance(charsmap, str) else b""
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def _copies(template: dict[str, Any]) -> float:
    """How often a template has the text, or how many special tokens it puts around it, whichever is more."""
    special = template.get("special_tokens")
    n_ids = (
        {name: len(_listed(token.get("ids"))) for name, token in special.items()} if isinstance(special, dict) else {}
    )
    pieces = [piece for piece in _listed(template.get("single")) if isinstance(piece, dict)]
    around = sum(n_ids.get(str(piece["SpecialToken"].get("id")), 1) for piece in pieces if "SpecialToken" in piece)
    return float(max(1, around, sum("Sequence" in piece for piece in pieces)))
