"""Adds the dial to the drafts: an instrument, not a method, which sets acceptance to any value from 0 to 1.

It replays the target's own text and changes nothing else, in greedy decoding only. On the command line: `dial:A` (at
the cost of the lab's draft model), `dial:A:MODEL` (at the cost of another one), `dial:A:free`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.drafter import Drafter, Law, Wrapper
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling
from speclab.drafts.registry import Choice, add, read
from speclab.lab.instruments import ConstantDrafter
from speclab.models import loading
from speclab.system.errors import UsageProblem

GREEDY_ONLY = "the dial replays greedy output; use --temperature 0"


class DialLaw(Law):
    """Every token is accepted with one probability."""

    def __init__(self, accuracy: float, sizes: Sequence[int]):
        self.accuracy, self.sizes = accuracy, sizes

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> list[Sequence[float]]:
        return [[self.accuracy] * min(len(text) - start, size) for start, size in enumerate(self.sizes)]


class Dial(Wrapper):
    """Replays the baseline's output, each token right with probability `accuracy`.

    drafter: a ModelDrafter, whose passes it makes over the proposed tokens, and whose tokens it has behind the end of
    that output. None: a draft that takes no time, and ends there.
    """

    drafter: Any
    needs_text = True

    def __init__(self, accuracy: float, drafter: Any = None, seed: int = 0):
        if not 0 <= accuracy <= 1:
            raise ValueError(f"accuracy must lie in 0 … 1, got {accuracy}")
        self.accuracy, self.seed, self.drafter = accuracy, seed, drafter or ConstantDrafter()
        self._text: list[int] = []

    @property
    def parts(self) -> tuple[Drafter, ...]:
        return (self,)

    def describe(self, name: str, engine: str) -> str | None:
        return self.drafter.describe(name, engine)

    def law(self, target: Any, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        sizes = self.drafter.sizes(prompt, text) if self.models else [len(text)] * len(text)
        return DialLaw(self.accuracy, sizes)

    def take_text(self, text: list[int]) -> None:
        self._text = list(text)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        if not sampling.greedy:
            raise UsageProblem(GREEDY_ONLY)
        # Another seed for every prompt, or all prompts would be right and wrong at the same places.
        self._random = random.Random(self.seed * 1_000_003 + int(prompt.sum()))
        self._place, self._n_ids = 0, target.vocab_size
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose the baseline's tokens, right or wrong; that a model reads its own proposals does not matter."""
        made = self.drafter.propose(k, uniforms)
        right = self._text[self._place : self._place + made.tokens.shape[1]]
        ids = [one if self._random.random() < self.accuracy else (one + 1) % self._n_ids for one in right]
        replayed = as_draft(ids, made.tokens.device)
        if not self.models:
            return replayed
        return replace(made, tokens=torch.cat([replayed.tokens, made.tokens[:, len(ids) :]], dim=1))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Follow the text. Where it leaves the baseline's, at a near-tie, that one cannot be replayed from there on."""
        if committed != self._text[self._place : self._place + len(committed)]:
            self._text = []
        self._place += len(committed)
        self.drafter.observe(n_accepted, committed)


def read_dial(argument: str, text: str) -> Choice:
    """Read A:MODEL or A:free, or A alone, which means the lab's draft model."""
    number, _, cost = argument.partition(":")
    try:
        accuracy = Dial(float(number)).accuracy
    except ValueError:
        raise UsageProblem(f"{text}: give the dial a number from 0 to 1, for example dial:0.8") from None
    model = None if cost == "free" else read(cost or "model")
    if model and not model.is_model:
        raise UsageProblem(f"{text}: give the model whose cost the dial takes, for example dial:0.8:model")
    return Choice(
        text,
        f"dial:{number}" + (f":{loading.short_name(cost)}" if cost else ""),
        lambda setup, seed: Dial(accuracy, model and model.make(setup, seed), seed),
        no_auto=f"it chooses by what was accepted, and {text} replays the text",
        only_greedy=GREEDY_ONLY,
    )


add("dial:A[:MODEL|:free]", read_dial, "an instrument: the target's text, each token right with probability A")
