"""Is a loaded model fit for cached decoding? A short random text proves it before anything is timed.

Four properties of the logits, with the library's own forward and cache (the eager engine), in the dtype of the run:

1. they are numbers, and the same pass gives them twice;
2. causal: changing a later token changes no earlier position;
3. cached passes of several widths, and the steps of plain decoding, give the logits of one uncached pass;
4. the same logits come after rejected tokens have been fed and rolled back.

A mixture of experts is compared at its median position: where two experts are nearly tied, rounding may route a token
to the other one.

One rounding unit is eps(dtype) * max|logit|. Passes of other widths add the same numbers in another order, so their
logits differ by some units: in small models by 3 to 10 in float32 and float64, and by 0.5 to 3 in bfloat16, whose sums
are taken in float32. Each layer adds rounding: SmolLM2 (30 layers) differs by 85 units at one token of 24. So `bound`
grants units for each layer in float32 and float64. A model that is wrong is off by a good part of its largest logit.

In bfloat16 that bound is too wide to tell whether two tokens are nearly tied: there a copy of the model in float32
tells what rounding has changed. No cache has a part in it: a broken one cannot widen its own bound.
"""

import copy
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.engines.cuda.cuda_graphs import kv_shapes
from speclab.engines.eager import window_of
from speclab.models.cached import CachedModel
from speclab.models.family import NoFastBackend, family_of
from speclab.models.memory import USABLE, free_memory, is_mixture_of_experts, why_eager
from speclab.system.errors import EnvironmentProblem, first_line

N_TOKENS = 24  # tokens of the random text; fewer where the model's context is shorter
WIDTHS = (1, 3, 1, 5)  # of the cached passes after the prefill
WRONG = (3, 0, 4, 1)  # rejected tokens that are fed after the pass of each width, and rolled back
LONGEST_WINDOW = 512  # tokens; a pass over more may take minutes on two cores
OTHER_DRAFT = "choose another draft"  # the advice of checks that a draft needs
ADVICE = "choose a causal language model with plain attention layers"
UNITS = {torch.float64: 64, torch.float32: 64}  # rounding units for each layer, between two right computations
HALF_WIDTH_UNITS = 16  # the same for bfloat16 and float16, whatever the depth
LIKELY = 64  # most probable tokens of a row, whose rounding is looked at
LEAST_DEVIATION = 0.3  # standard deviation of the rounding to the next number of a dtype, in units of that logit
USUAL_DEVIATION = 0.5  # the same for logits in bfloat16 and float16, where no float32 copy tells


def check_model(model: PreTrainedModel) -> None:
    """Prove the four properties, or raise EnvironmentProblem with the one that fails."""
    name = model.config.model_type
    unread = "ignores its cache, or computes other logits with it"
    undone = "keeps a state that cannot be rolled back after a rejected draft"
    _tried(model, "has no cache that the library can make", lambda: family_of(model).cache(model))
    text = random_text(model)
    right = _tried(model, "has no plain forward pass", lambda: uncached_logits(model, text))
    if not torch.isfinite(right.amax(-1)).all():
        way_out = "try --dtype float32, else the weights are damaged"
        raise EnvironmentProblem(f"the logits of {name} are not finite; {way_out}")
    differ, allowed = spread(right), explained(model, right)
    if not allowed <= differ / 4:
        raise EnvironmentProblem(
            f"the logits of {name} differ by {differ:.1e} between tokens, and rounding explains {allowed:.1e} of it, "
            "so nothing could be proved; use --dtype float32"
        )
    _compare(model, "gives other logits for the same text at every pass", uncached_logits(model, text), right)
    n_changed = right.shape[1] // 2
    changed = torch.cat([text[:, :-n_changed], text[:, :1].expand(-1, n_changed)], dim=1)
    same = slice(0, right.shape[1] - n_changed)
    _compare(model, "attends to later tokens", uncached_logits(model, changed)[:, same], right[:, same])
    last, cached = right[:, -sum(WIDTHS) :], CachedModel(model)
    for reason, how in [(unread, {}), (unread, AS_STEPS), (undone, AS_ROUNDS)]:
        passes = functools.partial(cached_logits, cached, text, **how)
        _compare(model, reason, _tried(model, reason, passes), last)


def check_passes(
    model: PreTrainedModel,
    reason: str,
    passes: Callable[[], Tensor],
    texts: Sequence[Tensor],
    n_last: int,
    way_out: str = OTHER_DRAFT,
) -> None:
    """Raise EnvironmentProblem where passes that are made in another way do not give the uncached logits of the last
    `n_last` tokens of each text, (1, n) ids, one text after the other, up to the ids that they give."""
    logits = _tried(model, reason, passes)
    right = torch.cat([uncached_logits(model, text, n_last)[:, -n_last:] for text in texts], dim=1)
    _compare(model, reason, logits, right[..., : logits.shape[-1]], way_out)


def random_text(model: PreTrainedModel, n_tokens: int = N_TOKENS) -> Tensor:
    """Draw (1, n) ids, none of them special to the config; all are different where there are enough of them. n is at
    most `n_tokens` and leaves room for rejected tokens. Raises EnvironmentProblem where that is too few."""
    cached = CachedModel(model)
    config = model.config.get_text_config()
    special = {v for k, v in config.to_dict().items() if k.endswith(("token_id", "token_index")) and isinstance(v, int)}
    ordinary = torch.tensor([i for i in range(min(cached.vocab_size, cached.n_ids)) if i not in special])
    room = min((n for n in (cached.room.text, cached.room.for_prompt()) if n is not None), default=sys.maxsize)
    n = min(n_tokens, room - max(WRONG))
    if n <= sum(WIDTHS) or len(ordinary) < 2:
        raise EnvironmentProblem(f"{config.model_type} has too few tokens or positions to decode with; choose another")
    order = torch.randperm(len(ordinary), generator=torch.Generator().manual_seed(0))
    return ordinary[order].repeat(-(-n // len(ordinary)))[:n][None].to(model.device)


def text_for_rows(model: PreTrainedModel, reason: str, more: int = 0, way_out: str = OTHER_DRAFT) -> Tensor:
    """Return a random text, `more` tokens longer than usual, and longer than sliding windows up to LONGEST_WINDOW.
    Raises EnvironmentProblem where layers do not keep keys and values of each token, or have several windows."""
    try:
        kv_shapes(model)
        window = window_of(model)
    except NoFastBackend as error:
        raise EnvironmentProblem(f"{model.config.model_type} {reason}: {error}; {way_out}") from None
    return random_text(model, N_TOKENS + more + (window.size if window and window.size <= LONGEST_WINDOW else 0))


def cached_logits(
    cached: CachedModel,
    text: Tensor,
    wrong: tuple[int, ...] = (),
    one_pass: Callable[[CachedModel, Tensor], Tensor] = CachedModel.forward,
) -> Tensor:
    """Return the logits of the last tokens of `text`, fed in passes of WIDTHS after a prefill.  -> (1, sum of widths,
    vocab). wrong: with each pass so many rejected tokens are fed and rolled back. one_pass: takes (1, m) ids."""
    n_fed = text.shape[1] - sum(WIDTHS)
    cached.prefill(text[:, :n_fed])
    logits = []
    for i, width in enumerate(WIDTHS):
        block, n_fed = text[:, n_fed : n_fed + width], n_fed + width
        rejected = text[:, : wrong[i]] if wrong else text[:, :0]  # the text's beginning does not continue it here
        logits.append(one_pass(cached, torch.cat([block, rejected], dim=1))[:, :width])
        if wrong:
            cached.crop(cached.length - wrong[i])
    return torch.cat(logits, dim=1)


# Of `cached_logits`: with tokens that are rejected; and as plain decoding, a token a pass, kept for no roll-back.
AS_ROUNDS: dict[str, Any] = {"wrong": WRONG}
AS_STEPS: dict[str, Any] = {"one_pass": lambda cached, ids: torch.cat([*map(cached.step, ids.unbind(1))], dim=1)}


@torch.inference_mode()
def uncached_logits(model: PreTrainedModel, text: Tensor, n_last: int | None = None) -> Tensor:
    """(1, n) ids -> (1, n - prompt + 1, vocab) uncached logits, or at least the last `n_last` rows."""
    family, n_ids = family_of(model), CachedModel(model).vocab_size
    n = family.n_prompt(text.shape[1], sum(WIDTHS))
    return family.logits_after(model, text[:, :n], text[:, n:], n_last)[..., :n_ids]


def _tried(model: PreTrainedModel, reason: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # a model's own code may raise any
        why = f"{type(error).__name__}: {first_line(error)}"
        raise EnvironmentProblem(f"{model.config.model_type} {reason} ({why}); {ADVICE}") from None


def explained(model: PreTrainedModel, right: Tensor) -> float:
    """Return by how much other logits of a model may differ from these."""
    return bound(right, getattr(model.config.get_text_config(), "num_hidden_layers", 1) or 1)


def unexplained(model: PreTrainedModel, logits: Tensor, right: Tensor) -> str | None:
    """Tell how far logits (1, n, vocab) are off, with experts at the median position; None if rounding explains it."""
    differences = torch.where(logits == right, 0.0, (logits - right).abs())  # 0 also where both are -infinity
    gaps, allowed = differences.amax(-1)[0], explained(model, right)  # (n,)
    n = len(gaps)
    found = gaps.kthvalue(n // 2 + 1 if is_mixture_of_experts(model) else n).values.item()
    return None if found <= allowed else f"{found:.1e} where rounding explains {allowed:.1e}"


def _compare(model: PreTrainedModel, reason: str, logits: Tensor, right: Tensor, way_out: str = ADVICE) -> None:
    if difference := unexplained(model, logits, right):
        raise EnvironmentProblem(f"{model.config.model_type} {reason}: logits differ by {difference}; {way_out}")


def bound(logits: Tensor, n_layers: int = 1) -> float:
    """Return the largest difference from these logits that rounding explains, in a model with so many layers. Logits
    that stand for "never this token" have no part in it."""
    real = logits.abs()[_real(logits)]
    unit = torch.finfo(logits.dtype).eps * (real.max().item() if real.numel() else 0.0)
    return unit * (UNITS[logits.dtype] * n_layers if logits.dtype in UNITS else HALF_WIDTH_UNITS)


def _real(logits: Tensor) -> Tensor:
    """Return a mask of the logits that do not stand for "never this token" (the dtype's lowest number, -infinity)."""
    return logits.abs() < torch.finfo(logits.dtype).max / 2


def spread(logits: Tensor) -> float:
    """Return the largest real logit minus the smallest one, of (..., n, vocab) in the median row."""
    real = _real(logits)
    highest = logits.masked_fill(~real, -torch.inf).amax(-1)
    lowest = logits.masked_fill(~real, torch.inf).amin(-1)
    return (highest - lowest).flatten().median().item()


class Reference:
    """A model's uncached logits, and for bfloat16 and float16 the same in float32: from `higher`, or from a copy of the
    model, made when it is first asked for. Where memory has no room for it the model's own logits stand for it."""

    def __init__(self, model: PreTrainedModel, higher: PreTrainedModel | None = None):
        self._model = model
        if higher is not None:
            self._higher = higher

    @functools.cached_property
    def _higher(self) -> PreTrainedModel:
        n_bytes = 6 * sum(p.numel() for p in self._model.parameters())  # in both dtypes, while it is made
        free = free_memory(self._model.device)
        if self._model.dtype in UNITS or why_eager(self._model) or (free is not None and n_bytes > USABLE * free):
            return self._model
        return copy.deepcopy(self._model).float()

    def with_deviations(self, prompt: list[int], text: list[int], vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return the best known logits after the prompt and after each token of the text, and the standard deviation of
        the run's rounding: in float32 and float64 a part of the bound of one layer, and where no copy tells a constant
        number of units.  n and m ids -> (m + 1, vocab_size) and (m + 1,), on the CPU"""
        before, after = (torch.tensor([ids], dtype=torch.long, device=self._model.device) for ids in (prompt, text))

        @torch.inference_mode()
        def logits(model: PreTrainedModel) -> Tensor:
            return family_of(model).logits_after(model, before, after)[0, :, :vocab_size].cpu()

        own = logits(self._model)
        if own.dtype in UNITS:
            return own, torch.tensor([bound(row) / 4 for row in own], dtype=torch.float64)
        if self._higher is self._model:
            right = own.double()
            return right, USUAL_DEVIATION * torch.finfo(own.dtype).eps * right.amax(-1).abs()
        right = logits(self._higher).double()
        return right, deviations(own, right)


def deviations(own: Tensor, right: Tensor) -> Tensor:
    """Return the standard deviation of the rounding of each row's most probable logits.  (n, vocab), twice -> (n,). An
    error that is the same in all logits of a row changes no probability, so it does not count."""
    likely = right.masked_fill(~_real(own), -torch.inf).topk(min(LIKELY, right.shape[-1])).indices
    largest = own.double().gather(-1, likely[:, :1]).abs()[:, 0]
    off = (own.double() - right.double()).where(_real(own), 0.0).gather(-1, likely)
    return torch.maximum(off.std(-1, correction=0), LEAST_DEVIATION * torch.finfo(own.dtype).eps * largest)
