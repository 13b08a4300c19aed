"""The drafts with another tokenizer that `--draft` takes: `retokenize:NAME` and `intersect:NAME`."""

from transformers import PreTrainedTokenizerBase

from speclab.core.drafter import Drafter
from speclab.drafts.registry import Choice, is_mistyped
from speclab.extensions.tokenizers.intersect import intersect
from speclab.extensions.tokenizers.retokenized import RetokenizedDrafter
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import OTHER_DRAFT
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem


def read_retokenize(argument: str, text: str) -> Choice:
    """Return a model whose text is tokenized again for the target."""

    def build(setup: Setup, seed: int) -> Drafter:
        draft, own = load_other_draft(argument, "retokenize", setup)
        return RetokenizedDrafter(draft, own, setup.tokenizer, setup.target.vocab_size)

    return Choice(text, _named(argument, text), build, any_family=False)


def read_intersect(argument: str, text: str) -> Choice:
    """Return a model that drafts the tokens which both vocabularies have."""

    def build(setup: Setup, seed: int) -> Drafter:
        draft, own = load_other_draft(argument, "intersect", setup)
        return intersect(draft, own, setup, text)

    return Choice(text, _named(argument, text), build, can_branch=True, in_hybrid=True, any_family=False)


def load_other_draft(name: str, kind: str, setup: Setup) -> tuple[CachedModel, PreTrainedTokenizerBase]:
    """Return a draft model of another family for --draft `kind`, and its tokenizer.

    Its passes have any width, so never as CUDA graphs.
    """
    tokenizer, model = loading.load_tokenizer(name), setup.load_model(name)
    check_family(model, f"--draft {kind}", OTHER_DRAFT)
    return setup.cached(model, max(tokenizer.get_vocab().values()) + 1, graphs=False), tokenizer


def _named(argument: str, text: str) -> str:
    """Return the name of the draft in tables. Raises UsageProblem for a name that can be no model's."""
    word = text.partition(":")[0]
    if is_mistyped(argument):
        raise UsageProblem(
            f"--draft {text}: give a model's folder or hub name, for example {word}:openai-community/gpt2"
        )
    loading.check_place(argument)
    return f"{word}:{loading.short_name(argument)}"
