"""The draft: distilled from the target, on what the target itself writes and on text.

That is where it will be asked to guess (Zhou et al., DistillSpec, arXiv 2310.08461).
"""

import argparse
import functools
import time
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, LlamaForCausalLM, PreTrainedModel, StaticCache

from speclab.lab.training.steps import (
    MICRO_BATCH_TOKENS,
    check_ids,
    product_dtype,
    products_in,
    readable,
    save_tensors,
    sent,
    train,
)
from speclab.system.terminal import note, progress_bar
from training.models import DRAFT_SHAPE, VOCABULARY, compile_layers, llama

PROMPT, CONTINUED = 48, 256  # tokens of text that a continuation starts from, and its length with them
TEMPERATURES = (1e-4, 0.8, 1.0)  # the draft will be asked to guess in all of them
TEACHER_TOP = 32  # probabilities kept of the target's distribution at each place
TEXTS_PER_CONTINUATION = 6  # pieces of plain text in the draft's pool for each continuation


@torch.inference_mode()
def continuations(
    target: PreTrainedModel,
    pieces: Tensor,
    seconds: float,
    seed: int,
    rows: int = 64,
    length: int = CONTINUED,
    temperatures: tuple[float, ...] = TEMPERATURES,
) -> Tensor:
    """What the target writes after pieces of text, for `seconds`, at least once.  -> (n, length) ids, pieces included

    pieces: (n, prompt) ids, of which `rows` are drawn at a time. seed: of the pieces and of the tokens.
    temperatures: of the rows in turn; the lowest is as good as greedy.
    """
    target.eval()
    device, generator = target.device, torch.Generator().manual_seed(seed)
    draws = torch.Generator(device).manual_seed(seed)
    divisors = torch.tensor(temperatures, device=device).repeat(rows)[:rows, None]  # (rows, 1)
    written: list[Tensor] = []
    end = time.monotonic() + seconds
    with progress_bar(unit=" texts", desc="continuations", mininterval=10) as bar:
        while not written or time.monotonic() < end:
            picks = torch.randint(0, len(pieces), (rows,), generator=generator)
            text = pieces[picks].long().to(device)  # (rows, prompt)
            cache, feed = _cache(target, length), text
            while text.shape[1] < length:
                logits = target(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
                feed = (logits.float() / divisors).softmax(-1).multinomial(1, generator=draws)  # (rows, 1)
                text = torch.cat([text, feed], dim=1)
            written.append(text.cpu())
            bar.update(rows)
    return torch.cat(written)


def _cache(target: PreTrainedModel, length: int) -> Cache:
    """For texts of this length. A StaticCache is allocated once, while a DynamicCache copies all keys and values for
    every new token; but models that the library cannot compile may count on the shapes of a DynamicCache."""
    if target._can_compile_fullgraph:
        return StaticCache(config=target.config, max_cache_len=length)
    return DynamicCache(config=target.config)


@torch.inference_mode()
def teacher_targets(target: LlamaForCausalLM, texts: Tensor) -> tuple[Tensor, Tensor]:
    """The target's most probable next tokens.  (n, length) -> probabilities and ids, (n, length, TEACHER_TOP) each"""
    target.eval()
    device, probs, ids = next(target.parameters()).device, [], []
    for rows in progress_bar(texts.split(16), desc="teacher", mininterval=10):
        with products_in(product_dtype(device), device):
            logits = target(input_ids=rows.to(device), use_cache=False).logits
        top = logits.float().softmax(-1).topk(TEACHER_TOP, dim=-1)
        probs.append((top.values / top.values.sum(-1, keepdim=True)).half().cpu())
        ids.append(top.indices.short().cpu())
    return torch.cat(probs), torch.cat(ids)


def distillation_loss(draft: LlamaForCausalLM, texts: Tensor, probs: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy to the target's probabilities plus total variation, which is the share of samples rejected.

    texts (batch, length); probs and ids (batch, length, TEACHER_TOP)
    """
    draft_log_probs = draft(input_ids=texts, use_cache=False).logits.float().log_softmax(-1).gather(-1, ids.long())
    target_probs = probs.float()
    surprise = -(target_probs * draft_log_probs).sum(-1).mean()
    rejected = 1 - torch.minimum(target_probs, draft_log_probs.exp()).sum(-1).mean()
    return surprise + rejected


def draft_from(target: LlamaForCausalLM, seed: int) -> LlamaForCausalLM:
    """A draft that starts from the target's embeddings, final norm and first layer; what is wider starts random."""
    torch.manual_seed(seed)
    draft = llama(DRAFT_SHAPE)
    source = dict(target.named_parameters())
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            overlap = tuple(slice(0, min(a, b)) for a, b in zip(weight.shape, source[name].shape, strict=True))
            weight[overlap] = source[name].detach().cpu()[overlap]
    return draft


@torch.inference_mode()
def acceptance(target: LlamaForCausalLM, draft: LlamaForCausalLM, texts: Tensor) -> dict:
    """Teacher-forced acceptance on the target's continuations: greedy agreement, and the overlap of distributions."""
    agree, overlap, places = 0, 0.0, 0
    for rows in texts.split(16):
        of_target, of_draft = (
            model.eval()(input_ids=rows, use_cache=False).logits[:, PROMPT - 1 : -1].float()
            for model in (target, draft)
        )
        agree += (of_target.argmax(-1) == of_draft.argmax(-1)).sum().item()
        overlap += torch.minimum(of_target.softmax(-1), of_draft.softmax(-1)).sum().item()
        places += of_target.shape[0] * of_target.shape[1]
    return {"greedy_agreement": round(agree / places, 4), "overlap_at_temperature_1": round(overlap / places, 4)}


def _check_pool(texts: Any, probs: Any, ids: Any, n_own: Any) -> None:
    """ValueError where these are not what `distil` has written: texts, what the teacher says of them, and how many of
    them are its own."""
    check_ids(texts, CONTINUED, VOCABULARY, least=2)
    shape = (len(texts), CONTINUED, TEACHER_TOP)
    if any(not isinstance(part, Tensor) or part.shape != shape for part in (probs, ids)):
        raise ValueError("the teacher's probabilities are not those of its texts")
    check_ids(ids.flatten(1), CONTINUED * TEACHER_TOP, VOCABULARY)
    if not probs.is_floating_point() or type(n_own) is not int or not 0 < n_own < len(texts):
        raise ValueError("it does not say which texts are the target's own")


def distil(
    args: argparse.Namespace, seconds: dict[str, float], target: LlamaForCausalLM, n_steps: int, stream: Tensor
) -> tuple[LlamaForCausalLM, dict]:
    """Stages 3 and 4, each of its `seconds`.  -> draft, facts about its training

    n_steps: of the target's training. Texts and a draft of a target with other steps are made anew.
    """
    pool_file, draft_file = args.work_dir / "pool.pt", args.work_dir / "draft.pt"
    pool = None
    if pool_file.exists():
        with readable(pool_file):
            *pool, of_steps = torch.load(pool_file, weights_only=True)
            if len(pool) != 4:
                raise ValueError("it is of an older version")
            _check_pool(*pool)
        if of_steps != n_steps:
            note("the target has learned more since its texts were written: they and the draft are made anew")
            draft_file.unlink(missing_ok=True)
            pool = None
    if pool is None:
        own = continuations(target, stream.unfold(0, PROMPT, 1), seconds["continuations"], args.seed)
        generator = torch.Generator().manual_seed(args.seed + 1)
        starts = torch.randint(0, len(stream) - CONTINUED, (TEXTS_PER_CONTINUATION * len(own),), generator=generator)
        texts = torch.cat([own, stream[starts[:, None] + torch.arange(CONTINUED)].long()])  # (n, CONTINUED)
        pool = [texts, *teacher_targets(target, texts), len(own)]
        save_tensors(pool_file, (*pool, n_steps))
    texts, probs, ids, n_own = pool
    draft = draft_from(target, args.seed).to(args.device)
    compile_layers(draft)
    device = torch.device(args.device)
    texts, probs, ids = (part.to(device) for part in (texts, probs, ids))

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed((args.seed + 2) * 1_000_003 + step)
        # A third of every batch is the target's own writing, however large the rest of the pool is.
        n_rows = args.batch_tokens // CONTINUED
        own = torch.randint(0, n_own, (n_rows // 3,), generator=generator)
        other = torch.randint(n_own, len(texts), (n_rows - n_rows // 3,), generator=generator)
        rows = sent(torch.cat([own, other]), device)
        at_once = max(1, MICRO_BATCH_TOKENS.get(device.type, args.batch_tokens) // CONTINUED)
        return [tuple(part[some] for part in (texts, probs, ids)) for some in rows.split(at_once)]

    loss_of = functools.partial(distillation_loss, draft)
    facts = train(draft, batches, loss_of, seconds["draft"], args.rate, "draft", draft_file)
    return draft, vars(facts) | {"continuations": n_own, "texts": len(texts) - n_own, "length": CONTINUED}
