#!/usr/bin/env python3
"""Autoregressive decoding: one pass of the target model for every token. The yardstick of the lab.

What comes out: the text, and how many tokens per second a plain loop with a key-value cache reaches.

    python baseline_autoregressive.py
    python baseline_autoregressive.py --prompt "def read_config(path):" --stream
    python baseline_autoregressive.py --temperature 0.8 --seed 1 --max-new-tokens 200

Read this file, then `diff` it with optimized_speculative.py: what differs is speculative decoding.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from speclab.cli import options
from speclab.core.clock import Stopwatch
from speclab.core.sampling import Sampling, draw_next, to_host, uniforms
from speclab.models import memory
from speclab.models.cached import CachedModel, check_prompt
from speclab.system.errors import reports_problems


def autoregressive_decode(
    target: CachedModel,
    prompt: Tensor,
    max_new_tokens: int,
    sampling: Sampling = Sampling(),
    generator: torch.Generator | None = None,
    eos: frozenset[int] = frozenset(),
    chunk: int = 1,
) -> Iterator[int]:
    """Yield up to `max_new_tokens` ids that continue `prompt` (1, prompt length), the first one right after prefill.
    No `generator` means one with seed 0.

    Stops after an id in `eos`. Tokens reach the host in groups of `chunk`: one synchronisation each, so a GPU wants a
    larger chunk than a CPU; what was computed past an EOS is dropped.
    """
    check_prompt(target, prompt, max_new_tokens)
    if max_new_tokens == 0:
        return
    generator = generator or torch.Generator(target.device).manual_seed(0)

    logits = target.prefill(prompt)  # prefill: (1, 1, vocab)
    token = draw_next(logits[:, -1], sampling, uniforms((1,), generator, target.device))  # (1,)
    waiting = [token]
    for n_drawn in range(1, max_new_tokens + 1):
        if n_drawn == 1 or len(waiting) == chunk or n_drawn == max_new_tokens:
            for token_id in to_host(torch.cat(waiting)):
                yield token_id
                if token_id in eos:
                    return
            waiting = []
        if n_drawn < max_new_tokens:
            # A NOT_FINITE cannot be fed; it is reported when its chunk reaches the host.
            logits = target.forward(token.clamp(min=0)[:, None])  # one pass: (1, 1, vocab)
            token = draw_next(logits[:, -1], sampling, uniforms((1,), generator, target.device))
            waiting.append(token)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = options.make_parser(__doc__)
    options.add_shared_flags(parser)
    options.add_decoding_flags(parser)
    options.add_impl_flag(parser)
    args = parser.parse_args(argv)
    theirs = None
    if args.impl is not None:  # your functions; imported here, so that the yardstick alone needs no drafter
        from speclab.learner import functions

        theirs = functions.load(args.impl, {0})

    setup = options.load(args)
    prompts = options.read_prompts(args, setup.tokenizer)
    for prompt in prompts:
        check_prompt(setup.target, prompt.ids, args.max_new_tokens)
    eos = frozenset() if args.ignore_eos else setup.eos
    n_decoded, seconds = 0, 0.0
    options.note("\n".join([setup.describe(), *(theirs.describe() if theirs else [])]))
    for prompt in prompts:
        generator = torch.Generator(setup.device).manual_seed(args.seed)
        watch = Stopwatch(setup.device)
        text = options.TextWriter(setup.tokenizer, prompt, stream=args.stream)
        tokens = []
        for token in autoregressive_decode(
            setup.target,
            prompt.ids.to(setup.device),
            args.max_new_tokens,
            setup.sampling,
            generator,
            eos,
            chunk=setup.chunk,
        ):
            watch.lap("decode" if tokens else "prefill")
            tokens.append(token)
            text.add([token])
            watch.lap("print")
        watch.lap("decode")
        text.close()
        n_decoded += max(0, len(tokens) - 1)  # the first token is prefill's
        seconds += watch.laps.get("decode", 0.0)

    print(f"\n{n_decoded} tokens decoded in {seconds:.2f} s: {options.rate(n_decoded, seconds)} (prefill apart)")
    if theirs:
        print(theirs.rates(setup, prompts, autoregressive_decode, args, eos))
    if args.verbose:
        print(memory.describe(setup.target.model, None, 0, setup.target.length))
    return 0


if __name__ == "__main__":
    sys.exit(main())
