"""What a draft would have done along a known text: the probabilities that its tokens are accepted, or its rounds.

A draft whose proposals follow from the text alone has probabilities, from one teacher-forced pass of each model over
the text. Rounds of a draft that learns while it drafts, or is made of others, are found in the production loop: only
the target is a stand-in that says the text. Not when sampling: a rejected token and its replacement belong together.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts.heads.feature import target_pass
from speclab.lab.bench import Bench
from speclab.lab.harness import Measurement
from speclab.models.cached import CachedModel
from speclab.models.family import distributions
from speclab.models.prompts import Prompt
from speclab.records.rows import Arm, RoundCounts
from speclab.theory.attribution import Text
from speclab.theory.costs import Costs, fit, without_clock
from speclab.theory.formulas import AcceptProbs

CostTable = dict[tuple[str, float], Costs]  # by draft and temperature


def calibrated(measured: Measurement) -> CostTable:
    """Return the costs from the instrumented decodings and their controls; empty where there are none."""
    if not (measured.rounds and measured.steps):
        return {}
    return fit(without_clock(measured.rounds, measured.controls), measured.steps)


def probs_along(
    bench: Bench, longest: int, draft: str, sampling: Sampling, prompt: Prompt, text: Sequence[int]
) -> AcceptProbs:
    """Return the acceptance probabilities of a draft along a text of the target, for up to `longest` tokens a draft."""
    target, ids, tokens = bench.setup.target, prompt.id_list, list(text)
    law = bench.drafters[draft].law(target, ids, tokens, sampling, longest)
    return law.accept_probs(lambda: distributions(target, ids, tokens, sampling, target.vocab_size), tokens)


class KnownText:
    """An engine that computes nothing: its logits are 1 for the text's own next token, and 0 for every other one. It is
    `CachedModel.fast`, and the backend of one decoding, too. prompt: (1, prompt length) ids. text: the new ones."""

    name = "known text"
    n_replays = 0

    def __init__(self, target: CachedModel, prompt: Tensor, text: Iterable[int]):
        self._model, self._n_ids = target.model, target.vocab_size
        self._ids = torch.cat([prompt, torch.tensor([list(text)], device=prompt.device)], dim=1)
        # The cache may hold something else in the place of the prompt.
        self._offset = prompt.shape[1] - target.room.length_after(prompt.shape[1])

    def start(self, hidden_layers: Iterable[int] = ()) -> "KnownText":
        self._hidden_layers = tuple(hidden_layers)
        return self

    def prefill(self, prompt: Tensor) -> Tensor:
        return self._read(0, prompt.shape[1], torch.tensor([prompt.shape[1] - 1]))  # (1, 1, vocab)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        return self._read(length + self._offset, tokens.shape[1])

    step = forward

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        return self._read(length, tokens.shape[1], positions[0])

    def keep(self, length: int, rows: Tensor) -> None:
        self._last = slice(length, length + len(rows))  # of a path, whose tokens are the text's own

    def crop(self, n_tokens: int, length: int) -> None: ...

    @property
    def hidden(self) -> dict[int, Tensor]:
        """Return the states of the tokens of the last pass; of those that the text does not have they mean nothing."""
        return {layer: states[:, self._last] for layer, states in self._states.items()}

    @functools.cached_property
    def _states(self) -> dict[int, Tensor]:
        layers = self._hidden_layers
        with torch.inference_mode():
            outputs = target_pass(self._model, self._ids, layers)[0].chunk(len(layers), dim=-1)
        return dict(zip(layers, outputs, strict=True))

    def _read(self, start: int, n: int, places: Tensor | None = None) -> Tensor:
        """Return logits of tokens at these places, or from `start` on. Those of a token not the text's mean nothing."""
        self._last = slice(start, start + n)
        places = torch.arange(start, start + n, device=self._ids.device) if places is None else places
        following = nn.functional.pad(self._ids, (0, n + 1))[:, places + 1]
        return nn.functional.one_hot(following, self._n_ids).float()


def rounds_along(bench: Bench, arm: Arm, prompt: Prompt, text: Text) -> list[RoundCounts]:
    """Return the rounds of an arm along a greedy text of the target. Its draft knows what its rounds cost, and learns
    the rest from one text to the next, so each text comes once."""
    target = bench.setup.target
    ids, drafter = prompt.ids.to(target.device), bench.drafter(arm, prompt)
    stand_in: Any = KnownText(target, ids, text)
    known = CachedModel(target.model, target.vocab_size, stand_in)
    known.hidden_layers, known.room = target.hidden_layers, target.room
    made = bench.functions.rounds(known, drafter, ids, arm.draft_length, DecodeSettings(len(text)))
    told = map(drafter.described, made)  # each with what the drafter knows of it
    return [RoundCounts(one.n_drafted, one.n_accepted, one.looked_up) for one in told if not one.prefill]
