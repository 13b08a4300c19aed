#!/usr/bin/env python3
"""Autoregressive decoding: one pass of the target model for every token. The baseline of the lab.

What comes out: the text, and how many tokens per second a plain loop with a key-value cache reaches.

    python baseline_autoregressive.py
    python baseline_autoregressive.py --prompt "def read_config(path):" --stream
    python baseline_autoregressive.py --temperature 0.8 --seed 1 --max-new-tokens 200

Read this file, then `diff` it with optimized_speculative.py: what differs is speculative decoding.
"""

import sys
from collections.abc import Iterator
from typing import Any

from speclab.system import startup  # isort: skip  # noqa: F401 - it says what takes so long; Ctrl-C is one line

import torch
from torch import Tensor

from speclab.core.rounds import DecodeSettings, Round
from speclab.core.sampling import draw_next, to_host, uniforms
from speclab.models.cached import CachedModel, check_prompt


def autoregressive_decode(
    target: CachedModel,
    prompt: Tensor,
    settings: DecodeSettings,
    chunk: int = 1,
) -> Iterator[Round]:
    """Yield rounds that continue `prompt` (1, prompt length): one id right after prefill, then up to `chunk` ids each.

    A chunk is fetched to the host at once: one synchronisation for `chunk` tokens, so a GPU needs a larger one than
    a CPU. What a chunk holds after an end token is dropped. Raises UsageProblem for a prompt that does not fit.
    """
    check_prompt(target, prompt, settings.max_new_tokens)
    if settings.max_new_tokens == 0:
        return
    generator = settings.generator(target.device)

    logits = target.prefill(prompt)  # (1, 1, vocab)
    token = draw_next(logits[:, -1], settings.sampling, uniforms((1,), generator, target.device))  # (1,)
    tokens, n_new = to_host(token), 1
    round_ = Round.committing(tokens, n_new, settings, prefill=True)
    yield round_

    while round_.finish is None:
        drawn = []
        for _ in range(min(chunk, settings.max_new_tokens - n_new)):
            # A NOT_FINITE cannot go into a pass; `to_host` reports it.
            logits = target.step(token.clamp(min=0))  # one pass: (1, 1, vocab)
            token = draw_next(logits[:, -1], settings.sampling, uniforms((1,), generator, target.device))
            drawn.append(token)
        tokens = to_host(torch.cat(drawn))
        n_new += len(tokens)
        round_ = Round.committing(tokens, n_new, settings)
        yield round_


def main(argv: list[str] | None = None, functions: Any = None) -> int:
    """Run the script. `functions` can replace parts of the run (speclab/lab/instruments.py).  -> exit code"""
    from speclab.cli import decoding  # here: importing the loop loads nothing of the command line

    return decoding.run(__doc__, argv, functions, autoregressive_decode)


if __name__ == "__main__":
    sys.exit(main())
