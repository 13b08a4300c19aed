"""What does verification cost a mixture of experts? A pass over more tokens reads more of its weights.

A pass over m tokens reads, in each layer, all experts that any of them chose. A Mixtral with random weights, as the
library runs it, stands for larger models. On texts of the lab its experts are counted, beside E (1 - (1 - K/E)^m): that
many are chosen by m tokens that each choose K of E evenly and anew. What a pass should take follows from the counted
experts and from passes of models with one expert and with two that every token uses: their difference is the price of
an expert. It stands beside what the pass takes. Random weights say nothing of acceptance, and a trained router may
choose otherwise; bytes and seconds of a given choice are the same.

    python -m benchmarks.experts                                 # 8 experts, 2 for each token: a minute
    python -m benchmarks.experts --experts 16 --used 4 --widths 1,3,5
    python -m benchmarks.experts --quick

Files: results/NAME-experts.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel

from benchmarks import common, roofline
from speclab.cli import flags, parsing
from speclab.core.sampling import GREEDY
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from speclab.models.checks import check_model
from speclab.models.memory import weights_read
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Lines, Table, number
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress

WIDTH, HEADS, UNITS = 512, 8, 1536  # of the model, and of an expert
USUAL = {"layers": 8, "n_texts": 6, "repeats": 7, "widths": "1,2,3,5,7,9", "context": 128}
QUICK = USUAL | {"layers": 2, "n_texts": 2, "repeats": 3, "widths": "1,3,5"}

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ExpertsPass(RecordPart):
    """Passes over so many tokens: means of counts over texts and layers, medians of seconds over texts and repeats."""

    width: Count
    union: Amount  # experts of a layer that the tokens chose, counted
    expected: Amount  # E (1 - (1 - K/E)^m)
    bytes: Amount
    seconds: Amount
    one_seconds: Amount  # of the model with one expert
    two_seconds: Amount  # of that with two, both of which every token uses
    predicted: Amount  # seconds


@dataclass(kw_only=True)
class ExpertsRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.experts`."""

    n_experts: Count
    n_used: Count
    parameters: Count
    expert_bytes: Count  # of one expert in every layer
    other_bytes: Count  # of the other weights that a pass reads
    passes: list[ExpertsPass]


# --- the model, and what a pass reads ---------------------------------------------------------------------------------


def mixtral(n_experts: int, n_used: int, n_layers: int, n_ids: int, n_tokens: int) -> Any:
    config = MixtralConfig(
        vocab_size=n_ids,
        hidden_size=WIDTH,
        intermediate_size=UNITS,
        num_hidden_layers=n_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        num_local_experts=n_experts,
        num_experts_per_tok=n_used,
        max_position_embeddings=n_tokens + 64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MixtralForCausalLM(config).eval().requires_grad_(False)
        model.model.embed_tokens.weight.normal_()  # far larger than usual: else all tokens look alike to a router
    return model


@torch.inference_mode()
def chosen_experts(model: PreTrainedModel, text: Tensor) -> Tensor:
    """Return the experts that each token of a text uses.  (1, n) ids -> (layers, n, K)"""
    logits = model(text.to(model.device), output_router_logits=True).router_logits  # of each layer, (n, E)
    return torch.stack(logits).topk(model.config.num_experts_per_tok).indices


def loads_of(chosen: Tensor) -> list[list[int]]:
    """Return, for each layer, how many of some tokens each expert gets that any of them uses.  (layers, m, K)"""
    return [layer.unique(return_counts=True)[1].tolist() for layer in chosen]


def expected_union(n_experts: int, n_used: int, n_tokens: int) -> float:
    return n_experts * (1 - (1 - n_used / n_experts) ** n_tokens)


def bytes_of(model: PreTrainedModel) -> tuple[int, int]:
    """Return the bytes of one expert in every layer, and of the other weights that a pass reads."""
    stacked = [weight for name, weight in model.named_parameters() if ".experts." in name]  # (E, ..., ...) each
    return sum(w[0].nbytes for w in stacked), weights_read(model)[1] - sum(w.nbytes for w in stacked)


def predict(widths: list[int], one: list[float], two: list[float], loads: list[list[int]], width: int) -> float:
    """Return the seconds of a pass over `width` tokens, the mean over layers with these tokens of each expert.

    widths, one, two: passes over so many tokens, ascending, and their seconds with one expert and with two that all
    tokens use. Their difference is what an expert takes in all layers for its own tokens.
    """
    expert = np.subtract(two, one)
    others = np.interp(width, widths, one - expert)
    return float(others + np.mean([np.interp(load, widths, expert).sum() for load in loads]))


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, models: list[CachedModel], texts: list[Tensor]) -> dict[str, Any]:
    """models: with several experts, with one, and with two that every token uses. texts: (1, context + the largest
    width) ids each."""
    model, widths = models[0].model, args.widths
    chosen = [chosen_experts(model, text)[:, args.context :] for text in texts]
    took = []  # of each text and model, for each width, the seconds of its repeats
    with progress(len(texts), "text", "passes") as bar:
        for text in texts:
            took.append([roofline.time_passes(cached, text, widths, args.repeats) for cached in models])
            bar.update()
    own, one, two = np.median(took, axis=(0, 3)).tolist()
    expert, others = bytes_of(model)
    rows = []
    for width, *seconds in zip(widths, own, one, two, strict=True):
        loads = [load for experts in chosen for load in loads_of(experts[:, :width])]
        union = statistics.mean(map(len, loads))
        rows.append(
            ExpertsPass(
                width=width,
                union=union,
                expected=expected_union(args.experts, args.used, width),
                bytes=union * expert + others + roofline.cache_bytes(model, args.context + width),
                seconds=seconds[0],
                one_seconds=seconds[1],
                two_seconds=seconds[2],
                predicted=predict(widths, one, two, loads, width),
            )
        )
    about = {"n_experts": args.experts, "n_used": args.used, "parameters": sum(p.numel() for p in model.parameters())}
    return {**about, "expert_bytes": expert, "other_bytes": others, "passes": rows}


# --- showing ----------------------------------------------------------------------------------------------------------


LEGEND = [
    "experts: how many of a layer a pass over m tokens reads, counted, the mean over layers and texts. formula: "
    "E (1 - (1 - K/E)^m), the number that m tokens choose together where each chooses K of E evenly and anew.",
    "MB: the counted experts, all other weights and the cache. predicted: milliseconds that follow from the counted "
    "experts, and from passes of models with one expert and with two that all tokens use. error is predicted / "
    "measured - 1. Columns with ÷ are ratios to a pass over one token; 1 expert is the price of width alone.",
]


def page(run: ExpertsRun) -> list[Block]:
    first = run.passes[0]
    cells: dict[str, Cell] = {
        "m": lambda one: str(one.width),
        "experts": lambda one: number(one.union),
        "formula": lambda one: number(one.expected),
        "MB": lambda one: number(one.bytes / 1e6, 0),
        "÷": lambda one: number(one.bytes / first.bytes),
        "ms": lambda one: number(1e3 * one.seconds, 1),
        "ms ÷": lambda one: number(one.seconds / first.seconds),
        "predicted": lambda one: number(1e3 * one.predicted, 1),
        "error": lambda one: f"{one.predicted / one.seconds - 1:+.0%}",
        "1 expert ÷": lambda one: number(one.one_seconds / first.one_seconds),
    }
    about = f"{run.settings['target']}: {run.n_experts} experts of {run.expert_bytes / 1e6:.0f} MB over all layers, of "
    about += f"which each token uses {run.n_used}, and {run.other_bytes / 1e6:.0f} MB of other weights in each pass"
    title = "What verification costs a mixture of experts"
    return [*common.begin(title, run), about, Table(run.passes, cells, n_words=0), Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    group = parser.add_argument_group("benchmark")
    group.add_argument(
        "--experts", type=parsing.at_least(2, 32), default=8, metavar="E", help="in a layer (default: 8)"
    )
    group.add_argument("--used", type=parsing.at_least(1), default=2, metavar="K", help="of a token (default: 2)")
    group.add_argument("--widths", metavar="M,M", help="tokens of a pass (default: 1,2,3,5,7,9)")
    group.add_argument("--device", choices=flags.DEVICES, default="auto", metavar="NAME", help=", ".join(flags.DEVICES))
    group.add_argument("--threads", type=parsing.at_least(1, 1024), metavar="N", help="CPU threads")
    group.add_argument("--quick", action="store_true", help="2 layers, 2 texts, 3 widths")
    common.add_result_flags(parser, "experts")
    parser.set_defaults(seed=0)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    args = flags.with_defaults(args, QUICK if args.quick else USUAL)
    args.widths = sorted({1, *parsing.numbers(args.widths, int, 1, "--widths", 64)})
    if args.used > args.experts:
        what = f"a token cannot use {args.used} of {args.experts} experts"
        raise UsageProblem(f"{what}; give --used {args.experts} or less")
    output, device = common.check_result_flags(args), loading.choose_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    tokenizer, n_tokens = loading.load_tokenizer(loading.LAB_TARGET), args.context + args.widths[-1]
    ids = torch.cat([prompt.ids for prompt in prompts.encode(prompts.standard(), tokenizer)], dim=1)
    pieces = ids.unfold(1, n_tokens, n_tokens)[0]
    texts = pieces[:: len(pieces) // args.n_texts][: args.n_texts].split(1)  # evenly chosen
    sizes = (args.layers, len(tokenizer), n_tokens)
    shapes = [(args.experts, args.used), (1, 1), (2, 2)]
    models = [CachedModel(mixtral(*shape, *sizes).to(device)) for shape in shapes]
    check_model(models[0].model)
    name = f"random Mixtral, {args.layers} layers"
    setup = Setup(models[0], tokenizer, name, GREEDY, device, torch.float32, "mixtral runs eagerly")
    note(setup.describe())
    measured = measure(args, models, list(texts))
    settings = {name: getattr(args, name) for name in USUAL}
    common.finish(output, ExpertsRun(**common.head_of(args, setup, **settings), **measured), page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
