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
target's own embedding and output layer. --minutes is the whole time. After a tenth of it a head stands in --out;
where the time is short, or on a GPU, after a third. Later the one that has committed most tokens per round in replayed
rounds on held-out answers. An interrupted run goes on where it stopped, and a finished one with more --minutes. The
texts are in answers.jsonl in the work folder, a line {"prompt": ids, "answer": ids, "greedy": bool} each; all that are
there are learned from. No network and no GPU is needed. `KIND --help` lists the flags of a kind.

What comes out, in --out: config.json and model.safetensors in the `speculators` format, or in one of the lab's own
where that has none. Of a pair: two folders that any program loads. training.json has the settings, and what the draft
reaches on held-out text.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C before main() runs, and missing libraries, are one line

import argparse
import functools
import json
import math
import re
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.cli import parsing
from speclab.models import loading, prompts
from speclab.models.family import check_family, context_length
from speclab.records import files
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_writable, prepare_folder, read_bytes, write_all, write_whole
from speclab.system.terminal import note, say
from training import corpus, pair
from training.compiling import compiled
from training.course import Course, K, Lines
from training.kinds import KINDS, head_to_train
from training.passes import reading
from training.recipes import CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE, distance
from training.room import Room, room_on
from training.scoring import DECODED, Known, decoded_alike, known_texts, scored
from training.steps import TrainingFacts, train
from training.texts import (
    ANSWER,
    PLAIN,
    PLAIN_OF_CHATS,
    QUESTION,
    ROWS,
    Prompts,
    Texts,
    batch,
    covered,
    encode,
    frequent_ids,
    row_lengths,
    written_after,
)
from training.work import Checkpoint, alone_in, check_settings, readable, save_tensors

OF_TABLES = 0.5  # the rate of embeddings, norms and output layers, as a share of --rate
FEW_TOKENS = 2048  # of a step
# The same on a GPU. A feature head for 8,192 ids takes about 7 GB for the larger number, half of it for float32 logits.
MANY_TOKENS, BYTES_OF_TOKEN = 32768, 2**19
DRAFT_IDS = 8192  # ids that a head proposes; of more it takes the most frequent ones
OF_OWN = 0.4  # share of the time for the target's own texts: each is then learned from some five times on a CPU
FIRST_PART, LATEST_PART = 10, 3  # a head is there after a tenth of the time, or after a third where that is too short
OF_ENDING, ENDING = 0.05, 60.0  # share of the time, and seconds at most, for what comes after the last step
WITH_NOISE = 1.5  # times what is needed is told: whoever types it is not refused by a slower second
FIRST_PASSES = 14  # passes over the longest row that the first tenth is worth, beside the texts
MOST_BYTES = 2**20  # the largest size of a training.json, in bytes
# What is kept of the training.json of the head that a training starts from.
OF_BEGINNING = ("steps", "tokens", "seconds", "rate", "seed", "loss", "own_texts", "init", "machine", "versions")
PAIR_FOLDER = "build/lab-pair"
# Flags that say how long, how fast and where to: a training goes on with others. All others decide what is learned.
NOT_LEARNED = ("kind", "train", "minutes", "own_minutes", "threads", "keep", "work_dir", "out", "texts")


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
        one.set_defaults(train=train_head)
    one = kinds.add_parser("pair", help="a target, and a draft model that is distilled from it")
    one.add_argument("--with-packages", action="store_true", help="also learn from installed permissive packages")
    _add_shared_flags(one, PAIR_FOLDER, 125)
    one.set_defaults(train=pair.train_pair)
    return parser


def _add_head_flags(parser: argparse.ArgumentParser, intermediate: int | None) -> None:
    parser.add_argument("--target", default=loading.LAB_TARGET, metavar="NAME", help="(default: the lab's)")
    parser.add_argument(
        "--own-minutes", type=parsing.positive, help="of these for the target's own texts (default: two fifths)"
    )
    parser.add_argument("--texts", action="append", default=[], metavar="FILE", help="prompts, with %%%% between them")
    usual = intermediate or "1024, or what a small file has room for"
    parser.add_argument("--intermediate", type=parsing.at_least(1), help=f"width of the MLPs (default: {usual})")
    parser.add_argument("--init", metavar="NAME", help="a trained head to start from: a folder or a hub name")
    parser.add_argument(
        "--keep",
        type=parsing.at_least(0),
        metavar="GIB",
        help="disk space for what the target computes of rows that come again, rounded to bfloat16 (default: on a "
        "CPU 8, or half of what is free; on CUDA a third of the GPU's memory in its place; else 0)",
    )


def _add_shared_flags(parser: argparse.ArgumentParser, folder: str, minutes: int) -> None:
    parser.add_argument(
        "--minutes", type=parsing.positive, default=minutes, help=f"minutes of all (default: {minutes})"
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
        about, summary = args.train(args, device, settings_of(args))
        about |= {"machine": asdict(files.machine(device)), "versions": asdict(files.versions())}
        write_all([lambda: write_whole(args.out / "training.json", json.dumps(about, indent=1) + "\n")])
        say(json.dumps(summary))
    return 0


def train_head(
    args: argparse.Namespace, device: torch.device, settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a draft that reads its target's states, and write it.  -> facts for training.json, and a summary"""
    began, kind = time.monotonic(), KINDS[args.kind]
    given = [text for file in args.texts for _, text in prompts.from_file(file)]
    tokenizer: Any = loading.load_tokenizer(args.target)
    target = loading.load_model(args.target, device, torch.float32, "target").requires_grad_(False)
    check_target(target)
    beginning = _beginning(args.init) if args.init else None
    narrow = kind.narrows and not args.init and target.config.get_text_config().vocab_size > DRAFT_IDS
    made = None if narrow else head_to_train(target, tokenizer, args)  # it may refuse, so before anything is written
    check_settings(args.work_dir, settings)
    documents = list(corpus.standard_library())

    def prompts_from(writer: PreTrainedModel) -> Prompts:
        return Prompts(tokenizer, writer, documents, given, args.seed)

    room = room_on(device)
    texts = Texts(args.work_dir, target, tokenizer, prompts_from, args.seed, room)
    if not texts.answers:
        _check_minutes(target, args.minutes, texts.at_once)
    lines = Lines(lambda: f"{len(texts.answers):,} texts")
    lines.phase = "writing the first texts"
    lengths = row_lengths(context_length(target))
    texts.prepare(lengths, lines)
    head, ids = made or head_to_train(target, tokenizer, args, _draft_ids(args.work_dir, target, texts))
    head = head.to(device)
    learning = sum(weight.numel() for weight in head.parameters() if weight.requires_grad)
    note(
        f"{learning:,} parameters, {len(texts.answers):,} texts of {sum(len(t.answer) for t in texts.answers):,} tokens"
    )
    if ids is not None:
        note(f"it proposes {len(ids):,} ids, which are {covered(texts.held_out, ids):.1%} of those in held-out answers")
    name = loading.short_name(args.target)

    def about(facts: TrainingFacts, course: Course) -> dict[str, Any]:
        return {
            "kind": args.kind,
            "target": name,
            "parameters": learning,
            **asdict(facts),
            "own_texts": {"answers": len(texts.answers), "tokens": sum(len(text.answer) for text in texts.answers)},
            "draft_ids": None if ids is None else {"n": len(ids), "covered": round(covered(texts.held_out, ids), 4)},
            "init": beginning,
            "rate": args.rate,
            "seed": args.seed,
            "loss": {"cross_entropy": CROSS_ENTROPY_WEIGHT, "total_variation_at": [1.0, LOW_TEMPERATURE]},
            "growth": course.progress.growth,
        }

    def write(made: Any, facts: TrainingFacts, course: Course) -> None:
        tables = {} if ids is None else {"ids": ids}
        kind.write(args.out, made.to(torch.bfloat16), name, target.config.architectures or [], **tables)
        write_whole(args.out / "training.json", json.dumps(about(facts, course), indent=1) + "\n")
        if len(course.progress.growth) == 1:
            decode()

    def decode() -> None:
        alike = decoded_alike(args.kind, args.out, target, tokenizer, list(texts.held_out[0].prompt), K)
        note(f"{args.out}: this head loads, and {alike} of {DECODED} tokens decoded with it are the target's own")

    held_out = known_texts(target, texts.held_out, head.config.layers)
    scale = _scale(args.work_dir, held_out) if hasattr(head, "fc") else None
    if scale is not None and args.init:
        head.fc.weight.data /= scale
    plain = PLAIN_OF_CHATS if tokenizer.chat_template else PLAIN
    course = Course(
        head,
        ids,
        scale,
        texts,
        encode(tokenizer, [d.text for d in documents if not d.held_out]),
        held_out,
        lambda stream, rows, step: batch(stream, rows, plain, kind.chains, step, args.seed, step_tokens(room)),
        lengths,
        max(1e-9, 60 * args.minutes - ending(args.minutes) - (time.monotonic() - began)),  # one step at least
        60 * (OF_OWN * args.minutes if args.own_minutes is None else args.own_minutes),
        args.work_dir / "progress.json",
        write,
    )
    read = reading(target, head.config.layers, ids, args.work_dir / "kept", args.keep, scale, room)
    loss_of = functools.partial(kind.loss, head, read, distance=compiled(distance, device))
    checkpoint = Checkpoint(args.work_dir / "head.pt")
    facts = train(
        head, course.batches, loss_of, course.seconds, args.rate, args.kind, checkpoint, OF_TABLES, course.after
    )
    course.facts = facts
    course.score()
    if len(course.progress.growth) > 1:
        decode()
    best, ids = head_in(args, target)
    left = 60 * args.minutes - (time.monotonic() - began)
    scores = scored(best, target, tokenizer, course.held_out, left, ids)
    note(f"to use this head, type: python compare.py --target {args.target} --draft {args.kind}:{args.out}")
    return about(facts, course) | {"scores": scores}, scores


def head_in(args: argparse.Namespace, target: PreTrainedModel) -> tuple[Any, Tensor | None]:
    """The head in --out, and its ids."""
    return KINDS[args.kind].trained(target, argparse.Namespace(**vars(args) | {"init": str(args.out)}))


def _draft_ids(work: Path, target: PreTrainedModel, texts: Texts) -> Tensor:
    """The ids that a fresh head proposes; they stay those of the work folder."""
    vocab, file = target.config.get_text_config().vocab_size, work / "ids.pt"
    if not file.exists():
        save_tensors(file, frequent_ids(texts.answers, vocab, DRAFT_IDS))
    with readable(file):
        ids = torch.load(file, weights_only=True)
        if ids.shape != (DRAFT_IDS,) or not 0 <= ids[0] <= ids[-1] < vocab or not (ids.diff() > 0).all():
            raise ValueError("it does not hold ids of the target")
    return ids.to(target.device)


def _scale(work: Path, texts: list[Known]) -> Tensor:
    """What brings each dimension of the states to the same size; it stays that of the work folder.

    A few dimensions of a language model's states are hundreds of times larger than most, and would be all that a fresh
    head sees. The factors end in the weights that are written.
    """
    file = work / "scale.pt"
    if not file.exists():
        save_tensors(file, scale_of(texts))
    with readable(file):
        scale = torch.load(file, weights_only=True)
        if scale.shape != texts[0].hidden.shape[2:] or not (scale.isfinite() & (scale > 0)).all():
            raise ValueError("it does not hold a factor for each dimension of the states")
    return scale.to(texts[0].hidden)


def scale_of(texts: list[Known]) -> Tensor:
    """That factor for each dimension of the states of these texts, (layers * hidden,)."""
    sizes = torch.cat([text.hidden[0] for text in texts]).abs().median(dim=0).values
    return 1 / sizes.clamp(min=1e-3 * sizes.max().item())


def check_target(target: PreTrainedModel) -> None:
    """Raise a Problem for a target for which no head can be trained."""
    check_family(target, "training.heads", "give another --target")
    if not row_lengths(context_length(target)):
        raise UsageProblem(
            f"rows of {min(ROWS):,} tokens are learned from, and the target's context is {context_length(target):,}; "
            "give another --target"
        )


def _check_minutes(target: PreTrainedModel, minutes: float, at_once: int) -> None:
    """Raise UsageProblem where a third of the time is too short for the first texts and steps, as timed here.

    at_once: the number of the first texts.
    """
    rows, draws = [[0] * 16] * at_once, torch.Generator(target.device)

    def write(n: int) -> None:
        written_after(target, rows, (1.0,) * len(rows), n, frozenset(), draws)

    def read() -> None:
        row = torch.zeros(1, min(ROWS), dtype=torch.long, device=target.device)
        with torch.inference_mode():
            target(input_ids=row, use_cache=False).logits[0, -1, 0].item()

    few, more, a_pass = (_fastest(work) for work in (lambda: write(2), lambda: write(6), read))
    step, a_pass = max(0.0, (more - few) / 4), a_pass * max(ROWS) / min(ROWS)  # without what the first pass alone takes
    first = ((QUESTION + 2 * ANSWER) * step + FIRST_PASSES * a_pass) / 60
    least, usual = (math.ceil(WITH_NOISE * part * first) for part in (LATEST_PART, FIRST_PART))
    note(
        f"the smallest --minutes that leaves a head of this target on this machine is about {least}; "
        f"from {usual} on the first one stands there after a tenth of the time"
    )
    if minutes < LATEST_PART * first:
        raise UsageProblem(f"--minutes {minutes:g} is too short for this target on this machine; give at least {least}")


def _fastest(work: Callable[[], None]) -> float:
    """The seconds of the faster one of two times: the first one may load what a GPU needs for it."""
    return min(timeit.repeat(work, number=1, repeat=2))


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
