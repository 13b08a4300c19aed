"""The ONE table of drafts: which words `--draft` takes, and what reads each of them. It is there before torch is.

An entry is a `Kind`: a name, a line of help, and a function that reads the argument. What that gives is a `Choice`
(speclab/drafts/choice.py). The lab's own kinds stand at the end of this file, and their readers in
speclab/drafts/kinds.py: a lookup is one line, and a new one is its own file and that line. An extension adds its own
kinds from its register.py.

Nothing heavy is imported here, so that a list of all kinds and a help answer at once.
"""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speclab.models import sources
from speclab.models.names import exists
from speclab.models.padded import sizes
from speclab.system import extensions
from speclab.system.errors import UsageProblem

if TYPE_CHECKING:
    from speclab.core.drafter import Lookup
    from speclab.drafts.choice import Choice

LIST = "type --draft help to see all kinds"
# Beside the names of kinds, a name that is nearly one of these may have been meant as it.
WORDS_OF_OTHERS = ("assistant", "draft", "draft-model", "none")
LOOKUP_CHOICE = "speclab.drafts.registry:lookup_choice"  # imported when it is asked: it needs torch
TRAINED = (
    "What is called trained comes with the lab for its own target; python -m training.heads trains a head or an\n"
    "adapter for another target. Nothing else needs training."
)


@dataclass(frozen=True)
class Kind:
    """A kind of draft.

    name: what is typed, before a colon where an argument follows. usage: how it is typed, with its argument. help: one
    line that says what drafts. reader: a function, or "module:name" of one that is imported when it is asked; it takes
    the argument ("" where there is none) and all that was typed, and returns a Choice or raises UsageProblem. words:
    other names of the same thing, which are typed by mistake. is_lookup: it copies from the text. any_size: typed
    without an argument, it works with the lab's target padded to any size.
    """

    name: str
    usage: str
    help: str
    reader: Callable[[str, str], Choice] | str
    words: tuple[str, ...] = ()
    is_lookup: bool = False
    any_size: bool = False

    def read(self, argument: str, text: str) -> Choice:
        """Ask the reader."""
        reader = pkgutil.resolve_name(self.reader) if isinstance(self.reader, str) else self.reader
        return reader(argument, text)


_KINDS: dict[str, Kind] = {}


def add(kind: Kind) -> None:
    """Add a kind of draft to the table."""
    if kind.name in _KINDS:
        raise ValueError(f"two kinds of draft are named {kind.name}")
    _KINDS[kind.name] = kind


def add_lookup(name: str, make_lookup: Callable[..., Lookup] | str, help: str, words: tuple[str, ...] = ()) -> None:
    """Add a lookup to the table, which takes no argument.

    make_lookup: a class or function, or "module:name" of one that is imported when it is asked. It gets `n_ids`, since
    a lookup proposes no id that the target never emits, though a prompt may have some.
    """

    def read_lookup(argument: str, text: str) -> Choice:
        made = pkgutil.resolve_name(make_lookup) if isinstance(make_lookup, str) else make_lookup
        return pkgutil.resolve_name(LOOKUP_CHOICE)(name, made, argument, text)

    add(Kind(name, name, help, read_lookup, words, is_lookup=True, any_size=True))


def kinds() -> dict[str, Kind]:
    """Return all kinds of drafts by name, those of extensions among them."""
    extensions.load()
    return _KINDS


def lookups() -> list[str]:
    """Return the names of the lookups, which a hybrid can have."""
    return [name for name, kind in kinds().items() if kind.is_lookup]


def shown() -> str:
    """Return all kinds of drafts for a terminal: how each is typed, and what drafts."""
    from tabulate import tabulate  # here: the scripts decode without it

    rows = [(kind.usage, kind.help) for kind in kinds().values()]
    rows.append(("lab:SIZE", "the lab's draft model padded to the price of a larger one, as in lab:50m"))
    rows.append((", ".join(sources.usages()), "any causal language model with the target's tokenizer"))
    return f"{tabulate(rows, tablefmt='plain')}\n{TRAINED}"


def kind_of(text: str) -> Kind | None:
    """The kind that `--draft TEXT` names; None where it names a model, or nothing."""
    name, colon, argument = text.partition(":")
    return kinds().get(name) if argument or not colon else None


def check_known(text: str) -> None:
    """Raise UsageProblem where `--draft TEXT` names no kind and cannot be the name of a model."""
    name, colon, _ = text.partition(":")
    is_no_name = bool(colon) and not exists(text) and not sizes.is_lab_size(text)  # no hub name has a colon
    if kind_of(text) is None and (name in kinds() or is_no_name or is_mistyped(text)):
        near = kinds().get(_nearest(name) or name)
        meant = f"; did you mean {near.usage}?" if near else ""
        raise UsageProblem(f"unknown draft kind {text!r}{meant}; {LIST}")


def check_names(text: str) -> str:
    """Return what was typed behind `--draft`, names with commas between them. Raises UsageProblem as `check_known`."""
    for name in [] if exists(text) else filter(None, text.split(",")):
        check_known(name)
    return text


def is_mistyped(text: str) -> bool:
    """Tell whether a name is empty, or is nearly the name of a kind and neither a folder nor surely a name of the
    hub."""
    if sizes.is_lab_size(text):
        sizes.parse_size(text)
        return False
    if not text.strip():
        return True
    if exists(text) or "/" in text:
        return False
    return _nearest(text) is not None


def _nearest(text: str) -> str | None:
    """Return the kind that is nearly this name, "" where it is nearly a word of others; None where it is neither."""
    words = dict.fromkeys(WORDS_OF_OTHERS, "")
    words |= {word: kind.name for kind in kinds().values() for word in (kind.name, *kind.words)}
    near = difflib.get_close_matches(text.strip().lower(), words, 1, 0.7)
    return words[near[0]] if near else None


# --- the lab's own kinds ----------------------------------------------------------------------------------------------

READERS = "speclab.drafts.kinds"
MODEL = "the lab's own draft model, trained, a tenth of the target's size"
LONGEST_MATCH = "prompt lookup: what followed the longest earlier match"
FEATURE = "a trained head that reads the target's hidden states (EAGLE-3)"
BLOCK = "a trained head that drafts all tokens in one pass (DFlash)"
HYBRID = "a lookup where it pays more, elsewhere a model, usually feature"
DIAL = "an instrument: the target's text, each token right with probability A"

add(Kind("model", "model", MODEL, f"{READERS}:read_model", any_size=True))
add_lookup("ngram", "draft_models:NgramDrafter", LONGEST_MATCH, ("lookup", "prompt-lookup"))
add_lookup("suffix", "speclab.drafts.suffix:SuffixDrafter", "what followed the longest earlier match most often")
add(Kind("feature", "feature[:HEAD]", FEATURE, f"{READERS}:read_feature", ("eagle3",), any_size=True))
add(Kind("block", "block[:HEAD]", BLOCK, f"{READERS}:read_block", ("dflash", "dspark")))
add(Kind("hybrid", "hybrid[:LOOKUP+MODEL]", HYBRID, f"{READERS}:read_hybrid", any_size=True))
add(Kind("dial", "dial:A[:MODEL|:free]", DIAL, f"{READERS}:read_dial"))
