"""Exercise 8: bug hunt.

Chapter: docs/chapters/08-bug-hunt.md. Check: python check.py 8
What the loop does as it is: python -m exercises.scenes

A whole draft-verify loop. As an exercise it has no holes, but five bugs that have been seen in public code. Keep the
names and arguments of `accept` and `decode`. Both use the lab's own types, which speclab/core/rounds.py describes:
`Draft`, `AcceptResult`, `DecodeSettings` and `Round`. A target is anything with

    device, length              where tensors live; tokens in its cache
    n_ids, room                 how many ids it knows; for how many positions it was built
    prefill(prompt)             drop everything, read (1, n) ids -> logits (1, 1, vocab) of the next token
    forward(tokens)             append (1, m) ids to the cache -> logits (1, m, vocab), row i follows token i
    crop(length)                keep the first `length` tokens of the cache

and a drafter is anything with prefill, propose and observe as in draft_models.py.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, DecodeSettings, Draft, Round
from speclab.core.sampling import draw, draw_next, to_host, uniforms
from speclab.models.cached import CachedModel, check_prompt


def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """The rejection rule for one text: what comes out follows the target's distribution, whatever the draft.

    draft: n proposed tokens, tokens (1, n); probs (1, n, vocab), or None where each proposal was certain.
    target_probs: (1, n + 1, vocab), row i is the target's distribution after i drafted tokens.
    uniforms: (1, n + 1) in [0, 1).
    -> how many leading drafted tokens are kept (1,), and the token that follows them (1,)

    Leviathan et al., arXiv 2211.17192, algorithm 1.
    """
    n = draft.tokens.shape[1]
    certain = torch.nn.functional.one_hot(draft.tokens, target_probs.shape[-1]).to(target_probs)  # (1, n, vocab)
    draft_probs = certain if draft.probs is None else draft.probs
    draft_of_token = draft_probs.gather(-1, draft.tokens[..., None])[..., 0]  # (1, n)
    target_of_token = target_probs[:, :n].gather(-1, draft.tokens[..., None])[..., 0]  # (1, n)
    passed = uniforms[:, :1] * draft_of_token < target_of_token
    n_accepted = passed.long().cumprod(-1).sum(-1)  # (1,) leading passes
    weights = target_probs[:, n_accepted.item()]  # (1, vocab)
    return AcceptResult(n_accepted, draw(weights, uniforms[:, n]))


def decode(
    target: CachedModel, drafter: Drafter, prompt: Tensor, draft_length: int, settings: DecodeSettings
) -> Iterator[Round]:
    """Yield rounds that continue `prompt` (1, prompt length) by up to `settings.max_new_tokens` ids in all.

    `draft_length` 0 is plain decoding. The text stops after the first id in `settings.eos`, and the last round counts
    as accepted only the drafted tokens that are part of the text.
    """
    sampling, eos, max_new_tokens = settings.sampling, settings.eos, settings.max_new_tokens
    check_prompt(target, prompt, max_new_tokens)
    if max_new_tokens == 0:
        return
    generator = settings.generator(target.device)

    logits = target.prefill(prompt)  # prefill: (1, 1, vocab)
    committed = to_host(draw_next(logits[:, -1], sampling, uniforms((1,), generator, target.device)))
    drafter.prefill(target, prompt, sampling)
    drafter.observe(0, committed)
    n_prompt, n_committed = prompt.shape[1], 1
    finish = "eos" if committed[0] in eos else "length" if max_new_tokens == 1 else None
    yield Round(committed, prefill=True, finish=finish)

    while finish is None:
        # 1. Draft, but never more than what is left but one.
        k = min(draft_length, max_new_tokens - n_committed - 1)
        draws = uniforms((1, 2 * draft_length + 1), generator, target.device)
        draft_uniforms, accept_uniforms = draws[:, :draft_length], draws[:, draft_length:]
        draft = drafter.propose(k, draft_uniforms)
        n_drafted = draft.tokens.shape[1]

        # 2. Verify: one target pass over the last committed token and the drafted ones.
        last = torch.tensor([committed[-1:]], device=target.device)
        logits = target.forward(torch.cat([last, draft.tokens], dim=1))  # (1, n_drafted + 1, vocab)

        # 3. Accept or reject.
        result = accept(draft, sampling.probs(logits), accept_uniforms[:, : n_drafted + 1])
        *drafted, next_token, n_accepted = to_host(torch.cat([draft.tokens[0], result.next_token, result.n_accepted]))
        committed = drafted[:n_accepted]
        if n_accepted < n_drafted or not drafted:
            committed.append(next_token)
        n_committed += len(committed)

        # 4. Roll back.
        target.crop(min(target.length, n_prompt + n_committed))
        drafter.observe(n_accepted, committed)

        n_rejected = int(n_accepted < n_drafted)
        finish = "length" if n_committed == max_new_tokens else None
        if committed[-1] in eos:
            finish = "eos"
        yield Round(committed, n_drafted, n_accepted, n_rejected, finish=finish)
