"""The rounds that a draft would make along a text that is known, without a pass of the target.

For drafts whose proposals depend on the rounds before, `-k auto` and hybrids, which learn while they draft, and for
trees, of which another branch is taken in every round. They run in the production loop; only the target is a stand-in
that says the text. When sampling this is not possible: there a rejected token and the one that replaces it belong
together. No end token is looked for: timed runs have none.
"""

import copy
import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from speclab.core.rounds import DecodeSettings, Drafter
from speclab.drafts.heads.rollout import target_pass
from speclab.drafts.hybrid import forget
from speclab.lab.harness import Measurement
from speclab.lab.instruments import LoopFunctions, with_parts
from speclab.models.backends.eager import first_states
from speclab.models.cached import CachedModel
from speclab.records.samples import Arm, Made
from speclab.theory.attribution import Text


class KnownText:
    """A target that has decoded greedily already: its first choices are the tokens of the text.

    Has what the loop and drafters ask of a CachedModel. prompt: (1, prompt length) ids. text: the new ones.
    """

    def __init__(self, target: CachedModel, prompt: Tensor, text: Iterable[int]):
        self.device, self.vocab_size, self.n_ids = target.device, target.vocab_size, target.n_ids
        self.room, self.max_length = target.room, target.max_length
        self.length = 0  # tokens in its cache, the prompt's too, which an encoder would keep out of it
        self._last = slice(0, 0)  # places of the tokens of the last pass
        self._model = target.model
        self._ids = torch.cat([prompt, torch.tensor([list(text)], device=prompt.device)], dim=1)
        self._hidden: dict[tuple[int, ...], Tensor] = {}  # of all tokens, by layers
        self._ahead = self._ids[:, :0]  # tokens that the first layers were run over, behind those in its cache

    def prefill(self, prompt: Tensor, rolls_back: bool) -> Tensor:
        """(1, prompt length) ids -> (1, 1, vocab) logits"""
        self.length = 0
        return self.forward(prompt)[:, -1:]

    def forward(self, tokens: Tensor, states: Tensor | None = None) -> Tensor:
        """(1, m) ids -> (1, m, vocab) logits: 1 for the text's own next token, 0 for every other"""
        self._ahead = self._ahead[:, :0]
        start, self.length = self.length, self.length + tokens.shape[1]
        self._last = slice(start, self.length)
        following = self._ids[:, start + 1 : self.length + 1]
        following = torch.nn.functional.pad(following, (0, tokens.shape[1] - following.shape[1]))  # behind the end: any
        return torch.nn.functional.one_hot(following, self.vocab_size).float()

    def forward_tree(self, tokens: Tensor, reads: Tensor) -> Tensor:
        """(1, m) ids of which row i reads `reads` (m, m) -> (1, m, vocab) logits as above, each at its depth.

        Where a branch has left the text they mean nothing, and no greedy rule looks there.
        """
        self._last, self.length = slice(self.length, self.length), self.length + tokens.shape[1]
        following = torch.nn.functional.pad(self._ids, (0, tokens.shape[1]))[:, self._last.start + reads.sum(-1)]
        return torch.nn.functional.one_hot(following, self.vocab_size).float()

    def keep(self, path: list[int]) -> None:
        """Of the tree's tokens keep as many as these; they are the text's own."""
        self.length = self._last.start + 1 + len(path)
        self._last = slice(self._last.start, self.length)

    n_replays = 0  # nothing is computed, and nothing restored

    def crop(self, length: int) -> None:
        """Forget all but so many tokens. What the last pass gave stays readable."""
        self.length = length

    def hidden(self, layers: Iterable[int]) -> Tensor:
        """Outputs of these layers in the last pass, (1, m, layers * hidden); of tokens that the text does not have they
        mean nothing."""
        return self._of_text(tuple(layers))[:, self._last]

    def forward_first(self, tokens: Tensor, n_layers: int) -> Tensor:
        """Outputs of layer `n_layers` - 1 for further tokens, (1, m) ids -> (1, m, hidden).

        Where a drafted token is not the text's, the first layers run over all that comes before it.
        """
        self._ahead = torch.cat([self._ahead, tokens], dim=1)
        end = self.length + self._ahead.shape[1]
        rows = slice(end - tokens.shape[1], end)
        if torch.equal(self._ahead, self._ids[:, self.length : end]):
            return self._of_text((n_layers - 1,))[:, rows]
        ids = torch.cat([self._ids[:, : self.length], self._ahead], dim=1)
        with torch.inference_mode():
            return first_states(self._model, ids, n_layers)[:, rows]

    def _of_text(self, layers: tuple[int, ...]) -> Tensor:
        """Outputs of these layers side by side for all tokens, (1, n, layers * hidden)."""
        if layers not in self._hidden:
            with torch.inference_mode():
                self._hidden[layers] = target_pass(self._model, self._ids, layers)[0]
        return self._hidden[layers]


def replayed(
    functions: LoopFunctions, target: CachedModel, drafter: Drafter, prompt: Tensor, text: Text, draft_length: int
) -> list[Made]:
    """The rounds after that of the prompt, (1, prompt length) ids, in greedy decoding of `text`. The drafter learns."""
    known = KnownText(target, prompt, text)
    rounds = functions.rounds(known, drafter, prompt, draft_length, DecodeSettings(len(text)))  # type: ignore[arg-type]
    told = with_parts(rounds, drafter)
    return [Made(round_.n_drafted, round_.n_accepted, bool(round_.looked_up)) for round_ in told if not round_.prefill]


def rounds_of_texts(measured: Measurement) -> Callable[[Arm, int, Text], list[Made]]:
    """`replayed` along a measurement's own greedy texts: of (arm, index of the prompt, text), each made once.

    A draft knows what its rounds cost, and learns the rest again: nothing of the timed rounds is used.
    """
    bench, drafters = measured.bench, dict[Arm, Drafter]()

    @functools.cache
    def rounds(arm: Arm, prompt_index: int, text: Text) -> list[Made]:
        if arm not in drafters:
            drafters[arm] = copy.deepcopy(bench.drafters[arm.draft])
            forget(drafters[arm])
        drafter = copy.deepcopy(drafters[arm])  # shares what is learned
        prompt = measured.prompts[prompt_index].ids.to(bench.setup.device)
        return replayed(bench.functions, bench.setup.target, drafter, prompt, text, arm.draft_length)

    return rounds
