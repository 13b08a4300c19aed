"""Train a draft for a target, or the lab's own pair of both: `python -m training.heads KIND`.

    python -m training.heads feature --minutes 180                  # for the lab's target
    python -m training.heads block --minutes 180                    # one pass for all tokens of a round
    python -m training.heads feature --minutes 10 --device cuda
    python -m training.heads block --target FOLDER --minutes 60
    python -m training.heads feature --init models/lab-pair/feature --minutes 80 --rate 0.003    # train one further
    python -m training.heads pair --minutes 125                     # a target, and a draft model distilled from it

A draft learns from training text (the sources of Python's standard library) and from what the target itself writes
after pieces of it, because that is where it will be asked to guess. An interrupted run goes on where it stopped; with
more --minutes a finished one goes on, too. No network and no GPU is needed. `KIND --help` lists the flags of a kind.

What comes out, in --out: config.json and model.safetensors in the `speculators` format, or in one of the lab's own
where that has none. Of a pair: two folders that any program loads. training.json has the settings, and what the draft
reaches on held-out text.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C before main() runs, and missing libraries, are one line

import argparse
import functools
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.cli import parsing
from speclab.drafts.heads.files import CONFIG, WEIGHTS
from speclab.lab.training import corpus
from speclab.lab.training.recipes import CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE
from speclab.lab.training.steps import train
from speclab.models import loading
from speclab.models.family import check_family, context_length
from speclab.records import files
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_replaceable, check_writable, do_all, prepare_folder, read_bytes, write_whole
from speclab.system.terminal import note, say
from training import pair
from training.compiling import compiled
from training.documents import prose
from training.kinds import KINDS, head_to_train
from training.passes import reading
from training.scoring import scored
from training.texts import ROWS, batch, beginnings, own_texts, streams
from training.work import Checkpoint, alone_in, check_settings

OF_TABLES = 0.5  # the rate of embeddings, norms and output layers, as a share of --rate
BATCH_TOKENS = {"cuda": 65536}  # tokens of a step, by device
FEW_TOKENS = 4096
# Logits of the target in a step at most: memory for some ten times as many numbers is needed. It binds where the
# vocabulary is large.
LOGITS = {"cuda": 2**29}
FEW_LOGITS = 2**27
MOST_BYTES = 2**20  # the largest size of a training.json, in bytes
# What is kept of the training.json of the head that a training starts from.
OF_BEGINNING = ("steps", "tokens", "seconds", "rate", "seed", "loss", "own_texts", "init", "machine", "versions")
PAIR_FOLDER = "build/lab-pair"
# Flags that say how long, how fast and where to: a training goes on with others. All others decide what is learned.
NOT_LEARNED = ("kind", "minutes", "own_minutes", "threads", "keep", "work_dir", "out")


# --- flags ------------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The parser with all kinds, each with its own flags."""
    parser = parsing.make_parser(__doc__)
    names = {"dest": "kind", "metavar": "KIND"}
    kinds = parser.add_subparsers(prog="python -m training.heads", required=True, help="what to train", **names)
    for name, kind in KINDS.items():
        one = kinds.add_parser(name, help=kind.help)
        _add_head_flags(one, kind.intermediate)
        _add_shared_flags(one, kind.folder, 180)
        kind.add_flags(one)
    one = kinds.add_parser("pair", help="a target, and a draft model that is distilled from it")
    one.add_argument("--with-packages", action="store_true", help="also learn from installed permissive packages")
    _add_shared_flags(one, PAIR_FOLDER, 125)
    return parser


def _add_head_flags(parser: argparse.ArgumentParser, intermediate: int) -> None:
    parser.add_argument("--target", default=loading.LAB_TARGET, metavar="NAME", help="(default: the lab's)")
    parser.add_argument(
        "--own-minutes", type=parsing.positive, default=10, help="minutes for the target's own texts (default: 10)"
    )
    parser.add_argument("--intermediate", type=parsing.at_least(1), help=f"width of the MLPs (default: {intermediate})")
    parser.add_argument("--init", metavar="NAME", help="a trained head to start from: a folder or a hub name")
    parser.add_argument(
        "--keep",
        type=parsing.at_least(0),
        metavar="GIB",
        help="memory for what the target computes of rows that come again, rounded to bfloat16 (default: on a CPU 4, "
        "or half of what is free; else 0)",
    )


def _add_shared_flags(parser: argparse.ArgumentParser, folder: str, minutes: int) -> None:
    parser.add_argument(
        "--minutes", type=parsing.positive, default=minutes, help=f"minutes of training (default: {minutes})"
    )
    parser.add_argument("--rate", type=parsing.positive, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="(default: cpu)")
    parser.add_argument("--threads", type=parsing.at_least(1), help="(default: all cores)")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="(default: 0)")
    shown = re.sub(r"{\w+}", "N", folder)
    parser.add_argument("--work-dir", type=parsing.some_path, help=f"checkpoints, texts (default: {shown})")
    parser.add_argument(
        "--out", type=parsing.some_path, help="folder for what was trained (default: out in the work folder)"
    )


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The flags, with the defaults of the kind. Raises UsageProblem for a size that a head of --init has already."""
    args = make_parser().parse_args(argv)
    if args.kind in KINDS:
        if args.init and args.intermediate:
            raise UsageProblem("--intermediate is what the head of --init has; leave one of the two out")
        if not args.init:
            args.intermediate = args.intermediate or KINDS[args.kind].intermediate
    folder = KINDS[args.kind].folder if args.kind in KINDS else PAIR_FOLDER
    args.work_dir = args.work_dir or Path(folder.format(**vars(args)))
    args.out = args.out or args.work_dir / "out"
    return args


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The value of each flag that decides what is learned."""
    learned = {name: value for name, value in vars(args).items() if name not in NOT_LEARNED}
    settings = {"KIND": args.kind, **{"--" + name.replace("_", "-"): value for name, value in learned.items()}}
    for flag in ("--target", "--init"):
        if settings.get(flag) and Path(settings[flag]).exists():  # the same folder by another path is the same
            settings[flag] = str(Path(settings[flag]).resolve())
    return settings


# --- the command ------------------------------------------------------------------------------------------------------


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Train a draft or a pair.  -> exit code"""
    args = parse(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = loading.choose_device(args.device)[0]
    prepare_folder(args.work_dir, "--work-dir")
    check_writable(args.out / "training.json", "--out")
    with alone_in(args.work_dir):
        about, summary = (pair.train_pair if args.kind == "pair" else train_head)(args, device, settings_of(args))
        about |= {"machine": asdict(files.machine(device)), "versions": asdict(files.versions())}
        return do_all(
            [
                lambda: write_whole(args.out / "training.json", json.dumps(about, indent=1) + "\n"),
                lambda: say(json.dumps(summary)),
            ]
        )


def train_head(
    args: argparse.Namespace, device: torch.device, settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a draft that reads its target's states, and write it.  -> facts for training.json, and a summary"""
    kind = KINDS[args.kind]
    check_replaceable(args.out, (CONFIG, WEIGHTS, "training.json"), "--out")
    tokenizer: Any = loading.load_tokenizer(args.target)
    target = loading.load_model(args.target, device, torch.float32, "target").requires_grad_(False)
    check_target(target)
    beginning = _beginning(args.init) if args.init else None
    head = head_to_train(target, tokenizer, args).to(device)
    note(f"{sum(weight.numel() for weight in head.parameters()):,} parameters")
    check_settings(args.work_dir, settings)
    documents = list(corpus.standard_library())
    stream, held_out = streams(tokenizer, documents)
    comments = beginnings(tokenizer, [text for d in documents if not d.held_out for text in prose(d.text)])
    own = own_texts(args.work_dir, target, stream, comments, 60 * args.own_minutes, args.seed)
    note(f"the target wrote {', '.join(f'{len(rows):,} texts of {length} tokens' for length, rows in own.items())}")
    tokens = step_tokens(device, target.config.get_text_config().vocab_size)

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        return [(batch(stream, own, step, args.seed, tokens).to(device), torch.tensor(step))]

    functions = {name: compiled(function) for name, function in kind.functions.items()}
    loss_of = functools.partial(kind.loss, head, reading(target, head.config.layers, args.keep), **functions)
    checkpoint = Checkpoint(args.work_dir / "head.pt")
    facts = train(head, batches, loss_of, 60 * args.minutes, args.rate, args.kind, checkpoint, OF_TABLES)
    head.to(torch.bfloat16)  # as it is written; what is scored are the rounded weights
    scores = scored(head.float().eval(), target, tokenizer, held_out, args.seed)
    name = loading.short_name(args.target)
    kind.write(args.out, head.to(torch.bfloat16), name, target.config.architectures or [])
    about = {
        "kind": args.kind,
        "target": name,
        "parameters": sum(weight.numel() for weight in head.parameters()),
        **asdict(facts),
        "own_texts": {length: len(rows) for length, rows in own.items()},
        "init": beginning,
        "rate": args.rate,
        "seed": args.seed,
        "loss": {"cross_entropy": CROSS_ENTROPY_WEIGHT, "total_variation_at": [1.0, LOW_TEMPERATURE]},
        "scores": scores,
    }
    return about, scores


def check_target(target: PreTrainedModel) -> None:
    """Raise a Problem for a target for which no head can be trained."""
    check_family(target, "training.heads", "give another --target")
    room = context_length(target)
    if room is not None and room < max(ROWS):
        raise UsageProblem(
            f"rows of {max(ROWS):,} tokens are learned from, and the target's context is {room:,}; give "
            "another --target"
        )


def step_tokens(device: torch.device, vocab: int) -> int:
    """The number of tokens that a step learns from; of a long row it takes at least one."""
    most = LOGITS.get(device.type, FEW_LOGITS) // vocab
    return min(BATCH_TOKENS.get(device.type, FEW_TOKENS), max(min(ROWS), most))


def _beginning(name: str) -> dict[str, Any]:
    """The head that a training starts from, and how that was trained where it is a folder that says so.

    Raises EnvironmentProblem for a training.json that is none.
    """
    about: dict[str, Any] = {"name": loading.short_name(name)}
    file = Path(name) / "training.json"
    if file.is_file():
        earlier = loading.loaded(name, "its training.json", lambda: dict(json.loads(read_bytes(file, MOST_BYTES))))
        about |= {key: earlier[key] for key in OF_BEGINNING if key in earlier}
    return about


if __name__ == "__main__":
    # A CPU takes numbers below 1e-38 as 0. Gradients of an attention whose weights are nearly 0 and 1 are full of them,
    # and a product of them is slow: on an Intel Xeon, with two threads, a step of a feature head took 2.1 s with them
    # and 1.4 s without. Threads take this over when they start, so it stands before anything is computed.
    torch.set_flush_denormal(True)
    sys.exit(main())
