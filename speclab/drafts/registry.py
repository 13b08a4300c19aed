"""The ONE table of drafts: what `--draft NAME` or `--draft NAME:ARGUMENT` means.

An entry is a `Kind`: a name, a line of help, and a function that reads the argument. What this gives is a `Choice`,
read and checked before a model is loaded; its `build` makes the drafter. What a program asks of a draft before it is
built is a field of its choice, so nobody compares names.

The lab's own kinds are in speclab/drafts/kinds.py. An extension adds its own from its register.py.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from speclab.core.drafter import Drafter, Lookup
from speclab.models import loading, sources
from speclab.models.cached import CachedModel, check_prompt
from speclab.models.family import check_family
from speclab.models.padded import sizes
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.terminal import note

OTHER_FAMILY = "use as draft a FOLDER with a model of its family, ngram, or hybrid:ngram+FOLDER"
LIST = "type --draft help to see all kinds"
TRAINED = (
    "What is called trained comes with the lab for its own target; python -m training.heads trains a head or an\n"
    "adapter for another target. Nothing else needs training."
)
# Beside the names of kinds, a name that is nearly one of these may have been meant as it.
WORDS_OF_OTHERS = ("assistant", "draft", "draft-model", "none")

Build = Callable[[Setup, int], Drafter]  # a checked target and the seed of a run -> the drafter


@dataclass(frozen=True)
class Choice:
    """One draft as `--draft` names it, checked as far as that is possible before a model is loaded.

    text: what was typed. name: what tables and records call it, never an absolute path. build: makes the drafter.
    parts: the choices that it is made of, whose limits it has, too.

    is_lookup: it copies from the text, so that a hybrid can have it in front of a model.
    is_model: it is a draft model with the target's ids, and nothing else.
    branches: its drafts have several tokens for one place.
    draws_children: its drafts are trees whose tokens are drawn by the drafter's function `children`.
    can_branch: it says what comes after each of several tokens, so that it can have branches.
    in_hybrid: a hybrid can have it behind a lookup.
    any_family: it works with a target of any family; else it needs a decoder-only one.
    changes_engine: it may change the engine of the target, so it is built before others.
    draws_when_greedy: random numbers decide what it proposes at temperature 0, too.
    no_auto: why `-k auto` cannot choose its lengths, a part of a sentence; None where it can.
    only_greedy: why it needs temperature 0; None where it does not.
    """

    text: str
    name: str
    build: Build
    parts: tuple["Choice", ...] = ()
    is_lookup: bool = False
    is_model: bool = False
    branches: bool = False
    draws_children: bool = False
    can_branch: bool = False
    in_hybrid: bool = False
    any_family: bool = True
    changes_engine: bool = False
    draws_when_greedy: bool = False
    no_auto: str | None = None
    only_greedy: str | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            object.__setattr__(self, "any_family", self.any_family and part.any_family)
            object.__setattr__(self, "changes_engine", self.changes_engine or part.changes_engine)
            object.__setattr__(self, "no_auto", self.no_auto or part.no_auto)
            object.__setattr__(self, "only_greedy", self.only_greedy or part.only_greedy)

    def check_greedy(self, greedy: bool) -> None:
        """Raise UsageProblem where a run samples and this draft cannot."""
        if self.only_greedy and not greedy:
            raise UsageProblem(self.only_greedy)

    def check_auto(self) -> None:
        """Raise UsageProblem where `-k auto` cannot choose its lengths."""
        if self.no_auto:
            raise UsageProblem(f"-k auto: {self.no_auto}; give -k a number")

    def make(self, setup: Setup, seed: int = 0) -> Drafter:
        """Make the drafter for this target. seed: the seed of the numbers that a greedy run draws.

        Raises UsageProblem and EnvironmentProblem where they do not fit.
        """
        self.check_greedy(setup.sampling.greedy)
        if not self.any_family:
            check_family(setup.target.model, f"the draft {self.text}", OTHER_FAMILY, crops=False)
        return self.build(setup, seed)


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


def add_lookup(name: str, make_lookup: Callable[..., Lookup], help: str, words: tuple[str, ...] = ()) -> None:
    """Add a lookup to the table, which takes no argument.

    make_lookup: gets `n_ids`, since a lookup proposes no id that the target never emits, though a prompt may have some.
    """

    def read_lookup(argument: str, text: str) -> Choice:
        check_no_argument(argument, text)
        return Choice(text, name, lambda setup, seed: make_lookup(n_ids=setup.target.vocab_size), is_lookup=True)

    add(Kind(name, name, help, read_lookup, words, is_lookup=True, any_size=True))


def check_no_argument(argument: str, text: str) -> None:
    """Raise UsageProblem where something follows the name of a kind that takes nothing."""
    if argument:
        raise UsageProblem(f"{text}: this kind of draft takes no argument; give {text.partition(':')[0]}")


def lookups() -> list[str]:
    """Return the names of the lookups, which a hybrid can have."""
    return [name for name, kind in kinds().items() if kind.is_lookup]


def kinds() -> dict[str, Kind]:
    """Return all kinds of drafts by name, those of extensions among them."""
    importlib.import_module("speclab.drafts.kinds")  # by its name, as an extension: the lab's own kinds add themselves
    extensions.load()
    return _KINDS


def table() -> str:
    """Return all kinds of drafts for a terminal: how each is typed, and what drafts."""
    from tabulate import tabulate  # here: the scripts decode without it

    # Whoever has loaded the extensions first, their kinds come last: these are imported when they are asked for.
    ordered = sorted(kinds().values(), key=lambda kind: isinstance(kind.reader, str))
    rows = [(kind.usage, kind.help) for kind in ordered]
    rows.append(("lab:SIZE", "the lab's draft model padded to the price of a larger one, as in lab:50m"))
    rows.append((", ".join(sources.usages()), "any causal language model with the target's tokenizer"))
    return f"{tabulate(rows, tablefmt='plain')}\n{TRAINED}"


# ---------------------------------------------------------------- from a name to a choice


def read(text: str) -> Choice:
    """Read `--draft TEXT`. Raises UsageProblem where it means nothing, before a model is loaded or the hub is asked.

    The table comes first, so that no folder of the place where one types takes the place of a kind; ./NAME is always a
    folder. Hub names have a slash, but for a few old ones (gpt2): a name without one that is nearly a kind is refused.
    """
    if kind := kind_of(text):
        return kind.read(text.partition(":")[2], text)
    name, colon, _ = text.partition(":")
    if "," in text and not loading.exists(text):
        raise UsageProblem(f"{text}: this takes one draft; compare.py takes several")
    is_no_name = bool(colon) and not loading.exists(text) and not sizes.is_lab_size(text)  # no hub name has a colon
    if name in kinds() or is_no_name or is_mistyped(text):
        near = kinds().get(_nearest(name) or name)
        meant = f"; did you mean {near.usage}?" if near else ""
        raise UsageProblem(f"unknown draft kind {text!r}{meant}; {LIST}")
    return model_choice(text)


def kind_of(text: str) -> Kind | None:
    """The kind that `--draft TEXT` names; None where it names a model, or nothing."""
    name, colon, argument = text.partition(":")
    return kinds().get(name) if argument or not colon else None


def read_all(texts: Iterable[str]) -> list[Choice]:
    """Return the drafts of one run. Raises UsageProblem where there are none, or two have one name."""
    choices = [read(text) for text in texts]
    if not choices:
        raise UsageProblem("no draft is named; give at least one kind, for example model,ngram")
    names = [choice.name for choice in choices]
    if len(set(names)) < len(names):
        raise UsageProblem(f"the same draft is named twice ({', '.join(names)}); leave one out or rename it")
    return choices


def check_chains(who: str, choices: Iterable[Choice]) -> None:
    """Raise UsageProblem where a draft has branches. who: what knows chains only."""
    if branching := next((choice.text for choice in choices if choice.branches), None):
        raise UsageProblem(f"{who} knows chains only, and {branching} has branches; leave it out")


def make_all(choices: Iterable[Choice], setup: Setup, seed: int) -> dict[str, Drafter]:
    """Return drafters by the name that tables and records give them, in the order of the choices."""
    choices = list(choices)
    # One that changes the target's engine comes first, since others take the engine over.
    made = {
        choice.name: choice.make(setup, seed)
        for choice in sorted(choices, key=lambda choice: not choice.changes_engine)
    }
    return {choice.name: made[choice.name] for choice in choices}


def make(text: str, setup: Setup, seed: int = 0) -> Drafter:
    """Return the drafter that `--draft TEXT` means, for this target."""
    return read(text).make(setup, seed)


def model_choice(text: str, place: str | None = None) -> Choice:
    """Return a draft model by its folder or hub name, `place` where it is not what was typed."""
    from draft_models import ModelDrafter

    if place is None:
        loading.check_place(text)
    return Choice(
        text,
        loading.short_name(text),
        lambda setup, seed: ModelDrafter(_draft_model(place or text, setup)),
        is_model=True,
        can_branch=True,
        in_hybrid=True,
    )


def _draft_model(place: str, setup: Setup) -> CachedModel:
    """Return a draft model by its name. A name that may have been meant as a kind gets a hint into its error."""
    try:
        return setup.load_draft(place)
    except EnvironmentProblem as problem:
        if "/" in place or ":" in place or loading.exists(place):
            raise
        raise EnvironmentProblem(f"{problem}; {LIST}") from None


def is_mistyped(text: str) -> bool:
    """Tell whether a name is empty, or is nearly the name of a kind and neither a folder nor surely a name of the
    hub."""
    if sizes.is_lab_size(text):
        sizes.parse_size(text)
        return False
    if not text.strip():
        return True
    if loading.exists(text) or "/" in text:
        return False
    return _nearest(text) is not None


def _nearest(text: str) -> str | None:
    """Return the kind that is nearly this name, "" where it is nearly a word of others; None where it is neither."""
    words = dict.fromkeys(WORDS_OF_OTHERS, "")
    words |= {word: kind.name for kind in kinds().values() for word in (kind.name, *kind.words)}
    near = difflib.get_close_matches(text.strip().lower(), words, 1, 0.7)
    return words[near[0]] if near else None


def check_prompts(target: CachedModel, drafters: Iterable[Drafter], prompts: list[Prompt], max_new_tokens: int) -> None:
    """Check that every prompt with its new tokens fits the target's context, and every prompt fits each draft's.

    Raises UsageProblem where they do not. Text beyond a draft's context is only noted: rounds there draft fewer tokens.
    """
    for prompt in prompts:
        check_prompt(target, prompt.ids, max_new_tokens)
    for drafter in drafters:
        if said := drafter.check_prompts([prompt.id_list for prompt in prompts], max_new_tokens):
            note(said)
