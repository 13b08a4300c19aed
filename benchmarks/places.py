"""Is a draft that reads its target's states right less often far on in a text? Nothing is decoded.

A draft learns on windows of some length, and its acceptance may fall behind them. So target and draft read a long text,
and at every place the draft's first token is held against the target's own choice there. That is the acceptance of a
greedy round's first token on this text; whatever a longer cache costs in time is not in it. The texts are read as they
are, in no chat template, and as far as the target's context reaches.

    python -m benchmarks.places                                              # the lab's head, texts of 2,000 tokens
    python -m benchmarks.places --target smollm2 --kinds "6k tokens"         # after `make real`

Files: results/NAME-places.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.drafts.heads.rollout import target_pass
from speclab.lab.harness import kept_when_stopped
from speclab.models import prompts, texts
from speclab.present.tables import Block, Cell, Lines, Table, interval, number
from speclab.records.rows import Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note
from speclab.theory.formulas import ratio_interval

EDGES = (64, 256, 512, 1024, 2048, 4096, 8192)  # tokens of the text before a place


@dataclass(kw_only=True)
class Places(RecordPart):
    """A part of a text: `n` places behind `first` tokens of it and more, at `n_right` of which the draft's first token
    is the target's choice."""

    text: Count
    first: Count
    n: Count
    n_right: Count


@dataclass(kw_only=True)
class PlacesRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.places`."""

    raw: list[Places] = field(default_factory=list)


@torch.inference_mode()
def is_right(drafter: Any, target: Any, ids: Tensor) -> Tensor:
    """Tell whether a draft's first token is the target's choice, for rounds whose last committed token is number 1, 2
    and so on of a text. ids: (1, n).  -> (n - 2,)"""
    hidden, logits = target_pass(target, ids, drafter.head.config.layers)
    chosen = logits[0].argmax(-1)  # (n,) the target's token after each
    (drafted,) = drafter.head.chains(hidden, ids, 1)
    proposed = drafted[0].argmax(-1)
    proposed = proposed if drafter.ids is None else drafter.ids[proposed]
    return proposed == chosen[1 : 1 + len(proposed)]


def by_place(text: int, right: Tensor) -> list[Places]:
    """Count the places of a text between each two of EDGES. right: (places,), the first one behind two tokens."""
    found = []
    for first, end in pairwise(EDGES):
        part = right[first - 2 : end - 2]
        if len(part):
            found.append(Places(text=text, first=first, n=len(part), n_right=int(part.sum())))
    return found


def page(run: PlacesRun) -> list[Block]:
    """The whole page, from the record alone."""
    firsts = sorted({part.first for part in run.raw})
    ends = dict(pairwise(EDGES))

    def of(first: int) -> list[Places]:
        return [part for part in run.raw if part.first == first]

    def between(first: int) -> str:
        parts = of(first)
        found = ratio_interval([float(p.n_right) for p in parts], [float(p.n) for p in parts])
        return interval(*(found or (None, None)))

    cells: dict[str, Cell] = {
        "tokens before": lambda first: f"{first:,} to {ends[first] - 1:,}",
        "texts": lambda first: str(len(of(first))),
        "places": lambda first: f"{sum(p.n for p in of(first)):,}",
        "right": lambda first: number(sum(p.n_right for p in of(first)) / sum(p.n for p in of(first))),
        "95 %": between,
    }
    return [
        *common.begin("Where in a text is the draft right?", run),
        f"target {run.settings['target']}, draft {run.settings['draft']}",
        Table(firsts, cells),
        Lines(
            [
                "right is the share of the places at which the draft's first token is the target's own choice, on a "
                "text that is given to both; its interval is over texts."
            ]
        ),
    ]


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    parser.add_argument("--draft", metavar="KIND", default="feature", help="a head (default: %(default)s)")
    parser.add_argument("--kinds", metavar="KIND,KIND", default="2k tokens", help="of --texts (default: %(default)s)")
    common.add_result_flags(parser, "places")
    parser.set_defaults(texts="long", engine="eager")
    args = parser.parse_args(argv)
    common.check_result_flags(args)
    setup = flags.setup_from(args)
    drafter: Any = registry.make(args.draft, setup, args.seed)
    if getattr(getattr(drafter, "head", None), "chains", None) is None:
        raise UsageProblem(f"--draft {args.draft}: it reads no states of the target; give feature or block")
    kinds = args.kinds.split(",")
    pairs = [(kind, "\n".join(message["content"] for message in chat)) for kind, chat in texts.read(args.texts)]
    read = prompts.encode([pair for pair in pairs if pair[0] in kinds], setup.tokenizer)
    if not read:
        raise UsageProblem(f"--kinds {args.kinds}: there are {', '.join(dict.fromkeys(kind for kind, _ in pairs))}")
    raw: list[Places] = []
    with kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops:
        for i, text in enumerate(read):
            ids = text.ids[:, : setup.target.max_length].to(setup.device)
            right = is_right(drafter, setup.target.model, ids)
            raw += by_place(i, right)
            note(f"text {i + 1} of {len(read)}: {ids.shape[1]:,} tokens, {right.float().mean():.3f} right")
    stop = stops[0] if stops else None
    fields = common.head_of(args, setup, stop, draft=args.draft, texts=args.texts, kinds=kinds)
    return common.finish(args, PlacesRun(**fields, raw=raw), page, stop)


if __name__ == "__main__":
    sys.exit(main())
