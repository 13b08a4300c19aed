"""Train a draft that reads its target's hidden states: `python -m training.drafts KIND`.

    python -m training.drafts feature --minutes 180                  # for the lab's target
    python -m training.drafts block --minutes 180 --markov-rank 64   # one pass for all tokens of a round
    python -m training.drafts feature --minutes 10 --device cuda
    python -m training.drafts block --target FOLDER --minutes 60
    python -m training.drafts exit --exit-layer 2 --minutes 30       # an adapter behind the target's first two layers
    python -m training.drafts feature --init models/lab-pair/feature --minutes 80 --rate 0.003    # train one further

The draft learns from training text (the sources of Python's standard library) and from what the target itself writes
after pieces of it. An interrupted run goes on where it stopped; with more --minutes a finished one goes on, too. What
comes out, in --out: config.json and model.safetensors in the `speculators` format, which has none for early exit: an
adapter's is the lab's own. training.json has the settings and the acceptance by position.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C before main() runs, and missing libraries, are one line

import argparse
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from speclab.cli import parsing
from speclab.drafts.heads.block import BlockConfig, BlockHead
from speclab.drafts.heads.exit import ExitAdapter, ExitConfig
from speclab.drafts.heads.exit_files import write_adapter
from speclab.drafts.heads.files import CONFIG, WEIGHTS, write_head
from speclab.drafts.heads.rollout import rollout
from speclab.lab.training import corpus
from speclab.lab.training.steps import alone_in, check_settings, sent, skip_denormals, train
from speclab.models import loading
from speclab.models.checks import check_no_encoder, check_not_recurrent
from speclab.models.limits import context_length
from speclab.models.memory import free_memory
from speclab.records import files
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_replaceable, check_writable, prepare_folder, write_whole
from speclab.system.terminal import note, say
from training.blocks import block_loss, unused_id
from training.exits import exit_loss, fresh_adapter
from training.heads import Draft, fresh_head, sizes, trained_head
from training.models import compiled, encode
from training.passes import reading
from training.rollouts import CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE, distance, rollout_loss
from training.rows import ROWS, batch, beginnings, own_texts
from training.scoring import greedy_texts, held_out_texts, score

OF_TABLES = 0.5  # rate of embeddings, norms and output layers, as a share of --rate
BATCH_TOKENS = {"cuda": 65536}  # of a step, by device
FEW_TOKENS = 4096
# Logits of the target in a step at most: memory for some ten times as many numbers is needed. It binds where the
# vocabulary is large.
LOGITS = {"cuda": 2**29}
FEW_LOGITS = 2**27
KEPT_GIB = {"cpu": 4}  # of what the target computed; elsewhere its pass is fast
OF_FEATURE = {"intermediate": 1024}  # defaults
OF_BLOCK = {"intermediate": 704, "layers": 2, "markov_rank": 64, "causal": False}
OF_EXIT = {"intermediate": 704}
# What is kept of the training.json of the head that a training starts from.
OF_BEGINNING = ("steps", "tokens", "seconds", "rate", "seed", "loss", "own_texts", "init", "machine", "versions")
KINDS: dict[str, dict[str, Any]] = {"feature": OF_FEATURE, "block": OF_BLOCK, "exit": OF_EXIT}
FOR = {"exit_layer": "exit", "layers": "block", "markov_rank": "block", "causal": "block", "mask": "block"}
IN_WORDS = {"exit": "early exit", "block": "blocks"}


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("kind", choices=list(KINDS), help="what to train")
    parser.add_argument("--target", default=loading.LAB_TARGET, metavar="NAME", help="(default: the lab's)")
    parser.add_argument("--minutes", type=parsing.positive, default=180, help="minutes of training (default: 180)")
    parser.add_argument(
        "--own-minutes", type=parsing.positive, default=10, help="minutes for the target's own texts (default: 10)"
    )
    parser.add_argument(
        "--intermediate",
        type=parsing.at_least(1),
        help="width of the MLPs (default: feature 1024, block and exit 704)",
    )
    parser.add_argument(
        "--exit-layer", type=parsing.at_least(1), metavar="N", help="of exit: layers of the target that a draft runs"
    )
    parser.add_argument("--layers", type=parsing.at_least(1), help="of a block (default: 2)")
    parser.add_argument(
        "--markov-rank",
        type=parsing.at_least(0),
        help="of a block: rank of the Markov head, a bias by the token before; 0: none (default: 64)",
    )
    parser.add_argument("--causal", action="store_true", default=None, help="of a block: no slot reads those behind it")
    parser.add_argument(
        "--mask", type=parsing.at_least(0), metavar="ID", help="of a block: an id that no text has (default: found)"
    )
    parser.add_argument("--init", metavar="NAME", help="a trained head to start from: a folder or a hub name")
    parser.add_argument("--rate", type=parsing.positive, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="(default: cpu)")
    parser.add_argument(
        "--keep",
        type=parsing.at_least(0),
        metavar="GIB",
        help="memory for what the target computes of rows that come again, rounded to bfloat16 (default: on a CPU 4, "
        "or half of what is free; else 0)",
    )
    parser.add_argument("--threads", type=parsing.at_least(1), help="(default: all cores)")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="(default: 0)")
    parser.add_argument(
        "--work-dir", type=parsing.some_path, help="checkpoints, texts (default: build/KIND, of exit build/exit-N)"
    )
    parser.add_argument(
        "--out", type=parsing.some_path, help="folder for the trained draft (default: out in the work folder)"
    )
    return parser


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The flags, with the defaults of the kind. UsageProblem for those of another kind."""
    args = make_parser().parse_args(argv)
    for name, kind in FOR.items():
        if args.kind != kind and getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise UsageProblem(
                f"--{flag} is for {IN_WORDS[kind]}; leave it out, or type: python -m training.drafts {kind}"
            )
    for name in ("intermediate", "layers", "markov_rank", "causal", "mask"):
        if args.init and getattr(args, name) is not None:
            raise UsageProblem(f"--{name.replace('_', '-')} is what the head of --init has; leave one of the two out")
    if args.kind == "exit" and args.exit_layer is None:
        raise UsageProblem("exit needs --exit-layer N; type: python -m training.drafts exit --exit-layer 2")
    folder = Path("build") / (args.kind if args.exit_layer is None else f"{args.kind}-{args.exit_layer}")
    out = (args.work_dir or folder) / "out"
    for name, default in {**KINDS[args.kind], "work_dir": folder, "out": out}.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    return args


def head_to_train(args: argparse.Namespace, tokenizer: Any, target: PreTrainedModel) -> Draft:
    """As it is before the first step: random, or that of --init. UsageProblem for a mask beyond the target's ids."""
    if args.init:
        trained = trained_head(args.init, args.kind, target)
        if isinstance(trained, ExitAdapter) and trained.config.exit_layer != args.exit_layer:
            raise UsageProblem(
                f"--exit-layer {args.exit_layer}: the adapter of --init reads the states of layer "
                f"{trained.config.exit_layer}; give --exit-layer {trained.config.exit_layer}, or leave --init out"
            )
        return trained
    if args.kind == "exit":
        block = LlamaConfig(**sizes(target, 1, args.intermediate))
        return fresh_adapter(target, args.exit_layer, block, args.seed)
    if args.kind == "feature":
        return fresh_head(target, args)
    vocab = target.config.get_text_config().vocab_size
    mask = unused_id(tokenizer, vocab) if args.mask is None else args.mask
    if mask >= vocab:
        raise UsageProblem(f"--mask {mask}: the target's last id is {vocab - 1}")
    return fresh_head(target, args, mask)


def check_target(target: PreTrainedModel) -> None:
    """A Problem with a target that no head is trained for."""
    check_no_encoder(target, "training.drafts", "give another --target")
    check_not_recurrent(target, "gets no head of the lab's", "give another --target")
    room = context_length(target)
    if room is not None and room < max(ROWS):
        raise UsageProblem(
            f"rows of {max(ROWS):,} tokens are learned from, and the target's context is {room:,}; give "
            "another --target"
        )


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Train a draft.  -> exit code"""
    args = parse(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = loading.choose_device(args.device)[0]
    prepare_folder(args.work_dir, "--work-dir")
    check_writable(args.out / "training.json", "--out")
    with alone_in(args.work_dir):
        check_replaceable(args.out, (CONFIG, WEIGHTS, "training.json"), "--out")
        return _train(args, device)


def _train(args: argparse.Namespace, device: torch.device) -> int:
    """Everything that is done in the work folder.  -> exit code"""
    tokenizer: Any = loading.load_tokenizer(args.target)
    target = loading.load_model(args.target, device, torch.float32, "target").requires_grad_(False)
    check_target(target)
    beginning = _beginning(args.init) if args.init else None
    head = head_to_train(args, tokenizer, target)
    head.to(device)
    note(f"{sum(weight.numel() for weight in head.parameters()):,} parameters")
    check_settings(args.work_dir, settings_of(args, head))
    documents = list(corpus.standard_library())
    stream = encode(tokenizer, [d.text for d in documents if not d.held_out])
    held_out = encode(tokenizer, [d.text for d in documents if d.held_out])
    note(f"{len(stream):,} tokens to train on, {len(held_out):,} held out")
    prose = beginnings(tokenizer, [text for d in documents if not d.held_out for text in corpus.prose(d.text)])
    own = own_texts(args.work_dir, target, stream, prose, 60 * args.own_minutes, args.seed)
    note(f"the target wrote {', '.join(f'{len(rows):,} texts of {length} tokens' for length, rows in own.items())}")
    tokens = step_tokens(device, target.config.get_text_config().vocab_size)

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        return [(sent(batch(stream, own, step, args.seed, tokens), device), torch.tensor(step))]

    loss_of: Callable[..., Tensor]
    by_distance = compiled(distance)
    read = reading(target, head.config.layers, args.keep if args.keep is not None else _usual_gib(device))
    if isinstance(head, BlockHead):
        loss_of = functools.partial(block_loss, head, read, distance=by_distance)
    elif isinstance(head, ExitAdapter):
        loss_of = functools.partial(exit_loss, head, read, distance=by_distance)
    else:
        loss_of = functools.partial(rollout_loss, head, read, rollout=compiled(rollout), distance=by_distance)
    seconds, checkpoint = 60 * args.minutes, args.work_dir / "head.pt"
    facts = train(head, batches, loss_of, seconds, args.rate, args.kind, checkpoint, OF_TABLES)
    head.to(torch.bfloat16)  # as it is written; what is scored are the rounded weights
    scores = scored(head.float().eval(), target, tokenizer, held_out, args.seed)
    say(json.dumps(scores))
    name, architectures = loading.short_name(args.target), target.config.architectures or []
    if isinstance(head, ExitAdapter):
        write_adapter(args.out, head.to(torch.bfloat16), name, architectures)
    else:
        write_head(args.out, head.to(torch.bfloat16), name, architectures, 4)
    about = {
        "kind": args.kind,
        "target": name,
        "parameters": sum(weight.numel() for weight in head.parameters()),
        **asdict(facts),
        **_sizes_of(head),
        "own_texts": {length: len(rows) for length, rows in own.items()},
        "init": beginning,
        "rate": args.rate,
        "seed": args.seed,
        "loss": {"cross_entropy": CROSS_ENTROPY_WEIGHT, "total_variation_at": [1.0, LOW_TEMPERATURE]},
        "scores": scores,
        "machine": asdict(files.machine(device)),
        "versions": asdict(files.versions()),
    }
    write_whole(args.out / "training.json", json.dumps(about, indent=1) + "\n")
    return 0


def _usual_gib(device: torch.device) -> float:
    """Memory for what the target computes."""
    free = free_memory(torch.device("cpu"))
    usual = KEPT_GIB.get(device.type, 0)
    return usual if free is None else min(usual, free / 2**31)


def step_tokens(device: torch.device, vocab: int) -> int:
    """Tokens that a step learns from; of a long row it takes at least one."""
    most = LOGITS.get(device.type, FEW_LOGITS) // vocab
    return min(BATCH_TOKENS.get(device.type, FEW_TOKENS), max(min(ROWS), most))


def settings_of(args: argparse.Namespace, head: Draft) -> dict[str, Any]:
    """Flag -> value, of the flags that decide what is learned. Sizes of a head of --init are its own."""
    names = ["seed", "rate", "device"] + ([] if args.init else ["intermediate", "exit_layer", "layers", "markov_rank"])
    settings = {"KIND": args.kind, "--target": args.target, "--init": args.init}
    settings |= {"--" + name.replace("_", "-"): getattr(args, name) for name in names}
    for flag in ("--target", "--init"):
        if settings[flag] and Path(settings[flag]).exists():  # the same folder by another path is the same
            settings[flag] = str(Path(settings[flag]).resolve())
    if isinstance(head, BlockHead):
        settings |= {"--causal": head.config.causal, "--mask": head.config.mask}
    return settings


def _beginning(name: str) -> dict[str, Any]:
    """The head that a training starts from, and how that was trained where it is a folder that says so.

    EnvironmentProblem for a training.json that is none.
    """
    about: dict[str, Any] = {"name": loading.short_name(name)}
    file = Path(name) / "training.json"
    if file.is_file():
        earlier = loading.loaded(name, "its training.json", lambda: dict(json.loads(file.read_text("utf-8"))))
        about |= {key: earlier[key] for key in OF_BEGINNING if key in earlier}
    return about


def _sizes_of(head: Draft) -> dict[str, int]:
    """What a reader of training.json wants to know of it, beside the number of parameters."""
    config = head.config
    if isinstance(config, BlockConfig):
        layers = config.block.num_hidden_layers
        return {"slots": config.slots, "layers": layers, "markov_rank": config.markov_rank}
    if isinstance(config, ExitConfig):
        return {"exit_layer": config.exit_layer, "intermediate": config.block.intermediate_size}
    return {}


def scored(
    head: Draft,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    held_out: Tensor,
    seed: int,
) -> dict:
    """Acceptance on held-out continuations and on the lab's prompts, of each kind and all together."""
    texts = greedy_texts(target, tokenizer)
    sets = {
        "held-out texts": held_out_texts(target, held_out, seed),
        **texts,
        "all prompts": [text for some in texts.values() for text in some],
    }
    return {name: score(head, target, texts) for name, texts in sets.items()}


if __name__ == "__main__":
    skip_denormals()
    sys.exit(main())
