"""Both loops as the tests call them: settings given one by one, whole decodings given back."""

from collections.abc import Iterator

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling


def settings(
    n_tokens: int,
    sampling: Sampling = GREEDY,
    generator: torch.Generator | None = None,
    eos: frozenset[int] = frozenset(),
) -> DecodeSettings:
    """A `generator` gives the seed, so that calls one after another draw other numbers."""
    seed = 0 if generator is None else int(torch.randint(2**32, (), generator=generator, device=generator.device))
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
