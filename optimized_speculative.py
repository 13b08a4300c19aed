#!/usr/bin/env python3
"""Speculative decoding: a cheap draft proposes k tokens, one pass of the target checks them all.

What comes out: the same text as baseline_autoregressive.py (same distribution, when sampling), the tokens per second,
and how the rounds went: drafted, accepted, tokens per round, and a histogram of accepted lengths.

    python optimized_speculative.py
    python optimized_speculative.py -k 6 --prompt "def read_config(path):" --stream
    python optimized_speculative.py --draft ngram --temperature 0.8 --seed 1
    python -m speclab.extensions                              # further commands: every round in a browser, and more

`diff baseline_autoregressive.py optimized_speculative.py` is the lesson; what is new carries `# NEW`.
"""

import sys
from collections.abc import Iterator
from typing import Any

from speclab.system import startup  # isort: skip  # noqa: F401 - it says what takes so long; Ctrl-C is one line

from torch import Tensor

from baseline_autoregressive import autoregressive_decode  # NEW
from draft_models import Drafter  # NEW
from speclab.core.accept import accept_from_logits  # NEW
from speclab.core.rounds import AcceptRule, DecodeSettings, Round, fetch  # NEW: AcceptRule, fetch
from speclab.core.sampling import draw_next, to_host, uniforms
from speclab.models.cached import CachedModel, check_prompt


def speculative_decode(
    target: CachedModel,
    drafter: Drafter,  # NEW
    prompt: Tensor,
    draft_length: int,  # NEW
    settings: DecodeSettings,
    accept: AcceptRule = accept_from_logits,  # NEW
) -> Iterator[Round]:
    """Yield rounds that continue `prompt` (1, prompt length): the first right after prefill, each of 1 to k + 1 ids.

    `draft_length` is k; with 0 this is plain decoding. `accept` is the rule that judges the drafted tokens. Raises
    UsageProblem for a prompt that does not fit.
    """
    check_prompt(target, prompt, settings.max_new_tokens)
    if settings.max_new_tokens == 0:
        return
    generator = settings.generator(target.device)

    logits = target.prefill(prompt)  # (1, 1, vocab)
    token = draw_next(logits[:, -1], settings.sampling, uniforms((1,), generator, target.device))  # (1,)
    tokens, n_new = to_host(token), 1
    drafter.prefill(target, prompt, settings.sampling)  # NEW
    drafter.observe(0, tokens)  # NEW
    round_ = Round.committing(tokens, n_new, settings, prefill=True)
    yield round_

    while round_.finish is None:
        # 1. Draft. A round commits one token more than it accepts, so it accepts at most one less than are left. # NEW
        k = min(draft_length, settings.max_new_tokens - n_new - 1)
        draws = uniforms((1, 2 * draft_length + 1), generator, target.device)
        draft = drafter.propose(k, draws[:, :draft_length])  # n <= draft_length tokens, of which k can be accepted

        # 2. Verify: one target pass over the last committed token and the drafted ones. # NEW
        logits = target.verify(token, draft)  # (1, n + 1, vocab)

        # 3. Accept or reject, and fetch what was decided: the loop's one wait for the device in a round. # NEW
        result = accept(draft, logits, settings.sampling, draws[:, draft_length:])
        [decided] = fetch(draft, result)
        tokens, token, n_new = decided.tokens, result.next_token, n_new + len(decided.tokens)

        # 4. Roll back: neither cache keeps the last committed token, or a rejected one. # NEW
        target.commit(decided)
        drafter.observe(decided.n_accepted, tokens)

        round_ = Round.committing(tokens, n_new, settings, *decided[1:4])  # NEW: drafted, accepted, rejected
        yield round_


def main(argv: list[str] | None = None, functions: Any = None) -> int:
    """Run the script. `functions` can replace parts of the run (speclab/lab/instruments.py).  -> exit code"""
    from speclab.cli import decoding  # here: importing the loop loads nothing of the command line

    return decoding.run(__doc__, argv, functions, autoregressive_decode, speculative_decode)


if __name__ == "__main__":
    sys.exit(main())
