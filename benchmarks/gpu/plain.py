"""Other ways to make plain decoding fast, for comparison with the baseline: experiments, each of which may fail.

    eager             our loop on the model as its library runs it
    static generate   model.generate(cache_implementation="static"), which compiles what it can
    compiled step     one torch.compile of the whole step over a StaticCache, mode reduce-overhead, full graph

What comes out: seconds of each for the tokens of a text, or the reason why there are none.

    python -m benchmarks.gpu.plain --target lab --device cpu --dtype float32
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import StaticCache

from baseline_autoregressive import autoregressive_decode
from benchmarks import common
from benchmarks.gpu.findings import FindingsRun, Numbers, add, page
from speclab.cli import flags, parsing
from speclab.core.clock import synchronize
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.lab.decodings import library_generate
from speclab.models.setup import Setup
from speclab.system.errors import reports_problems
from speclab.system.terminal import note

REPEATS = 2  # after one decoding that compiles and warms up
Decode = Callable[[], list[int]]


def eager(setup: Setup, ids: Tensor, n_tokens: int) -> Decode:
    """Decode with the lab's own loop."""
    return lambda: tokens_of(autoregressive_decode(setup.target, ids, DecodeSettings(n_tokens), setup.chunk))


def static_generate(setup: Setup, ids: Tensor, n_tokens: int) -> Decode:
    """Decode with the library's loop over a cache of fixed size."""
    return lambda: library_generate(setup.target.model, ids, n_tokens, cache_implementation="static")[1]


def compiled_step(setup: Setup, ids: Tensor, n_tokens: int) -> Decode:
    """Decode with one compiled function for a whole step, as gpt-fast does. The first decoding compiles it."""
    model, n_prompt = setup.target.model, ids.shape[1]
    cache = StaticCache(config=model.config, max_cache_len=n_prompt + n_tokens)

    def next_token(tokens: Tensor, positions: Tensor) -> Tensor:
        logits = model(tokens, position_ids=positions, past_key_values=cache, use_cache=True).logits
        return logits[:, -1:].argmax(-1)

    step = torch.compile(next_token, mode="reduce-overhead", fullgraph=True)

    @torch.inference_mode()
    def decode() -> list[int]:
        cache.reset()
        tokens = [next_token(ids, torch.arange(n_prompt, device=ids.device)[None])]
        position = torch.full((1, 1), n_prompt, device=ids.device)
        for _ in range(n_tokens - 1):
            tokens.append(step(tokens[-1], position).clone())  # the next replay writes to the same place
            position = position + 1
        return torch.cat(tokens, dim=1)[0].tolist()

    return decode


WAYS = {"eager": eager, "static generate": static_generate, "compiled step": compiled_step}


def timed(name: str, setup: Setup, ids: Tensor, n_tokens: int, texts: list[list[int]]) -> Numbers:
    """The seconds end to end, and the number of tokens before the first difference from texts[0]. `texts` gets this
    text."""
    decode, seconds = WAYS[name](setup, ids, n_tokens), []
    for _ in range(1 + REPEATS):
        synchronize(ids.device)
        start = time.perf_counter()
        tokens = decode()
        seconds.append(time.perf_counter() - start)
    texts.append(tokens)
    n_same = next((i for i in range(n_tokens) if tokens[i] != texts[0][i]), n_tokens)
    return {"tokens": n_tokens, "first s": seconds[0], "best s": min(seconds[1:]), "same tokens": n_same}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    common.add_result_flags(parser, "plain")
    parser.set_defaults(limit=1, max_new_tokens=64, engine="eager")
    args = parser.parse_args(argv)
    args.target = common.target_name(args.target)
    common.check_result_flags(args)
    setup, prompts = flags.load(args)
    note(setup.describe())
    ids, texts = prompts[0].ids.to(setup.device), list[list[int]]()
    run = FindingsRun(**common.head_of(args, setup) | {"interrupted": True}, findings=[])
    for name in WAYS:
        add(args, run, name, functools.partial(timed, name, setup, ids, args.max_new_tokens, texts))
    run.interrupted = False
    return common.finish(args, run, page)


if __name__ == "__main__":
    sys.exit(main())
