"""The training of a small causal language model: optimizers, batches, the loss, and the loop."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import PreTrainedModel

from speclab.models.memory import free_memory
from speclab.system.errors import EnvironmentProblem

# Share of the training steps at each sequence length. Short ones are cheap, long ones keep long texts together.
LENGTHS = {256: 0.80, 512: 0.15, 2048: 0.05}
MANY_TOKENS, FEW_TOKENS = 32768, 4096  # what a pass trains on at once, on a GPU and elsewhere
BY_ROW = ("lm_head", "markov")  # matrices with a row for each id, as embeddings are
FREE = 1 / 6  # share of a GPU's free memory for what is done at once


def at_once(device: torch.device, few: int, many: int, size: int) -> int:
    """Return how many things are done at once, at least one.

    On a CPU these are `few`, as twice as many take twice as long. A GPU starts some thousand kernels for a pass, which
    takes about as long for one as for thousands, so there as many as its memory has room for, and at most `many`.
    size: the bytes of one.
    """
    return max(1, min(many, int(FREE * (free_memory(device) or 0)) // size)) if device.type == "cuda" else few


def optimizers(model: nn.Module, rate: float, adamw_share: float = 1.0) -> list[torch.optim.Optimizer]:
    """Make the optimizers: Muon for the layers' matrices, AdamW for embeddings, norms and an output layer of its own.

    rate: the peak learning rate. adamw_share: the rate of AdamW, as a share of it.
    """
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    tables |= {id(weight) for name, weight in trained if any(word in name for word in BY_ROW)}
    matrices: list[Tensor] = [weight for _, weight in trained if weight.ndim == 2 and id(weight) not in tables]
    others = [weight for _, weight in trained if not any(weight is matrix for matrix in matrices)]
    return [
        Muon(matrices, rate),
        torch.optim.AdamW(others, lr=adamw_share * rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


class Muon(torch.optim.Optimizer):
    """Takes steps along orthogonal matrices (Jordan et al., 2024), as large as those of AdamW (arXiv 2502.16982).

    PyTorch's own multiplies in bfloat16: on a CPU without such products it took 3.4 s for a step of a draft.
    """

    def __init__(self, matrices: list[Tensor], rate: float):
        super().__init__(matrices, {"lr": rate})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in (one for one in group["params"] if one.grad is not None):
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 0.05)
                update = matrix.grad.lerp(momentum, 0.95)
                x = (update.T if update.shape[0] > update.shape[1] else update) / update.norm().clamp(min=1e-7)
                for _ in range(5):  # Newton and Schulz: the singular values of x go to 1
                    square = x @ x.T
                    x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
                matrix.mul_(1 - 0.05 * group["lr"])
                matrix.sub_(0.2 * max(x.shape) ** 0.5 * group["lr"] * (x if x.shape == update.shape else x.T))


def crops(stream: Tensor, step: int, seed: int, batch_tokens: int) -> list[Tensor]:
    """Return the micro-batches of one step: random crops of one length.  -> list of (batch, length)

    A function of (seed, step) alone. The crops are where the stream is.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    pick = torch.multinomial(torch.tensor(list(LENGTHS.values())), 1, generator=generator)[0]
    length = list(LENGTHS)[int(pick)]
    starts = torch.randint(0, len(stream) - length, (batch_tokens // length,), generator=generator)
    places = starts[:, None] + torch.arange(length)
    rows = stream[places.to(stream.device)]  # (batch, length)
    return list(rows.split((MANY_TOKENS if stream.device.type == "cuda" else FEW_TOKENS) // length))


def next_token_loss(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token, nats.  tokens: (batch, length), on any device"""
    tokens = tokens.to(model.device).long()
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()  # (batch, length - 1, vocab)
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@dataclass
class TrainingFacts:
    """The progress of a training. Losses are in nats per token; a draft's have shares of rejected samples in them. The
    last one is a running mean over some ten steps."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first_loss: float | None = None
    last_loss: float | None = None


def train(
    model: nn.Module,
    batches: Callable[[int], list[tuple[Tensor, ...]]],
    loss_of: Callable[..., Tensor],
    seconds: float,
    rate: float,
    name: str,
    adamw_share: float = 1.0,
    after: Callable[[TrainingFacts], None] | None = None,
) -> TrainingFacts:
    """Train for `seconds`, at least one step.

    batches: step -> its micro-batches, tuples of tensors of which the first holds the tokens.
    loss_of: called with such a tuple's tensors, gives the mean loss in nats per token.
    rate, adamw_share: as for `optimizers`. name: of the progress bar.
    after: is called after each step. What it does takes from the time.
    """
    steppers, peaks = optimizers(model, rate, adamw_share), (rate, adamw_share * rate)
    facts, start = TrainingFacts(), time.monotonic()
    model.train()
    with tqdm(total=round(seconds), unit="s", desc=name, disable=None) as bar, torch.enable_grad():
        while facts.seconds < seconds:
            micro_batches = batches(facts.steps)
            factor = learning_rate_factor(facts.seconds / seconds)
            loss = _gradients(model, micro_batches, loss_of).item()
            if not math.isfinite(loss):
                raise EnvironmentProblem(
                    f"{name}: the loss is not finite at step {facts.steps}; type the command again with a smaller "
                    f"--rate"
                )
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for stepper, peak in zip(steppers, peaks, strict=True):
                for group in stepper.param_groups:
                    group["lr"] = peak * factor
                stepper.step()
            facts.first_loss = loss if facts.first_loss is None else facts.first_loss
            facts.last_loss = loss if facts.last_loss is None else 0.9 * facts.last_loss + 0.1 * loss
            facts.steps += 1
            facts.tokens += sum(tokens.numel() for tokens, *_ in micro_batches)
            facts.seconds = time.monotonic() - start
            bar.set_postfix_str(f"step {facts.steps}, loss {facts.last_loss:.3f}")
            bar.update(min(bar.total, round(facts.seconds)) - bar.n)
            if after:
                after(facts)
    return facts


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the type in which a training multiplies: bfloat16; on a CPU without products of bfloat16 float32."""
    is_slow = device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported()
    return torch.float32 if is_slow else torch.bfloat16


def learning_rate_factor(share: float) -> float:
    """Return the factor by the share of the time that is spent: a short warm-up, flat, linear decay over the last
    half."""
    return min(1.0, share / 0.02 + 0.02, max(0.02, 2 * (1 - share)))


def _gradients(model: nn.Module, micro_batches: list[tuple[Tensor, ...]], loss_of: Callable[..., Tensor]) -> Tensor:
    """Compute the gradients of one step, from zero. -> mean loss of the micro-batches, on the device"""
    device = next(model.parameters()).device
    total = torch.zeros((), device=device)
    n_tokens = sum(tokens.numel() for tokens, *_ in micro_batches)  # the last micro-batch may have fewer
    model.zero_grad(set_to_none=True)
    for micro_batch in micro_batches:
        with torch.autocast(device.type, torch.bfloat16, product_dtype(device) == torch.bfloat16):
            loss = loss_of(*micro_batch) * (micro_batch[0].numel() / n_tokens)
        loss.backward()
        total += loss.detach()
    return total
