"""A draft that costs nothing and is nearly always wrong: an instrument, for costs and for texts to replay."""

from collections.abc import Callable, Iterable

from torch import Tensor

from draft_models import as_draft
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Draft, Round, Target, tokens_of
from speclab.core.sampling import Sampling


class ConstantDrafter(Drafter):
    """Proposes id 0 again and again, so that every pass of the target has k + 1 tokens."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._device = prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return as_draft([0] * k, self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None: ...


def reference_text(
    decode: Callable[..., Iterable[Round]], target: Target, prompt: Tensor, draft_length: int, settings: DecodeSettings
) -> list[int]:
    """Return the target's own text for a dial to replay, made by the speculative loop with passes as wide as those that
    will judge the replay: in bfloat16 the logits of another width may turn a near-tie."""
    return tokens_of(decode(target, ConstantDrafter(), prompt, draft_length, settings))
