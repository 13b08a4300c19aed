"""Decodings that take turns, for benchmarks/scaling.py: all places of a sweep side by side, with the cost of each."""

import argparse
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.scaling_page import ScalePoint, Sweep
from speclab.core.clock import old_objects_frozen
from speclab.core.rounds import Round
from speclab.core.sampling import GREEDY
from speclab.lab.bench import Bench
from speclab.lab.decodings import Decoding
from speclab.models.prompts import Prompt
from speclab.records.arms import BASELINE, INSTRUMENT, Arm
from speclab.theory.formulas import ratio_interval

WARM_UP = 8  # tokens before the clock counts
BLOCKS = 8  # of a log, for intervals
LARGEST_CHUNK = 16  # tokens that a GPU's baseline fetches at once


@dataclass
class Line:
    """One row of a table while it is measured: an arm, its place in the sweep, and the rounds that were timed."""

    arm: Arm
    x: int | str
    prompts: list[Prompt]
    n_before: int = WARM_UP  # tokens made before the clock counts
    log: list[tuple[int, float, Round]] = field(default_factory=list)  # as in Decoding

    @property
    def seconds(self) -> float:
        """The seconds of all rounds."""
        return sum(seconds for _, seconds, _ in self.log)

    @property
    def n_tokens(self) -> int:
        """The tokens of all rounds."""
        return sum(len(round_.tokens) for _, _, round_ in self.log)

    @property
    def n_rounds(self) -> int:
        """The number of rounds. A round of the baseline is one token, also where a GPU fetches several at once."""
        return len(self.log) if self.arm.speculative else self.n_tokens

    def blocks(self) -> list[float]:
        """The seconds of stretches of rounds that follow each other."""
        parts = np.array_split([seconds for _, seconds, _ in self.log], min(BLOCKS, len(self.log)))
        return [float(part.sum()) for part in parts]


@dataclass
class Subject:
    """The subject of the sweeps: one target, one draft, and texts for them."""

    args: argparse.Namespace
    bench: Bench
    prompts: list[Prompt]  # of the sweeps k and size
    text: list[int]  # ids of a long text, prompts are cut from it
    firsts: dict[tuple[Sweep, str], Line]  # of each series: what its other points are held against

    def arms(self) -> list[Arm]:
        """The baseline, and the draft at -k."""
        return [BASELINE, *(Arm(name, name, self.args.draft_length) for name in self.bench.drafters)]

    def start(self, arm: Arm, prompt: Prompt, n_tokens: int) -> Decoding:
        """A decoding that has made so many tokens, with room for all turns. An instrument times each phase."""
        budget = n_tokens + room_for_turns(self.args, arm.draft_length)
        lengths = [arm.draft_length] if arm.method == INSTRUMENT else None
        decoding = self.bench.decoding(arm, GREEDY, prompt, budget=budget, lengths=lengths)
        while len(decoding.tokens) < n_tokens:
            decoding.advance()
        return decoding

    def time(self, lines: list[Line]) -> None:
        """Log as many turns of every line on each of its prompts, all lines side by side."""
        for i in range(len(lines[0].prompts)):
            ends = [
                line.prompts[i].ids.shape[1] + line.n_before + room_for_turns(self.args, line.arm.draft_length)
                for line in lines
            ]
            self.bench.prepare({line.arm.draft_length for line in lines}, [GREEDY], max(ends))
            decodings = [self.start(line.arm, line.prompts[i], line.n_before) for line in lines]
            starts = [len(decoding.log) for decoding in decodings]
            alternate(decodings, self.args.turns, self.bench.setup.chunk)
            for line, decoding, start in zip(lines, decodings, starts, strict=True):
                line.log += decoding.log[start:]

    def points(self, sweep: Sweep, lines: list[Line]) -> list[ScalePoint]:
        """A point for every line, the first of which is the baseline's.

        The speedup is over the baseline at the same place, or over the first line where it has no such place.
        """
        baselines = {line.x: line for line in lines if line.arm == BASELINE}
        points = []
        for line in lines:
            points.append(point(sweep, line, self.firsts.setdefault((sweep, line.arm.method), line)))
            if line.arm.speculative:
                baseline = baselines.get(line.x, lines[0])
                points[-1].speedup = baseline.seconds / baseline.n_tokens / (line.seconds / line.n_tokens)
        return points


@old_objects_frozen()
def alternate(decodings: list[Decoding], turns: int, chunk: int) -> None:
    """Advance each decoding by a round, turn by turn, forwards and backwards. The baseline makes `chunk` tokens in
    every chunk-th turn."""
    for turn in range(turns):
        for decoding in decodings if turn % 2 == 0 else decodings[::-1]:
            if decoding.arm.speculative or turn % chunk == 0:
                decoding.advance()


def as_prompt(ids: list[int]) -> Prompt:
    """Make a prompt of these ids."""
    return Prompt("text", "", torch.tensor([ids]))


def room_for_turns(args: argparse.Namespace, draft_length: int) -> int:
    """The tokens that all turns of a decoding may make, and those before them that overshoot; no round is shortened."""
    return (draft_length + 1) * (args.turns + 2) + 2 * LARGEST_CHUNK


def point(sweep: Sweep, line: Line, first: Line) -> ScalePoint:
    """The cost of the rounds of a line, relative to those of another line with as many turns."""
    low, high = (None if line is first else ratio_interval(line.blocks(), first.blocks())) or (None, None)
    return ScalePoint(
        sweep=sweep,
        series=line.arm.method,
        x=line.x,
        draft_length=line.arm.draft_length,
        n_tokens=line.n_tokens,
        n_rounds=line.n_rounds,
        seconds=line.seconds,
        token_ratio=line.seconds / line.n_tokens / (first.seconds / first.n_tokens),
        round_ratio=line.seconds / line.n_rounds / (first.seconds / first.n_rounds),
        round_low=low,
        round_high=high,
    )
