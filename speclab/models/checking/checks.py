"""Is a loaded model fit for cached decoding? A short random text proves it before anything is timed.

Four properties of the logits, with the library's own forward and cache (the eager engine), in the dtype of the run:

1. they are numbers, and the same pass gives them twice;
2. causal: changing a later token changes no earlier position;
3. cached passes of several widths, and the steps of plain decoding, give the logits of one uncached pass;
4. the same logits come after rejected tokens have been fed and rolled back.

Two computations of the same logits may differ by the bound of models/checking/rounding.py. Where they differ by more,
the bound follows from the model: a few times the largest error of an uncached pass, held against higher precision. So
small models pay nothing for it, and deep ones are judged by what they are.

A mixture of experts is compared at its median position: where two experts are nearly tied, rounding may route a token
to the other one.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.engines.cuda.buffers import kv_shapes
from speclab.engines.windows import window_of
from speclab.models import memory
from speclab.models.cached import CachedModel
from speclab.models.checking import rounding
from speclab.models.checking.rounding import MARGIN, Reference
from speclab.models.checking.uncached import logits_after
from speclab.models.family import NoFastBackend, family_of
from speclab.models.memory import is_mixture_of_experts
from speclab.models.outside.placement import is_quantised
from speclab.system.errors import EnvironmentProblem, first_line, setting

N_TOKENS = 24  # tokens of the random text; fewer where the model's context is shorter
WIDTHS = (1, 3, 1, 5)  # of the cached passes after the prefill
WRONG = (3, 0, 4, 1)  # rejected tokens that are fed after the pass of each width, and rolled back
# Most operations of a pass over a text longer than a window, in a check: half a minute on two cores, seconds on a GPU.
MOST_OPERATIONS, MOST_ON_CUDA = 2e12, 1e15
OTHER_DRAFT = "choose another draft"
ADVICE = "choose a causal language model with plain attention layers"
ADVICE_QUANTISED = "its quantised weights take other kernels in other passes; choose another quantisation of the model"


def check_model(model: PreTrainedModel) -> None:
    """Prove the four properties, or raise EnvironmentProblem with the one that fails."""
    name = model.config.model_type
    cache = _tried(model, "has no cache that the library can make", lambda: family_of(model).cache(model))
    if family_of(model).crops and not getattr(cache, "is_croppable", True):
        raise EnvironmentProblem(f"{name} keeps a state that cannot be rolled back after a rejected draft; {ADVICE}")
    text = random_text(model)
    right = _tried(model, "has no plain forward pass", lambda: uncached_logits(model, text))
    if not torch.isfinite(right.amax(-1)).all():
        raise EnvironmentProblem(
            f"the logits of {name} are not finite (NaN or infinity); try {setting('dtype', 'float32')}, and if that "
            "does not help the weights are damaged"
        )
    spread = rounding.spread(right)
    if not rounding.bound(right) <= spread / 4:
        raise EnvironmentProblem(
            f"the logits of {name} differ by {spread:.1e} between tokens, and rounding explains "
            f"{rounding.bound(right):.1e} of it ({rounding.bound_in_words(right.dtype)}), so nothing could be proved; "
            f"use {setting('dtype', 'float32')}"
        )
    if not gap(model, uncached_logits(model, text), right) <= rounding.bound(right):
        raise EnvironmentProblem(f"{name} gives other logits for the same text at every pass; {ADVICE}")
    n_changed = right.shape[1] // 2
    changed = text.clone()
    changed[:, -n_changed:] = text[:, :1]
    same = slice(0, right.shape[1] - n_changed)
    before, after = in_two(model, text)
    first_half = (before, after[:, : after.shape[1] - n_changed])
    reason, found = "attends to later tokens", uncached_logits(model, changed)[:, same]
    _compare(model, [first_half], reason, found, right[:, same], _advice(model))
    last, parts = right[:, -sum(WIDTHS) :], [(before, after)]
    cached = CachedModel(model)
    reason = "ignores its cache, or computes other logits with it"
    _compare(model, parts, reason, _tried(model, reason, lambda: cached_logits(cached, text)), last, _advice(model))
    steps = (1,) * sum(WIDTHS)  # what plain decoding runs: nothing is kept for a roll-back
    by_steps = _tried(model, reason, lambda: cached_logits(cached, text, steps, one_pass=one_step))
    _compare(model, parts, reason, by_steps, last, _advice(model))
    reason = "keeps a state that cannot be rolled back after a rejected draft"
    rolled_back = _tried(model, reason, lambda: cached_logits(cached, text, wrong=WRONG))
    _compare(model, parts, reason, rolled_back, last, _advice(model))


def check_rows(model: PreTrainedModel, reason: str, way_out: str = OTHER_DRAFT) -> None:
    """Raise EnvironmentProblem for a model whose layers do not all keep keys and values of each token, in windows of
    one size where they have any."""
    try:
        kv_shapes(model)
        window_of(model)
    except NoFastBackend as error:
        raise EnvironmentProblem(f"{model.config.model_type} {reason}: {error}; {way_out}") from None


def check_passes(
    model: PreTrainedModel,
    reason: str,
    passes: Callable[[], Tensor],
    texts: Sequence[Tensor],
    n_last: int,
    way_out: str = OTHER_DRAFT,
) -> None:
    """Raise EnvironmentProblem where passes that are made in another way do not give the uncached logits of the last
    `n_last` tokens of each text, (1, n) ids, one text after the other.

    The passes may give fewer ids: a target is cut at its tokenizer's, and its output layer may be padded.
    """
    logits = _tried(model, reason, passes)
    right = torch.cat([uncached_logits(model, text, n_last)[:, -n_last:] for text in texts], dim=1)
    parts = [in_two(model, text) for text in texts]
    _compare(model, parts, reason, logits, right[..., : logits.shape[-1]], way_out)


def random_text(model: PreTrainedModel, n_tokens: int = N_TOKENS) -> Tensor:
    """Draw (1, n) ids, none of them special to the config; all are different where there are enough of them.

    n is at most `n_tokens` and leaves room for rejected tokens in the model's context. Raises EnvironmentProblem where
    the model has too few tokens or positions for a text.
    """
    cached = CachedModel(model)
    config = model.config.get_text_config()
    special = {v for k, v in config.to_dict().items() if k.endswith(("token_id", "token_index")) and isinstance(v, int)}
    ordinary = torch.tensor([i for i in range(min(cached.vocab_size, cached.n_ids)) if i not in special])
    room = min((n for n in (cached.max_length, cached.room.for_prompt()) if n is not None), default=sys.maxsize)
    n = min(n_tokens, room - max(WRONG))
    if n <= sum(WIDTHS) or len(ordinary) < 2:
        raise EnvironmentProblem(
            f"{config.model_type} has {len(ordinary)} ordinary tokens and a context of {room} positions, "
            "too few to decode with; choose a larger model"
        )
    order = torch.randperm(len(ordinary), generator=torch.Generator().manual_seed(0))
    return ordinary[order].repeat(-(-n // len(ordinary)))[:n][None].to(model.device)


def text_longer_than_windows(model: PreTrainedModel, more: int = 0) -> Tensor:
    """Return a random text, longer than the model's sliding windows if it has some and a pass over such a text is
    quick. more: tokens that it has beyond the usual number. Raises NoFastBackend where its windows differ."""
    window, usual = window_of(model), N_TOKENS + more
    longer = usual + (window.size if window else 0)
    return random_text(model, longer if is_quick(model, longer) else usual)


def is_quick(model: PreTrainedModel, n_tokens: int) -> bool:
    """Tell whether a pass over a text of so many tokens is short enough for a check."""
    most = MOST_ON_CUDA if model.device.type == "cuda" else MOST_OPERATIONS
    return memory.operations(model, n_tokens, 0) <= most


def cached_logits(
    cached: CachedModel,
    text: Tensor,
    widths: tuple[int, ...] = WIDTHS,
    wrong: tuple[int, ...] = (),
    one_pass: Callable[[CachedModel, Tensor], Tensor] = CachedModel.forward,
) -> Tensor:
    """Return the logits of the last tokens of `text`, fed in passes of `widths` after a prefill.  -> (1, sum of widths,
    vocab)

    wrong: with each pass this many rejected tokens are fed, which are then rolled back. one_pass: makes a pass over
    (1, m) ids.
    """
    n_fed = text.shape[1] - sum(widths)
    cached.prefill(text[:, :n_fed])
    logits = []
    for i, width in enumerate(widths):
        block, n_fed = text[:, n_fed : n_fed + width], n_fed + width
        rejected = text[:, : wrong[i]] if wrong else text[:, :0]  # the text's beginning does not continue it here
        logits.append(one_pass(cached, torch.cat([block, rejected], dim=1))[:, :width])
        if wrong:
            cached.crop(cached.length - wrong[i])
    return torch.cat(logits, dim=1)


def one_step(cached: CachedModel, token: Tensor) -> Tensor:
    """Run a pass of plain decoding over (1, 1) ids."""
    return cached.step(token[:, 0])


@torch.inference_mode()
def uncached_logits(model: PreTrainedModel, text: Tensor, n_last: int | None = None) -> Tensor:
    """Return the uncached logits: (1, n) ids -> (1, n - prompt + 1, vocab). With n_last, at least the last `n_last`
    tokens have rows."""
    return logits_after(model, *in_two(model, text), n_last)[..., : CachedModel(model).vocab_size]


def in_two(model: PreTrainedModel, text: Tensor) -> tuple[Tensor, Tensor]:
    """Split (1, n) ids into the prompt of these checks and the text that continues it."""
    n = family_of(model).n_prompt(text.shape[1], sum(WIDTHS))
    return text[:, :n], text[:, n:]


def _tried(model: PreTrainedModel, reason: str, call: Callable[[], Any]) -> Any:
    """Return the result of `call()`. A model's own code may raise any exception; each becomes an EnvironmentProblem."""
    try:
        return call()
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise EnvironmentProblem(f"{model.config.model_type} {reason} ({why}); {ADVICE}") from None


def gap(model: PreTrainedModel, logits: Tensor, right: Tensor) -> float:
    """Return the largest difference of two logits (1, n, vocab). For a mixture of experts it is the largest one at the
    median position."""
    gaps = rounding.differences(logits, right).amax(-1)[0]  # (n,)
    return gaps[_worst(model, gaps)].item()


def _worst(model: PreTrainedModel, gaps: Tensor) -> int:
    """Return the position of the largest of (n,) numbers; for a mixture of experts, of the median."""
    n = len(gaps)
    return int(gaps.kthvalue(n // 2 + 1 if is_mixture_of_experts(model) else n).indices)


def unexplained(
    model: PreTrainedModel, parts: Sequence[tuple[Tensor, Tensor]], logits: Tensor, right: Tensor
) -> str | None:
    """Tell by how much logits (1, n, vocab) differ from the right ones, where that is more than rounding explains; None
    where it is not.

    parts: the texts that the rows belong to, equally many to each and its last ones, as prompt and continuation.
    """
    found, allowed, how = gap(model, logits, right), rounding.bound(right), rounding.bound_in_words(right.dtype)
    if not found <= allowed and not is_quantised(model):
        n_last, limit = right.shape[1] // len(parts), rounding.spread(right) / 4
        errors = torch.cat([Reference(model).errors(*part, right.shape[-1], n_last) for part in parts])
        measured = MARGIN * errors[_worst(model, errors)].item()
        if not errors.any() and right.dtype != torch.float64:  # nothing could be measured: what proves anything at all
            measured = limit
        if measured > allowed:
            allowed, how = measured, f"{MARGIN} * the error of its uncached logits"
        if not allowed <= limit:
            dtype = str(right.dtype).removeprefix("torch.")
            return f"{found:.1e} and rounding by {allowed:.1e} ({how}), so nothing could be proved in {dtype}"
    if found <= allowed:
        return None
    return f"{found:.1e} where rounding explains {allowed:.1e} ({how})"


def _compare(
    model: PreTrainedModel,
    parts: Sequence[tuple[Tensor, Tensor]],
    reason: str,
    logits: Tensor,
    right: Tensor,
    way_out: str,
) -> None:
    """Refuse logits that are not the right ones; see `unexplained`."""
    if difference := unexplained(model, parts, logits, right):
        raise EnvironmentProblem(f"{model.config.model_type} {reason}: logits differ by {difference}; {way_out}")


def _advice(model: PreTrainedModel) -> str:
    return ADVICE_QUANTISED if is_quantised(model) else ADVICE
