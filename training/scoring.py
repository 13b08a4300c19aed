"""Acceptance of a draft that reads hidden states, by teacher forcing: no clock, and no decoding by the draft."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.drafts.heads.feature import target_pass
from speclab.models import prompts
from training.texts import GREEDY, written_after

Head = Any  # a module with `config.layers` and `chains`, as in speclab/drafts/heads
NEW = 96  # tokens of a text that are scored
BEYOND = 8  # more, for chains that start near the end


@dataclass(frozen=True)
class Known:
    """A text, and what the target computes of it. ids: (1, length). start: where the target began to write.

    hidden: (1, length, layers * hidden). chosen: (length,) the target's token after each.
    """

    ids: Tensor
    start: int
    hidden: Tensor
    chosen: Tensor


@torch.inference_mode()
def known(target: PreTrainedModel, ids: Tensor, start: int, layers: tuple[int, ...]) -> Known:
    hidden, logits = target_pass(target, ids, layers)
    return Known(ids, start, hidden, logits[0].argmax(-1))


def greedy_texts(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layers: tuple[int, ...]
) -> dict[str, list[Known]]:
    """The target's greedy continuations of the lab's prompts, by kind."""
    found = prompts.encode(prompts.standard(), tokenizer)
    draws = torch.Generator(target.device).manual_seed(0)
    given = [prompt.id_list for prompt in found]
    answers = written_after(target, given, (GREEDY,) * len(given), NEW + BEYOND, frozenset(), draws)
    texts: dict[str, list[Known]] = {}
    for prompt, answer in zip(found, answers, strict=True):
        ids = torch.tensor([[*prompt.id_list, *answer]], device=target.device)
        texts.setdefault(prompt.kind, []).append(known(target, ids, prompt.ids.shape[1], layers))
    return texts


@torch.inference_mode()
def agreement(head: Head, text: Known, depth: int, ids: Tensor | None = None) -> Tensor:
    """Tell whether token j of a chain is the target's choice, for chains after every token from `text.start` on.

    -> (chains, depth), or as many columns as the head drafts tokens. Row i is the chain of a round whose last committed
    token is number start + i. ids: the target's ids of the head's, None where they are the same.
    """
    match = []
    for step, logits in enumerate(head.chains(text.hidden, text.ids, depth)):
        drafted = logits[0].argmax(-1)
        drafted = drafted if ids is None else ids[drafted]
        match.append(drafted == text.chosen[step + 1 : step + 1 + len(drafted)])
    return torch.stack(match, dim=-1)[text.start - 1 :].cpu()


def score(head: Head, texts: list[Known], depth: int = 7, ids: Tensor | None = None) -> dict[str, Any]:
    """Conditional acceptance by position, and rounds of greedy decoding replayed: tokens per round at k, `depth` or all
    tokens of a shorter draft last."""
    matches = [agreement(head, text, depth, ids) for text in texts]
    depth = min(match.shape[1] for match in matches)
    alive, tested = torch.zeros(depth), torch.zeros(depth)
    rounds, accepted = (dict.fromkeys([*(k for k in (2, 4, 6) if k < depth), depth], 0) for _ in range(2))
    for match in matches:
        kept = match.cumprod(-1)
        before = torch.cat([torch.ones_like(kept[:, :1]), kept[:, :-1]], dim=1)
        alive, tested = alive + kept.sum(0), tested + before.sum(0)
        lengths = kept.cumsum(-1)[:, -1]
        for k in rounds:
            made, end = 1, min(NEW, len(match))
            while made < end:
                n = min(k, int(lengths[made - 1]))
                rounds[k], accepted[k] = rounds[k] + 1, accepted[k] + n
                made += n + 1
    return {
        "by_position": [round(a / t, 3) for a, t in zip(alive.tolist(), tested.tolist(), strict=True) if t],
        "tokens_per_round": {k: round(1 + accepted[k] / max(1, rounds[k]), 3) for k in rounds},
    }
