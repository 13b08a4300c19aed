"""Trains several heads side by side on the same rows, and replays greedy rounds with each.

This is what benchmarks/losses.py and benchmarks/states.py share. All heads take a step in turn, and the target's pass
over the rows of a step is made once for all of them. No clock is looked at.
"""

import argparse
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared import common
from speclab.cli import parsing
from speclab.lab.training import corpus
from speclab.lab.training.recipes import Likely, Reading
from speclab.lab.training.steps import optimizers, product_dtype, products_in
from speclab.models import loading
from speclab.models.family import context_length
from speclab.present.tables import Cell, number
from speclab.records import files
from speclab.records.rows import Count, RecordPart
from speclab.system.files import prepare_folder
from speclab.system.terminal import note
from training import heads
from training.course import rounded
from training.kinds import KINDS, head_to_train
from training.passes import reading
from training.scoring import BEYOND, Known, agreement, greedy_texts, known_texts
from training.texts import PLAIN, Prompts, Text, Texts, batch, encode, packed, row_lengths

LENGTHS = (2, 4, 6)  # drafted tokens of a replayed round
HELD_OUT = "held-out texts"
AT_ONCE = 128  # texts that the target writes side by side
LINES = 10  # steps from line to line

# --- the target, its texts, and rows of them --------------------------------------------------------------------------


class World:
    """The lab's target, the texts that it has written, and rows of them.

    layers: all layers that some head reads. held_out: answers that are replayed beside the recipe's own held-out ones.
    """

    def __init__(
        self, folder: Path, layers: tuple[int, ...], own_tokens: int, held_out: int, longest_row: int, step_tokens: int
    ):
        self.layers, self.step_tokens = tuple(sorted(layers)), step_tokens
        self.tokenizer: Any = loading.load_tokenizer(loading.LAB_TARGET)
        device = torch.device("cpu")
        self.target = loading.load_model(loading.LAB_TARGET, device, torch.float32, "target").requires_grad_(False)
        documents = list(corpus.standard_library())

        def prompts_from(writer: Any) -> Prompts:
            return Prompts(self.tokenizer, writer, documents, [], 0)

        texts = Texts(folder, self.target, self.tokenizer, prompts_from, 0)
        lengths = [n for n in row_lengths(context_length(self.target)) if n <= longest_row]
        texts.prepare(lengths, lambda: None)
        texts.at_once = AT_ONCE
        while len(split(texts.answers, held_out)[0]) < held_out or self._n_own(texts, held_out) < own_tokens:
            texts.write_more(0.0, lambda: None)
        further, self.answers = split(texts.answers, held_out)
        self.held_out = [*texts.held_out, *further]
        self.packed = packed(self.answers, lengths)
        self.stream = encode(self.tokenizer, [d.text for d in documents if not d.held_out])
        self.read = reading(self.target, self.layers, None, folder / "kept", None)

    def _n_own(self, texts: Texts, held_out: int) -> int:
        return sum(len(text.answer) for text in split(texts.answers, held_out)[1])

    def rows(self, chains: float, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return the rows of a step and where drafts begin; the rows are the same for all heads.

        chains: the number of drafts as a share of a row's tokens.
        """
        return batch(self.stream, self.packed, PLAIN, chains, step, seed, self.step_tokens)

    def columns(self, layers: tuple[int, ...]) -> Tensor:
        """Return where the outputs of these layers are among those of all."""
        width = self.target.config.get_text_config().hidden_size
        return torch.cat([torch.arange(width) + width * self.layers.index(layer) for layer in layers])

    @functools.cache  # noqa: B019 - one world a run
    def known(self, layers: tuple[int, ...]) -> dict[str, list[Known]]:
        """Return what is replayed with a head that reads these layers: the held-out answers, and the greedy texts of
        the lab's prompts, by kind."""
        found = greedy_texts(self.target, self.tokenizer, layers)
        return {HELD_OUT: known_texts(self.target, self.held_out, layers), **found}

    @property
    def fingerprint(self) -> str:
        """A digest of all texts."""
        return files.fingerprint(["".join(map(chr, text.ids)) for text in (*self.answers, *self.held_out)])


def split(answers: list[Text], n: int) -> tuple[list[Text], list[Text]]:
    """Return the first n greedy answers that are long enough to be replayed, and all texts after other prompts."""
    held_out: list[Text] = []
    seen = set()
    for text in answers:
        if len(held_out) < n and text.greedy and len(text.answer) > 2 * BEYOND and text.prompt not in seen:
            held_out.append(text)
            seen.add(text.prompt)
    return held_out, [text for text in answers if text.prompt not in seen]


# --- learning ---------------------------------------------------------------------------------------------------------

LossOf = Callable[[Any, Reading, Tensor, Tensor], Tensor]


@dataclass
class Learner:
    """A head in training. kind: of the recipe. scale: what its states are multiplied by in training, None: nothing."""

    name: str
    kind: str
    head: Any
    scale: Tensor | None
    steppers: list[torch.optim.Optimizer]

    @classmethod
    def fresh(cls, name: str, words: list[str], world: World, rate: float) -> "Learner":
        """A head before its first step. words: its kind, and flags of `python -m training.heads`."""
        args = heads.parse(words)
        head, _ = head_to_train(world.target, world.tokenizer, args)
        scale = None
        if hasattr(head, "fc"):
            scale = heads.scale_of(world.known(head.config.layers)[HELD_OUT])
            if args.init:
                head.fc.weight.data /= scale
        return cls(name, args.kind, head, scale, optimizers(head, rate, heads.OF_TABLES))

    def branch(self, name: str) -> "Learner":
        """A copy that goes on under another name. What does not learn is shared."""
        frozen = {id(w): w for w in self.head.parameters() if not w.requires_grad}
        shared: dict[int, Any] = frozen | {id(b): b for b in self.head.buffers()}
        head = copy.deepcopy(self.head, shared)
        steppers = optimizers(head, 1.0, heads.OF_TABLES)
        for own, theirs in zip(steppers, self.steppers, strict=True):
            own.load_state_dict(copy.deepcopy(theirs.state_dict()))
        return type(self)(name, self.kind, head, self.scale, steppers)

    @property
    def n_learning(self) -> int:
        """The number of weights that learn."""
        return sum(weight.numel() for weight in self.head.parameters() if weight.requires_grad)

    def step(self, loss_of: LossOf, read: Reading, rows: tuple[Tensor, Tensor], rate: float) -> float:
        """Learn from rows, (batch, n) ids and (batch, drafts) positions.  -> the loss

        read: gives the states of the layers that this head reads.
        """
        self.head.train()
        self.head.zero_grad(set_to_none=True)
        device = rows[0].device
        with torch.enable_grad(), products_in(product_dtype(device), device):
            loss = loss_of(self.head, read, *rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for stepper, one in zip(self.steppers, (rate, heads.OF_TABLES * rate), strict=True):
            for group in stepper.param_groups:
                group["lr"] = one
            stepper.step()
        return loss.item()

    def reading(self, world: World, seen: Callable[[], tuple[Tensor, Likely]]) -> Reading:
        """Return a reading of this head's layers. seen: gives the states of all layers for the rows of the step."""
        columns = world.columns(self.head.config.layers)

        def read(tokens: Tensor) -> tuple[Tensor, Likely]:
            states, likely = seen()
            states = states[..., columns]
            return states if self.scale is None else states * self.scale, likely

        return read


def rate_at(share: float) -> float:
    """Return the factor of the learning rate: a warm-up, flat, and linear decay over the last two fifths."""
    return min(1.0, share / 0.04 + 0.04, max(0.02, (1 - share) / 0.4))


def learn(
    world: World,
    learners: list[Learner],
    loss_of: Callable[[Learner, float], LossOf],
    steps: range,
    of: int,
    seed: int,
    rate: float,
) -> None:
    """Let all heads take these steps, of a training of so many. They are of kinds with as many drafts in a row.

    loss_of: gives the loss of a head, at a share of the steps.
    """
    (chains,) = {KINDS[one.kind].chains for one in learners}
    last: dict[str, float] = {}
    for step in steps:
        rows = world.rows(chains, step, seed)
        seen = functools.cache(lambda rows=rows: world.read(rows[0]))
        for one in learners:
            loss = loss_of(one, step / of)
            last[one.name] = one.step(loss, one.reading(world, seen), rows, rate * rate_at(step / of))
        if step % LINES == 0 or step + 1 == of:
            told = ", ".join(f"{name} {value:.3f}" for name, value in last.items())
            note(f"seed {seed}: step {step + 1} of {of}; loss: {told}")


# --- replaying --------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Replayed(RecordPart):
    """The greedy rounds of one text, replayed with one trained head. arm: its name. steps: of its training. accepted,
    rounds, tested: by LENGTHS."""

    arm: str
    seed: Count
    steps: Count
    text: str
    text_index: Count
    rounds: list[Count]
    accepted: list[Count]
    tested: list[Count]


def counts(match: Tensor, k: int) -> tuple[int, int, int]:
    """Replay rounds.  match: (places, depth), whether token j of a draft after place i is the target's. -> rounds,
    accepted and tested tokens"""
    lengths = match[:, :k].cumprod(-1).sum(-1).tolist()
    n_rounds = n_accepted = n_tested = place = 0
    while place < len(match):
        n = lengths[place]
        n_rounds, n_accepted, n_tested = n_rounds + 1, n_accepted + n, n_tested + n + (n < k)
        place += n + 1
    return n_rounds, n_accepted, n_tested


def replayed(learner: Learner, world: World, seed: int, steps: int) -> list[Replayed]:
    """Replay rounds of all texts with the weights as they would be written."""
    head, found = rounded(learner.head, learner.scale), []
    for text, known in world.known(head.config.layers).items():
        for index, one in enumerate(known):
            match = agreement(head, one, max(LENGTHS))
            made = [counts(match, k) for k in LENGTHS]
            n_rounds, n_accepted, n_tested = (list(part) for part in zip(*made, strict=True))
            found.append(
                Replayed(
                    arm=learner.name,
                    seed=seed,
                    steps=steps,
                    text=text,
                    text_index=index,
                    rounds=n_rounds,
                    accepted=n_accepted,
                    tested=n_tested,
                )
            )
    return found


def tokens_per_round(rows: list[Replayed], length: int) -> float:
    """Return the tokens per round of some texts together.  length: the number of an entry of LENGTHS"""
    return 1 + sum(row.accepted[length] for row in rows) / sum(row.rounds[length] for row in rows)


def rounds_of_texts(rows: list[Replayed], length: int) -> list[float]:
    """Return the rounds of each text, those of all seeds together, in the order of the texts."""
    found: dict[tuple[str, int], float] = {}
    for row in rows:
        text = (row.text, row.text_index)
        found[text] = found.get(text, 0.0) + row.rounds[length]
    return list(found.values())


def replayed_columns(rows_of: Callable[[str], list[Replayed]], digits: int = 2) -> dict[str, Cell]:
    """Return columns with the tokens per round of arms by LENGTHS: on held-out answers, then on the lab's prompts."""

    def at(length: int, held_out: bool) -> Cell:
        return lambda arm: number(
            tokens_per_round([row for row in rows_of(arm) if (row.text == HELD_OUT) == held_out], length), digits
        )

    return {
        f"{text} k={k}": at(i, text == "held-out") for text in ("held-out", "prompts") for i, k in enumerate(LENGTHS)
    }


def texts_line(run: common.BenchmarkRun, rows: list[Replayed]) -> str:
    """Return a page's words on the texts that heads learned from, and on those that were replayed."""
    n_held_out = len({row.text_index for row in rows if row.text == HELD_OUT})
    own = f"{run.settings['own_tokens']:,} tokens of the target's own texts"
    return f"on the same rows; {own}; {n_held_out} held-out answers"


# --- flags, and the record --------------------------------------------------------------------------------------------


def add_training_flags(parser: argparse.ArgumentParser, steps: int, rate: float) -> None:
    """Add the flags of texts, steps and rows."""
    group = parser.add_argument_group("training")
    group.add_argument("--steps", type=parsing.at_least(1), default=steps, help="(default: %(default)s)")
    group.add_argument("--step-tokens", type=parsing.at_least(256), default=2048, help="(default: %(default)s)")
    group.add_argument("--longest-row", type=parsing.at_least(256), default=512, help="tokens (default: %(default)s)")
    group.add_argument("--rate", type=parsing.positive, default=rate, help="peak learning rate (default: %(default)s)")
    group.add_argument(
        "--own-tokens", type=parsing.at_least(1), default=150_000, help="of the target's texts (default: %(default)s)"
    )
    group.add_argument(
        "--held-out", type=parsing.at_least(0), default=72, help="more answers to replay (default: %(default)s)"
    )
    group.add_argument("--threads", type=parsing.at_least(1), help="(default: all cores)")
    group.add_argument("--seed", type=parsing.seed, default=0, help="the first one (default: 0)")
    group.add_argument(
        "--work-dir", type=parsing.some_path, default=Path("build/learning"), help="texts (default: %(default)s)"
    )


def world_of(args: argparse.Namespace, layers: tuple[int, ...]) -> World:
    """Return the world of these flags, whose texts may have to be written. layers: all that heads read."""
    common.check_result_flags(args)
    prepare_folder(args.work_dir, "--work-dir")
    if args.threads:
        torch.set_num_threads(args.threads)
    return World(args.work_dir, layers, args.own_tokens, args.held_out, args.longest_row, args.step_tokens)


def fields_of(
    args: argparse.Namespace, world: World, stop: BaseException | None, names: tuple[str, ...]
) -> dict[str, Any]:
    """Return the fields of BenchmarkRun that say how the heads were trained. names: of further flags."""
    settings = {
        "target": loading.short_name(loading.LAB_TARGET),
        "device": world.target.device.type,
        "dtype": "float32",
        "engine": "eager",
        "threads": torch.get_num_threads(),
        "seed": args.seed,
        "steps": args.steps,
        "step_tokens": args.step_tokens,
        "longest_row": args.longest_row,
        "rate": args.rate,
        "own_tokens": sum(len(text.answer) for text in world.answers),
        "texts_sha256": world.fingerprint,
    }
    return common.head(args, world.target.device, settings | {name: getattr(args, name) for name in names}, stop)
