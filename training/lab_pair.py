"""Train the offline pair: a Llama-type target, and a draft distilled from it, on the sources of Python itself.

The pair that comes with the lab was made by this file. It needs no network and no GPU; more minutes give better text.
Four stages, each saved when done, so an interrupted run goes on where it stopped:

    tokenizer      byte-level BPE, one for both models
    target         plain next-token training on mixed lengths
    continuations  the target continues pieces of its own training text, greedily and by sampling
    draft          distillation: on those continuations and on text, towards the target's own probabilities

    python -m training.lab_pair --minutes 125                # on a CPU; progress on stderr
    python -m training.lab_pair --minutes 8 --device cuda --with-packages

The draft is distilled on what the target itself writes because that is where it will be asked to guess
(Zhou et al., DistillSpec, arXiv 2310.08461). The matrices are trained with Muon, the rest with AdamW.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import contextlib
import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from speclab.cli import parsing
from speclab.lab import corpus
from speclab.lab.training import LENGTHS, crops, next_token_loss, optimizers
from speclab.models import loading
from speclab.records import files
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import check_writable, do_all, prepare_folder, whole_folders, write_whole
from speclab.system.terminal import note, progress_bar, say

END = "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 4096
TARGET_SHAPE = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 704}
DRAFT_SHAPE = {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 1024}
PROMPT, CONTINUED = 48, 256  # tokens of text that a continuation starts from, and its length with them
TEACHER_TOP = 32  # probabilities kept of the target's distribution at each place
TEXTS_PER_CONTINUATION = 6  # pieces of plain text in the draft's pool for each continuation
# Of --minutes; the rest is the teacher's pass over the pool, and reports.
SHARES = {"target": 0.62, "continuations": 0.05, "draft": 0.21}


def llama(shape: dict) -> LlamaForCausalLM:
    """A random Llama of the lab's family: heads of 64, rotary positions, embeddings tied to the output."""
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
        # Eager attention, compiled: on a CPU it trains half as fast again as the library's fused kernel in bfloat16.
        attn_implementation="eager",
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


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """All texts in one stream of ids, each ended by id 0.  -> (tokens,)"""
    ids = []
    for text in texts:
        ids += [*tokenizer(text).input_ids, tokenizer.eos_token_id]
    return torch.tensor(ids)


class Schedule:
    """Learning-rate factor by share of the time spent: short warm-up, flat, linear decay over the last half."""

    def __init__(self, seconds: float, spent: float = 0.0):
        self.seconds, self.started = seconds, time.monotonic() - spent

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.started

    @property
    def done(self) -> bool:
        """Whether the time is over."""
        return self.spent >= self.seconds

    @property
    def factor(self) -> float:
        """What the peak learning rate is multiplied by now."""
        share = min(1.0, self.spent / self.seconds)
        return min(1.0, share / 0.02 + 0.02, max(0.02, (1.0 - share) / 0.5))


def fit(
    model: LlamaForCausalLM,
    batches: Callable[[int], list],
    loss_of: Callable[[object], Tensor],
    minutes: float,
    checkpoint: Path,
    rate: float,
    name: str,
) -> dict:
    """Train for `minutes`; `batches(step)` gives the micro-batches of a step. Resumes from `checkpoint`.

    Returns {"steps", "tokens", "seconds"}. `loss_of(micro_batch)` is the mean loss in nats per token.
    """
    steppers = optimizers(model, rate)
    step, tokens, spent, smooth = 0, 0, 0.0, None
    if checkpoint.exists():
        with _readable(checkpoint):
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            for stepper, saved in zip(steppers, state["optimizers"], strict=True):
                stepper.load_state_dict(saved)
            step, tokens, spent, smooth = state["step"], state["tokens"], state["spent"], state.get("loss")
    schedule = Schedule(minutes * 60, spent)
    saved_at, model_device = time.monotonic(), next(model.parameters()).device

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizers": [s.state_dict() for s in steppers],
            "step": step,
            "tokens": tokens,
            "spent": schedule.spent,
            "loss": smooth,
        }
        _save_tensors(checkpoint, state)
        if bar.disable and smooth is not None:  # no terminal: a line now and then
            note(f"{name}: step {step}, loss {smooth:.3f}, {schedule.spent / 60:.0f} of {minutes:.0f} min")

    model.train()
    bar = progress_bar(total=round(minutes * 60), initial=round(spent), unit="s", desc=name, mininterval=10)
    while not schedule.done:
        micro_batches = batches(step)
        total = 0.0
        for micro in micro_batches:
            with torch.autocast(model_device.type, dtype=torch.bfloat16):
                loss = loss_of(micro)
            (loss / len(micro_batches)).backward()
            total += loss.item() / len(micro_batches)
            tokens += (micro[0] if isinstance(micro, tuple) else micro).numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = group["initial_lr"] * schedule.factor
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        step += 1
        smooth = total if smooth is None else 0.95 * smooth + 0.05 * total
        bar.n = min(bar.total, round(schedule.spent))
        bar.set_postfix_str(f"step {step}, loss {smooth:.3f}, {tokens / schedule.spent:.0f} tok/s")
        if time.monotonic() - saved_at > 240:
            save()
            saved_at = time.monotonic()
    bar.close()
    save()
    return {
        "steps": step,
        "tokens": tokens,
        "seconds": round(schedule.spent, 1),
        "train_loss": smooth and round(smooth, 4),
    }


def _save_tensors(path: Path, tensors: object) -> None:
    """torch.save, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    write_whole(path, buffer.getvalue())


@contextlib.contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    """What is wrong with a checkpoint is one line: damaged, or of a model of another shape."""
    try:
        yield
    except Exception as error:  # each layer below raises its own kinds
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EnvironmentProblem(
            f"cannot go on from {checkpoint}: {why}; delete it, or use another --work-dir"
        ) from None


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, stream: Tensor, length: int = 512, limit: int = 100_000) -> float:
    """Mean loss over the held-out stream in windows of `length`, nats per token."""
    model.eval()
    windows = stream[: min(limit, len(stream)) // length * length].view(-1, length)
    device = next(model.parameters()).device
    losses = [next_token_loss(model, rows.to(device)).item() * len(rows) for rows in windows.split(8)]
    return sum(losses) / len(windows)


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compile each layer in place where a compiler is at hand; all layers share one compiled body per shape."""
    if shutil.which("g++") or shutil.which("clang++"):
        torch._dynamo.config.cache_size_limit = 64
        for layer in model.model.layers:
            layer.compile(dynamic=False)


@torch.inference_mode()
def continuations(target: LlamaForCausalLM, stream: Tensor, minutes: float, seed: int, rows: int = 64) -> Tensor:
    """What the target writes after pieces of its training text, for as long as `minutes` allow.  -> (n, length) ids

    A third greedily, two thirds sampled at temperatures 0.8 and 1: the draft will be asked to guess in both.
    """
    target.eval()
    device = next(target.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    temperatures = torch.tensor([1e-4, 0.8, 1.0], device=device).repeat(rows)[:rows, None]  # (rows, 1)
    written, schedule = [], Schedule(minutes * 60)
    with progress_bar(total=round(minutes * 60), unit="s", desc="continuations", mininterval=10) as bar:
        while not schedule.done:
            starts = torch.randint(0, len(stream) - PROMPT, (rows,), generator=generator)
            text = stream[starts[:, None] + torch.arange(PROMPT)].to(device)  # (rows, PROMPT)
            cache, feed = DynamicCache(config=target.config), text
            while text.shape[1] < CONTINUED:
                logits = target(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
                feed = (logits.float() / temperatures).softmax(-1).multinomial(1)  # (rows, 1)
                text = torch.cat([text, feed], dim=1)
            written.append(text.cpu())
            bar.n = min(bar.total, round(schedule.spent))
            bar.set_postfix_str(f"{len(written) * rows} texts")
    return torch.cat(written)


@torch.inference_mode()
def teacher_targets(target: LlamaForCausalLM, texts: Tensor) -> tuple[Tensor, Tensor]:
    """The target's most probable next tokens.  (n, length) -> probabilities and ids, (n, length, TEACHER_TOP) each"""
    target.eval()
    device, probs, ids = next(target.parameters()).device, [], []
    for rows in progress_bar(texts.split(16), desc="teacher", mininterval=10):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = target(input_ids=rows.to(device), use_cache=False).logits
        top = logits.float().softmax(-1).topk(TEACHER_TOP, dim=-1)
        probs.append((top.values / top.values.sum(-1, keepdim=True)).half().cpu())
        ids.append(top.indices.short().cpu())
    return torch.cat(probs), torch.cat(ids)


def distillation_loss(draft: LlamaForCausalLM, texts: Tensor, probs: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy to the target's probabilities plus total variation, which is the share of samples refused.

    texts (batch, length); probs and ids (batch, length, TEACHER_TOP)
    """
    log_q = draft(input_ids=texts, use_cache=False).logits.float().log_softmax(-1).gather(-1, ids.long())
    p = probs.float()
    surprise = -(p * log_q).sum(-1).mean()
    refused = 1 - torch.minimum(p, log_q.exp()).sum(-1).mean()
    return surprise + refused


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
        p, q = (m.eval()(input_ids=rows, use_cache=False).logits[:, PROMPT - 1 : -1].float() for m in (target, draft))
        agree += (p.argmax(-1) == q.argmax(-1)).sum().item()
        overlap += torch.minimum(p.softmax(-1), q.softmax(-1)).sum().item()
        places += p.shape[0] * p.shape[1]
    return {"greedy_agreement": round(agree / places, 4), "overlap_at_temperature_1": round(overlap / places, 4)}


def distil(args: argparse.Namespace, work: Path, target: LlamaForCausalLM, stream: Tensor) -> tuple:
    """Stages 3 and 4.  -> draft, facts about its training"""
    minutes = {stage: args.minutes * share for stage, share in SHARES.items()}
    pool_file = work / "pool.pt"
    if not pool_file.exists():
        own = continuations(target, stream, minutes["continuations"], args.seed)
        generator = torch.Generator().manual_seed(args.seed + 1)
        starts = torch.randint(0, len(stream) - CONTINUED, (TEXTS_PER_CONTINUATION * len(own),), generator=generator)
        texts = torch.cat([own, stream[starts[:, None] + torch.arange(CONTINUED)]])  # (n, CONTINUED)
        _save_tensors(pool_file, (texts, *teacher_targets(target, texts), len(own)))
    with _readable(pool_file):
        texts, probs, ids, n_own = torch.load(pool_file, weights_only=True)
    draft = draft_from(target, args.seed).to(args.device)
    compile_layers(draft)

    def batches(step: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        generator = torch.Generator().manual_seed((args.seed + 2) * 1_000_003 + step)
        # A third of every batch is the target's own writing, however large the rest of the pool is.
        n_rows = args.batch_tokens // CONTINUED
        own = torch.randint(0, n_own, (n_rows // 3,), generator=generator)
        other = torch.randint(n_own, len(texts), (n_rows - n_rows // 3,), generator=generator)
        rows = torch.cat([own, other])
        return [tuple(part[rows].to(args.device) for part in (texts, probs, ids))]

    facts = fit(
        draft,
        batches,
        lambda micro: distillation_loss(draft, *micro),
        minutes["draft"],
        work / "draft.pt",
        args.rate,
        "draft",
    )
    return draft, facts | {"continuations": n_own, "texts": len(texts) - n_own, "length": CONTINUED}


def train_target(args: argparse.Namespace, work: Path, stream: Tensor) -> tuple[LlamaForCausalLM, dict]:
    """Stage 2.  -> target, facts about its training"""
    torch.manual_seed(args.seed)
    model = llama(TARGET_SHAPE).to(args.device)
    compile_layers(model)
    facts = fit(
        model,
        lambda step: [rows.to(args.device) for rows in crops(stream, step, args.seed, args.batch_tokens)],
        lambda rows: next_token_loss(model, rows),
        args.minutes * SHARES["target"],
        work / "target.pt",
        args.rate,
        "target",
    )
    return model, facts


def uncompiled(model: LlamaForCausalLM, shape: dict) -> LlamaForCausalLM:
    """The same weights in a plain module on the CPU."""
    plain = llama(shape)
    plain.load_state_dict(model.state_dict())
    return plain.eval()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> LlamaForCausalLM:
    """Write bfloat16 safetensors and the tokenizer; returns the model as a user will load it."""
    try:
        model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="14MB")
        tokenizer.save_pretrained(folder)
    except Exception as error:  # each library below raises its own kinds; a full disk is the usual one
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EnvironmentProblem(
            f"cannot write the weights: {why}; free some space and type the command again"
        ) from None
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--minutes", type=parsing.positive, default=125, help="time for everything (default: 125)")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="(default: cpu)")
    parser.add_argument("--with-packages", action="store_true", help="also learn from installed permissive packages")
    parser.add_argument(
        "--batch-tokens",
        type=parsing.at_least(max(LENGTHS), 2**24),
        default=8192,
        help="tokens per optimizer step (default: 8192)",
    )
    parser.add_argument("--rate", type=parsing.positive, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="(default: 0)")
    parser.add_argument("--work-dir", type=parsing.some_path, default=Path("build/lab-pair"), help="checkpoints")
    parser.add_argument(
        "--out", type=parsing.some_path, default=Path("build/lab-pair/out"), help="gets the pair when it is complete"
    )
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Train the pair.  -> exit code"""
    args = make_parser().parse_args(argv)
    args.device = str(loading.choose_device(args.device)[0])
    work = args.work_dir
    prepare_folder(work, "--work-dir")
    check_writable(args.out / "training.json", "--out")

    documents = list(corpus.standard_library())
    if args.with_packages:
        documents += corpus.permissive_packages()
    training = [d.text for d in documents if not d.held_out]
    if not (work / "tokenizer").exists():
        with whole_folders(work / "tokenizer") as (folder,):
            train_tokenizer(iter(training)).save_pretrained(folder)
    with _readable(work / "tokenizer"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    stream = encode(tokenizer, training)
    held_out = encode(tokenizer, [d.text for d in documents if d.held_out])
    note(f"{len(stream):,} tokens to train on, {len(held_out):,} held out")

    target, target_facts = train_target(args, work, stream)
    target = uncompiled(target, TARGET_SHAPE).to(args.device)
    draft, draft_facts = distil(args, work, target, stream)

    # Both models take their places together, after everything that can fail.
    with whole_folders(args.out / "target", args.out / "draft") as (target_folder, draft_folder):
        target = save(target.cpu(), tokenizer, target_folder)
        draft = save(uncompiled(draft, DRAFT_SHAPE), tokenizer, draft_folder)
        fresh = continuations(target, held_out, 0.2, args.seed + 7, rows=24)
        facts = {
            "corpus": corpus.manifest(documents),
            "tokens": {"training": len(stream), "held_out": len(held_out), "vocabulary": VOCABULARY},
            "target": {"shape": TARGET_SHAPE, "parameters": target.num_parameters(), **target_facts},
            "draft": {"shape": DRAFT_SHAPE, "parameters": draft.num_parameters(), **draft_facts},
            "held_out_loss": {
                "target": round(held_out_loss(target, held_out), 4),
                "draft": round(held_out_loss(draft, held_out), 4),
            },
            "acceptance_on_held_out_continuations": acceptance(target, draft, fresh),
            "seed": args.seed,
            "machine": asdict(files.machine(torch.device(args.device))),
            "versions": asdict(files.versions()),
        }
    found = {key: facts[key] for key in ("held_out_loss", "acceptance_on_held_out_continuations")}
    return do_all(
        [
            lambda: write_whole(args.out / "training.json", json.dumps(facts, indent=1) + "\n"),
            lambda: say(json.dumps(found)),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
