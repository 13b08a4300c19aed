"""Train a draft for a target, or the lab's own pair of both: `python -m training.heads KIND`.

    python -m training.heads feature --minutes 180                  # for the lab's target
    python -m training.heads block --minutes 180                    # one pass for all tokens of a round
    python -m training.heads feature --minutes 10 --device cuda
    python -m training.heads block --target FOLDER --minutes 60
    python -m training.heads feature --init models/lab-pair/feature --minutes 80 --rate 0.003    # train one further
    python -m training.heads pair --minutes 125                     # a target, and a draft model distilled from it

A head learns from what the target itself writes, because that is where it will be asked to guess: a target with a chat
template answers questions that it has asked itself, and every target continues pieces of the sources of Python's
standard library, and the texts of --texts. A head for more than 8,192 ids proposes the most frequent ones, with the
target's own embedding and output layer. --minutes is the whole time. From a tenth of it on, the head stands in --out
that has committed most tokens per round so far, in replayed rounds on held-out answers. A stop leaves it there, and
`--init` with that folder goes on from it. No network and no GPU is needed. `KIND --help` lists the flags of a kind.

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
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from speclab.cli import parsing
from speclab.models import loading, prompts
from speclab.models.family import check_family, context_length
from speclab.records import files
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_writable, prepare_folder, read_bytes, write_whole
from speclab.system.terminal import note, say
from training import corpus, pair
from training.course import Course, K
from training.kinds import KINDS, head_to_train
from training.passes import Passes
from training.recipes import CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE, distance
from training.room import Room, room_on
from training.scoring import DECODED, Known, decoded_alike, known_texts, scored
from training.steps import compiled, train
from training.texts import (
    PLAIN,
    PLAIN_OF_CHATS,
    ROWS,
    Prompts,
    Texts,
    batch,
    covered,
    encode,
    frequent_ids,
    row_lengths,
)

OF_TABLES = 0.5  # the rate of embeddings, norms and output layers, as a share of --rate
FEW_TOKENS = 2048  # of a step
# The same on a GPU. A feature head for 8,192 ids takes about 7 GB for the larger number, half of it for float32 logits.
MANY_TOKENS, BYTES_OF_TOKEN = 32768, 2**19
DRAFT_IDS = 8192  # ids that a head proposes; of more it takes the most frequent ones
OF_OWN = 0.4  # share of the time for the target's own texts: each is then learned from some five times on a CPU
OF_ENDING, ENDING = 0.05, 60.0  # share of the time, and seconds at most, for what comes after the last step
MOST_BYTES = 2**20  # the largest size of a training.json, in bytes
# What is kept of the training.json of the head that a training starts from.
OF_BEGINNING = ("steps", "tokens", "seconds", "rate", "seed", "loss", "own_texts", "init", "machine", "versions")
PAIR_FOLDER = "build/lab-pair"


# --- flags ------------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The parser with all kinds, each with its own flags."""
    parser = parsing.make_parser(__doc__)
    names = {"dest": "kind", "metavar": "KIND"}
    kinds = parser.add_subparsers(prog="python -m training.heads", required=True, help="what to train", **names)
    for name, kind in KINDS.items():
        one = kinds.add_parser(name, help=kind.help)
        one.add_argument("--target", default=loading.LAB_TARGET, metavar="NAME", help="(default: the lab's)")
        one.add_argument(
            "--own-minutes", type=parsing.positive, help="of these for the target's own texts (default: two fifths)"
        )
        one.add_argument("--texts", action="append", default=[], metavar="FILE", help="prompts, with %%%% between them")
        usual = kind.intermediate or "1024, or what a small file has room for"
        one.add_argument("--intermediate", type=parsing.at_least(1), help=f"width of the MLPs (default: {usual})")
        one.add_argument("--init", metavar="NAME", help="a trained head to start from: a folder or a hub name")
        _add_shared_flags(one, kind.folder, 180)
        kind.add_flags(one)
        one.set_defaults(train=train_head)
    one = kinds.add_parser("pair", help="a target, and a draft model that is distilled from it")
    one.add_argument("--with-packages", action="store_true", help="also learn from installed permissive packages")
    _add_shared_flags(one, PAIR_FOLDER, 125)
    one.set_defaults(train=pair.train_pair)
    return parser


def _add_shared_flags(parser: argparse.ArgumentParser, folder: str, minutes: int) -> None:
    parser.add_argument(
        "--minutes", type=parsing.positive, default=minutes, help=f"minutes of all (default: {minutes})"
    )
    parser.add_argument("--rate", type=parsing.positive, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="(default: cpu)")
    parser.add_argument("--threads", type=parsing.at_least(1), help="(default: all cores)")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="(default: 0)")
    shown = re.sub(r"{\w+}", "N", folder)
    parser.add_argument("--out", type=parsing.some_path, help=f"folder for what was trained (default: {shown})")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The flags, with the defaults of the kind. Raises UsageProblem for a size that a head of --init has already."""
    args = make_parser().parse_args(argv)
    folder = PAIR_FOLDER
    if kind := KINDS.get(args.kind):
        if args.init and args.intermediate:
            raise UsageProblem("--intermediate is what the head of --init has; leave one of the two out")
        if not args.init:
            args.intermediate = args.intermediate or kind.intermediate
        folder = kind.folder
    args.out = args.out or Path(folder.format(**vars(args)))
    return args


# --- the command ------------------------------------------------------------------------------------------------------


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Train a draft or a pair.  -> exit code"""
    args = parse(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = loading.choose_device(args.device)[0]
    prepare_folder(args.out, "--out")
    check_writable(args.out / "training.json", "--out")
    about, summary = args.train(args, device)
    about |= {"machine": files.machine(device), "versions": files.versions()}
    write_whole(args.out / "training.json", json.dumps(about, indent=1) + "\n")
    say(json.dumps(summary))
    return 0


def train_head(args: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a draft that reads its target's states, and write it.  -> facts for training.json, and a summary"""
    began, kind = time.monotonic(), KINDS[args.kind]
    given = [text for file in args.texts for _, text in prompts.from_file(file)]
    tokenizer: Any = loading.load_tokenizer(args.target)
    target = loading.load_model(args.target, device, torch.float32, "target").requires_grad_(False)
    lengths = check_target(target)
    beginning = _beginning(args.init) if args.init else None
    narrow = kind.narrows and not args.init and target.config.get_text_config().vocab_size > DRAFT_IDS
    made = None if narrow else head_to_train(target, tokenizer, args)  # it may refuse, so before any text is written
    documents, room = list(corpus.standard_library()), room_on(device)
    texts = Texts(
        target, tokenizer, lambda writer: Prompts(tokenizer, writer, documents, given, args.seed), args.seed, room
    )
    note("the target is writing the first texts")
    texts.prepare(lengths)
    if made is None:
        own = frequent_ids(texts.answers, target.config.get_text_config().vocab_size, DRAFT_IDS).to(device)
        made = head_to_train(target, tokenizer, args, own)
    head, ids = made[0].to(device), made[1]
    learning = sum(weight.numel() for weight in head.parameters() if weight.requires_grad)
    note(f"{learning:,} parameters")
    if ids is not None:
        note(f"it proposes {len(ids):,} ids, which are {covered(texts.held_out, ids):.1%} of those in held-out answers")
    name = loading.short_name(args.target)

    def about(course: Course) -> dict[str, Any]:
        return {
            "kind": args.kind,
            "target": name,
            "parameters": learning,
            **asdict(course.facts),
            "own_texts": {"answers": len(texts.answers), "tokens": sum(len(text.answer) for text in texts.answers)},
            "draft_ids": None if ids is None else {"n": len(ids), "covered": round(covered(texts.held_out, ids), 4)},
            "init": beginning,
            "rate": args.rate,
            "seed": args.seed,
            "loss": {"cross_entropy": CROSS_ENTROPY_WEIGHT, "total_variation_at": [1.0, LOW_TEMPERATURE]},
            "growth": course.growth,
        }

    def write(made: Any, course: Course) -> None:
        tables = {} if ids is None else {"ids": ids}
        kind.write(args.out, made.to(torch.bfloat16), name, target.config.architectures or [], **tables)
        write_whole(args.out / "training.json", json.dumps(about(course), indent=1) + "\n")

    held_out = known_texts(target, texts.held_out, head.config.layers)
    scale = scale_of(held_out) if hasattr(head, "fc") else None
    if scale is not None and args.init:
        head.fc.weight.data /= scale
    stream = encode(tokenizer, [d.text for d in documents if not d.held_out])
    plain = PLAIN_OF_CHATS if tokenizer.chat_template else PLAIN
    course = Course(
        head,
        ids,
        scale,
        texts,
        held_out,
        lambda rows, step: batch(stream, rows, plain, kind.chains, step, args.seed, step_tokens(room)),
        lengths,
        max(1e-9, 60 * args.minutes - ending(args.minutes) - (time.monotonic() - began)),  # one step at least
        60 * (OF_OWN * args.minutes if args.own_minutes is None else args.own_minutes),
        write,
    )
    if args.init:
        course.score()  # what is worse does not take the place of the head that it starts from
    read = Passes(target, head.config.layers, room, ids, scale)
    loss_of = functools.partial(kind.loss, head, read, distance=compiled(distance, device))
    course.facts = train(head, course.batches, loss_of, course.seconds, args.rate, args.kind, OF_TABLES, course.after)
    course.score()
    alike = decoded_alike(args.kind, args.out, target, tokenizer, list(texts.held_out[0].prompt), K)
    note(f"{args.out}: this head loads, and {alike} of {DECODED} tokens decoded with it are the target's own")
    best, ids = kind.trained(target, argparse.Namespace(**vars(args) | {"init": str(args.out)}))
    scores = scored(best, target, tokenizer, held_out, ids)
    note(f"to use this head, type: python compare.py --target {args.target} --draft {args.kind}:{args.out}")
    return about(course) | {"scores": scores}, scores


def check_target(target: PreTrainedModel) -> list[int]:
    """Raise a Problem for a target for which no head can be trained.  -> the lengths of rows"""
    check_family(target, "training.heads", "give another --target")
    if lengths := row_lengths(context_length(target)):
        return lengths
    raise UsageProblem(
        f"rows of {min(ROWS):,} tokens are learned from, and the target's context is {context_length(target):,}; give "
        "another --target"
    )


def scale_of(texts: list[Known]) -> torch.Tensor:
    """What brings each dimension of the states of these texts to the same size, (layers * hidden,).

    A few dimensions of a language model's states are hundreds of times larger than most, and would be all that a fresh
    head sees. The factors end in the weights that are written.
    """
    sizes = torch.cat([text.hidden[0] for text in texts]).abs().median(dim=0).values
    return 1 / sizes.clamp(min=1e-3 * sizes.max().item())


def step_tokens(room: Room) -> int:
    """The number of tokens that a step learns from; of a long row it takes at least one."""
    return max(FEW_TOKENS, room.fitting(MANY_TOKENS, BYTES_OF_TOKEN)) if room.is_wide else FEW_TOKENS


def ending(minutes: float) -> float:
    """The seconds of the whole time that are left for the last scores."""
    return min(ENDING, OF_ENDING * 60 * minutes)


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
