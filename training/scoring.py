"""Acceptance of a draft that reads hidden states, by teacher forcing: no loop, no clock."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from speclab.drafts.heads.rollout import target_pass
from speclab.models import prompts
from training.texts import PROMPT, continuations

Head = Any  # a module with `config.layers` and `chains`, as in speclab/drafts/heads
NEW = 96  # tokens of a text that are scored
BEYOND = 8  # more, for chains that start near the end


def held_out_texts(target: PreTrainedModel, held_out: Tensor, seed: int) -> list[tuple[Tensor, int]]:
    """Greedy continuations of held-out text: ids (1, length) and where the target began to write."""
    rows = continuations(target, held_out.unfold(0, PROMPT, 1), 0, seed + 7, rows=48, temperatures=(1e-4,))
    return [(row[None].to(target.device), PROMPT) for row in rows]


@torch.inference_mode()
def greedy_texts(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[tuple[Tensor, int]]]:
    """The target's greedy continuations of the lab's prompts, by kind."""
    texts: dict[str, list[tuple[Tensor, int]]] = {}
    for prompt in prompts.encode(prompts.standard(), tokenizer):
        ids = prompt.ids.to(target.device)
        cache, feed = DynamicCache(config=target.config), ids
        for _ in range(NEW + BEYOND):
            feed = target(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)
            ids = torch.cat([ids, feed], dim=1)
        texts.setdefault(prompt.kind, []).append((ids, prompt.ids.shape[1]))
    return texts


@torch.inference_mode()
def agreement(head: Head, target: PreTrainedModel, text: Tensor, start: int, depth: int) -> Tensor:
    """Tell whether token j of a chain is the target's choice, for chains after every token from `start` on.

    text (1, length) -> (chains, depth), or as many columns as the head drafts tokens. Row i is the chain of a round
    whose last committed token is number start + i.
    """
    hidden, logits = target_pass(target, text, head.config.layers)
    chosen = logits[0].argmax(-1)  # (length,): the target's token after each
    match = []
    for step, drafted in enumerate(head.chains(hidden, text, depth)):
        match.append(drafted[0].argmax(-1) == chosen[step + 1 : step + 1 + drafted.shape[1]])
    return torch.stack(match, dim=-1)[start - 1 :].cpu()


@torch.inference_mode()
def score(
    head: Head,
    target: PreTrainedModel,
    texts: list[tuple[Tensor, int]],
    depth: int = 7,
) -> dict:
    """Conditional acceptance by position, and rounds of greedy decoding replayed: alpha and tokens per round at k."""
    matches = [agreement(head, target, text, start, depth) for text, start in texts]
    depth = min(match.shape[1] for match in matches)
    alive, tested = torch.zeros(depth), torch.zeros(depth)
    rounds, accepted, tries = (dict.fromkeys([k for k in (2, 4, 6, 7) if k <= depth], 0) for _ in range(3))
    for match in matches:
        kept = match.cumprod(-1)
        before = torch.cat([torch.ones_like(kept[:, :1]), kept[:, :-1]], dim=1)
        alive, tested = alive + kept.sum(0), tested + before.sum(0)
        lengths = kept.cumsum(-1)[:, -1]
        for k in rounds:
            made, end = 1, min(NEW, len(match))
            while made < end:
                n = min(k, int(lengths[made - 1]))
                rounds[k], accepted[k], tries[k] = rounds[k] + 1, accepted[k] + n, tries[k] + n + (n < k)
                made += n + 1
    return {
        "by_position": [round(a / t, 3) for a, t in zip(alive.tolist(), tested.tolist(), strict=True) if t],
        "alpha": {k: round(accepted[k] / max(1, tries[k]), 3) for k in rounds},
        "tokens_per_round": {k: round(1 + accepted[k] / max(1, rounds[k]), 3) for k in rounds},
    }


def scored(
    head: Head,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    held_out: Tensor,
    seed: int,
) -> dict:
    """Acceptance on held-out continuations and on the lab's prompts, of each kind and all together."""
    texts = greedy_texts(target, tokenizer)
    sets = {
        "held-out texts": held_out_texts(target, held_out, seed),
        **texts,
        "all prompts": [text for some in texts.values() for text in some],
    }
    return {name: score(head, target, texts) for name, texts in sets.items()}
