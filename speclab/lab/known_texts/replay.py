"""Finds the rounds that a draft would make along a text that is known, without a pass of the target.

For drafts whose proposals depend on the rounds before, `-k auto` and hybrids, which learn while they draft, and for
drafts with branches, of which another one is taken in every round. They run in the production loop; only the target is
a stand-in that says the text. When sampling this is not possible: there a rejected token and the one that replaces it
belong together. No end token is looked for: timed runs have none.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings
from speclab.drafts.heads.rollout import target_pass
from speclab.lab.harness import Measurement
from speclab.lab.instruments import LoopFunctions, with_parts
from speclab.models.cached import CachedModel
from speclab.records.arms import Arm
from speclab.records.log import RoundCounts
from speclab.theory.attribution import Text


class KnownText:
    """An engine that computes nothing: its logits are 1 for the text's own next token, and 0 for every other one.

    So a target on it has decoded greedily already, and counts its tokens as on any other engine.
    It is `CachedModel.fast`, and the backend of one decoding, too. prompt: (1, prompt length) ids. text: the new ones.
    hidden: by layer what the target computes for the tokens of the last pass; of tokens that the text does not have
    they mean nothing. states: the same of all tokens of the text, as far as it is known; what is computed is added.
    """

    name, graphed, bytes_spared = "known text", False, 0
    n_replays = n_single = 0
    hidden: Mapping[int, Tensor]

    def __init__(
        self, target: CachedModel, prompt: Tensor, text: Iterable[int], states: dict[int, Tensor] | None = None
    ):
        self._model, self._n_ids = target.model, target.vocab_size
        self._ids = torch.cat([prompt, torch.tensor([list(text)], device=prompt.device)], dim=1)
        # The cache may hold something else in the place of the prompt.
        self._offset = prompt.shape[1] - target.room.length_after(prompt.shape[1])
        self._states = {} if states is None else states
        self._ahead: list[int] = []  # tokens that the first layers were run over, behind those in the cache
        self._last = slice(0, 0)  # places of the tokens of the last pass
        self.hidden = StatesOf(self)

    def start(self, hidden_layers: Iterable[int] = ()) -> "KnownText":
        """Return the backend of one decoding."""
        self._hidden_layers = tuple(hidden_layers)
        return self

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Record nothing."""

    def prefill(self, prompt: Tensor) -> Tensor:
        """Take the prompt: (1, prompt length) ids -> (1, 1, vocab) logits."""
        return self._read(0, prompt.shape[1])[:, -1:]

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """Do as `forward` does."""
        return self.forward(tokens, length)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """Return the logits of (1, m) ids after `length` tokens, (1, m, vocab)."""
        return self._read(length + self._offset, tokens.shape[1])

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """Return the same at positions (1, m).

        Where a token is not the text's its logits mean nothing, and no rule looks.
        """
        self._last = slice(length, length + tokens.shape[1])
        following = nn.functional.pad(self._ids, (0, tokens.shape[1] + 1))[:, positions[0] + 1]
        return nn.functional.one_hot(following, self._n_ids).float()

    def keep(self, length: int, rows: Tensor) -> None:
        """Keep a path, whose tokens are the text's own."""
        self._last = slice(length, length + len(rows))

    def crop(self, n_tokens: int, length: int) -> None:
        """Do nothing: the states of the last pass stay readable."""

    def forward_first(self, tokens: Tensor, length: int, n_layers: int) -> Tensor:
        """Return the outputs of layer `n_layers` - 1 for further tokens, (1, m) ids -> (1, m, hidden).

        Where a drafted token is not the text's, the first layers run over all that comes before it.
        """
        before = length - len(self._ahead)
        self._ahead += tokens[0].tolist()
        end, rows = before + len(self._ahead), slice(length, length + tokens.shape[1])
        if self._ahead == self._ids[0, before:end].tolist():
            return self.states(n_layers - 1)[:, rows]
        ids = torch.cat([self._ids[:, :before], self._ids.new_tensor([self._ahead])], dim=1)
        return target_pass(self._model, ids, (n_layers - 1,))[0][:, rows]

    def forward_rest(self, states: Tensor, length: int, n_layers: int) -> Tensor:
        """Stand for the other layers, for which nothing is computed: (1, m, hidden) -> (1, m, vocab) logits."""
        return self._read(length, states.shape[1])

    def states(self, layer: int) -> Tensor:
        """Return the outputs of a layer for all tokens of the text, (1, n, hidden), from one pass."""
        if layer not in self._states:
            layers = tuple({*self._hidden_layers, layer})
            outputs = target_pass(self._model, self._ids, layers)[0].chunk(len(layers), dim=-1)
            self._states |= dict(zip(layers, outputs, strict=True))
        return self._states[layer]

    def last_states(self, layer: int) -> Tensor:
        """Return the same for the tokens of the last pass, (1, m, hidden)."""
        with torch.inference_mode():
            return self.states(layer)[:, self._last]

    def _read(self, start: int, n: int) -> Tensor:
        """Return the logits of n tokens from place `start` on; behind the text's end they mean nothing."""
        self._ahead, self._last = [], slice(start, start + n)
        following = self._ids[:, start + 1 : start + n + 1]
        following = nn.functional.pad(following, (0, n - following.shape[1]))
        return nn.functional.one_hot(following, self._n_ids).float()


class StatesOf(Mapping[int, Tensor]):
    """The value of `KnownText.hidden`, which is computed when a draft reads it."""

    def __init__(self, known: KnownText):
        self._known = known

    def __getitem__(self, layer: int) -> Tensor:
        return self._known.last_states(layer)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._known._model.config.get_text_config().num_hidden_layers))

    def __len__(self) -> int:
        return len(list(iter(self)))


def replay_rounds(
    functions: LoopFunctions,
    target: CachedModel,
    drafter: Drafter,
    prompt: Tensor,
    text: Text,
    draft_length: int,
    states: dict[int, Tensor] | None = None,
) -> list[RoundCounts]:
    """Return the rounds after that of the prompt, (1, prompt length) ids, in greedy decoding of `text`.

    The drafter learns. states: as of `KnownText`.
    """
    stand_in: Any = KnownText(target, prompt, text, states)
    known = CachedModel(target.model, target.vocab_size, stand_in)
    known.hidden_layers, known.max_length = target.hidden_layers, target.max_length
    rounds = functions.rounds(known, drafter, prompt, draft_length, DecodeSettings(len(text)))
    told = with_parts(rounds, drafter)
    return [RoundCounts(round_.n_drafted, round_.n_accepted, round_.looked_up) for round_ in told if not round_.prefill]


def rounds_of_texts(measured: Measurement) -> Callable[[Arm, int, Text], list[RoundCounts]]:
    """Return a function that gives the rounds along a measurement's own greedy texts: of (arm, index of the prompt,
    text), each made once.

    A draft knows what its rounds cost, and learns the rest again: nothing of the timed rounds is used.
    """
    bench, drafters = measured.bench, dict[Arm, Drafter]()

    @functools.lru_cache(maxsize=1)  # all arms of a prompt come one after another, and their greedy texts are the same
    def states(prompt_index: int, text: Text) -> dict[int, Tensor]:
        return {}

    @functools.cache
    def rounds(arm: Arm, prompt_index: int, text: Text) -> list[RoundCounts]:
        if arm not in drafters:
            drafters[arm] = copy.deepcopy(bench.drafters[arm.draft])
            drafters[arm].forget()
        drafter = copy.deepcopy(drafters[arm])  # shares what is learned
        prompt = measured.prompts[prompt_index].ids.to(bench.setup.device)
        known = states(prompt_index, text)
        return replay_rounds(bench.functions, bench.setup.target, drafter, prompt, text, arm.draft_length, known)

    return rounds
