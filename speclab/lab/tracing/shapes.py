"""The real shapes of one round's tensors: from ids through Q, K, V and scores to logits, with a cache and without one.

Nothing here is a formula. The model's own forward pass is watched: a hook sees what enters and leaves the embedding,
and the function that every family hands its queries, keys and values to is wrapped while the pass runs. So a family
with one fused projection (GPT-2, GPT-NeoX) is seen as well as one with three. speclab/present/shapes.py prints it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speclab.core.rounds import Drafter
from speclab.core.sampling import Sampling, draw_next, uniforms
from speclab.models.cached import CachedModel, check_prompt
from speclab.system.errors import EnvironmentProblem

Shapes = dict[str, tuple[int, ...]]
MEANINGS = {
    "ids": "fed tokens",
    "hidden": "fed tokens, width",
    "q": "heads, fed tokens, head width",
    "k": "heads, tokens read, head width",
    "v": "heads, tokens read, head width",
    "scores": "heads, fed tokens, tokens read",
    "logits": "fed tokens, vocabulary",
}


@dataclass(frozen=True)
class RoundShapes:
    """The first round of a decoding, run with a cache and once more without one. The batch axis is the first."""

    ids: list[int]  # the prompt, the first committed token, the drafted ones
    n_cached: int  # tokens of the prompt, which the cache holds
    cached: Shapes
    uncached: Shapes
    choices: list[int]  # the target's own token after each fed one, most probable first
    gap: float  # largest difference between the logits of the two passes

    def sizes(self) -> list[tuple[int, int, int, int, int]]:
        """Of both passes: cached tokens, fed tokens, width, heads, vocabulary, as exercise 1 asks for them."""
        passes = ((self.n_cached, self.cached), (0, self.uncached))
        return [(n, s["ids"][1], s["hidden"][-1], s["q"][1], s["logits"][-1]) for n, s in passes]


def first_round(
    target: CachedModel,
    drafter: Drafter,
    prompt: Tensor,
    draft_length: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> RoundShapes:
    """Prefill `prompt` (1, prompt length), draft once, and watch the pass that verifies the draft.

    Raises EnvironmentProblem for a model whose attention cannot be watched, and what check_prompt raises.
    """
    check_prompt(target, prompt, draft_length + 1)
    logits = target.prefill(prompt, rolls_back=True)
    first = draw_next(logits[:, -1], sampling, uniforms((1,), generator, target.device))
    drafter.prefill(target, prompt, sampling)
    drafter.observe(0, first.tolist())
    draft = drafter.propose(draft_length, uniforms((1, draft_length), generator, target.device))
    ids, n_cached = torch.cat([prompt, first[None], draft.tokens], dim=1), prompt.shape[1]
    cached, rows = one_pass(target.model, ids, n_cached)
    uncached, all_rows = one_pass(target.model, ids, 0)
    choices = rows[0, :, : target.vocab_size].argmax(-1).tolist()
    gap = (rows - all_rows[:, n_cached:]).abs().max().item()
    return RoundShapes(ids[0].tolist(), n_cached, cached, uncached, choices, gap)


def one_pass(model: PreTrainedModel, ids: Tensor, n_cached: int) -> tuple[Shapes, Tensor]:
    """Shapes and logits (1, m, vocab) of a pass over all but the first `n_cached` of `ids` (1, n).

    Those are read into a cache first; with 0 there is no cache.
    """
    options: dict = {"use_cache": False}
    with torch.inference_mode():
        if n_cached:
            cache = DynamicCache(config=model.config)
            model(input_ids=ids[:, :n_cached], past_key_values=cache, use_cache=True, logits_to_keep=1)
            options = {"past_key_values": cache, "use_cache": True}
        with watched(model) as shapes:
            logits = model(input_ids=ids[:, n_cached:], **options).logits
    if "scores" not in shapes:
        raise EnvironmentProblem(f"{model.config.model_type} has an attention of its own that cannot be watched")
    return {**shapes, "logits": tuple(logits.shape)}, logits


@contextlib.contextmanager
def watched(model: PreTrainedModel) -> Iterator[Shapes]:
    """Fills a dictionary with the shapes of the first layer's tensors in the passes of `model` while it is open.

    Keys as in MEANINGS, without logits, which a pass returns anyway. The batch axis is the first of each shape.
    """
    shapes: Shapes = {}
    config = model.config.get_text_config()
    name = config._attn_implementation
    if name == "eager" or name not in ALL_ATTENTION_FUNCTIONS:
        raise EnvironmentProblem(
            f"{config.model_type} runs with {name} attention, which cannot be watched; "
            "choose a model with sdpa attention"
        )
    attend = ALL_ATTENTION_FUNCTIONS[name]

    def watch_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs):
        if "scores" not in shapes:
            # The kernel never shows its scores, so they are made once more here: a key head may serve several queries.
            shared = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            tensors = {"q": query, "k": key, "v": value, "scores": query @ shared.transpose(-1, -2)}
            shapes.update((name, tuple(tensor.shape)) for name, tensor in tensors.items())
        return attend(module, query, key, value, *args, **kwargs)

    def watch_embedding(_: nn.Module, args: tuple, hidden: Tensor) -> None:
        shapes.update(ids=tuple(args[0].shape), hidden=tuple(hidden.shape))

    hook = model.get_input_embeddings().register_forward_hook(watch_embedding)
    ALL_ATTENTION_FUNCTIONS[name] = watch_attention
    try:
        yield shapes
    finally:
        ALL_ATTENTION_FUNCTIONS[name] = attend
        hook.remove()
