"""Train a draft for a target, or a target like the lab's: `python -m training.heads KIND`.

    python -m training.heads feature --minutes 180                  # for the lab's target
    python -m training.heads block --minutes 180                    # one pass for all tokens of a round
    python -m training.heads feature --minutes 10 --device cuda
    python -m training.heads block --target FOLDER --minutes 60
    python -m training.heads feature --init models/lab-pair/feature --minutes 80 --rate 0.003    # train one further
    python -m training.heads target --minutes 80                    # a target on Python's sources
    python -m training.heads model --target build/target --minutes 45    # a draft model that is distilled from one

A head learns from what the target itself writes, because that is where it will be asked to guess: a target with a chat
template answers questions that it has asked itself, and every target continues pieces of the sources of Python's
standard library. A head for more than 8,192 ids proposes the most frequent ones, with the target's own embedding and
output layer. --minutes is the whole time: in two fifths of it the target writes, and the head learns in the rest. Each
tenth of that it is scored by rounds replayed on held-out answers, and the best one so far stands in --out. No network
or GPU is needed.

What comes out, in --out: config.json and model.safetensors in the `speculators` format, or in one of the lab's own
where that has none. A target and a draft model are folders that any program loads. training.json has the settings, and
what the draft reaches on held-out text.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C before main() runs, and missing libraries, are one line

import argparse
import copy
import functools
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from speclab.cli import parsing
from speclab.drafts.heads.feature import FeatureHead, HeadConfig, rollout
from speclab.drafts.heads.files import SavedHead, read_head, weights_of
from speclab.models import loading
from speclab.models.family import check_family, family_of
from speclab.records import files
from speclab.system import extensions
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_writable, write_whole
from speclab.system.terminal import note, say
from training import corpus, pair
from training.passes import Passes
from training.recipes import DEPTH, Reading, Recipe, chain_loss, draw, layers_to_read, sizes_of
from training.scoring import Known, greedy_texts, known, score
from training.steps import TrainingFacts, at_once, train
from training.texts import MARGIN, PLAIN, PLAIN_OF_CHATS, ROWS, batch, encode, frequent_ids, packed, written
from training.writing import write_feature

OF_TABLES = 0.5  # the rate of embeddings, norms and output layers, as a share of --rate
FEW_TOKENS = 2048  # of a step
# The same on a GPU. A feature head for 8,192 ids takes about 7 GB for the larger number, half of it for float32 logits.
MANY_TOKENS, BYTES_OF_TOKEN = 32768, 2**18
DRAFT_IDS = 8192  # ids that a head proposes; of more it takes the most frequent ones
OF_TEXTS, OF_TRAINING = 0.4, 0.55  # shares of the time; the rest is for scores
K, FIRST_SCORE, SCORES = 4, 0.08, 0.1  # drafted tokens of a replayed round; shares of the training between scores


# --- a head that reads its target's states ----------------------------------------------------------------------------


def fresh_feature(
    target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace, ids: Tensor | None = None
) -> FeatureHead:
    """A random head, but for embedding, output layer and last norm, which start as the target's.

    ids: the target's ids that it proposes, None for all; with them, embedding and output layer stay the target's.
    """
    table, output = weights_of(target)
    hidden = table.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        layers = layers_to_read(target)
        fused = len(layers) * hidden**2
        block: Any = LlamaConfig(**sizes_of(target, 1, fused, 2 * hidden, ids is not None))
        with torch.device("meta"):
            head = FeatureHead(HeadConfig(block, layers, hidden, len(table) if ids is None else len(ids)))
        for module, weight in ((head.embed_tokens, table), (head.lm_head, output if ids is None else output[ids])):
            weight = weight.cpu().float()
            module.weight = nn.Parameter(weight.clone() if ids is None else weight, requires_grad=ids is None)
        draw(head)
    norm = getattr(getattr(target.base_model, "norm", None), "weight", None)  # where the last norm has the usual name
    if norm is not None and norm.shape == head.norm.weight.shape:
        with torch.no_grad():
            head.norm.weight.copy_(norm)
    if ids is None and (table is output or table.data_ptr() == output.data_ptr()):
        head.lm_head.weight = head.embed_tokens.weight  # one table learns from both of its uses
    return head


def rollout_loss(head: FeatureHead, read: Reading, tokens: Tensor, starts: Tensor) -> Tensor:
    """The loss of a feature head, on chains of its own outputs, as it will draft (the "training-time test" of EAGLE-3).

    read: gives what the target computes. tokens: (batch, n). starts: (batch, chains).
    """
    hidden, target = read(tokens)
    return chain_loss(rollout(head, hidden, tokens, DEPTH, starts), target)


KINDS: dict[str, Recipe] = {
    "feature": Recipe(
        help="one layer that reads the target's states (EAGLE-3)",
        fresh=fresh_feature,
        loss=rollout_loss,
        write=functools.partial(write_feature, k=DEPTH),
        trained=lambda target, args: read_head(args.init, target),
        chains=1 / 3,
        narrows=True,
    ),
    "model": pair.MODEL,
    # An extension brings kinds of its own: RECIPES in its module `recipe`.
    **{name: one for module in extensions.modules("recipe") for name, one in module.RECIPES.items()},
}


def head_to_train(
    target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace, ids: Tensor | None = None
) -> SavedHead:
    """The head as it is before the first step: random, or that of --init, which has ids of its own.

    ids: the target's ids that a random one proposes, None for all. All weights of the head of --init learn, but for an
    embedding and an output layer that are the target's own: a block's, and those of a head that proposes a part of the
    ids. An embedding and an output layer that are one table in a fresh feature head are two tables in its file.
    """
    kind = KINDS[args.kind]
    if not args.init:
        return SavedHead(kind.fresh(target, tokenizer, args, ids), ids)
    head, ids = kind.trained(target, args)
    lent = () if ids is None else ("embed_tokens", "lm_head")
    theirs, own = {id(module) for module in target.modules()}, dict[int, nn.Parameter]()
    for path, module in head.named_modules():  # what is not in the file is the target's own memory
        if id(module) in theirs:
            continue
        for name, weight in list(module.named_parameters(recurse=False)):
            learns = path not in lent
            made = nn.Parameter(weight.clone() if learns else weight, requires_grad=learns)
            setattr(module, name, own.setdefault(id(weight), made))  # what is one table stays one
    return SavedHead(head, ids)


def rounded(head: Any, scale: Tensor | None = None) -> Any:
    """A copy of a head with the weights that are written: for the target's states as they are, rounded to bfloat16.
    scale: (layers * hidden,) what the states are multiplied by in training."""
    made = copy.deepcopy(head).eval().requires_grad_(False)
    if scale is not None:
        made.fc.weight.mul_(scale)
    for weight in made.parameters():
        weight.copy_(weight.to(torch.bfloat16))
    return made


def scale_of(head: Any, texts: list[Known]) -> Tensor | None:
    """What brings each dimension of the states of these texts to the same size, (layers * hidden,), for a head whose
    `fc` reads them; None for one that has a norm of its own before that, and for other drafts.

    A few dimensions of a language model's states are hundreds of times larger than most, and would be all that a fresh
    head sees. The factors end in the weights that are written.
    """
    parts = {name for name, _ in head.named_children()}
    if "fc" not in parts or parts & {"input_norm", "fc_norm"}:
        return None
    sizes = torch.cat([text.hidden[0] for text in texts]).abs().median(dim=0).values
    return 1 / sizes.clamp(min=1e-3 * sizes.max().item())


def check_target(target: PreTrainedModel) -> list[int]:
    """Raise a Problem for a target for which no head can be trained.  -> the lengths of rows that it has room for"""
    check_family(target, "training.heads", "give another --target")
    room = family_of(target).room(target.config).text
    if lengths := [length for length in ROWS if room is None or length <= room]:
        return lengths
    raise UsageProblem(
        f"rows of {min(ROWS):,} tokens are learned from, and the target's context is {room:,}; give another --target"
    )


def train_head(args: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a draft that reads its target's states, and write it.  -> facts for training.json, and a summary"""
    kind, name = KINDS[args.kind], loading.short_name(args.target)
    tokenizer: Any = loading.load_tokenizer(args.target)
    target = loading.load_model(args.target, device, torch.float32, "target").requires_grad_(False)
    lengths, vocab = check_target(target), target.config.get_text_config().vocab_size
    beginning: dict[str, Any] | None = {"name": loading.short_name(args.init)} if args.init else None
    if beginning and (file := Path(args.init) / "training.json").is_file():
        beginning |= json.loads(file.read_text("utf-8"))
    narrow = kind.narrows and not args.init and vocab > DRAFT_IDS
    made = None if narrow else head_to_train(target, tokenizer, args)  # it may refuse, so before any text is written
    documents = list(corpus.standard_library())
    held_out, answers = written(target, tokenizer, documents, lengths, 60 * OF_TEXTS * args.minutes, args.seed)
    if made is None:
        made = head_to_train(target, tokenizer, args, frequent_ids(answers, vocab, DRAFT_IDS).to(device))
    head, ids = made[0].to(device), made[1]
    layers = head.config.layers
    about: dict[str, Any] = {
        "kind": args.kind,
        "target": name,
        "parameters": sum(weight.numel() for weight in head.parameters() if weight.requires_grad),
        "own_texts": {"answers": len(answers), "tokens": sum(len(text.answer) for text in answers)},
        "draft_ids": None if ids is None else len(ids),
        "init": beginning,
        "rate": args.rate,
        "seed": args.seed,
    }
    note(f"{about['parameters']:,} parameters")

    long = [text for text in held_out if len(text.answer) > 16]  # long enough for a chain
    texts = [known(target, torch.tensor([text.ids], device=device), len(text.prompt), layers) for text in long]
    scale = scale_of(head, texts)
    if scale is not None and args.init:
        head.fc.weight.data /= scale
    stream, rows = encode(tokenizer, [d.text for d in documents if not d.held_out]), packed(answers, lengths)
    plain = PLAIN_OF_CHATS if tokenizer.chat_template else PLAIN
    n_tokens = at_once(device, FEW_TOKENS, MANY_TOKENS, BYTES_OF_TOKEN)
    margin = max(MARGIN, getattr(head.config, "longest", 0))

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        some = batch(stream, rows, plain, kind.chains, step, args.seed, n_tokens, margin)
        return [tuple(part.to(device) for part in some)]

    # What is worse does not take the place of the head of --init, so that is scored before the first step.
    seconds, best, due = 60 * OF_TRAINING * args.minutes, 0.0, 0.0 if args.init else FIRST_SCORE

    def look(facts: TrainingFacts, is_last: bool = False) -> None:
        """Score the head where it is time for that, and write it where it is the best so far."""
        nonlocal best, due
        if not is_last and not due * seconds <= facts.seconds < seconds:
            return
        due = (int(facts.seconds / seconds / SCORES + 0.25) + 1) * SCORES  # after .08 comes .2
        made = rounded(head, scale)
        found = score(made, texts, K, ids)
        places = " ".join(map(str, found["by_position"]))
        *_, reached = found["tokens_per_round"].values()  # at K, or with all tokens of a shorter draft
        note(f"{reached:.2f} tokens a round on held-out answers, by position {places}")
        if reached > best:
            best = reached
            tables = {} if ids is None else {"ids": ids}
            kind.write(args.out, made.to(torch.bfloat16), name, target.config.architectures or [], **tables)
            write_whole(args.out / "training.json", json.dumps(about | asdict(facts), indent=1) + "\n")

    look(TrainingFacts())
    loss_of = functools.partial(kind.loss, head, Passes(target, layers, ids, scale))
    facts = train(head, batches, loss_of, seconds, args.rate, args.kind, OF_TABLES, look)
    look(facts, is_last=True)
    of_best, ids = kind.trained(target, argparse.Namespace(**vars(args) | {"init": str(args.out)}))
    by_kind = greedy_texts(target, tokenizer, layers)
    sets = {"held-out texts": texts, **by_kind, "all prompts": [text for some in by_kind.values() for text in some]}
    scores = {name: score(of_best, some, ids=ids) for name, some in sets.items()}
    draft = args.out if args.kind == "model" else f"{args.kind}:{args.out}"
    note(f"to use it, type: python compare.py --target {args.target} --draft {draft}")
    return about | asdict(facts) | {"scores": scores}, scores


# --- the command ------------------------------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = parsing.make_parser(__doc__)
    names = {"dest": "kind", "metavar": "KIND"}
    kinds = parser.add_subparsers(prog="python -m training.heads", required=True, help="what to train", **names)
    _add_shared_flags(kinds.add_parser("target", help="a target on Python's sources"), 80)
    for name, kind in KINDS.items():
        one = kinds.add_parser(name, help=kind.help)
        one.add_argument("--target", default=loading.LAB_TARGET, metavar="NAME", help="(default: the lab's)")
        one.add_argument("--init", metavar="NAME", help="a trained head to start from: a folder or a hub name")
        _add_shared_flags(one, 180)
    args = parser.parse_args(argv)
    args.out = args.out or Path("build", args.kind)
    return args


def _add_shared_flags(parser: argparse.ArgumentParser, minutes: int) -> None:
    usual = f"minutes of all (default: {minutes})"
    parser.add_argument("--minutes", type=parsing.positive, default=minutes, help=usual)
    parser.add_argument("--rate", type=parsing.positive, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="(default: 0)")
    parser.add_argument("--out", type=parsing.some_path, help="folder for what was trained (default: build/KIND)")


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    device = loading.choose_device(args.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # products in TF32
    check_writable(args.out / "training.json", "--out")
    about, summary = (train_head if args.kind in KINDS else pair.train_target)(args, device)
    about |= {"machine": files.machine(device), "versions": files.versions()}
    write_whole(args.out / "training.json", json.dumps(about, indent=1) + "\n")
    say(json.dumps(summary))
    return 0


if __name__ == "__main__":
    # Gradients of an attention whose weights are nearly 0 and 1 are full of numbers below 1e-38, whose products are
    # slow: a step of a feature head took 2.1 s with them and 1.4 s without. Threads take this over when they start.
    torch.set_flush_denormal(True)
    sys.exit(main())
