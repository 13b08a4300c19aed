"""Adds drafts with another tokenizer to the lab: `--draft intersect:NAME`."""

from speclab.core.drafter import Drafter
from speclab.drafts.registry import Choice, add
from speclab.extensions.tokenizers.intersect import intersect
from speclab.models import loading
from speclab.models.checking.checks import OTHER_DRAFT
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem


def read_other(argument: str, text: str) -> Choice:
    if not argument:
        advice = "give a model's folder or hub name, for example intersect:openai-community/gpt2"
        raise UsageProblem(f"--draft {text}: {advice}")
    loading.check_place(argument)

    def build(setup: Setup, seed: int) -> Drafter:
        tokenizer = loading.load_tokenizer(argument)
        model = loading.load_model(argument, setup.device, setup.dtype, "draft")
        check_family(model, "--draft intersect", OTHER_DRAFT)
        # Its passes have any width, so never as CUDA graphs.
        draft = setup.cached(model, max(tokenizer.get_vocab().values()) + 1, graphs=False)
        return intersect(draft, tokenizer, setup, text)

    name = f"intersect:{loading.short_name(argument)}"
    return Choice(text, name, build, can_branch=True, in_hybrid=True, any_family=False)


add("intersect:NAME", read_other, "a model with another tokenizer, by the tokens that both vocabularies have")
