"""Is a loaded model fit for cached decoding? A short random text proves it before anything is timed.

Four properties of the logits, with the library's own forward and cache (the eager engine), in the dtype of the run:

1. they are numbers, and the same pass gives them twice;
2. causal: changing a later token changes no earlier position;
3. cached passes of several widths, and the steps of plain decoding, give the logits of one uncached pass;
4. the same logits come after rejected tokens have been fed and rolled back.

Two computations of the same logits may differ by the bound of models/checking/rounding.py. A mixture of experts is
compared at its median position: where two experts are nearly tied, rounding may route a token to the other one.
"""

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
from speclab.models.checking import rounding
from speclab.models.family import NoFastBackend, family_of
from speclab.models.memory import is_mixture_of_experts
from speclab.system.errors import EnvironmentProblem, first_line

N_TOKENS = 24  # tokens of the random text; fewer where the model's context is shorter
WIDTHS = (1, 3, 1, 5)  # of the cached passes after the prefill
WRONG = (3, 0, 4, 1)  # rejected tokens that are fed after the pass of each width, and rolled back
LONGEST_WINDOW = 512  # tokens; a pass over more may take minutes on two cores
OTHER_DRAFT = "choose another draft"  # the advice of checks that a draft needs
ADVICE = "choose a causal language model with plain attention layers"


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
    spread, allowed = rounding.spread(right), bound(model, right)
    if not allowed <= spread / 4:
        raise EnvironmentProblem(
            f"the logits of {name} differ by {spread:.1e} between tokens, and rounding explains {allowed:.1e} of it, "
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


def bound(model: PreTrainedModel, right: Tensor) -> float:
    """Return by how much other logits of a model may differ from these."""
    return rounding.bound(right, getattr(model.config.get_text_config(), "num_hidden_layers", 1) or 1)


def unexplained(model: PreTrainedModel, logits: Tensor, right: Tensor) -> str | None:
    """Tell how far logits (1, n, vocab) are off, with experts at the median position; None if rounding explains it."""
    gaps, allowed = rounding.differences(logits, right).amax(-1)[0], bound(model, right)  # (n,)
    n = len(gaps)
    found = gaps.kthvalue(n // 2 + 1 if is_mixture_of_experts(model) else n).values.item()
    return None if found <= allowed else f"{found:.1e} where rounding explains {allowed:.1e}"


def _compare(model: PreTrainedModel, reason: str, logits: Tensor, right: Tensor, way_out: str = ADVICE) -> None:
    if difference := unexplained(model, logits, right):
        raise EnvironmentProblem(f"{model.config.model_type} {reason}: logits differ by {difference}; {way_out}")
