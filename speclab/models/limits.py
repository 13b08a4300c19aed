"""How much a model can take in, and what it keeps of it: found by asking it, since configs name things differently."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from speclab.system.errors import UsageProblem

# A config's names for its number of positions.
POSITIONS = ("max_position_embeddings", "max_target_positions", "max_seq_len")


class NoFastBackend(Exception):
    """Why a model cannot run on a fast backend, or its keys and values not lie in buffers, in one line."""


@dataclass(frozen=True)
class Room:
    """How many positions a model has.

    text: of the prompt and the output together; None where the model sets no limit.
    rope: the kind of rotary positions whose factors change behind `text`, "" where no such change is the limit.
    """

    text: int | None
    rope: str = ""

    @property
    def reason(self) -> str:
        """Why the text ends there although the model reads longer ones, to stand behind the number; "" if it does not.

        A longer text changes the rotary factors of all its positions. The keys in the cache were made with the factors
        from before, so a cached pass and an uncached one give different logits.
        """
        if not self.rope:
            return ""
        return (
            f" (its rope_type is {self.rope}: after it the factors of all positions change, so cached keys would be "
            "those of another model)"
        )

    def length_after(self, n_prompt: int) -> int:
        """Tokens in the cache after a prompt of `n_prompt`."""
        return n_prompt

    def for_prompt(self, n_new: int = 0) -> int | None:
        """Most tokens of a prompt that `n_new` follow."""
        return None if self.text is None else self.text - n_new

    def check(self, n_prompt: int, max_new_tokens: int) -> None:
        """Raise UsageProblem for a prompt of `n_prompt` tokens that does not fit, or leaves no room for the output."""
        if self.text is None or n_prompt + max_new_tokens <= self.text:
            return
        left = self.text - n_prompt
        raise UsageProblem(
            f"prompt of {n_prompt} tokens and {max_new_tokens} new ones do not fit the model's context of "
            f"{self.text}{self.reason}; shorten the prompt" + f" or use --max-new-tokens {left}" * (left > 0)
        )


def check_draft_prompts(
    room: Room,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    read_as: Callable[[list[int]], list[int]],
    whose: str,
) -> str | None:
    """UsageProblem where a prompt, as a draft model reads it, does not fit its room.

    whose: whose tokens these are. -> what to know where the new tokens reach its end, or None
    """
    longest, n = max(((len(read_as(prompt)), len(prompt)) for prompt in prompts), key=lambda pair: pair[0])
    most = room.for_prompt()
    if most is not None and longest > most:
        raise UsageProblem(
            f"a prompt has {longest}{whose} and the draft model's context only {most}{room.reason}; shorten the prompt "
            "or use --draft ngram"
        )
    # The new ones in its own tokens, where it cuts them as it cuts the prompt.
    end = room.length_after(longest) + max_new_tokens * longest / n
    if room.text is None or end <= room.text + 1:
        return None
    return (
        f"the draft model's context is {room.text} tokens{room.reason}: near and beyond it rounds draft fewer, or none"
    )


def with_table(room: Room, model: nn.Module) -> Room:
    """The room, no larger than the model's table of positions: after a padding index they are fewer than its rows."""
    limits = [room.text]
    for name, module in model.named_modules():
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return replace(room, text=min((n for n in limits if n), default=None))


def configured_room(config: PreTrainedConfig, names: tuple[str, ...] = ()) -> Room:
    """How many positions the config names, before weights are read: the model's own limits are not above it.

    names: names that the number may have, beside the usual ones; they come first.
    """
    config = config.get_text_config()
    return _up_to_borders(config, Room(named_positions(config, names)))


def named_positions(config: PreTrainedConfig, names: tuple[str, ...] = ()) -> int | None:
    """The number of positions, by the first of its names that the config has."""
    named = (getattr(config, name, None) for name in (*names, *POSITIONS))
    return next((n for n in named if isinstance(n, int) and n > 0), None)


def _up_to_borders(config: PreTrainedConfig, room: Room) -> Room:
    """The room with the border of its rotary factors as the limit, where the config has such a border.

    "longrope" has other factors for texts beyond its original length, and "dynamic" has others for every length beyond
    the named one. The keys that were cached before the border would be wrong after it. Layers may have different kinds.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *rope.values()):
        kind = part.get("rope_type") if isinstance(part, dict) else None
        if kind == "longrope":
            border = part.get("original_max_position_embeddings")
            border = border or getattr(config, "original_max_position_embeddings", None)
            if border and (room.text is None or border < room.text):
                room = replace(room, text=border, rope=kind)
        elif kind == "dynamic" and room.text and not room.rope:
            room = replace(room, rope=kind)
    return room


def embedded_ids(model: PreTrainedModel) -> int:
    """How many ids can be fed: the rows of the input embedding, which may be fewer than the output's."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    except (AttributeError, NotImplementedError):  # no such method, or no single matrix
        return model.config.get_text_config().vocab_size


def shortest_window(model: PreTrainedModel) -> int | None:
    """Tokens that a layer with a sliding window reads, of several the fewest; None where no layer has one."""
    windows = (getattr(layer, "sliding_window", None) for layer in DynamicCache(config=model.config).layers)
    return min((window for window in windows if window), default=None)


def is_mixture_of_experts(model: PreTrainedModel) -> bool:
    """Does the config, or a part of it, name several experts?"""

    def several(entries: dict[str, Any]) -> bool:
        counts = (v for k, v in entries.items() if "experts" in str(k) and "_per_" not in k and isinstance(v, int))
        return any(n > 1 for n in counts) or any(several(v) for v in entries.values() if isinstance(v, dict))

    return several(model.config.get_text_config().to_dict())
