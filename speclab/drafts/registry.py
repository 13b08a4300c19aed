"""The one table of drafts: the words that `--draft` takes, what builds each draft, and a line of help.

A `Kind` reads what is typed after its name. That gives a `Choice`: what is known of a draft before a model is loaded,
and how it is built. The lab's own kinds stand at the end of this file; a register.py adds those of an extension.
"""

import difflib
import os
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from draft_models import ModelDrafter
from speclab.core.drafter import Drafter, Lookup
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.files import read_head
from speclab.drafts.hybrid import HybridDrafter
from speclab.models import loading, padding
from speclab.models.cached import CachedModel, check_prompt
from speclab.models.family import NoFastBackend, check_family
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system import extensions
from speclab.system.errors import UsageProblem
from speclab.system.terminal import note

OTHER_FAMILY = "use as draft a FOLDER with a model of its family, ngram, or hybrid:ngram+FOLDER"
USUAL_HYBRID = "suffix+feature"


@dataclass(frozen=True)
class Choice:
    """One draft as `--draft` names it, checked as far as that is possible before a model is loaded."""

    text: str  # what was typed
    name: str  # what tables and records call it, never an absolute path
    build: Callable[[Setup, int], Drafter]  # from a checked target and the seed of a run
    is_lookup: bool = False  # it copies from the text, so that a hybrid can have it in front of a model
    is_model: bool = False  # it is a draft model with the target's ids, and nothing else
    branches: bool = False  # its drafts have several tokens for one place
    can_branch: bool = False  # it says what comes after each of several tokens, so that it can have branches
    in_hybrid: bool = False  # a hybrid can have it behind a lookup
    any_family: bool = True  # it works with a target of any family; else it needs a decoder-only one
    no_auto: str | None = None  # why `-k auto` cannot choose its lengths, a part of a sentence
    only_greedy: str | None = None  # why it needs temperature 0

    def check_auto(self) -> None:
        if self.no_auto:
            raise UsageProblem(f"-k auto: {self.no_auto}; give -k a number")

    def make(self, setup: Setup, seed: int = 0) -> Drafter:
        """Make the drafter for this target. Raises UsageProblem and EnvironmentProblem where they do not fit."""
        if self.only_greedy and not setup.sampling.greedy:
            raise UsageProblem(self.only_greedy)
        if not self.any_family:
            check_family(setup.target.model, f"the draft {self.text}", OTHER_FAMILY, crops=False)
        return self.build(setup, seed)


class Kind(NamedTuple):
    """A line of the table. usage: how it is typed, its name and then its argument. read: (argument, "" where there is
    none; all that was typed) -> Choice. help: what drafts."""

    usage: str
    read: Callable[[str, str], Choice]
    help: str
    is_lookup: bool = False


_KINDS: dict[str, Kind] = {}  # by name


def add(usage: str, read: Callable[[str, str], Choice], help: str, is_lookup: bool = False) -> None:
    name = re.split(r"[:\[]", usage)[0]
    assert name not in _KINDS, f"there is a draft {name} already"
    _KINDS[name] = Kind(usage, read, help, is_lookup)


def add_lookup(name: str, make_lookup: Callable[..., Lookup] | str, help: str) -> None:
    """Add a lookup to the table. make_lookup: a class or function, or "module:name" of one. It gets `n_ids`, since a
    lookup proposes no id that the target never emits, though a prompt may have some."""

    def read_lookup(argument: str, text: str) -> Choice:
        made = pkgutil.resolve_name(make_lookup) if isinstance(make_lookup, str) else make_lookup
        return Choice(text, name, lambda setup, seed: made(n_ids=setup.target.vocab_size), is_lookup=True)

    add(name, read_lookup, help, is_lookup=True)


def kinds() -> dict[str, Kind]:
    """Those of extensions are among them."""
    extensions.modules("register")
    return _KINDS


def lookups() -> list[str]:
    return [name for name, kind in kinds().items() if kind.is_lookup]


def shown() -> str:
    rows = [(kind.usage, kind.help) for kind in kinds().values()]
    rows.append(("lab:SIZE", "the lab's draft model padded to the price of a larger one, as in lab:50m"))
    names = ", ".join(["folder", "hub name", *(source.usage for source in loading.SOURCES)])
    rows.append((names, "any causal language model with the target's tokenizer"))
    trained = "What is called trained comes with the lab for its own target; python -m training.heads trains others."
    return "\n".join([*(f"{usage:<28}  {help}" for usage, help in rows), trained])


def read(text: str) -> Choice:
    """Read `--draft TEXT`. Raises UsageProblem where it means nothing, before a model is loaded or the hub is asked.

    The table comes first, so that no folder of the place where one types takes the place of a kind; ./NAME is always a
    folder. Hub names have a slash, but for a few old ones (gpt2): a name without one that is nearly a kind is refused.
    """
    if "," in text and not os.path.exists(text):
        raise UsageProblem(f"{text} names several drafts, and one is asked for here; compare.py takes several")
    name, colon, argument = text.partition(":")
    kind = _KINDS.get(name) or kinds().get(name)
    if kind and bool(argument) == bool(colon):
        if argument and kind.usage == name:
            raise UsageProblem(f"{text}: this kind of draft takes no argument; give {name}")
        return kind.read(argument, text)
    if text.startswith(padding.PREFIX):
        padding.millions_of(text)
    elif not os.path.exists(text):
        near = difflib.get_close_matches(name.strip().lower(), kinds(), 1, 0.7)
        if colon or not text.strip() or (near and "/" not in text):
            meant = f"; did you mean {kinds()[near[0]].usage}?" if near else ""
            raise UsageProblem(f"unknown draft kind {text!r}{meant}; type --draft help to see all kinds")
    return model_choice(text)


def read_all(texts: Iterable[str]) -> list[Choice]:
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


def make(text: str, setup: Setup, seed: int = 0) -> Drafter:
    return read(text).make(setup, seed)


def check_prompts(target: CachedModel, drafters: Iterable[Drafter], prompts: list[Prompt], max_new_tokens: int) -> None:
    """Raise UsageProblem for a prompt that does not fit the target's context with its new tokens, or a draft's without.
    Behind the end of a draft's context rounds draft fewer tokens."""
    for prompt in prompts:
        check_prompt(target, prompt.ids, max_new_tokens)
    for drafter in drafters:
        drafter.check_prompts([prompt.id_list for prompt in prompts])


# --- the lab's own kinds ----------------------------------------------------------------------------------------------


def model_choice(text: str, place: str | None = None) -> Choice:
    """Return a draft model by its folder or hub name, `place` where it is not what was typed."""
    if place is None:
        loading.check_place(text)

    def build(setup: Setup, seed: int) -> Drafter:
        return ModelDrafter(setup.load_draft(place or text))

    return Choice(text, loading.short_name(text), build, is_model=True, can_branch=True, in_hybrid=True)


def head_choice(
    name: str, argument: str, text: str, make_head: Callable[[str, PreTrainedModel, int | None], Drafter]
) -> Choice:
    """Return a head that reads the target's hidden states: the lab's own one, or one in the format of `speculators`.

    make_head: of its folder or hub name, the target, and the width of what the target was padded from, or None.
    """
    if argument:
        loading.check_place(argument)
    elif not (loading.LAB_PAIR / name).exists():
        raise UsageProblem(f"{name}: the lab has no such head yet; type: python -m training.heads {name}")

    def build(setup: Setup, seed: int) -> Drafter:
        target = setup.target
        check_family(target.model, f"the draft {name}", OTHER_FAMILY)
        # A padded target's states are the lab's, followed by zeros.
        padded = setup.target_name.startswith(padding.PREFIX)
        own_width = loading.load_config(loading.LAB_TARGET).hidden_size if padded else None
        # The name of a folder says nothing about the model in it.
        place = argument or own_head(name, setup.target_name if hasattr(target.model, "about") else "")
        drafter: Any = make_head(place, target.model, own_width)
        target.hidden_layers = tuple(sorted({*target.hidden_layers, *drafter.head.config.layers}))
        if isinstance(drafter, FeatureDrafter) and target.engine == "c":
            try:
                drafter.use_c()
            except NoFastBackend as why:
                note(f"{name} drafts eagerly: {why}")
        return drafter

    label = f"{name}:{loading.short_name(argument)}" if argument else name
    return Choice(text, label, build, can_branch=True, in_hybrid=True, any_family=False)


def own_head(name: str, target: str) -> str:
    """Return the folder of the lab's head for the target of this name, such as smollm2, or else for the lab's pair."""
    folder = loading.MODELS / target / name
    return str(folder if target and Path(target).name == target and folder.is_dir() else loading.LAB_PAIR / name)


def read_feature(argument: str, text: str) -> Choice:
    return head_choice("feature", argument, text, lambda *asked: FeatureDrafter(*read_head(*asked)))


def read_hybrid(argument: str, text: str) -> Choice:
    """Read LOOKUP+MODEL."""
    first, _, second = (argument or USUAL_HYBRID).partition("+")
    found = read(second) if first in lookups() and second else None
    if not found or not found.in_hybrid:
        known, usual = " or ".join(lookups()), f"hybrid:{USUAL_HYBRID}"
        raise UsageProblem(f"{text}: give a lookup ({known}) and a draft with a model, for example {usual}")

    def build(setup: Setup, seed: int) -> Drafter:
        lookup: Any = make(first, setup)
        return HybridDrafter(lookup, found.make(setup, seed))

    return Choice(text, f"hybrid:{first}+{found.name}" if argument else text, build, any_family=found.any_family)


add(
    "model",
    lambda argument, text: model_choice(text, loading.LAB_DRAFT),
    "the lab's own draft model, a tenth of the target's size, trained",
)
add_lookup("ngram", "draft_models:NgramDrafter", "prompt lookup: what followed the longest earlier match")
add_lookup("suffix", "speclab.drafts.suffix:SuffixDrafter", "what followed the longest earlier match most often")
add("feature[:HEAD]", read_feature, "a head that reads the target's hidden states (EAGLE-3), trained")
add("hybrid[:LOOKUP+MODEL]", read_hybrid, "a lookup where it pays more, elsewhere a model, usually feature")
