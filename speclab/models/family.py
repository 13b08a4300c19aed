"""The questions that the lab asks of a family of models, and the families that there are.

`Family` itself stands for a decoder alone, whose layers keep keys and values of each token, so that a rollback drops
the last ones. An extension adds a family that has another cache in the library, or is no decoder alone: FAMILY of its
model_family.py, an object of a subclass. None is asked of what is usual (`is_usual`); that, and what none claims, is
treated as a decoder alone, and speclab/models/checks.py proves whether it is one.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from speclab.core.rounds import Target
from speclab.core.sampling import Sampling
from speclab.system import extensions
from speclab.system.errors import UsageProblem

# The usual names for a config's number of positions.
POSITIONS = ("max_position_embeddings", "max_target_positions", "max_seq_len")
_layers: weakref.WeakKeyDictionary[nn.Module, list] = weakref.WeakKeyDictionary()


class NoFastBackend(Exception):
    """The reason, in one line, why a model runs on no fast backend, or its keys and values cannot lie in buffers."""


@dataclass(frozen=True)
class Room:
    """The number of positions that a model has."""

    text: int | None  # of the prompt and the output together; None where the model sets no limit
    rope: str = ""  # the kind of rotary positions whose factors change behind `text`, where that is the limit

    @property
    def reason(self) -> str:
        """Return why a longer text would need another model, worded to follow the number."""
        why = f" (its rope_type is {self.rope}: after it the factors of all positions change, so cached keys would be "
        return self.rope and why + "those of another model)"

    def length_after(self, n_prompt: int) -> int:
        """Return the number of tokens in the cache after a prompt of `n_prompt`."""
        return n_prompt

    def for_prompt(self, n_new: int = 0) -> int | None:
        """Return the largest number of tokens that a prompt may have when `n_new` follow it."""
        return None if self.text is None else self.text - n_new

    def check(self, n_prompt: int, max_new_tokens: int = 0, whose: str = "the model's") -> None:
        """Raise UsageProblem for a prompt of `n_prompt` tokens that does not fit, or leaves no room for the output."""
        if self.text is not None and n_prompt + max_new_tokens > self.text:
            left = self.text - n_prompt
            new = f" and {max_new_tokens} new ones do" if max_new_tokens else " does"
            way_out = f" or ask for at most {left} new tokens" * (left > 0 and max_new_tokens > 0)
            if whose != "the model's":
                way_out = " or use the draft ngram"
            raise UsageProblem(
                f"prompt of {n_prompt} tokens{new} not fit {whose} context of {self.text}{self.reason}; "
                f"shorten the prompt{way_out}"
            )


def with_table(room: Room, model: nn.Module) -> Room:
    """Return the room, no larger than the model's table of positions, in which a padding index takes rows."""
    tables = (m for name, m in model.named_modules() if "position" in name and isinstance(m, nn.Embedding))
    rows = [m.num_embeddings - m.padding_idx - 1 for m in tables if m.padding_idx is not None]
    return replace(room, text=min((n for n in (room.text, *rows) if n), default=None))


def named_positions(config: PreTrainedConfig, names: Iterable[str]) -> int | None:
    """Return the number of positions, read from the first of these names that the config has."""
    named = (getattr(config, name, None) for name in names)
    return next((n for n in named if isinstance(n, int) and n > 0), None)


class Family:
    """A decoder alone that keeps keys and values of each token. A subclass changes what is different in its family."""

    plural = "causal language models"  # how a refusal names models of the family
    loader: Any = AutoModelForCausalLM
    crops = True  # every layer keeps something for each token, so that the last tokens can be dropped
    one_text = True  # prompt and output are one text for the model, each token of which reads those before it
    why_eager = ""  # why only the eager engine runs the models
    positions: tuple[str, ...] = POSITIONS  # a config's names for the number of positions, the first of them first
    # Makes the backend of one decoding from the model and the layers whose outputs it keeps; None for `EagerBackend`.
    backend: Callable[[PreTrainedModel, Iterable[int]], Any] | None = None

    def claims(self, config: PreTrainedConfig) -> bool:
        return True

    def room(self, config: PreTrainedConfig) -> Room:
        """Return the number of positions that the config names, up to the border of its rotary factors, where it has
        one: keys that were cached before it would be wrong after it.

        "longrope" has other factors for texts beyond its original length, and "dynamic" has others for every length
        beyond the named one. Layers may have different kinds.
        """
        config = config.get_text_config()
        room = Room(named_positions(config, self.positions))
        rope = getattr(config, "rope_parameters", None) or {}
        for part in (rope, *rope.values()):
            kind = part.get("rope_type") if isinstance(part, dict) else None
            original = getattr(config, "original_max_position_embeddings", None)
            border = part.get("original_max_position_embeddings") or original if kind == "longrope" else None
            if border and (room.text is None or border < room.text):
                room = Room(border, "longrope")
            elif kind == "dynamic" and room.text and not room.rope:
                room = replace(room, rope=kind)
        return room

    def cache(self, model: PreTrainedModel) -> DynamicCache:
        """Return an empty cache for the part of the model that writes the text."""
        return DynamicCache(config=model.config)

    def fill(self, model: PreTrainedModel, cache: DynamicCache, ids: Tensor) -> None:
        """Run one pass over (1, n) ids that fills an empty cache."""
        model(input_ids=ids, past_key_values=cache, use_cache=True)

    def start_id(self, model: PreTrainedModel) -> int | None:
        """Return the id that stands before an output that is a text of its own; None where it follows the prompt."""
        return None

    def logits_after(self, model: PreTrainedModel, prompt: Tensor, text: Tensor, n_last: int | None = None) -> Tensor:
        """Return the uncached logits after the prompt and i tokens of the text, for each i: (1, n) and (1, m) ids ->
        (1, m + 1, ids of the output layer), or its last n_last rows at least"""
        n = text.shape[1] + 1
        ids = torch.cat([prompt, text], dim=1)
        return model(input_ids=ids, use_cache=False, logits_to_keep=n_last or n).logits[:, -n:]

    def n_prompt(self, n_tokens: int, n_compared: int) -> int:
        """Return the tokens of a random text that are its prompt, where the last `n_compared` logits are compared."""
        return 1

    def weights(self, model: PreTrainedModel) -> list[nn.Parameter]:
        """Return the weights that a pass of decoding may read."""
        return list(model.parameters())

    def head(self, model: PreTrainedModel) -> str:
        return ""  # one more line for the head of a run


DECODER_ONLY = Family()


def family_for(config: PreTrainedConfig) -> Family:
    """Return the first family of an extension that claims models with this config; else, and of all that are usual,
    `DECODER_ONLY`."""
    if is_usual(config):
        return DECODER_ONLY
    families: Iterable[Family] = (module.FAMILY for module in extensions.modules("model_family"))
    return next((family for family in families if family.claims(config)), DECODER_ONLY)


def is_usual(config: PreTrainedConfig) -> bool:
    """Tell whether the model is a decoder alone, and the library's cache for it has rows for each token."""
    with contextlib.suppress(Exception):  # a config that the library makes no cache of is refused later
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
        return not config.is_encoder_decoder and kinds <= {DynamicLayer, DynamicSlidingWindowLayer}
    return False


def family_of(model: PreTrainedModel) -> Family:
    return family_for(model.config)


def check_family(model: PreTrainedModel, what: str, way_out: str, crops: bool = True) -> None:
    """Raise UsageProblem for a model that `what`, a draft or a command that takes prompt and output as one text, cannot
    use. With `crops`, it also needs a cache in which every layer keeps something for each token."""
    family = family_of(model)
    if not family.one_text or (crops and not family.crops):
        raise UsageProblem(f"{what} does not know {family.plural}, and {model.config.model_type} is one; {way_out}")


def embedded_ids(model: PreTrainedModel) -> int:
    """Return the rows of the input embedding, which may be fewer than the output's."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    except (AttributeError, NotImplementedError):  # no such method, or no single matrix
        return model.config.get_text_config().vocab_size


@torch.inference_mode()
def cached_layers(model: PreTrainedModel) -> list:
    """Return the layers of a cache that holds two tokens, found once for each model. A config does not tell: layers may
    differ, share a cache, or keep something smaller than keys and values."""
    if model not in _layers:
        family = family_of(model)
        cache = family.cache(model)
        family.fill(model, cache, torch.zeros(1, 2, dtype=torch.long, device=model.device))
        _layers[model] = cache.layers
    return _layers[model]


@torch.inference_mode()
def distributions(cached: Target, prompt: list[int], tokens: list[int], sampling: Sampling, vocab_size: int) -> Tensor:
    """Return the distribution at the place of each of `tokens`, from one uncached pass.  -> (n, vocab_size), on the
    CPU. Ids that a draft model lacks have probability 0, and so has everything after its context."""
    n_before = cached.room.length_after(len(prompt))
    n = len(tokens) if cached.room.text is None else min(len(tokens), cached.room.text - n_before + 1)
    parts = (torch.tensor([ids], dtype=torch.long, device=cached.device) for ids in (prompt, tokens[: n - 1]))
    before, text = map(cached.replace_unknown, parts)
    logits = cached.family.logits_after(cached.model, before, text)[0, :, : min(cached.vocab_size, vocab_size)]
    probs = sampling.probs(logits).cpu()  # (n, ids that the model has)
    return torch.nn.functional.pad(probs, (0, vocab_size - probs.shape[1], 0, len(tokens) - n))
