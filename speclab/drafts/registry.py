"""What `--draft NAME` or `--draft NAME:ARGUMENT` means: from what is typed to a drafter.

The table of all kinds (speclab/drafts/kind_table.py) says who reads which name. What that gives is a `Choice`, read and
checked before a model is loaded; its `build` makes the drafter. What a program asks of a draft before it is built is a
field of its choice, so nobody compares names.
"""

from collections.abc import Callable, Iterable

from speclab.core.drafter import Drafter, Lookup
from speclab.drafts.choice import Choice
from speclab.drafts.kind_table import LIST, check_known, kind_of
from speclab.models import loading
from speclab.models.cached import CachedModel, check_prompt
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.terminal import note


def lookup_choice(name: str, make_lookup: Callable[..., Lookup], argument: str, text: str) -> Choice:
    """Return the choice of a lookup. make_lookup: as `add_lookup` of the table takes it."""
    check_no_argument(argument, text)
    return Choice(text, name, lambda setup, seed: make_lookup(n_ids=setup.target.vocab_size), is_lookup=True)


def check_no_argument(argument: str, text: str) -> None:
    """Raise UsageProblem where something follows the name of a kind that takes nothing."""
    if argument:
        raise UsageProblem(f"{text}: this kind of draft takes no argument; give {text.partition(':')[0]}")


# ---------------------------------------------------------------- from a name to a choice


def read(text: str) -> Choice:
    """Read `--draft TEXT`. Raises UsageProblem where it means nothing, before a model is loaded or the hub is asked.

    The table comes first, so that no folder of the place where one types takes the place of a kind; ./NAME is always a
    folder. Hub names have a slash, but for a few old ones (gpt2): a name without one that is nearly a kind is refused.
    """
    if kind := kind_of(text):
        return kind.read(text.partition(":")[2], text)
    if "," in text and not loading.exists(text):
        raise UsageProblem(f"{text}: this takes one draft; compare.py takes several")
    check_known(text)
    return model_choice(text)


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


def check_prompts(target: CachedModel, drafters: Iterable[Drafter], prompts: list[Prompt], max_new_tokens: int) -> None:
    """Check that every prompt with its new tokens fits the target's context, and every prompt fits each draft's.

    Raises UsageProblem where they do not. Text beyond a draft's context is only noted: rounds there draft fewer tokens.
    """
    for prompt in prompts:
        check_prompt(target, prompt.ids, max_new_tokens)
    for drafter in drafters:
        if said := drafter.check_prompts([prompt.id_list for prompt in prompts], max_new_tokens):
            note(said)
