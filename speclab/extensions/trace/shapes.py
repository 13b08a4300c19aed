"""The command `shapes`: the real shapes of one round's tensors, with a cache and without one.

    python -m speclab.extensions.trace shapes
    python -m speclab.extensions.trace shapes --prompt "def f(x):" -k 3

Nothing here is a formula. The model's own forward pass is watched: a hook sees what enters and leaves the embedding,
and the function that every family hands its queries, keys and values to is wrapped while the pass runs. So a family
with one fused projection (GPT-2, GPT-NeoX) is seen as well as one with three.
"""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import draw_next, uniforms
from speclab.drafts import registry
from speclab.extensions.trace import follow
from speclab.lab.instruments import LoopFunctions
from speclab.models import loading
from speclab.models.cached import CachedModel, check_prompt
from speclab.models.pieces import added
from speclab.present.tables import table
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.terminal import say

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
    """The pass that verifies the first draft, and the same without a cache. The batch axis is the first."""

    ids: list[int]  # the prompt, the first committed token, the drafted ones
    cached: Shapes
    uncached: Shapes
    choices: list[int]  # the target's own token after each fed one, most probable first
    gap: float  # largest difference between the logits of the two passes

    @property
    def n_cached(self) -> int:
        return len(self.ids) - self.cached["ids"][1]

    def sizes(self) -> list[tuple[int, int, int, int, int]]:
        """Of both passes: cached tokens, fed tokens, width, heads, vocabulary, as exercise 1 asks for them."""
        passes = ((self.n_cached, self.cached), (0, self.uncached))
        return [(n, s["ids"][1], s["hidden"][-1], s["q"][1], s["logits"][-1]) for n, s in passes]


def run(args: argparse.Namespace, functions: LoopFunctions | None) -> int:
    """Run the command.  -> exit code, 1 where `functions` say other shapes"""
    registry.check_chains("shapes", [registry.read(args.draft)])
    family, _ = loading.family_named(args.target)
    if not family.one_text:
        name = loading.short_name(args.target)
        raise UsageProblem(f"shapes does not know {family.plural}, and {name} is one; choose another --target")
    found = follow.load(args, functions)
    ids = found.prompts[0].ids.to(found.setup.device)
    round_ = first_round(found.setup.target, found.drafter, ids, found.draft_length, found.settings)
    say(tables(round_, found.setup.tokenizer))
    if found.functions.shapes is None:
        return 0
    text, all_right = beside(round_, *(found.functions.shapes(*sizes) for sizes in round_.sizes()))
    say(f"\n{text}")
    return int(not all_right)


# --- watching ---------------------------------------------------------------------------------------------------------


def first_round(
    target: CachedModel, drafter: Drafter, prompt: Tensor, draft_length: int, settings: DecodeSettings
) -> RoundShapes:
    """Prefill `prompt` (1, prompt length), draft once, and watch the pass that verifies the draft.

    It runs eagerly, whatever runs `target`: other passes cannot be watched.
    `drafter` drafts chains. Raises EnvironmentProblem for a model whose attention cannot be watched, and what
    check_prompt raises.
    """
    check_prompt(target, prompt, draft_length + 1)
    eager, generator = CachedModel(target.model, target.vocab_size), settings.generator(target.device)
    eager.hidden_layers = target.hidden_layers
    logits = eager.prefill(prompt)
    token = draw_next(logits[:, -1], settings.sampling, uniforms((1,), generator, target.device))
    drafter.prefill(eager, prompt, settings.sampling)
    drafter.observe(0, token.tolist())
    draft = drafter.propose(draft_length, uniforms((1, draft_length), generator, target.device))
    assert draft.parents is None, "a chain is watched"
    ids = torch.cat([prompt, token[None], draft.tokens], dim=1)
    eager.prefill(prompt)  # a whole pass is watched, also where the draft has run a part of it
    with watched(target.model) as cached:
        rows = eager.verify(token, draft.bare())
    with watched(target.model) as uncached, torch.inference_mode():
        all_rows = target.model(input_ids=ids, use_cache=False).logits
    gap = (rows - all_rows[:, prompt.shape[1] :, : target.vocab_size]).abs().max().item()
    return RoundShapes(ids[0].tolist(), cached, uncached, rows[0].argmax(-1).tolist(), gap)


@contextlib.contextmanager
def watched(model: PreTrainedModel) -> Iterator[Shapes]:
    """Fills a dictionary with the shapes of the first layer's tensors in the one pass of `model` while it is open.

    Keys as in MEANINGS. The batch axis is the first of each shape. Raises EnvironmentProblem where attention cannot be
    watched.
    """
    shapes: Shapes = {}
    config = model.config.get_text_config()
    name = config._attn_implementation
    problem = EnvironmentProblem(
        f"{config.model_type} runs with {name} attention, which cannot be watched; choose a model with sdpa attention"
    )
    if name == "eager" or name not in ALL_ATTENTION_FUNCTIONS:
        raise problem
    attend = ALL_ATTENTION_FUNCTIONS[name]

    def watch_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs):
        if "scores" not in shapes:
            # The kernel never shows its scores, so they are made once more here: a key head may serve several queries.
            shared = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            note(q=query, k=key, v=value, scores=query @ shared.transpose(-1, -2))
        return attend(module, query, key, value, *args, **kwargs)

    def note(**tensors: Tensor) -> None:
        shapes.update((name, tuple(tensor.shape)) for name, tensor in tensors.items())

    hooks = [
        model.get_input_embeddings().register_forward_hook(lambda _, args, hidden: note(ids=args[0], hidden=hidden)),
        model.get_output_embeddings().register_forward_hook(lambda _, args, logits: note(logits=logits)),
    ]
    ALL_ATTENTION_FUNCTIONS[name] = watch_attention
    try:
        yield shapes
    finally:
        ALL_ATTENTION_FUNCTIONS[name] = attend
        for hook in hooks:
            hook.remove()
    if "scores" not in shapes:
        raise problem


# --- as text ----------------------------------------------------------------------------------------------------------


def tables(round_: RoundShapes, tokenizer: PreTrainedTokenizerBase) -> str:
    """The shapes with a cache and without one, and which row of the logits verifies which drafted token."""
    cached, uncached, n_cached = round_.cached, round_.uncached, round_.n_cached
    n_drafted = len(round_.ids) - n_cached - 1
    rows = [[name, str(cached[name]), str(uncached[name]), axes] for name, axes in MEANINGS.items()]
    parts = [
        f"One round: {n_cached} tokens of prompt, 1 committed and not in the cache, {n_drafted} drafted; batch first.",
        table(rows, ["tensor", "with a cache", "without one", "axes after the batch"], n_words=4),
    ]
    heads, key_heads = cached["q"][1], cached["k"][1]
    if heads != key_heads:
        parts.append(f"Each of the {key_heads} key heads serves {heads // key_heads} of the {heads} query heads.")

    def quoted(id_: int, n_before: int) -> str:
        return repr(added(tokenizer, round_.ids[:n_before], [id_]))

    fed = [quoted(round_.ids[i], i) for i in range(n_cached, len(round_.ids))]
    verified = [f"draft {i}: {fed[i]}" for i in range(1, n_drafted + 1)] + ["nothing: gives the bonus"]
    rows = [
        [str(i), str(n_cached + i), fed[i], verified[i], quoted(choice, n_cached + i + 1)]
        for i, choice in enumerate(round_.choices)
    ]
    parts += [
        "Which row of the logits verifies which drafted token, with a cache and without",
        table(rows, ["row", "uncached", "after", "verifies", "target's choice"], n_words=5),
        f"The cache changes nothing but the work: these rows differ by {round_.gap:.1e} at most.",
    ]
    return "\n\n".join(parts)


def beside(round_: RoundShapes, cached: Shapes, uncached: Shapes) -> tuple[str, bool]:
    """Exercise 1's answers, which have no batch axis, beside the real shapes.  -> table, do they agree?"""
    rows, all_right = [], True
    for name in MEANINGS:
        right = [_of_one_text(shapes, name) for shapes in (round_.cached, round_.uncached)]
        answers = [tuple(shapes[name]) if name in shapes else None for shapes in (cached, uncached)]
        all_right = all_right and answers == right
        verdict = "yes" if answers == right else f"no: it is {right[0]} and {right[1]}"
        rows.append([name, *(str(answer or "-") for answer in answers), verdict])
    parts = [
        "Yours, without the batch axis",
        table(rows, ["tensor", "with a cache", "without one", "agrees"], n_words=4),
    ]
    query = round_.cached["q"]
    if query[1] * query[3] != round_.cached["hidden"][-1]:
        parts.append("This family's heads do not share the width evenly; exercise 1 assumes that they do.")
    return "\n\n".join(parts), all_right


def _of_one_text(shapes: Shapes, name: str) -> tuple[int, ...]:
    """Without the batch axis. Exercise 1 gives every query head its own keys; here some may share theirs."""
    shape = shapes[name][1:]
    return (shapes["q"][1], *shape[1:]) if name in ("k", "v") else shape
