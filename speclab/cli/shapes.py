"""The real shapes of one round's tensors: from ids through Q, K, V and scores to logits, with a cache and without one.

    python optimized_speculative.py --trace-shapes --prompt "def f(x):" -k 3
    python optimized_speculative.py --trace-shapes --impl exercises       # beside what exercise 1 says

Nothing here is a formula. The model's own forward pass is watched: hooks see what enters the embedding and the first
layer, and the function that every family hands its queries, keys and values to is wrapped while the pass runs. So a
family with one fused projection (GPT-2, GPT-NeoX) is seen as well as one with three.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speclab.core.sampling import Sampling, draw_next, uniforms
from speclab.models.cached import CachedModel, check_prompt
from speclab.present import tables
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


@contextlib.contextmanager
def watched(model: PreTrainedModel) -> Iterator[Shapes]:
    """Fills a dictionary with the shapes of the first layer's tensors in the passes of `model` while it is open.

    Keys as in MEANINGS, without logits, which a pass returns anyway. The batch axis is the first of each shape.
    """
    seen: Shapes = {}
    config = model.config.get_text_config()
    name = config._attn_implementation
    if name == "eager" or name not in ALL_ATTENTION_FUNCTIONS:
        raise EnvironmentProblem(
            f"{config.model_type} runs with {name} attention, which cannot be watched; "
            "choose a model with sdpa attention"
        )
    attend = ALL_ATTENTION_FUNCTIONS[name]

    def watching(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs):
        if "scores" not in seen:
            # The kernel never shows its scores, so they are made once more here: a key head may serve several queries.
            shared = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            scores = query @ shared.transpose(-1, -2)
            seen.update(q=_shape(query), k=_shape(key), v=_shape(value), scores=_shape(scores))
        return attend(module, query, key, value, *args, **kwargs)

    def note(what: str) -> Callable:
        def hook(_: nn.Module, args: tuple, kwargs: dict) -> None:
            tensor = args[0] if args else kwargs["hidden_states"]
            seen.setdefault(what, _shape(tensor))

        return hook

    watchers = {"ids": model.get_input_embeddings(), "hidden": _first_layer(model)}
    hooks = [part.register_forward_pre_hook(note(what), with_kwargs=True) for what, part in watchers.items()]
    ALL_ATTENTION_FUNCTIONS[name] = watching
    try:
        yield seen
    finally:
        ALL_ATTENTION_FUNCTIONS[name] = attend
        for hook in hooks:
            hook.remove()


def one_pass(model: PreTrainedModel, ids: Tensor, n_cached: int) -> tuple[Shapes, Tensor]:
    """Shapes and logits (1, m, vocab) of a pass over all but the first `n_cached` of `ids` (1, n).

    Those are read into a cache first; with 0 there is no cache.
    """
    options = {"use_cache": False}
    with torch.inference_mode():
        if n_cached:
            cache = DynamicCache(config=model.config)
            model(input_ids=ids[:, :n_cached], past_key_values=cache, use_cache=True, logits_to_keep=1)
            options = {"past_key_values": cache, "use_cache": True}
        with watched(model) as seen:
            logits = model(input_ids=ids[:, n_cached:], **options).logits
    if "scores" not in seen:
        raise EnvironmentProblem(f"{model.config.model_type} has an attention of its own that cannot be watched")
    return {name: seen.get(name, _shape(logits)) for name in MEANINGS}, logits


def show(
    target: CachedModel,
    drafter,
    tokenizer,
    prompt: Tensor,
    draft_length: int,
    sampling: Sampling,
    generator: torch.Generator,
    theirs: Callable[[int, int, int, int, int], dict | None] = lambda *sizes: None,
) -> int:
    """Print the first round of a decoding as shapes.  -> exit code, 1 where `theirs` disagrees

    theirs: what exercise 1 says: (n_cached, n_new, d_model, n_heads, vocab_size) -> shapes without the batch axis.
    """
    check_prompt(target, prompt, draft_length + 1)
    first = draw_next(
        target.prefill(prompt, rolls_back=True)[:, -1], sampling, uniforms((1,), generator, target.device)
    )
    drafter.prefill(target, prompt, sampling)
    drafter.observe(0, first.tolist())
    draft = drafter.propose(draft_length, uniforms((1, draft_length), generator, target.device))
    ids = torch.cat([prompt, first[None], draft.tokens], dim=1)
    n_cached, n_drafted = prompt.shape[1], draft.tokens.shape[1]
    (cached, rows), (uncached, all_rows) = (one_pass(target.model, ids, n) for n in (n_cached, 0))

    print(
        f"One round: {n_cached} tokens of prompt, 1 committed and not in the cache, {n_drafted} drafted; batch first.\n"
    )
    found = [[name, _text(cached[name]), _text(uncached[name]), MEANINGS[name]] for name in MEANINGS]
    print(tables.table(found, ["tensor", "with a cache", "without one", "axes after the batch"], n_words=4))
    heads, key_heads = cached["q"][1], cached["k"][1]
    if heads != key_heads:
        print(f"\nEach of the {key_heads} key heads serves {heads // key_heads} of the {heads} query heads.")
    print("\nWhich row of the logits verifies which drafted token, with a cache and without\n")
    pieces = [tokenizer.decode([i]) for i in ids[0, n_cached:].tolist()]
    choices = [tokenizer.decode([i]) for i in rows[0, :, : target.vocab_size].argmax(-1).tolist()]
    table = [
        [
            str(i),
            str(n_cached + i),
            repr(pieces[i]),
            f"draft {i + 1}: {pieces[i + 1]!r}" if i < n_drafted else "nothing: gives the bonus",
            repr(choices[i]),
        ]
        for i in range(n_drafted + 1)
    ]
    headers = ["row", "uncached", "after", "verifies", "target's choice"]
    print(tables.table(table, headers, n_words=5))
    gap = (rows - all_rows[:, n_cached:]).abs().max().item()
    print(f"\nThe cache changes nothing but the work: these rows differ by {gap:.1e} at most.")
    return _compare(theirs, cached, uncached, n_cached)


def _compare(theirs: Callable[..., dict | None], cached: Shapes, uncached: Shapes, n_cached: int) -> int:
    """Hold exercise 1's tables against the real ones.  -> 0 where they agree, or where there are none"""
    table, n_wrong = [], 0
    said = []
    for shapes, n in ((cached, n_cached), (uncached, 0)):
        said.append(theirs(n, shapes["ids"][1], shapes["hidden"][-1], shapes["q"][1], shapes["logits"][-1]))
    if None in said:
        return 0
    for name in MEANINGS:
        right = [_all_heads(shapes, name)[1:] for shapes in (cached, uncached)]
        yours = [tuple(shapes[name]) if name in shapes else None for shapes in said]
        n_wrong += yours != right
        words = "yes" if yours == right else "no: it is " + " and ".join(map(_text, right))
        table.append([name, *map(_text, yours), words])
    print("\nYours, without the batch axis\n")
    print(tables.table(table, ["tensor", "with a cache", "without one", "agrees"], n_words=4))
    if cached["q"][1] * cached["q"][3] != cached["hidden"][-1]:
        print("\nThis family's heads do not share the width evenly; exercise 1 assumes that they do.")
    return int(n_wrong > 0)


def _all_heads(shapes: Shapes, name: str) -> tuple[int, ...]:
    """Exercise 1 gives every query head its own keys; here some may share theirs."""
    shape = shapes[name]
    return (shape[0], shapes["q"][1], *shape[2:]) if name in ("k", "v") else shape


def _first_layer(model: PreTrainedModel) -> nn.Module:
    n_layers = model.config.get_text_config().num_hidden_layers
    for part in model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == n_layers:
            return part[0]
    raise EnvironmentProblem(f"{model.config.model_type} keeps its layers where they cannot be found")


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _text(shape: tuple[int, ...] | None) -> str:
    return "-" if shape is None else "(" + ", ".join(map(str, shape)) + ")"
