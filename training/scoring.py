"""Acceptance of a draft that reads hidden states, by teacher forcing: no clock. And whether the loop stays lossless."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import GREEDY
from speclab.drafts import registry
from speclab.drafts.heads.rollout import target_pass
from speclab.engines.cuda.graphs import unrecorded
from speclab.models import prompts
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from training.texts import Text, written_after

Head = Any  # a module with `config.layers` and `chains`, as in speclab/drafts/heads
NEW = 96  # tokens of a text that are scored
BEYOND = 8  # more, for chains that start near the end
DECODED = 32  # tokens of which the loop's are compared with plain decoding


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
    """What the target computes of a text, (1, length) ids."""
    hidden, logits = target_pass(target, ids, layers)
    return Known(ids, start, hidden, logits[0].argmax(-1))


def known_texts(target: PreTrainedModel, texts: list[Text], layers: tuple[int, ...]) -> list[Known]:
    """The same for answers that are long enough for a chain."""
    long = [text for text in texts if len(text.answer) > 2 * BEYOND]
    return [known(target, torch.tensor([text.ids], device=target.device), len(text.prompt), layers) for text in long]


def greedy_texts(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layers: tuple[int, ...]
) -> dict[str, list[Known]]:
    """The target's greedy continuations of the lab's prompts, by kind."""
    found = prompts.encode(prompts.standard(), tokenizer)
    draws = torch.Generator(target.device).manual_seed(0)
    given = [prompt.id_list for prompt in found]
    answers = written_after(target, given, (1e-4,) * len(given), NEW + BEYOND, frozenset(), draws)
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
    """Conditional acceptance by position, and rounds of greedy decoding replayed: alpha and tokens per round at k."""
    matches = [agreement(head, text, depth, ids) for text in texts]
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
    held_out: list[Known],
    ids: Tensor | None = None,
) -> dict[str, Any]:
    """Acceptance on held-out answers and on the lab's prompts, of each kind and all together."""
    texts = greedy_texts(target, tokenizer, head.config.layers)
    sets = {"held-out texts": held_out, **texts, "all prompts": [text for some in texts.values() for text in some]}
    return {name: score(head, some, ids=ids) for name, some in sets.items()}


def decoded_alike(
    kind: str, folder: Path, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: list[int], k: int
) -> int:
    """The number of first tokens, of DECODED, that the loop with the draft in this folder has like plain decoding."""
    cached = CachedModel(target)
    setup = Setup(cached, tokenizer, "target", GREEDY, target.device, target.dtype)
    drafter = registry.read(f"{kind}:{folder}").build(setup, 0)
    ids, how = torch.tensor([prompt], device=target.device), DecodeSettings(DECODED, GREEDY, frozenset(), 0)
    with unrecorded():
        plain = tokens_of(autoregressive_decode(cached, ids, how, 1))
        drafted = tokens_of(speculative_decode(cached, drafter, ids, k, how))
    return next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=True)) if a != b), len(plain))
