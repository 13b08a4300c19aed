"""Both loops as the tests call them: settings given one by one, whole decodings given back."""

import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling

_used: weakref.WeakKeyDictionary[torch.Generator, int] = weakref.WeakKeyDictionary()


def settings(
    n_tokens: int,
    sampling: Sampling = GREEDY,
    generator: torch.Generator | None = None,
    eos: Iterable[int] = (),
) -> DecodeSettings:
    """With the generator's own seed at its first use, and another one at each further use."""
    seed = 0
    if generator is not None:
        n_before = _used.get(generator, 0)
        _used[generator] = n_before + 1
        seed = generator.initial_seed() + 1_000_003 * n_before
    return DecodeSettings(n_tokens, sampling, frozenset(eos), seed)


def plain_text(target, prompt: Tensor, n_tokens: int, *how, chunk: int = 1, **more) -> list[int]:
    """The baseline's new ids."""
    return tokens_of(autoregressive_decode(target, prompt, settings(n_tokens, *how, **more), chunk))


def speculative_rounds(
    target, drafter, prompt: Tensor, k: int, n_tokens: int, *how, accept=None, roll_back=None, **more
) -> Iterator[Round]:
    """The speculative loop's rounds."""
    functions = {name: given for name, given in (("accept", accept), ("roll_back", roll_back)) if given}
    return speculative_decode(target, drafter, prompt, k, settings(n_tokens, *how, **more), **functions)
