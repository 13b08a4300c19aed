"""How much does verification cost a model whose MLPs are mixtures of experts? Passes over several tokens, side by side.

The lab's target gets E copies of each MLP under a random router that uses K of them for a token: lab:SIZE:eEkK, with
the text of lab:SIZE. A pass over m tokens reads the union of the experts that they chose. The union is counted on real
texts, and stands beside E (1 - (1 - K/E)^m); what a pass should take follows from it and from the passes of lab:SIZE.
K copies do the work of K MLPs for one result, so a pass over one token costs more than that of lab:SIZE, too.

    python -m benchmarks.experts                                  # lab:200m:e8k2, minutes
    python -m benchmarks.experts --target lab:100m:e16k2 --widths 1,2,3,5,9

Files: results/NAME-experts.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import re
import statistics
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel

from baseline_autoregressive import autoregressive_decode
from benchmarks import common
from speclab.cli import flags, parsing
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import check_model
from speclab.models.padded.padding import check_memory
from speclab.models.setup import Setup, setup_of
from speclab.present.tables import Block, Cell, Lines, Table, number, percent
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import progress

TARGET = "lab:200m:e8k2"


@dataclass(kw_only=True)
class ExpertsPasses(RecordPart):
    """Passes over so many tokens of real texts: medians over texts and repeats."""

    width: Count
    union: Amount  # experts of a layer that the tokens touched, counted; mean over layers and texts
    expected: Amount  # E (1 - (1 - K/E)^m)
    seconds: Amount
    dense_seconds: Amount  # seconds of the model without experts
    predicted: Amount  # from dense_seconds and the counted union
    bytes_ratio: Amount  # bytes over those of a pass over one token, by the counted union


@dataclass(kw_only=True)
class ExpertsRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.experts`."""

    n_experts: Count
    n_used: Count
    context: Count
    n_texts: Count
    n_same: Count  # texts that are the same with experts and without
    passes: list[ExpertsPasses]


# --- the model ------------------------------------------------------------------------------------------------------


def count_added(model: PreTrainedModel, n_experts: int) -> int:
    config = model.config
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_hidden_layers * ((n_experts - 1) * mlp + n_experts * config.hidden_size)


@torch.no_grad()
def with_experts(model: PreTrainedModel, n_experts: int, n_used: int, seed: int = 0) -> PreTrainedModel:
    """The same model with a mixture of experts in place of each MLP, ready to decode: whatever a random router chooses,
    the layer says what the one MLP says. The weights move: `model` cannot be used afterwards.

    Raises EnvironmentProblem where memory does not hold the copies.
    """
    check_memory(f"e{n_experts}k{n_used}", count_added(model, n_experts), model.device, model.dtype)
    same = model.config.to_dict()
    del same["model_type"], same["architectures"]
    mixture = {"num_local_experts": n_experts, "num_experts_per_tok": n_used, "sliding_window": None}
    config = MixtralConfig(**same | mixture | {"dtype": model.dtype})
    config._attn_implementation = model.config._attn_implementation
    with torch.device("meta"):
        mixed = MixtralForCausalLM(config)
    generator = torch.Generator(model.device).manual_seed(seed)
    for layer, own in zip(mixed.model.layers, model.model.layers, strict=True):
        for name in ("self_attn", "input_layernorm", "post_attention_layernorm"):
            getattr(layer, name).load_state_dict(getattr(own, name).state_dict(), assign=True)
        gate_up = torch.cat([own.mlp.gate_proj.weight, own.mlp.up_proj.weight])
        router = torch.empty(n_experts, config.hidden_size, device=model.device, dtype=model.dtype)
        router.normal_(0.0, config.hidden_size**-0.5, generator=generator)
        copies = {
            "gate.weight": router,
            "experts.gate_up_proj": gate_up.repeat(n_experts, 1, 1),
            "experts.down_proj": own.mlp.down_proj.weight.repeat(n_experts, 1, 1),
        }
        layer.mlp.load_state_dict(copies, assign=True)
        del own.mlp  # of a large model only one layer is there twice
    for name in ("embed_tokens", "norm"):
        getattr(mixed.model, name).load_state_dict(getattr(model.model, name).state_dict(), assign=True)
    mixed.lm_head.load_state_dict(model.lm_head.state_dict(), assign=True)
    mixed.tie_weights()
    mixed.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)
    mixed.generation_config = copy.deepcopy(model.generation_config)
    return mixed.requires_grad_(False).eval()


# --- what a pass reads ------------------------------------------------------------------------------------------------


class Bytes(NamedTuple):
    """The bytes that a pass over one token of the model without experts reads, summed over all layers."""

    mlps: int
    others: int  # weights of attention and of the output layer
    places: int  # keys and values of the context


def expected_union(n_experts: int, n_used: int, n_tokens: int) -> float:
    """The number of experts that m tokens touch together, each choosing K of E evenly and anew."""
    return n_experts * (1 - (1 - n_used / n_experts) ** n_tokens)


def bytes_ratio(read: Bytes, n_used: int, union: float) -> float:
    """The bytes of a pass that touches `union` experts over those of a pass over one token, which touches `n_used`."""
    outside = read.others + read.places
    return (outside + union * read.mlps) / (outside + n_used * read.mlps)


def pass_seconds(widths: list[int], dense: list[float], read: Bytes, n_used: int, union: float, width: int) -> float:
    """The seconds of a pass over `width` tokens that touches `union` experts, from passes of the model without experts.

    widths, dense: passes over so many tokens, ascending, with their seconds. An expert is the MLP of that model and has
    n_used * width / union tokens of its own on average; of a pass's seconds the MLPs take their share of the bytes.
    """
    share = read.mlps / sum(read)
    expert_seconds = float(np.interp(n_used * width / union, widths, dense))
    return (1 - share) * float(np.interp(width, widths, dense)) + union * share * expert_seconds


# --- measuring --------------------------------------------------------------------------------------------------------


def texts_of(setup: Setup, n_texts: int, n_tokens: int) -> list[Tensor]:
    """Prompts with the target's continuation, (1, at least n_tokens) each."""
    found, encoded = [], prompts.encode(prompts.standard(), setup.tokenizer)
    for prompt in encoded[:: max(1, len(encoded) // n_texts)][:n_texts]:
        rounds = autoregressive_decode(
            setup.target.with_own_cache(), prompt.ids, DecodeSettings(max(1, n_tokens - prompt.ids.shape[1]))
        )
        found.append(torch.cat([prompt.ids, torch.tensor([tokens_of(rounds)])], dim=1))
    return found


def chosen_experts(model: CachedModel, text: Tensor, n_used: int) -> list[Tensor]:
    """The experts that each token of the text uses, (tokens, K) for every layer."""
    routed = model.model(text, output_router_logits=True).router_logits  # of every layer (tokens, E)
    return [logits.topk(n_used).indices for logits in routed]


def counted_union(chosen: list[Tensor], tokens: Tensor) -> float:
    """The number of experts that these tokens touch together, mean over layers."""
    return statistics.mean(layer[tokens].unique().numel() for layer in chosen)


def read_bytes(dense: CachedModel, context: int) -> Bytes:
    """The bytes that a pass over one token reads, without experts."""
    model, config = dense.model, dense.model.config
    itemsize = model.dtype.itemsize
    mlps = sum(weight.numel() for layer in model.model.layers for weight in layer.mlp.parameters())
    # The table of embeddings is read as the output layer; where it is not the same tensor, a pass reads one row of it.
    table = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    others = sum(weight.numel() for weight in model.parameters()) - mlps - table
    places = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * context
    return Bytes(mlps * itemsize, others * itemsize, places * itemsize)


def measure(
    mixed: Setup, dense: Setup, n_experts: int, n_used: int, widths: list[int], context: int, n_texts: int, repeats: int
) -> dict[str, Any]:
    n_tokens = context + widths[-1]
    texts, others = texts_of(dense, n_texts, n_tokens), texts_of(mixed, n_texts, n_tokens)
    read = read_bytes(dense.target, context)
    chosen = [chosen_experts(mixed.target, text[:, :n_tokens], n_used) for text in texts]
    passes = [(setup.target.with_own_cache(), width) for setup in (dense, mixed) for width in widths]
    seconds: list[list[float]] = [[] for _ in passes]
    with progress(len(texts), "text", "passes") as bar:
        for text in texts:
            found = common.time_passes(passes, context, repeats + 1, ids=text[:, :n_tokens])
            for all_, times in zip(seconds, found, strict=True):
                all_ += times[1:]
            bar.update()
    medians = [statistics.median(one) for one in seconds]
    of_dense, of_mixed = medians[: len(widths)], medians[len(widths) :]
    rows = []
    for width, own, without in zip(widths, of_mixed, of_dense, strict=True):
        union = statistics.mean(counted_union(one, torch.arange(context, context + width)) for one in chosen)
        rows.append(
            ExpertsPasses(
                width=width,
                union=union,
                expected=expected_union(n_experts, n_used, width),
                seconds=own,
                dense_seconds=without,
                predicted=pass_seconds(widths, of_dense, read, n_used, union, width),
                bytes_ratio=bytes_ratio(read, n_used, union),
            )
        )
    n_same = sum(torch.equal(one, other) for one, other in zip(texts, others, strict=True))
    about = {"n_experts": n_experts, "n_used": n_used, "context": context, "n_texts": len(texts), "n_same": n_same}
    return {**about, "passes": rows}


# --- showing ----------------------------------------------------------------------------------------------------------


def page(run: ExpertsRun) -> list[Block]:
    first = run.passes[0]
    cells: dict[str, Cell] = {
        "tokens": lambda p: str(p.width),
        "union": lambda p: number(p.union, 2),
        "formula": lambda p: number(p.expected, 2),
        "bytes": lambda p: number(p.bytes_ratio, 2),
        "pass": lambda p: number(p.seconds / first.seconds, 2),
        "dense pass": lambda p: number(p.dense_seconds / first.dense_seconds, 2),
        "ms": lambda p: number(1e3 * p.seconds, 1),
        "predicted": lambda p: number(1e3 * p.predicted, 1),
        "error": lambda p: percent(p.predicted / p.seconds - 1),
    }
    legend = [
        f"Texts that are the same with experts and without: {run.n_same} of {run.n_texts}.",
        "union is the number of experts of a layer that the pass touched, counted, mean over layers and texts. formula "
        f"is E (1 - (1 - K/E)^m) with E = {run.n_experts}, K = {run.n_used}, for tokens that choose evenly and anew.",
        "bytes, pass and dense pass are ratios to a pass over one token. dense is the model without experts; bytes "
        "follows from the counted union. predicted is in milliseconds, from the passes without experts and the counted "
        "union; error compares it with ms.",
    ]
    return [
        *common.begin("What verification costs with mixtures of experts", run),
        Table(run.passes, cells),
        Lines(legend),
    ]


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    parser.set_defaults(target=TARGET)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--widths", default="1,2,3,5,7,9", metavar="M,M", help="tokens of a pass (default: %(default)s)")
    group.add_argument("--context", type=parsing.at_least(1), default=192, help="tokens in the cache (default: 192)")
    group.add_argument("--n-texts", type=parsing.at_least(1, 30), default=6, help="how many (default: 6)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=7, help="passes of each on a text (default: 7)")
    common.add_result_flags(parser, "experts")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args: argparse.Namespace = make_parser().parse_args(argv)
    widths = sorted({1, *parsing.numbers(args.widths, int, 1, "--widths")})
    name = re.fullmatch(r"(lab:\w+(?::v\d+)?):e(\d{1,3})k(\d{1,3})", args.target)
    n, n_used = (int(name[2]), int(name[3])) if name else (0, 0)
    if not name or not 1 <= n_used <= n >= 2:
        raise UsageProblem(f"--target {args.target} has no experts of the lab's own; give one such as {TARGET}")
    common.check_result_flags(args)
    dense_args = copy.copy(args)
    dense_args.target = name[1]
    dense = flags.setup_from(dense_args)
    model = with_experts(loading.load_model(name[1], dense.device, dense.dtype), n, n_used)
    check_model(model)
    mixed = setup_of(model, dense.tokenizer, args.target, dense.sampling, dense.engine)
    if mixed.engine != dense.engine:
        dense.target.fast, dense.why_engine = None, "as the target with experts"
    common.check_room(mixed.target, args.context, widths[-1])
    with torch.inference_mode():
        measured = measure(mixed, dense, n, n_used, widths, args.context, args.n_texts, args.repeats)
    return common.finish(args, ExpertsRun(**common.head_of(args, mixed, repeats=args.repeats), **measured), page)


if __name__ == "__main__":
    sys.exit(main())
