"""The flags of `python -m training.heads`: what each kind of draft takes, and which of them decide what is learned."""

import argparse
from pathlib import Path
from typing import Any

from speclab.cli import parsing
from speclab.drafts.heads.block import BlockHead
from speclab.models import loading
from speclab.system.errors import UsageProblem
from training.kinds import Draft

OF_FEATURE = {"intermediate": 1024}  # defaults
OF_BLOCK = {"intermediate": 704, "layers": 2, "markov_rank": 64, "causal": False}
OF_EXIT = {"intermediate": 704}
KINDS: dict[str, dict[str, Any]] = {"feature": OF_FEATURE, "block": OF_BLOCK, "exit": OF_EXIT}
FOR = {"exit_layer": "exit", "layers": "block", "markov_rank": "block", "causal": "block", "mask": "block"}
IN_WORDS = {"exit": "early exit", "block": "blocks"}


def make_parser(docstring: str) -> parsing.Parser:
    """All flags of training.heads."""
    parser = parsing.make_parser(docstring)
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


def parse(argv: list[str] | None, docstring: str = "") -> argparse.Namespace:
    """The flags, with the defaults of the kind. UsageProblem for those of another kind."""
    args = make_parser(docstring).parse_args(argv)
    for name, kind in FOR.items():
        if args.kind != kind and getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise UsageProblem(
                f"--{flag} is for {IN_WORDS[kind]}; leave it out, or type: python -m training.heads {kind}"
            )
    for name in ("intermediate", "layers", "markov_rank", "causal", "mask"):
        if args.init and getattr(args, name) is not None:
            raise UsageProblem(f"--{name.replace('_', '-')} is what the head of --init has; leave one of the two out")
    if args.kind == "exit" and args.exit_layer is None:
        raise UsageProblem("exit needs --exit-layer N; type: python -m training.heads exit --exit-layer 2")
    folder = Path("build") / (args.kind if args.exit_layer is None else f"{args.kind}-{args.exit_layer}")
    out = (args.work_dir or folder) / "out"
    for name, default in {**KINDS[args.kind], "work_dir": folder, "out": out}.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    return args


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
