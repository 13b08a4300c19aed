"""Do losses that aim at rounds make better heads? The same head, data and steps with each loss, and rounds replayed.

A round's tokens are 1 + a1 + a1 a2 + ..., with the acceptance of each place. The losses differ in what they make of it:

- today: each place's distance to the target (speclab/lab/training/recipes.py), less by a fixed share for each place
- dpace: the same distances, each weighted by what its acceptance adds to the expected tokens now (D-PACE, arXiv
  2605.18810; there a cross-entropy, here today's distance)
- warm: minus the logarithm of the acceptance for the first fifth of the steps, then today's
- rounds: today's, and for the last --tail of the steps minus the expected tokens of a round themselves (EDR, arXiv
  2610.10411; here rounds begin at all places alike)

    python -m benchmarks.losses --steps 400                        # a block and a feature head, hours on one thread
    python -m benchmarks.losses --init --losses today,dpace,rounds --tail 1 --rate 0.001 --steps 60    # the lab's heads

With --init the lab's own heads go on, whose training was the first part.
All arms take a step in turn, on the same rows. No clock is looked at. Files: results/NAME-losses.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import common
from speclab.cli import parsing
from speclab.drafts.heads.block import blocks
from speclab.drafts.heads.rollout import rollout
from speclab.lab.harness import kept_when_stopped
from speclab.lab.training import corpus
from speclab.lab.training.recipes import LOW_TEMPERATURE, Likely, Reading, distance
from speclab.lab.training.steps import optimizers, product_dtype, products_in
from speclab.models import loading
from speclab.models.family import context_length
from speclab.present.tables import Block, Cell, Lines, Table, interval, number, speedup
from speclab.records import files
from speclab.records.rows import Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import prepare_folder
from speclab.system.terminal import note
from speclab.theory.formulas import ratio_interval
from training import heads
from training.course import rounded
from training.kinds import CHAIN_DECAY, DEPTH, KINDS, SLOT_DECAY, head_to_train
from training.passes import reading
from training.scoring import NEW, Known, agreement, greedy_texts, known_texts
from training.texts import PLAIN, Prompts, Texts, batch, encode, packed, row_lengths

LENGTHS = (2, 4, 6)  # drafted tokens of a replayed round
SMOOTHING = 0.5  # of an acceptance that weights a place (D-PACE's alpha)
WARM = 0.2  # share of the steps
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
class Replayed(RecordPart):
    """The greedy rounds of one text, replayed with one trained head. accepted, rounds: by LENGTHS."""

    head: str
    loss: str
    text: str
    text_index: Count
    rounds: list[Count]
    accepted: list[Count]
    tested: list[Count]


@dataclass(kw_only=True)
class LossesRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.losses`."""

    raw: list[Replayed] = field(default_factory=list)


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass
class Learner:
    """A head in training. head: its kind."""

    kind: str
    loss: str
    head: Any
    steppers: list[torch.optim.Optimizer]

    @classmethod
    def fresh(cls, kind: str, loss: str, target: Any, tokenizer: Any, rate: float, words: list[str]) -> "Learner":
        """A head before its first step; it is the same for all losses. words: flags of its training."""
        head, _ = head_to_train(target, tokenizer, heads.parse([kind, *words]))
        return cls(kind, loss, head, optimizers(head, rate, heads.OF_TABLES))

    def branch(self, loss: str) -> "Learner":
        """A copy that goes on with another loss. What does not learn is shared."""
        frozen = {id(w): w for w in self.head.parameters() if not w.requires_grad}
        shared: dict[int, Any] = frozen | {id(b): b for b in self.head.buffers()}
        head = copy.deepcopy(self.head, shared)
        steppers = optimizers(head, 1.0, heads.OF_TABLES)
        for own, theirs in zip(steppers, self.steppers, strict=True):
            own.load_state_dict(copy.deepcopy(theirs.state_dict()))
        return type(self)(self.kind, loss, head, steppers)

    def step(self, read: Reading, rows: tuple[Tensor, Tensor], share: float, rate: float) -> float:
        """Learn from rows.  -> the loss"""
        self.head.train()
        self.head.zero_grad(set_to_none=True)
        device = rows[0].device
        with torch.enable_grad(), products_in(product_dtype(device), device):
            loss = LOSSES[self.loss](share)(list(PLACES[self.kind](self.head, read, *rows)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for stepper, one in zip(self.steppers, (rate, heads.OF_TABLES * rate), strict=True):
            for group in stepper.param_groups:
                group["lr"] = one
            stepper.step()
        return loss.item()


def rate_at(share: float) -> float:
    """Return the factor of the learning rate: a warm-up, flat, and linear decay over the last two fifths."""
    return min(1.0, share / 0.04 + 0.04, max(0.02, (1 - share) / 0.4))


def train(args: argparse.Namespace, kind: str, losses: list[str], world: "World") -> list[Learner]:
    """Train a head of this kind with each loss, step by step in turn."""
    words = ["--seed", str(args.seed), *(["--init", str(loading.LAB_PAIR / kind)] if args.init else [])]
    first = Learner.fresh(kind, TODAY, world.target, world.tokenizer, args.rate, words)
    learners = [first.branch(name) for name in losses if name != ROUNDS]
    last: dict[str, float] = {}
    for step in range(args.steps):
        share = step / args.steps
        if ROUNDS in losses and share >= 1 - args.tail and not any(one.loss == ROUNDS for one in learners):
            learners.append(next(one for one in learners if one.loss == TODAY).branch(ROUNDS))
        rows = world.rows(kind, step)
        seen = functools.cache(lambda: world.read(first.head.config.layers)(rows[0]))  # noqa: B023 - called at once
        for one in learners:
            last[one.loss] = one.step(lambda tokens: seen(), rows, share, args.rate * rate_at(share))  # noqa: B023
        if step % args.report == 0 or step + 1 == args.steps:
            note(f"{kind}: step {step + 1} of {args.steps}, loss {' '.join(f'{v:.3f}' for v in last.values())}")
            if args.check_held_out:
                for one in learners:
                    found = replayed(one, world.held_out(first.head.config.layers), "held-out texts")
                    note(f"  {one.loss}: {tokens_per_round(found, 1):.3f} tokens a round at k = {LENGTHS[1]}")
    if args.init:
        first.loss = BEFORE
    return [first, *learners] if args.init else learners


class World:
    """The target, the texts that it has written, and rows of them."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device("cpu")
        self.tokenizer: Any = loading.load_tokenizer(loading.LAB_TARGET)
        self.target = loading.load_model(loading.LAB_TARGET, self.device, torch.float32, "target").requires_grad_(False)
        documents = list(corpus.standard_library())

        def prompts_from(writer: Any) -> Prompts:
            return Prompts(self.tokenizer, writer, documents, [], args.seed)

        self.texts = Texts(args.work_dir, self.target, self.tokenizer, prompts_from, args.seed)
        lengths = [n for n in row_lengths(context_length(self.target)) if n <= args.longest_row]
        self.texts.prepare(lengths, lambda: None)
        while sum(len(text.answer) for text in self.texts.answers) < args.own_tokens:
            self.texts.write_more(heads.FEW_TOKENS, lambda: None)
        self.packed = packed(self.texts.answers, lengths)
        self.stream = encode(self.tokenizer, [d.text for d in documents if not d.held_out])

    def rows(self, kind: str, step: int) -> tuple[Tensor, Tensor]:
        """Return the rows of a step and where drafts begin; they are the same for all losses."""
        args = self.args
        return batch(self.stream, self.packed, PLAIN, KINDS[kind].chains, step, args.seed, args.step_tokens)

    @functools.cache  # noqa: B019 - one world a run
    def read(self, layers: tuple[int, ...]) -> Reading:
        """Return what gives the target's states of rows, which are kept in the work folder."""
        return reading(self.target, layers, None, self.args.work_dir / "kept", None)

    @functools.cache  # noqa: B019
    def held_out(self, layers: tuple[int, ...]) -> list[Known]:
        """Return the held-out answers."""
        return known_texts(self.target, self.texts.held_out, layers)

    @functools.cache  # noqa: B019
    def prompts(self, layers: tuple[int, ...]) -> dict[str, list[Known]]:
        """Return the greedy texts of the lab's prompts."""
        return greedy_texts(self.target, self.tokenizer, layers)


# --- replaying --------------------------------------------------------------------------------------------------------


def counts(match: Tensor, k: int) -> tuple[int, int, int]:
    """Replay rounds.  match: (places, depth), whether token j of a draft after place i is the target's. -> rounds,
    accepted and tested tokens"""
    lengths = match[:, :k].cumprod(-1).sum(-1)
    n_rounds = n_accepted = n_tested = 0
    place, end = 0, min(NEW, len(match))
    while place < end:
        n = int(lengths[place])
        n_rounds, n_accepted, n_tested = n_rounds + 1, n_accepted + n, n_tested + n + (n < k)
        place += n + 1
    return n_rounds, n_accepted, n_tested


def replayed(learner: Learner, texts: list[Known], name: str) -> list[Replayed]:
    """Replay rounds of these texts with the weights as they would be written."""
    head, found = rounded(learner.head), []
    for index, text in enumerate(texts):
        match = agreement(head, text, max(LENGTHS))
        made = [counts(match, k) for k in LENGTHS]
        n_rounds, n_accepted, n_tested = (list(part) for part in zip(*made, strict=True))
        found.append(
            Replayed(
                head=learner.kind,
                loss=learner.loss,
                text=name,
                text_index=index,
                rounds=n_rounds,
                accepted=n_accepted,
                tested=n_tested,
            )
        )
    return found


def measure(args: argparse.Namespace, world: World, raw: list[Replayed]) -> BaseException | None:
    """Train and replay, kind by kind.  -> what ended it early"""
    with kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops:
        for kind in args.heads:
            of_kind = []
            for learner in train(args, kind, args.losses, world):
                layers = learner.head.config.layers
                sets = {"held-out texts": world.held_out(layers), **world.prompts(layers)}
                for name, texts in sets.items():
                    of_kind += replayed(learner, texts, name)
            raw += of_kind
    return stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "Each number of tokens per round is that of greedy rounds, replayed on texts that the target wrote: on held-out "
    "answers, and on the lab's prompts.",
    "÷ today is the number of rounds with today's loss over that with this one, at k = 4, all texts together, with its "
    "interval over texts. Each row is one training; how much another seed moves it was not measured.",
]
HELD_OUT = "held-out texts"


def tokens_per_round(rows: list[Replayed], length: int) -> float:
    """Return the tokens per round of some texts together.  length: the number of an entry of LENGTHS"""
    return 1 + sum(row.accepted[length] for row in rows) / sum(row.rounds[length] for row in rows)


def page(run: LossesRun) -> list[Block]:
    """The whole page, from the record alone."""
    cases = list(dict.fromkeys((row.head, row.loss) for row in run.raw))

    def of(case: tuple[str, str], held_out: bool) -> list[Replayed]:
        return [r for r in run.raw if (r.head, r.loss) == case and (r.text == HELD_OUT) == held_out]

    def all_rounds(case: tuple[str, str]) -> list[float]:
        return [float(row.rounds[1]) for held_out in (True, False) for row in of(case, held_out)]

    def gain(case: tuple[str, str]) -> float:
        return sum(all_rounds((case[0], TODAY))) / sum(all_rounds(case))

    def ends(case: tuple[str, str]) -> str:
        return interval(*(ratio_interval(all_rounds((case[0], TODAY)), all_rounds(case)) or (None, None)))

    def at(length: int, held_out: bool) -> Cell:
        return lambda case: number(tokens_per_round(of(case, held_out), length))

    cells: dict[str, Cell] = {"head": lambda case: case[0], "loss": lambda case: case[1]}
    cells |= {f"held-out k={k}": at(i, True) for i, k in enumerate(LENGTHS)}
    cells |= {f"prompts k={k}": at(i, False) for i, k in enumerate(LENGTHS)}
    if any(case[1] == TODAY for case in cases):
        cells |= {
            "÷ today": lambda case: "-" if case[1] == TODAY else speedup(gain(case)),
            "95 %": lambda case: "-" if case[1] == TODAY else ends(case),
        }
    said = run.settings
    start = "the lab's trained heads" if said["init"] else "the same random weights"
    about = (
        f"{said['steps']} steps of {said['step_tokens']:,} tokens from {start}, on the same rows; "
        f"{said['own_tokens']:,} tokens of the target's own texts"
    )
    return [*common.begin("Losses that aim at rounds", run), about, Table(cases, cells), Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--heads", default=",".join(PLACES), metavar="KIND,KIND", help="(default: %(default)s)")
    parser.add_argument("--losses", default=",".join(LOSSES), metavar="NAME,NAME", help="(default: %(default)s)")
    parser.add_argument("--steps", type=parsing.at_least(10), default=400, help="(default: %(default)s)")
    parser.add_argument("--step-tokens", type=parsing.at_least(64), default=1024, help="(default: %(default)s)")
    parser.add_argument("--longest-row", type=parsing.at_least(256), default=512, help="tokens (default: %(default)s)")
    parser.add_argument(
        "--own-tokens", type=parsing.at_least(1), default=200_000, help="of the target's texts (default: %(default)s)"
    )
    parser.add_argument("--rate", type=parsing.positive, default=4e-3, help="peak learning rate (default: 0.004)")
    parser.add_argument("--init", action="store_true", help="go on from the lab's heads")
    parser.add_argument(
        "--tail", type=parsing.positive, default=0.1, metavar="SHARE", help=f"of {ROUNDS} (default: %(default)s)"
    )
    parser.add_argument("--threads", type=parsing.at_least(1), help="(default: all cores)")
    parser.add_argument("--seed", type=parsing.seed, default=0, help="(default: 0)")
    parser.add_argument("--report", type=parsing.at_least(1), default=50, help="steps from line to line (default: 50)")
    parser.add_argument("--check-held-out", action="store_true", help="also replay held-out answers for each line")
    parser.add_argument(
        "--work-dir", type=parsing.some_path, default=Path("build/losses"), help="texts (default: %(default)s)"
    )
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
    common.check_result_flags(args)
    prepare_folder(args.work_dir, "--work-dir")
    if args.threads:
        torch.set_num_threads(args.threads)
    world, raw = World(args), list[Replayed]()
    settings = {
        "target": loading.short_name(loading.LAB_TARGET),
        "device": world.device.type,
        "dtype": "float32",
        "engine": "eager",
        "threads": torch.get_num_threads(),
        "seed": args.seed,
        "heads": args.heads,
        "losses": args.losses,
        "steps": args.steps,
        "step_tokens": args.step_tokens,
        "own_tokens": sum(len(text.answer) for text in world.texts.answers),
        "rate": args.rate,
        "init": args.init,
        "tail": args.tail,
        "texts_sha256": files.fingerprint(["".join(map(chr, text.ids)) for text in world.texts.answers]),
    }
    stop = measure(args, world, raw)
    fields: dict[str, Any] = common.head(args, world.device, settings) | {"interrupted": stop is not None}
    return common.finish(args, LossesRun(**fields, raw=raw), page, stop)


if __name__ == "__main__":
    torch.set_flush_denormal(True)  # as in training/heads.py: products of numbers below 1e-38 are slow
    sys.exit(main())
