"""Train the offline pair: a Llama-type target, and a draft distilled from it, on the sources of Python itself.

The pair that comes with the lab was made by this file. It needs no network and no GPU; more minutes give better text.
Four stages, each saved when done, so an interrupted run goes on where it stopped:

    tokenizer      byte-level BPE, one for both models
    target         plain next-token training on mixed lengths
    continuations  the target continues pieces of its own training text, greedily and by sampling
    draft          distillation: on those continuations and on text, towards the target's own probabilities

    python -m training.pair --minutes 125                # on a CPU; progress on stderr
    python -m training.pair --minutes 8 --device cuda --with-packages    # not measured on a GPU yet
    python -m training.pair --minutes 9 --device cuda --with-packages --target-shape 24x256 --out build/deeper

The draft is distilled on what the target itself writes because that is where it will be asked to guess
(Zhou et al., DistillSpec, arXiv 2310.08461). The matrices are trained with Muon, the rest with AdamW.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import io
import json
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from speclab.cli import parsing
from speclab.lab.training import corpus
from speclab.lab.training.steps import (
    LENGTHS,
    alone_in,
    check_settings,
    crops,
    next_token_loss,
    readable,
    skip_denormals,
    train,
)
from speclab.models import loading
from speclab.records import files
from speclab.system.errors import reports_problems
from speclab.system.files import check_replaceable, check_writable, do_all, prepare_folder, whole_folder, write_whole
from speclab.system.numbers import whole_number
from speclab.system.terminal import note, say
from training.draft import PROMPT, acceptance, continuations, distil
from training.models import (
    DRAFT_SHAPE,
    TARGET_SHAPE,
    VOCABULARY,
    compile_layers,
    encode,
    llama,
    save,
    train_tokenizer,
    uncompiled,
)

# Of --minutes; the rest is the teacher's pass over the pool, and reports.
SHARES = {"target": 0.62, "continuations": 0.05, "draft": 0.21}


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, stream: Tensor, length: int = 512, limit: int = 100_000) -> float:
    """Mean loss over the held-out stream in windows of `length`, nats per token."""
    model.eval()
    windows = stream[: min(limit, len(stream)) // length * length].view(-1, length)
    losses = [next_token_loss(model, rows).item() * len(rows) for rows in windows.split(8)]
    return sum(losses) / len(windows)


def train_target(args: argparse.Namespace, seconds: float, stream: Tensor) -> tuple[LlamaForCausalLM, dict]:
    """Stage 2.  -> target, facts about its training"""
    torch.manual_seed(args.seed)
    model = llama(args.target_shape, fused=args.device.startswith("cuda")).to(args.device)
    compile_layers(model)
    stream = stream.to(args.device)

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        return [(rows,) for rows in crops(stream, step, args.seed, args.batch_tokens)]

    loss_of = functools.partial(next_token_loss, model)
    return model, vars(train(model, batches, loss_of, seconds, args.rate, "target", args.work_dir / "target.pt"))


def _shape(text: str) -> dict[str, int]:
    """12x256 -> the sizes of a target, its MLP as wide as the committed one's for its width."""
    layers, _, width = (whole_number(word) for word in text.partition("x"))
    if not layers or not width or width % 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; give layers and a width that 64 divides, as in 24x256")
    return {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": width * 11 // 4}


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Flag -> value, of the flags that decide what is learned."""
    names = ("seed", "rate", "device", "batch_tokens", "with_packages", "target_shape")
    return {"--" + name.replace("_", "-"): getattr(args, name) for name in names}


def write_parts(folder: Path, size: int) -> None:
    """folder.tar.part-00, -01, ... of at most `size` bytes; `cat folder.tar.part-* | tar x` puts them together."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(folder, folder.name)
    data = archive.getvalue()
    starts = range(0, len(data), size)
    digits = max(2, len(str(len(starts) - 1)))  # as many in all names: a shell puts them in order by name
    for i, start in enumerate(starts):
        write_whole(folder.with_name(f"{folder.name}.tar.part-{i:0{digits}}"), data[start : start + size])


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--minutes", type=parsing.positive, default=125, help="time for everything (default: 125)")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="(default: cpu)")
    parser.add_argument("--with-packages", action="store_true", help="also learn from installed permissive packages")
    parser.add_argument(
        "--batch-tokens",
        type=parsing.at_least(max(LENGTHS), 2**24),
        help="tokens per optimizer step (default: 8192, on CUDA 131072)",
    )
    parser.add_argument(
        "--target-shape",
        type=_shape,
        default=TARGET_SHAPE,
        metavar="LAYERSxWIDTH",
        help="of the target (default: 12x256, the committed one)",
    )
    parser.add_argument(
        "--part-mb",
        type=parsing.at_least(1),
        metavar="MB",
        help="also write the pair as a tar file in parts of this size",
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
    args.batch_tokens = args.batch_tokens or (131072 if args.device.startswith("cuda") else 8192)
    prepare_folder(args.work_dir, "--work-dir")
    check_writable(args.out / "training.json", "--out")
    with alone_in(args.work_dir):
        for role in ("target", "draft"):
            check_replaceable(args.out / role, ("*.json", "*.safetensors"), "--out")
        return _train(args)


def _train(args: argparse.Namespace) -> int:
    """Everything that is done in the work folder.  -> exit code

    Each model replaces the one of an earlier training whole. A stop between the two leaves the new target beside the
    old draft, which guesses less well and changes no text; the same command again writes both from its checkpoints.
    """
    documents = list(corpus.standard_library())
    if args.with_packages:
        documents += corpus.permissive_packages()
    training = [d.text for d in documents if not d.held_out]
    check_settings(args.work_dir, settings_of(args))
    tokenizer_folder = args.work_dir / "tokenizer"
    if not tokenizer_folder.exists():
        with whole_folder(tokenizer_folder) as folder:
            train_tokenizer(iter(training)).save_pretrained(folder)
    with readable(tokenizer_folder):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    stream = encode(tokenizer, training)
    held_out = encode(tokenizer, [d.text for d in documents if d.held_out])
    note(f"{len(stream):,} tokens to train on, {len(held_out):,} held out")

    seconds = {stage: 60 * args.minutes * share for stage, share in SHARES.items()}
    target, target_facts = train_target(args, seconds["target"], stream)
    target = uncompiled(target, args.target_shape).to(args.device)
    draft, draft_facts = distil(args, seconds, target, target_facts["steps"], stream)

    # Both are complete before one takes its place. The draft, which is distilled from the target, takes its own last.
    with whole_folder(args.out / "draft") as draft_folder, whole_folder(args.out / "target") as target_folder:
        target = save(target.cpu(), tokenizer, target_folder)
        draft = save(uncompiled(draft, DRAFT_SHAPE), tokenizer, draft_folder)
        fresh = continuations(target, held_out.unfold(0, PROMPT, 1), 12, args.seed + 7, rows=24)
        facts = {
            "corpus": corpus.manifest(documents),
            "tokens": {"training": len(stream), "held_out": len(held_out), "vocabulary": VOCABULARY},
            "target": {"shape": args.target_shape, "parameters": target.num_parameters(), **target_facts},
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
    summary = {key: facts[key] for key in ("held_out_loss", "acceptance_on_held_out_continuations")}
    steps = [
        lambda: write_whole(args.out / "training.json", json.dumps(facts, indent=1) + "\n"),
        lambda: say(json.dumps(summary)),
    ]
    if args.part_mb:
        steps.append(lambda: write_parts(args.out, args.part_mb * 2**20))
    return do_all(steps)


if __name__ == "__main__":
    skip_denormals()
    sys.exit(main())
