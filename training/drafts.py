"""Train a draft that reads its target's hidden states: `python -m training.drafts KIND`.

    python -m training.drafts feature --minutes 180              # for the lab's target
    python -m training.drafts feature --minutes 10 --device cuda
    python -m training.drafts feature --target FOLDER --minutes 60

The draft learns from training text (the sources of Python's standard library) and from what the target itself writes
after pieces of it. An interrupted run goes on where it stopped; with more --minutes a finished one goes on, too. What
comes out, in --out: config.json and model.safetensors in the `speculators` format, and training.json with the settings
and the acceptance by position.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C before main() runs, and missing libraries, are one line

import functools
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from speclab.cli import parsing
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.files import write_head
from speclab.lab.training import corpus
from speclab.lab.training.steps import readable, save_tensors, sent, train
from speclab.models import loading
from speclab.records import files
from speclab.system.errors import reports_problems
from speclab.system.files import check_writable, prepare_folder, write_whole
from speclab.system.terminal import note, say
from training.draft import continuations
from training.models import encode
from training.rollouts import rollout_loss
from training.scoring import greedy_texts, held_out_texts, score

# Tokens of a row: the share of the steps, and tokens of text that the target's own continuation starts from.
ROWS = {256: (0.65, 48), 512: (0.25, 256), 1024: (0.10, None)}
OWN = 0.5  # share of the rows that the target has written itself
BATCH_TOKENS = {"cuda": 65536}
FEW_TOKENS = 4096


def config_for(target: PreTrainedModel, intermediate: int) -> HeadConfig:
    """A head of the target's width; it reads layers a third, two thirds and almost all the way up."""
    config = target.config.get_text_config()
    n, heads = config.num_hidden_layers, config.num_attention_heads
    block = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=intermediate,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        max_position_embeddings=getattr(config, "max_position_embeddings", 4096),
        tie_word_embeddings=False,
    )
    layers = (max(0, n // 3 - 1), max(0, 2 * n // 3 - 1), max(0, n - 2))
    return HeadConfig(block, layers, config.hidden_size, config.vocab_size)


def fresh_head(target: PreTrainedModel, config: HeadConfig, seed: int) -> FeatureHead:
    """Random, but for the embedding and the output layer, which start as the target's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = FeatureHead(config)
        for name, weight in head.named_parameters():
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, std=0.005 if "o_proj" in name or "down_proj" in name else 0.02)
    pairs: list[Any] = [
        (head.embed_tokens, target.get_input_embeddings()),
        (head.lm_head, target.get_output_embeddings()),
    ]
    with torch.no_grad():
        for own, of_target in pairs:
            own.weight.copy_(of_target.weight)
    return head


def own_texts(work: Path, target: PreTrainedModel, stream: Tensor, seconds: float, seed: int) -> dict[int, Tensor]:
    """Continuations that the target has written, by their length; from the work folder where they are there."""
    texts = {}
    for length, (_, prompt) in ROWS.items():
        if prompt is None:
            continue
        file = work / f"own-{length}.pt"
        if not file.exists():
            written = continuations(target, stream, seconds / 2, seed + length, prompt=prompt, length=length)
            save_tensors(file, written.to(torch.int32))
        with readable(file):
            texts[length] = torch.load(file, weights_only=True)
    return texts


def batch(stream: Tensor, own: dict[int, Tensor], step: int, seed: int, tokens: int) -> Tensor:
    """(rows, length) of one length: a function of (step, seed) alone."""
    generator = torch.Generator().manual_seed((seed + 3) * 1_000_003 + step)
    shares = torch.tensor([share for share, _ in ROWS.values()])
    length = list(ROWS)[int(torch.multinomial(shares, 1, generator=generator))]
    n_rows = max(1, tokens // length)
    n_own = round(OWN * n_rows) if length in own else 0
    starts = torch.randint(0, len(stream) - length, (n_rows - n_own,), generator=generator)
    rows = stream[starts[:, None] + torch.arange(length)].long()
    if n_own:
        picks = torch.randint(0, len(own[length]), (n_own,), generator=generator)
        rows = torch.cat([own[length][picks].long(), rows])
    return rows


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("kind", choices=["feature"], help="what to train")
    parser.add_argument("--target", default=loading.LAB_TARGET, metavar="NAME", help="(default: the lab's)")
    parser.add_argument("--minutes", type=parsing.positive, default=180, help="of training (default: 180)")
    parser.add_argument(
        "--own-minutes", type=parsing.positive, default=10, help="of the target's writing (default: 10)"
    )
    parser.add_argument(
        "--intermediate", type=parsing.at_least(1), default=1024, help="width of the MLP (default: 1024)"
    )
    parser.add_argument("--rate", type=parsing.positive, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="(default: cpu)")
    parser.add_argument("--threads", type=parsing.at_least(1), help="(default: all cores)")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="(default: 0)")
    parser.add_argument("--work-dir", type=parsing.some_path, default=Path("build/feature"), help="checkpoints, texts")
    parser.add_argument(
        "--out", type=parsing.some_path, default=Path("build/feature/out"), help="gets the draft when it is trained"
    )
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Train a draft.  -> exit code"""
    args = make_parser().parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = loading.choose_device(args.device)[0]
    prepare_folder(args.work_dir, "--work-dir")
    check_writable(args.out / "training.json", "--out")
    tokenizer: Any = loading.load_tokenizer(args.target)
    target = loading.load_model(args.target, device, torch.float32, "target").requires_grad_(False)
    documents = list(corpus.standard_library())
    stream = encode(tokenizer, [d.text for d in documents if not d.held_out])
    held_out = encode(tokenizer, [d.text for d in documents if d.held_out])
    note(f"{len(stream):,} tokens to train on, {len(held_out):,} held out")
    own = own_texts(args.work_dir, target, stream, 60 * args.own_minutes, args.seed)
    note(f"the target wrote {', '.join(f'{len(rows):,} texts of {length} tokens' for length, rows in own.items())}")

    head = fresh_head(target, config_for(target, args.intermediate), args.seed).to(device)
    note(f"{sum(weight.numel() for weight in head.parameters()):,} parameters")
    tokens = BATCH_TOKENS.get(device.type, FEW_TOKENS)

    def batches(step: int) -> list[tuple[Tensor, ...]]:
        return [(sent(batch(stream, own, step, args.seed, tokens), device), torch.tensor(step))]

    loss_of = functools.partial(rollout_loss, head, target)
    facts = train(head, batches, loss_of, 60 * args.minutes, args.rate, args.kind, args.work_dir / "head.pt")
    scores = scored(head.eval(), target, tokenizer, held_out, args.seed)
    say(json.dumps(scores))
    name, architectures = loading.short_name(args.target), target.config.architectures or []
    write_head(args.out, head, name, architectures, 4)
    about = {
        "kind": args.kind,
        "target": name,
        "parameters": sum(weight.numel() for weight in head.parameters()),
        **asdict(facts),
        "own_texts": {length: len(rows) for length, rows in own.items()},
        "rate": args.rate,
        "seed": args.seed,
        "scores": scores,
        "machine": asdict(files.machine(device)),
        "versions": asdict(files.versions()),
    }
    write_whole(args.out / "training.json", json.dumps(about, indent=1) + "\n")
    return 0


def scored(
    head: FeatureHead, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, held_out: Tensor, seed: int
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
    sys.exit(main())
