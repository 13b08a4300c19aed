"""Two protocols: a backend, which runs the passes of a decoding, and a model in the form that a fast backend needs."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import Tensor

from speclab.models.backends.windows import Window


class Backend(Protocol):
    """A backend runs the passes of one decoding (speclab/models/backends).

    n_replays: passes over tokens that were read before, where layers that cannot be cropped need them.
    n_single: passes beyond one for a call of `forward`, where it reads tokens one by one.
    """

    n_replays: int
    n_single: int

    @property
    def hidden(self) -> Mapping[int, Tensor]:
        """The outputs of the layers that were asked for, in the last pass, (1, m, hidden) each."""

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits of the last one."""

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """The same as `forward`, but the tokens will never be rolled back."""

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """Run a pass: (1, m) ids after `length` tokens -> (1, m, vocab) logits."""

    def forward_first(self, tokens: Tensor, length: int, n_layers: int) -> Tensor:
        """Run the first `n_layers` layers alone: (1, m) ids after `length` tokens -> their outputs (1, m, hidden)."""

    def forward_rest(self, states: Tensor, length: int, n_layers: int) -> Tensor:
        """Run all other layers: the outputs of the first ones, (1, m, hidden), after `length` tokens -> (1, m, vocab)
        logits."""

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """The same as `forward`, but each token has its position (1, m), and the mask (1, 1, m, length + m) says what
        it reads."""

    def keep(self, length: int, rows: Tensor) -> None:
        """Keep these rows, (n,), of the last pass: they move to the front of the rows behind `length`, and their hidden
        states move with them."""

    def crop(self, n_tokens: int, length: int) -> None:
        """Drop the last `n_tokens` of the `length` tokens in the cache."""


class FastModel(Protocol):
    """A model in the form of a fast backend: exported, or as CUDA graphs.

    graphed: whether passes run as CUDA graphs, which have to be recorded before anything is timed.
    splits: whether its passes can be run in two parts, the first layers and the others.
    window: the window of its layers with sliding windows, None where there are none; buffers hold the whole text.
    one_token_gain: how many times as fast as the eager backend a pass over one token is, where that was measured.
    """

    graphed: bool
    splits: bool
    window: Window | None
    one_token_gain: float | None

    @property
    def bytes_spared(self) -> int:
        """The bytes of the weights that a pass does not read, as it reads them in fewer bytes than their dtype has."""

    def start(self, hidden_layers: Iterable[int] = ()) -> Backend:
        """A backend for one decoding; its passes keep the outputs of these layers."""

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Announce the widths of the passes that will come, and the tokens of the longest text."""
