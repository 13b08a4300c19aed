"""Do trees that know their worth beat the chain of the same head? Counts alone, on known greedy texts.

A block head with a Markov table says what may follow each token, so one pass gives a whole tree (TreeSpark, arXiv
2609.22098). Nodes are admitted by their chance to be reached, best first: the product of the head's own probabilities,
or of calibrated ones, sigmoid(a logit q + b), where a and b are fitted on every second text, on edges whose ancestors
were right. Rounds are replayed on the others.

    python -m benchmarks.tried.sure                 # minutes
    python -m benchmarks.tried.reliability results/NAME-sure.json        # the picture of the record

What comes out: how often tokens of each probability were right, and tokens per round of trees and of the chain. Files:
results/NAME-sure.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import heapq
import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.shared import common
from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.drafts.heads.block import BlockHead, blocks
from speclab.drafts.heads.rollout import target_pass
from speclab.lab.harness import kept_when_stopped
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Heading, Lines, Table, interval, number, speedup
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import reports_problems
from speclab.system.terminal import progress
from speclab.theory.formulas import ratio_interval
from training.texts import written_after

CHILDREN = 4  # tokens after each node that a tree may have
NODES = (4, 5, 6, 7, 8, 12, 16, 24)
PRICE = 1 / 15  # of a node more in the target's pass, in steps
LEAST = 0.11  # a node is worth its price where it is reached with this chance or a higher one
EDGES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)  # ends of the ranges of probabilities
CHAIN, PAYING = "chain", "calibrated, while it pays"

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Range(RecordPart):
    """Edges whose ancestors were right, by the head's probability up to `end`. The sums are over the edges."""

    end: Amount
    n_edges: Count
    n_right: Count
    said: Amount
    calibrated: Amount


@dataclass(kw_only=True)
class Replayed(RecordPart):
    """The rounds of one text with one way of choosing nodes."""

    way: str
    text_index: Count
    n_rounds: Count
    n_nodes: Count
    n_accepted: Count


@dataclass(kw_only=True)
class SureRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.tried.sure`."""

    ranges: list[Range]
    raw: list[Replayed]
    slope: float
    shift: float


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Along:
    """A head along a text. logits: (places, slots, vocabulary) of blocks that begin at each place, without the bias by
    the token before. ids: (n,) the text; block i begins at token `first` + i."""

    logits: Tensor
    ids: list[int]
    first: int

    @classmethod
    def of(cls, setup: Setup, head: BlockHead, prompt: list[int], text: list[int]) -> "Along":
        """Run the head at every place of a text whose whole block is known."""
        ids = torch.tensor([[*prompt, *text]])
        hidden, _ = target_pass(setup.target.model, ids, head.config.layers)
        anchors = torch.arange(len(prompt), ids.shape[1] - head.config.longest)
        parts = [blocks(head, hidden, ids, some[None])[0] for some in anchors.split(32)]
        return cls(head.logits(torch.cat(parts)), ids[0].tolist(), len(prompt))


def followers(head: BlockHead, row: Tensor, before: int) -> tuple[list[int], list[float]]:
    """Return the most probable tokens after `before` in a slot, (vocabulary,) logits, and their probabilities."""
    probs = head.biased(row[None], torch.tensor([before]))[0].softmax(-1).topk(CHILDREN)
    return probs.indices.tolist(), probs.values.tolist()


def edges(head: BlockHead, along: Along) -> list[tuple[float, bool]]:
    """Return the probability of each follower of a right path, and whether it is right."""
    found = []
    for i, block in enumerate(along.logits):
        for slot, row in enumerate(block):
            at = along.first + i + slot
            tokens, probs = followers(head, row, along.ids[at])
            found += [(p, t == along.ids[at + 1]) for t, p in zip(tokens, probs, strict=True)]
            if tokens[0] != along.ids[at + 1]:
                break
    return found


def fitted(pairs: list[tuple[float, bool]]) -> tuple[float, float]:
    """Return a and b of sigmoid(a logit q + b), the most likely ones."""
    said = torch.tensor([p for p, _ in pairs]).double().clamp(1e-6, 1 - 1e-6).logit()
    right = torch.tensor([r for _, r in pairs]).double()
    both = torch.tensor([1.0, 0.0], dtype=torch.double, requires_grad=True)
    fit = torch.optim.LBFGS([both], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        fit.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(both[0] * said + both[1], right)
        loss.backward()
        return loss

    with torch.enable_grad():
        fit.step(closure)
    return both[0].item(), both[1].item()


def chance(p: float, slope: float, shift: float) -> float:
    """Return the calibrated probability."""
    p = min(max(p, 1e-6), 1 - 1e-6)
    return 1 / (1 + math.exp(-slope * math.log(p / (1 - p)) - shift))


def tree(
    head: BlockHead, block: Tensor, anchor: int, most: int, least: float, slope: float, shift: float
) -> list[tuple[int, int]]:
    """Return the nodes of the best tree after an anchor: the number of the node before, -1 for the anchor, and the
    token.

    It grows node by node, the one that is reached most surely first, until it has `most` or the next one's chance is
    below `least`.
    """
    nodes: list[tuple[int, int]] = []
    waiting: list[tuple[float, int, int, int]] = []  # minus the chance, depth, the node before, the token

    def offer(before: int, token: int, depth: int, reached: float) -> None:
        if depth < len(block):
            for follower, p in zip(*followers(head, block[depth], token), strict=True):
                heapq.heappush(waiting, (-reached * chance(p, slope, shift), depth, before, follower))

    offer(-1, anchor, 0, 1.0)
    while waiting and len(nodes) < most and -waiting[0][0] >= least:
        reached, depth, before, token = heapq.heappop(waiting)
        nodes.append((before, token))
        offer(len(nodes) - 1, token, depth + 1, -reached)
    return nodes


def n_right(nodes: list[tuple[int, int]], text: list[int]) -> int:
    """Return how far a text goes along a tree."""
    known, at, n = {pair: i for i, pair in enumerate(nodes)}, -1, 0
    for token in text:
        if (at, token) not in known:
            break
        at, n = known[at, token], n + 1
    return n


class Way(NamedTuple):
    """A way to choose nodes. most: nodes. fit: slope and shift of a tree's calibration, None of a chain. least: chance
    of a node."""

    most: int
    fit: tuple[float, float] | None = None
    least: float = 0.0


def ways(slope: float, shift: float, longest: int) -> dict[str, Way]:
    """Return how nodes are chosen, by name. longest: tokens of a chain at most."""
    found: dict[str, Way] = {f"{CHAIN}, {n}": Way(n) for n in NODES if n <= longest}
    found |= {f"own probabilities, {n}": Way(n, (1.0, 0.0)) for n in NODES}
    found |= {f"calibrated, {n}": Way(n, (slope, shift)) for n in NODES}
    return found | {PAYING: Way(NODES[-1], (slope, shift), LEAST)}


def replayed(head: BlockHead, along: Along, way: Way) -> tuple[int, int, int]:
    """Return rounds, nodes and accepted tokens of a text."""
    place = n_rounds = n_nodes = n_accepted = 0
    while place < len(along.logits):
        at = along.first + place
        block, anchor, text = along.logits[place], along.ids[at], along.ids[at + 1 :]
        if way.fit is None:
            nodes, token = [], anchor
            for depth, row in enumerate(block[: way.most]):
                token = followers(head, row, token)[0][0]
                nodes.append((depth - 1, token))
        else:
            nodes = tree(head, block, anchor, way.most, way.least, *way.fit)
        n = n_right(nodes, text)
        n_rounds, n_nodes, n_accepted, place = n_rounds + 1, n_nodes + len(nodes), n_accepted + n, place + n + 1
    return n_rounds, n_nodes, n_accepted


@torch.no_grad()
def measure(setup: Setup, prompts: list[Prompt], budget: int, seed: int) -> tuple[dict[str, Any], BaseException | None]:
    """Fit on one half of the texts and replay on the other.  -> fields of the record, what ended it early"""
    drafter: Any = registry.make("block", setup, seed)
    head, given = drafter.head, [prompt.id_list for prompt in prompts]
    draws = torch.Generator().manual_seed(seed)
    texts = written_after(setup.target.model, given, (1e-4,) * len(given), budget, frozenset(), draws)
    along = [Along.of(setup, head, a, b) for a, b in zip(given, texts, strict=True)]
    slope, shift = fitted([edge for one in along[::2] for edge in edges(head, one)])
    tested = [edge for one in along[1::2] for edge in edges(head, one)]
    ranges, low = [], 0.0
    for end in EDGES:
        some = [(p, right) for p, right in tested if low <= p < end or p == end == 1]
        said, calibrated = sum(p for p, _ in some), sum(chance(p, slope, shift) for p, _ in some)
        right = sum(right for _, right in some)
        ranges.append(Range(end=end, n_edges=len(some), n_right=right, said=said, calibrated=calibrated))
        low = end
    raw: list[Replayed] = []
    with (
        kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops,
        progress(len(along[1::2]), "text", "replaying") as bar,
    ):
        for index, one in enumerate(along[1::2]):
            of_text = []
            for name, way in ways(slope, shift, head.config.longest).items():
                n_rounds, n_nodes, n_accepted = replayed(head, one, way)
                counts = {"n_rounds": n_rounds, "n_nodes": n_nodes, "n_accepted": n_accepted}
                of_text.append(Replayed(way=name, text_index=index, **counts))
            raw += of_text
            bar.update()
    return {"ranges": ranges, "raw": raw, "slope": slope, "shift": shift}, stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "rounds ÷ is the number of rounds of the chain with a dash over this one's, with its interval over texts. speed ÷ "
    "is tokens per round over 1 + nodes / 15, the price of verification in steps, over that chain's, which is the "
    "highest of all chains; drafting costs the same pass.",
]


def total(run: SureRun, way: str, what: str) -> float:
    """Return the sum of a count over the texts."""
    return sum(getattr(row, what) for row in run.raw if row.way == way)


def per_round(run: SureRun, way: str) -> float:
    """Return the tokens per round."""
    return 1 + total(run, way, "n_accepted") / total(run, way, "n_rounds")


def speed(run: SureRun, way: str) -> float:
    """Return the tokens per round over the price of a round's verification."""
    return per_round(run, way) / (1 + PRICE * total(run, way, "n_nodes") / total(run, way, "n_rounds"))


def best_chain(run: SureRun) -> str:
    """Return the fastest chain."""
    return max((row.way for row in run.raw if row.way.startswith(CHAIN)), key=lambda way: speed(run, way))


def best_tree(run: SureRun) -> tuple[str, float]:
    """Return the fastest tree, and its speed over that of the fastest chain."""
    way = max((row.way for row in run.raw if not row.way.startswith(CHAIN)), key=lambda way: speed(run, way))
    return way, speed(run, way) / speed(run, best_chain(run))


def page(run: SureRun) -> list[Block]:
    """The whole page, from the record alone."""
    of = {name: [row for row in run.raw if row.way == name] for name in dict.fromkeys(row.way for row in run.raw)}
    best, (tree_name, gain) = best_chain(run), best_tree(run)

    def rounds(name: str) -> str:
        top, bottom = ([float(row.n_rounds) for row in of[one]] for one in (best, name))
        ends = interval(*(ratio_interval(top, bottom) or (None, None)))
        return f"{speedup(sum(top) / sum(bottom))} ({ends})"

    trees: dict[str, Cell] = {
        "nodes by": lambda name: name,
        "nodes": lambda name: number(total(run, name, "n_nodes") / total(run, name, "n_rounds")),
        "tok/rnd": lambda name: number(per_round(run, name)),
        "rounds ÷": lambda name: "-" if name == best else rounds(name),
        "speed ÷": lambda name: "-" if name == best else speedup(speed(run, name) / speed(run, best)),
    }
    reliability: dict[str, Cell] = {
        "up to": lambda one: number(one.end),
        "tokens": lambda one: f"{one.n_edges:,}",
        "said": lambda one: number(one.said / one.n_edges),
        "calibrated": lambda one: number(one.calibrated / one.n_edges),
        "right": lambda one: number(one.n_right / one.n_edges),
    }
    fit = f"Calibrated is sigmoid({run.slope:.2f} logit q + {run.shift:.2f})."
    return [
        *common.begin("Trees that know their worth", run),
        f"{run.settings['n_prompts']} texts; every second one fits, the others are replayed.",
        Heading("How often a token of each probability was right", 2),
        Table([one for one in run.ranges if one.n_edges], reliability),
        fit,
        Heading("Trees and the chain of the same head", 2),
        Table(list(of), trees),
        f"Best tree ÷ best chain: {speedup(gain)} ({tree_name} nodes, against {best}).",
        Lines(LEGEND),
    ]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    common.add_result_flags(parser, "sure")
    parser.set_defaults(limit=0, max_new_tokens=104)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args: argparse.Namespace = make_parser().parse_args(argv)
    common.check_result_flags(args)
    setup, prompts = flags.load(args, temperature=0.0)
    found, stop = measure(setup, prompts, args.max_new_tokens, args.seed)
    fields = common.head_of(args, setup, stop, prompts, max_new_tokens=args.max_new_tokens)
    return common.finish(args, SureRun(**fields, **found), page, stop)


if __name__ == "__main__":
    sys.exit(main())
