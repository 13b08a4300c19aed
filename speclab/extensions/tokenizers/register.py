"""Adds drafts with another tokenizer to the lab: `--draft retokenize:NAME` and `intersect:NAME`."""

from speclab.core.drafter import Drafter
from speclab.drafts.registry import Choice, add
from speclab.extensions.tokenizers.intersect import intersect
from speclab.extensions.tokenizers.retokenized import RetokenizedDrafter
from speclab.models import loading
from speclab.models.checks import OTHER_DRAFT
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem


def read_other(argument: str, text: str) -> Choice:
    word = text.partition(":")[0]
    is_exact = word == "intersect"
    if not argument:
        advice = f"give a model's folder or hub name, for example {word}:openai-community/gpt2"
        raise UsageProblem(f"--draft {text}: {advice}")
    loading.check_place(argument)

    def build(setup: Setup, seed: int) -> Drafter:
        tokenizer = loading.load_tokenizer(argument)
        model = loading.load_model(argument, setup.device, setup.dtype, "draft")
        check_family(model, f"--draft {word}", OTHER_DRAFT)
        # Its passes have any width, so never as CUDA graphs.
        draft = setup.cached(model, max(tokenizer.get_vocab().values()) + 1, graphs=False)
        if is_exact:
            return intersect(draft, tokenizer, setup, text)
        return RetokenizedDrafter(draft, tokenizer, setup.tokenizer, setup.target.vocab_size)

    name = f"{word}:{loading.short_name(argument)}"
    return Choice(text, name, build, can_branch=is_exact, in_hybrid=is_exact, any_family=False)


add("retokenize:NAME", read_other, "a model with another tokenizer, by way of its text")
add("intersect:NAME", read_other, "the same, by the tokens that both vocabularies have")
