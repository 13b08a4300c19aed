"""The offline pair: a Llama-type target, and a draft distilled from it, on the sources of Python itself.

The pair that comes with the lab was made by this file. Each of its stages is saved when it is done, and a stopped
training goes on after the last one that was:

    tokenizer      byte-level BPE, one for both models
    target         plain next-token training on mixed lengths
    continuations  the target continues pieces of its own training text, greedily and by sampling
    draft          distillation: on those continuations and on text, towards the target's own probabilities

The draft is distilled on what the target itself writes because that is where it will be asked to guess
(Zhou et al., DistillSpec, arXiv 2310.08461). The matrices are trained with Muon, the rest with AdamW.
"""

import argparse
import functools
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from speclab.system.errors import EnvironmentProblem, UsageProblem, first_line
from speclab.system.files import write_whole
from speclab.system.terminal import progress_bar
from training import corpus
from training.documents import manifest, permissive_packages
from training.steps import (
    MICRO_BATCH_TOKENS,
    compile_layers,
    crops,
    next_token_loss,
    product_dtype,
    products_in,
    train,
)
from training.texts import CONTINUED, PROMPT, continuations, streams

# Of --minutes; the rest is the teacher's pass over the pool, and reports.
SHARES = {"target": 0.62, "continuations": 0.05, "draft": 0.21}
BATCH_TOKENS = {"cuda": 131072}  # tokens of a step, by device
FEW_TOKENS = 8192  # the same elsewhere
END = "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 4096
TARGET_SHAPE = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 704}
DRAFT_SHAPE = {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 1024}
TEACHER_TOP = 32  # probabilities kept of the target's distribution at each place
TEXTS_PER_CONTINUATION = 6  # pieces of plain text in the draft's pool for each continuation


def train_pair(args: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train both and write them.  -> facts for training.json, and a summary"""
    phases = args.out / "phases"
    check_phases(phases, {name: getattr(args, name) for name in ("with_packages", "rate", "seed", "minutes")})
    documents = [*corpus.standard_library(), *(permissive_packages() if args.with_packages else [])]
    if not (phases / "tokenizer").exists():
        train_tokenizer(d.text for d in documents if not d.held_out).save_pretrained(phases / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(phases / "tokenizer")
    stream, held_out = streams(tokenizer, documents)

    seconds = {stage: 60 * args.minutes * share for stage, share in SHARES.items()}
    weights, target_facts = phase(phases / "target.pt", lambda: train_target(args, device, seconds["target"], stream))
    target = uncompiled(weights, TARGET_SHAPE).to(device)  # type: ignore[arg-type]
    pool = phase(phases / "pool.pt", lambda: pool_of(target, stream, seconds["continuations"], args.seed))
    weights, draft_facts = distil(args, device, seconds["draft"], target, pool)

    target = save(target.cpu(), tokenizer, args.out / "target")
    draft = save(uncompiled(weights, DRAFT_SHAPE), tokenizer, args.out / "draft")
    fresh = continuations(target, held_out.unfold(0, PROMPT, 1), 12, args.seed + 7, rows=24)
    summary = {
        "held_out_loss": {
            "target": round(held_out_loss(target, held_out), 4),
            "draft": round(held_out_loss(draft, held_out), 4),
        },
        "acceptance_on_held_out_continuations": acceptance(target, draft, fresh),
    }
    about = {
        "corpus": manifest(documents),
        "tokens": {"training": len(stream), "held_out": len(held_out), "vocabulary": VOCABULARY},
        "target": {"shape": TARGET_SHAPE, "parameters": target.num_parameters(), **target_facts},
        "draft": {"shape": DRAFT_SHAPE, "parameters": draft.num_parameters(), **draft_facts},
        **summary,
        "seed": args.seed,
    }
    return about, summary


def check_phases(folder: Path, settings: dict[str, Any]) -> None:
    """Raise UsageProblem where the folder has the phases of a training with other settings; else note these there."""
    file, text = folder / "settings.json", json.dumps(settings)
    if file.exists() and (earlier := file.read_text("utf-8").strip()) != text:
        raise UsageProblem(
            f"{folder} is of a training with {earlier}, not with {text}; delete it, or use another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, text + "\n")


def phase(file: Path, make: Callable[[], Any]) -> Any:
    """What a phase has made: from its file where an earlier run has ended it, else made now and saved."""
    if not file.exists():
        buffer = io.BytesIO()
        torch.save(make(), buffer)
        write_whole(file, buffer.getvalue())
    try:
        return torch.load(file, weights_only=True)
    except Exception as error:  # torch raises its own kinds
        raise EnvironmentProblem(f"cannot go on from {file}: {first_line(error)}; delete it") from None


# --- the family of models, and its tokenizer --------------------------------------------------------------------------


def llama(shape: dict, fused: bool = False) -> LlamaForCausalLM:
    """A random Llama of the lab's family: heads of 64, rotary positions, embeddings tied to the output.

    fused: attention in one kernel, for a GPU. On a CPU eager attention, compiled, trains half as fast again in
    bfloat16.
    """
    heads = shape["hidden_size"] // 64
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        attn_implementation="sdpa" if fused else "eager",  # type: ignore[call-arg]
        **shape,
    )
    return LlamaForCausalLM(config)


def train_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the corpus; id 0 ends a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, model_max_length=CONTEXT)


def uncompiled(weights: dict[str, Tensor], shape: dict) -> LlamaForCausalLM:
    """These weights in a plain module on the CPU."""
    plain = llama(shape)
    plain.load_state_dict(weights)
    return plain.eval()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> LlamaForCausalLM:
    """Write bfloat16 safetensors and the tokenizer; returns the model as a user will load it."""
    try:
        model.to(dtype=torch.bfloat16).save_pretrained(folder, max_shard_size="14MB")  # type: ignore[call-arg]
        tokenizer.save_pretrained(folder)
    except Exception as error:  # each library below raises its own kinds; a full disk is the usual one
        raise EnvironmentProblem(
            f"cannot write the weights: {first_line(error)}; free some space and type the command again"
        ) from None
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


# --- the target -------------------------------------------------------------------------------------------------------


def _step_tokens(device: torch.device) -> int:
    return BATCH_TOKENS.get(device.type, FEW_TOKENS)


def train_target(
    args: argparse.Namespace, device: torch.device, seconds: float, stream: Tensor
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Run stage 2.  -> the target's weights, facts about its training"""
    torch.manual_seed(args.seed)
    model = llama(TARGET_SHAPE, fused=device.type == "cuda").to(device)  # type: ignore[arg-type]
    compile_layers(model)
    stream = stream.to(device)

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        return [(rows,) for rows in crops(stream, step, args.seed, _step_tokens(device))]

    facts = train(model, batches, functools.partial(next_token_loss, model), seconds, args.rate, "target")
    return model.state_dict(), vars(facts)


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, stream: Tensor, length: int = 512, limit: int = 100_000) -> float:
    """Mean loss over the held-out stream in windows of `length`, nats per token."""
    model.eval()
    windows = stream[: min(limit, len(stream)) // length * length].view(-1, length)
    losses = [next_token_loss(model, rows).item() * len(rows) for rows in windows.split(8)]
    return sum(losses) / len(windows)


# --- the draft --------------------------------------------------------------------------------------------------------


def pool_of(target: LlamaForCausalLM, stream: Tensor, seconds: float, seed: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Run stage 3, for so many seconds.  -> texts (n, CONTINUED), the teacher's probabilities and ids for them, and how
    many of them the teacher wrote itself"""
    own = continuations(target, stream.unfold(0, PROMPT, 1), seconds, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    starts = torch.randint(0, len(stream) - CONTINUED, (TEXTS_PER_CONTINUATION * len(own),), generator=generator)
    texts = torch.cat([own, stream[starts[:, None] + torch.arange(CONTINUED)].long()])
    return (texts, *teacher_targets(target, texts), len(own))


def distil(
    args: argparse.Namespace,
    device: torch.device,
    seconds: float,
    target: LlamaForCausalLM,
    pool: tuple[Tensor, Tensor, Tensor, int],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Run stage 4.  -> the draft's weights, facts about its training"""
    *parts, n_own = pool
    texts, probs, ids = (part.to(device) for part in parts)
    draft = draft_from(target, args.seed).to(device)  # type: ignore[arg-type]
    compile_layers(draft)

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed((args.seed + 2) * 1_000_003 + step)
        # A third of every batch is the target's own writing, however large the rest of the pool is.
        n_rows = _step_tokens(device) // CONTINUED
        own = torch.randint(0, n_own, (n_rows // 3,), generator=generator)
        other = torch.randint(n_own, len(texts), (n_rows - n_rows // 3,), generator=generator)
        at_once = max(1, MICRO_BATCH_TOKENS.get(device.type, n_rows * CONTINUED) // CONTINUED)
        return [
            tuple(part[some] for part in (texts, probs, ids))
            for some in torch.cat([own, other]).to(device).split(at_once)
        ]

    facts = train(draft, batches, functools.partial(distillation_loss, draft), seconds, args.rate, "draft")
    return draft.state_dict(), vars(facts) | {"continuations": n_own, "texts": len(texts) - n_own, "length": CONTINUED}


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


def distillation_loss(draft: LlamaForCausalLM, texts: Tensor, probs: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy to the target's probabilities plus total variation, which is the share of samples rejected.

    texts (batch, length); probs and ids (batch, length, TEACHER_TOP)
    """
    draft_log_probs = draft(input_ids=texts, use_cache=False).logits.float().log_softmax(-1).gather(-1, ids.long())
    target_probs = probs.float()
    surprise = -(target_probs * draft_log_probs).sum(-1).mean()
    rejected = 1 - torch.minimum(target_probs, draft_log_probs.exp()).sum(-1).mean()
    return surprise + rejected


@torch.inference_mode()
def acceptance(target: LlamaForCausalLM, draft: LlamaForCausalLM, texts: Tensor) -> dict[str, float]:
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
