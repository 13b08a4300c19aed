"""Do losses that aim at rounds make better heads? The same head, data and steps with each loss, and rounds replayed.

A round's tokens are 1 + a1 + a1 a2 + ..., with the acceptance of each place. The losses differ in what they make of it:

- today: each place's distance to the target (speclab/lab/training/recipes.py), less by a fixed share for each place
- dpace: the same distances, each weighted by what its acceptance adds to the expected tokens now (D-PACE, arXiv
  2605.18810; there a cross-entropy, here today's distance)
- warm: minus the logarithm of the acceptance for the first fifth of the steps, then today's
- rounds: today's, and for the last --tail of the steps minus the expected tokens of a round themselves (EDR, arXiv
  2610.10411; here rounds begin at all places alike)

    python -m benchmarks.losses            # the lab's heads go on with each loss, an hour or more on one thread
    python -m benchmarks.losses --fresh --tail 0.1 --rate 0.004 --steps 2000        # random heads, a day

The lab's own heads have learned with today's loss for millions of tokens, so a few steps more with each loss are a
cheap test: they tell where a loss leads a trained head, not how fast it teaches a random one. All arms take a
step in turn, on the same rows; each seed has other rows. Files: results/NAME-losses.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.shared import common, learning
from speclab.cli import parsing
from speclab.drafts.heads.block import blocks
from speclab.drafts.heads.rollout import rollout
from speclab.lab.harness import kept_when_stopped
from speclab.lab.training.recipes import CHAIN_DECAY, DEPTH, LOW_TEMPERATURE, Likely, Reading, distance
from speclab.models import loading
from speclab.present.tables import Block, Cell, Lines, Table, number
from speclab.system.errors import UsageProblem, reports_problems
from speclab.theory.formulas import ratio_interval
from training.kinds import SLOT_DECAY

SMOOTHING = 0.5  # of an acceptance that weights a place (D-PACE's alpha)
WARM = 0.2  # share of the steps
LAYERS = (3, 7, 10)  # that the lab's heads read
ROUNDS, TODAY, BEFORE = "rounds", "today", "before"

# --- losses -----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """One place of all drafts of a step: what the target says there, the draft's logits (batch, drafts, vocabulary),
    and the weight that today's loss gives to the place."""

    target: Likely
    logits: Tensor
    weight: float


def block_places(head: Any, read: Reading, tokens: Tensor, starts: Tensor) -> Iterator[Place]:
    """The places of blocks, as training.kinds.block_loss takes them."""
    hidden, target = read(tokens)
    anchors = starts + 1
    states = blocks(head, hidden, tokens, anchors)
    for slot in range(head.config.longest):
        logits = head.biased(head.logits(states[:, :, slot]), tokens.gather(1, anchors + slot))
        yield Place(target.at(anchors + slot), logits, SLOT_DECAY**slot)


def feature_places(head: Any, read: Reading, tokens: Tensor, starts: Tensor) -> Iterator[Place]:
    """The places of chains, as training.kinds.rollout_loss takes them."""
    hidden, target = read(tokens)
    for step, (positions, logits) in enumerate(rollout(head, hidden, tokens, DEPTH, starts)):
        yield Place(target.at(positions + step + 1), logits, CHAIN_DECAY**step)


PLACES: dict[str, Callable[..., Iterator[Place]]] = {"block": block_places, "feature": feature_places}


def overlap(target: Likely, logits: Tensor, temperature: float) -> Tensor:
    """Return the share of samples that are accepted, (batch, drafts), at this temperature."""
    cold = 1 / temperature
    is_known, ids = target.ids >= 0, target.ids.clamp(min=0)
    own = (cold * logits.gather(-1, ids) - (cold * logits).logsumexp(-1, keepdim=True)).exp()
    theirs = target.probs.to(logits.dtype) ** cold
    if temperature != 1:
        theirs = theirs / theirs.sum(-1, keepdim=True)
    return (torch.minimum(theirs, own) * is_known).sum(-1)


def acceptance(places: list[Place]) -> Tensor:
    """Return the acceptance of every place, (2, batch, drafts, places): at temperature 1, and near greedy decoding."""
    both = [[overlap(p.target, p.logits.float(), t) for t in (1.0, LOW_TEMPERATURE)] for p in places]
    return torch.stack([torch.stack(one) for one in both], dim=-1)


def today(places: list[Place]) -> Tensor:
    """Return the loss of `python -m training.heads`."""
    total = sum(p.weight * distance(p.target, p.logits) for p in places)
    return torch.as_tensor(total) / sum(p.weight for p in places)


def place_weights(accepted: Tensor) -> Tensor:
    """Return D-PACE's weights of places, (..., places): what each acceptance adds to the tokens of a round, from
    acceptances that are moved towards 1. They do not learn."""
    reached = (SMOOTHING + (1 - SMOOTHING) * accepted.detach()).cumprod(-1)
    return reached.flip(-1).cumsum(-1).flip(-1)


def dpace(places: list[Place]) -> Tensor:
    """Return the distances of all drafts, weighted by how much their places matter now."""
    weights = place_weights(acceptance(places).mean(0))  # (batch, drafts, places)
    distances = [of_each(p) for p in places]
    return (weights * torch.stack(distances, dim=-1)).sum() / weights.sum()


def of_each(place: Place) -> Tensor:
    """Return today's distance of each draft at this place, (batch, drafts)."""
    one = torch.vmap(lambda probs, ids, logits: distance(Likely(probs, ids), logits))
    rows = [part.flatten(0, 1)[:, None] for part in (*place.target, place.logits)]
    return one(*rows).unflatten(0, place.logits.shape[:2])


def warm(places: list[Place]) -> Tensor:
    """Return minus the logarithm of the acceptance, weighted as today's loss; it also learns from a cold start."""
    logs = -acceptance(places).clamp(min=1e-6).log().sum(0).mean((0, 1))  # (places,)
    weights = logs.new_tensor([p.weight for p in places])
    return (weights * logs).sum() / weights.sum()


def expected_tokens(accepted: Tensor) -> Tensor:
    """Return the expected tokens of rounds, from the acceptance of their places: (..., places) -> (...)"""
    return 1 + accepted.cumprod(-1).sum(-1)


def rounds(places: list[Place]) -> Tensor:
    """Return minus the expected tokens of a round, over the places of one, at both temperatures together."""
    return -expected_tokens(acceptance(places)).sum(0).mean() / len(places)


Loss = Callable[[list[Place]], Tensor]
LOSSES: dict[str, Callable[[float], Loss]] = {  # by share of the steps
    TODAY: lambda share: today,
    "dpace": lambda share: dpace,
    "warm": lambda share: warm if share < WARM else today,
    ROUNDS: lambda share: rounds,  # it branches off from today's
}

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LossesRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.losses`. An arm is a kind of head, a comma and a loss."""

    raw: list[learning.Replayed] = field(default_factory=list)


# --- training ---------------------------------------------------------------------------------------------------------


def loss_of(learner: learning.Learner, share: float) -> learning.LossOf:
    """Return the loss of a head at this share of the steps."""
    loss = LOSSES[_loss_name(learner.name)](share)
    places = PLACES[learner.kind]
    return lambda head, read, tokens, starts: loss(list(places(head, read, tokens, starts)))


def _loss_name(arm: str) -> str:
    return arm.partition(", ")[2]


def measure(args: argparse.Namespace, world: learning.World, raw: list[learning.Replayed]) -> BaseException | None:
    """Train and replay, seed by seed and kind by kind; what a kind has with one seed is kept whole or not at all.
    -> what ended it early"""
    with kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops:
        for seed in range(args.seed, args.seed + args.seeds):
            for kind in args.heads:
                words = [kind, "--seed", str(seed), *([] if args.fresh else ["--init", str(loading.LAB_PAIR / kind)])]
                first = learning.Learner.fresh(f"{kind}, {BEFORE}", words, world, args.rate)
                of_kind = [] if args.fresh else learning.replayed(first, world, seed, 0)
                learners = [first.branch(f"{kind}, {name}") for name in args.losses if name != ROUNDS]
                branch = round(args.steps * (1 - args.tail)) if ROUNDS in args.losses else args.steps
                learning.learn(world, learners, loss_of, range(branch), args.steps, seed, args.rate)
                if ROUNDS in args.losses:
                    of_today = next(one for one in learners if _loss_name(one.name) == TODAY)
                    learners.append(of_today.branch(f"{kind}, {ROUNDS}"))
                learning.learn(world, learners, loss_of, range(branch, args.steps), args.steps, seed, args.rate)
                for learner in learners:
                    of_kind += learning.replayed(learner, world, seed, args.steps)
                raw += of_kind
    return stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "Each number of tokens per round is that of greedy rounds, replayed on texts that the target wrote: on held-out "
    "answers, and on the lab's prompts. All seeds are together.",
    "÷ today is the number of rounds with today's loss over that with this one, at k = 4, on the same texts, with its "
    "interval over texts; the last columns have it for each seed alone. The interval does not know of trainings that "
    "would have come out otherwise: the seeds show how much that is.",
]


def page(run: LossesRun) -> list[Block]:
    """The whole page, from the record alone."""
    arms = list(dict.fromkeys(row.arm for row in run.raw))
    seeds = sorted({row.seed for row in run.raw})

    def of(arm: str, seed: int | None = None) -> list[learning.Replayed]:
        return [row for row in run.raw if row.arm == arm and seed in (None, row.seed)]

    def today(arm: str) -> str:
        return f"{arm.partition(', ')[0]}, {TODAY}"

    def gain_of(seed: int | None, arm: str) -> str:
        top, bottom = (learning.rounds_of_texts(of(one, seed), 1) for one in (today(arm), arm))
        return f"{sum(top) / sum(bottom):.3f}x" if bottom and arm != today(arm) else "-"

    def ends(arm: str) -> str:
        found = ratio_interval(learning.rounds_of_texts(of(today(arm)), 1), learning.rounds_of_texts(of(arm), 1))
        return " to ".join(number(end, 3) for end in found) if found and arm != today(arm) else "-"

    cells: dict[str, Cell] = {
        "head": lambda arm: arm.partition(", ")[0],
        "loss": lambda arm: arm.partition(", ")[2],
    }
    cells |= learning.replayed_columns(of, 3)
    if any(arm == today(arm) for arm in arms):
        cells |= {"÷ today": functools.partial(gain_of, None), "95 %": ends}
        cells |= {f"seed {seed}": functools.partial(gain_of, seed) for seed in seeds}
    said = run.settings
    start = "the same random weights" if said["fresh"] else "the lab's trained heads"
    about = (
        f"{said['steps']} steps of {said['step_tokens']:,} tokens from {start}, rate {said['rate']:g}, "
        f"{learning.texts_line(run, run.raw)}"
    )
    return [*common.begin("Losses that aim at rounds", run), about, Table(arms, cells), Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--heads", default=",".join(PLACES), metavar="KIND,KIND", help="(default: %(default)s)")
    parser.add_argument("--losses", default=",".join(LOSSES), metavar="NAME,NAME", help="(default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="begin with random heads")
    parser.add_argument(
        "--tail", type=parsing.positive, default=1.0, metavar="SHARE", help=f"of {ROUNDS} (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=parsing.at_least(1), default=2, help="(default: %(default)s)")
    learning.add_training_flags(parser, steps=80, rate=5e-4)
    common.add_result_flags(parser, "losses")
    return parser


def listed(text: str, known: dict[str, Any], flag: str) -> list[str]:
    """Return the names that a flag lists. Raises UsageProblem for one that is not known."""
    names = [name for name in text.split(",") if name]
    if not names or not set(names) <= known.keys() or len(set(names)) < len(names):
        raise UsageProblem(f"{flag} {text}: give some of {', '.join(known)}, with commas between them")
    return names


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    args.heads, args.losses = listed(args.heads, PLACES, "--heads"), listed(args.losses, LOSSES, "--losses")
    if ROUNDS in args.losses and TODAY not in args.losses:
        raise UsageProblem(f"--losses {ROUNDS} goes on from {TODAY}; give --losses {TODAY},{ROUNDS}")
    if args.tail > 1:
        raise UsageProblem(f"--tail {args.tail:g}: give a share of the steps, at most 1")
    world = learning.world_of(args, LAYERS)
    raw = list[learning.Replayed]()
    stop = measure(args, world, raw)
    fields = learning.fields_of(args, world, stop, ("heads", "losses", "fresh", "tail", "seeds"))
    return common.finish(args, LossesRun(**fields, raw=raw), page, stop)


if __name__ == "__main__":
    torch.set_flush_denormal(True)  # as in training/heads.py: products of numbers below 1e-38 are slow
    sys.exit(main())
