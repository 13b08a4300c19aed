"""Train the offline pair: a Llama-type target, and a draft distilled from it, on the sources of Python itself.

The pair that comes with the lab was made by this file. It needs no network and no GPU; more minutes give better text.
Four stages, each saved when done, so an interrupted run goes on where it stopped:

    tokenizer      byte-level BPE, one for both models
    target         plain next-token training on mixed lengths
    continuations  the target continues pieces of its own training text, greedily and by sampling
    draft          distillation: on those continuations and on text, towards the target's own probabilities

    python -m speclab.train_lab_pair --minutes 100                # on a CPU; progress on stderr
    python -m speclab.train_lab_pair --minutes 8 --device cuda --with-packages

The draft is distilled on what the target itself writes because that is where it will be asked to guess
(Zhou et al., DistillSpec, arXiv 2310.08461). The matrices are trained with Muon, the rest with AdamW.
"""

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from speclab import corpus

END = "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 4096
TARGET_SHAPE = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 704}
DRAFT_SHAPE = {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 1024}
# Share of the training steps at each sequence length. Short ones are cheap, long ones keep long texts together.
LENGTHS = {256: 0.80, 512: 0.15, 2048: 0.05}
MICRO_BATCH_TOKENS = 4096
SHARES = {"target": 0.75, "continuations": 0.07, "draft": 0.18}  # of --minutes


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
        ids += tokenizer(text).input_ids + [tokenizer.eos_token_id]
    return torch.tensor(ids)


class Schedule:
    """Learning-rate factor by share of the time spent: short warm-up, flat, linear decay over the last half."""

    def __init__(self, seconds: float, spent: float = 0.0):
        self.seconds, self.started = seconds, time.monotonic() - spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def done(self) -> bool:
        return self.spent >= self.seconds

    @property
    def factor(self) -> float:
        share = min(1.0, self.spent / self.seconds)
        return min(1.0, share / 0.02 + 0.02, max(0.02, (1.0 - share) / 0.5))


def optimizers(model: LlamaForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    chosen = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for optimizer in chosen:
        for group in optimizer.param_groups:
            group["initial_lr"] = rate
    return chosen


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
    step, tokens, spent = 0, 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for stepper, saved in zip(steppers, state["optimizers"], strict=True):
            stepper.load_state_dict(saved)
        step, tokens, spent = state["step"], state["tokens"], state["spent"]
    schedule = Schedule(minutes * 60, spent)
    saved_at, smooth, model_device = time.monotonic(), None, next(model.parameters()).device

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizers": [s.state_dict() for s in steppers],
            "step": step,
            "tokens": tokens,
            "spent": schedule.spent,
        }
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)

    model.train()
    bar = tqdm(total=round(minutes * 60), initial=round(spent), unit="s", desc=name, mininterval=10)
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
    return {"steps": step, "tokens": tokens, "seconds": round(schedule.spent, 1), "train_loss": round(smooth, 4)}


def crops(stream: Tensor, step: int, seed: int, batch_tokens: int) -> list[Tensor]:
    """The micro-batches of one step: random crops of one length.  -> list of (batch, length)

    A function of (seed, step) alone, so a resumed run sees what it would have seen.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    pick = torch.multinomial(torch.tensor(list(LENGTHS.values())), 1, generator=generator).item()
    length = list(LENGTHS)[pick]
    starts = torch.randint(0, len(stream) - length, (batch_tokens // length,), generator=generator)
    rows = stream[starts[:, None] + torch.arange(length)]  # (batch, length)
    return list(rows.split(max(1, MICRO_BATCH_TOKENS // length)))


def next_token_loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, nats.  tokens: (batch, length)"""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()  # (batch, length - 1, vocab)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


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


def train_target(args: argparse.Namespace, work: Path, stream: Tensor) -> tuple[LlamaForCausalLM, dict]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=100, help="time for everything (default: 100)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps (default: cpu)")
    parser.add_argument("--with-packages", action="store_true", help="also learn from installed permissive packages")
    parser.add_argument("--batch-tokens", type=int, default=8192, help="tokens per optimizer step (default: 8192)")
    parser.add_argument("--rate", type=float, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work-dir", type=Path, default=Path("build/lab-pair"), help="checkpoints")
    parser.add_argument("--out", type=Path, default=Path("build/lab-pair/out"), help="where the pair is written")
    args = parser.parse_args()

    work = args.work_dir
    work.mkdir(parents=True, exist_ok=True)
    documents = list(corpus.standard_library())
    if args.with_packages:
        documents += corpus.permissive_packages()
    training = [d.text for d in documents if not d.held_out]
    (work / "corpus.json").write_text(json.dumps(corpus.manifest(documents), indent=1))
    if not (work / "tokenizer").exists():
        train_tokenizer(iter(training)).save_pretrained(work / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    stream = encode(tokenizer, training)
    held_out = encode(tokenizer, [d.text for d in documents if d.held_out])
    print(f"{len(stream):,} tokens to train on, {len(held_out):,} held out", flush=True)

    target, facts = train_target(args, work, stream)
    print(facts, "held-out loss", held_out_loss(target, held_out), math.log(VOCABULARY))


if __name__ == "__main__":
    main()
