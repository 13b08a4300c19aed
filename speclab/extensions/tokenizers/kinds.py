"""The drafts with another tokenizer that `--draft` takes: `retokenize:NAME` and `intersect:NAME`."""

from speclab.core.drafter import Drafter
from speclab.drafts.intersect import intersect
from speclab.drafts.registry import Choice, is_mistyped
from speclab.drafts.retokenized import RetokenizedDrafter
from speclab.models import loading
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem


def read_retokenize(argument: str, text: str) -> Choice:
    """A model whose text is tokenized again for the target."""

    def build(setup: Setup, seed: int) -> Drafter:
        draft, own = setup.load_other_draft(argument, "retokenize")
        return RetokenizedDrafter(draft, own, setup.tokenizer, setup.target.vocab_size)

    return Choice(text, _named(argument, text), build, any_family=False)


def read_intersect(argument: str, text: str) -> Choice:
    """A model that drafts the tokens which both vocabularies have."""

    def build(setup: Setup, seed: int) -> Drafter:
        draft, own = setup.load_other_draft(argument, "intersect")
        return intersect(draft, own, setup, text)

    return Choice(text, _named(argument, text), build, can_branch=True, in_hybrid=True, any_family=False)


def _named(argument: str, text: str) -> str:
    """What tables call it. UsageProblem for a name that can be no model's."""
    word = text.partition(":")[0]
    if is_mistyped(argument):
        raise UsageProblem(
            f"--draft {text}: give a model's folder or hub name, for example {word}:openai-community/gpt2"
        )
    loading.check_place(argument)
    return f"{word}:{loading.short_name(argument)}"
