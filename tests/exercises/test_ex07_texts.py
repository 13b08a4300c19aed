"""Guards of exercise 7: its texts are the lab's copy prompts, and the stated figure separates what it says it does."""

from functools import partial

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draft_models import NgramDrafter
from speclab.models import loading, prompts
from tests.exercises.answers import mistaken, mistakes
from tests.exercises.test_ex07_ngram import TEXTS, TOKENS_PER_ROUND, replay


def test_the_texts_are_the_labs_copy_prompts_as_its_target_continues_them():
    """At temperature 0, in float32 on the eager engine; equally likely tokens may differ on another machine."""
    tokenizer = AutoTokenizer.from_pretrained(loading.LAB_TARGET)
    model = AutoModelForCausalLM.from_pretrained(loading.LAB_TARGET, dtype=torch.float32)
    copies = [pair for pair in prompts.standard() if pair[0] == "copy"]
    chosen = prompts.encode([copies[i] for i in (0, 6, 8)], tokenizer)  # length and age of a match matter most there
    for text, prompt in zip(TEXTS, chosen, strict=True):
        assert text["prompt"] == prompt.id_list
        assert len(text["continuation"]) == 64
        ids, n = torch.tensor([text["prompt"] + text["continuation"]]), len(text["prompt"])
        with torch.inference_mode():
            logits = model(ids).logits[0, n - 1 : -1, : len(tokenizer)]
        torch.testing.assert_close(logits.gather(1, ids[0, n:, None])[:, 0], logits.amax(1), rtol=0, atol=1e-3)


def test_the_stated_figure():
    """The lab's own drafter reaches it; a fixed match length, a wrong order and a half-blind search do not."""
    enough = {72: NgramDrafter, 66: partial(NgramDrafter, 4, 1)}  # the second one takes one id for a match
    assert {n: replay(drafter)[1] for n, drafter in enough.items()} == {n: n for n in enough}
    few = {
        "only matches of two ids": 74,
        "the shortest match wins": 74,
        "the oldest match wins": 78,
        "a single token is proposed": 119,
        "only the prompt is searched": 182,
    }
    for begins, n_rounds in few.items():
        (name,) = [name for name in mistakes("ex07_ngram") if name.startswith(begins)]
        assert replay(mistaken("ex07_ngram", name).MyDrafter)[1] == n_rounds, name
    n_tokens, n_rounds = replay(partial(NgramDrafter, 400, 400))  # it finds nothing
    assert n_tokens == n_rounds == 189
    assert n_tokens / min(few.values()) < TOKENS_PER_ROUND <= n_tokens / max(enough)
