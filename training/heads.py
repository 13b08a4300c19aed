"""Train a draft that reads its target's hidden states: `python -m training.heads KIND`.

    python -m training.heads feature --minutes 180                  # for the lab's target
    python -m training.heads block --minutes 180 --markov-rank 64   # one pass for all tokens of a round
    python -m training.heads feature --minutes 10 --device cuda
    python -m training.heads block --target FOLDER --minutes 60
    python -m training.heads exit --exit-layer 2 --minutes 30       # an adapter behind the target's first two layers
    python -m training.heads feature --init models/lab-pair/feature --minutes 80 --rate 0.003    # train one further

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
from transformers import LlamaConfig, PreTrainedModel

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
from speclab.records import files
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_replaceable, check_writable, prepare_folder, read_bytes, write_whole
from speclab.system.terminal import note, say
from training.blocks import block_loss, unused_id
from training.draft_flags import parse, settings_of
from training.exits import exit_loss, fresh_adapter
from training.kinds import Draft, fresh_head, sizes, trained_head
from training.models import compiled, encode
from training.passes import reading
from training.rollouts import CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE, distance, rollout_loss
from training.scoring import scored
from training.texts import ROWS, batch, beginnings, own_texts

OF_TABLES = 0.5  # rate of embeddings, norms and output layers, as a share of --rate
BATCH_TOKENS = {"cuda": 65536}  # of a step, by device
FEW_TOKENS = 4096
# Logits of the target in a step at most: memory for some ten times as many numbers is needed. It binds where the
# vocabulary is large.
LOGITS = {"cuda": 2**29}
FEW_LOGITS = 2**27
MOST_BYTES = 2**20  # of a training.json
# What is kept of the training.json of the head that a training starts from.
OF_BEGINNING = ("steps", "tokens", "seconds", "rate", "seed", "loss", "own_texts", "init", "machine", "versions")


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
    check_no_encoder(target, "training.heads", "give another --target")
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
    args = parse(argv, __doc__)
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
    read = reading(target, head.config.layers, args.keep)
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


def step_tokens(device: torch.device, vocab: int) -> int:
    """Tokens that a step learns from; of a long row it takes at least one."""
    most = LOGITS.get(device.type, FEW_LOGITS) // vocab
    return min(BATCH_TOKENS.get(device.type, FEW_TOKENS), max(min(ROWS), most))


def _beginning(name: str) -> dict[str, Any]:
    """The head that a training starts from, and how that was trained where it is a folder that says so.

    EnvironmentProblem for a training.json that is none.
    """
    about: dict[str, Any] = {"name": loading.short_name(name)}
    file = Path(name) / "training.json"
    if file.is_file():
        earlier = loading.loaded(name, "its training.json", lambda: dict(json.loads(read_bytes(file, MOST_BYTES))))
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


if __name__ == "__main__":
    skip_denormals()
    sys.exit(main())
