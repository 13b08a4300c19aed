"""What happens between the steps of a head's training.

Its target writes more texts, in the first half of the time; the head is scored by replayed rounds on held-out answers
each tenth of it, and the best one so far stands in --out; a line a minute says how far the training is.
"""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from speclab.system.files import read_bytes, write_whole
from speclab.system.terminal import note
from training.scoring import Known, score
from training.steps import TrainingFacts
from training.texts import Texts, packed
from training.work import readable

K = 4  # drafted tokens of a replayed round
FIRST_SCORE, SCORES = 0.08, 0.1  # shares of the time: the first score, which leaves a head, and all others
WRITTEN_FROM, WRITTEN_UNTIL = 0.02, 0.6  # shares of the time between which texts are written; until then rates rise
OF_WRITING = 0.03  # share of the time that the texts written side by side may take
LINE_SECONDS = 60
MOST_BYTES = 2**20  # of a progress.json


@dataclass
class Progress:
    """What is kept of a training beside its checkpoint. growth: one entry for each score. own_seconds: spent on texts.
    best: tokens per round of the head in --out."""

    growth: list[dict[str, Any]] = field(default_factory=list)
    own_seconds: float = 0.0
    best: float = 0.0

    @classmethod
    def read(cls, file: Path) -> "Progress":
        """That of a work folder, a new one where it has none. Raises EnvironmentProblem where it is damaged."""
        if not file.exists():
            return cls()
        with readable(file):
            found = cls(**json.loads(read_bytes(file, MOST_BYTES)))
            numbers = [found.own_seconds, found.best, *(row["tokens_per_round"] for row in found.growth)]
            if not all(isinstance(number, float | int) for number in numbers):
                raise ValueError("it holds no progress of a training")
            return found


class Lines:
    """A line a minute. say: gives what is behind the phase."""

    def __init__(self, say: Callable[[], str]):
        self.say, self.phase, self.last = say, "", time.monotonic()

    def __call__(self) -> None:
        """Print the line where a minute is over."""
        if time.monotonic() - self.last >= LINE_SECONDS:
            self.last = time.monotonic()
            note(f"{self.phase}: {self.say()}")


class Course:
    """Gives the batches of a training, and looks after each step at what is due.

    seconds: of the whole training. own_seconds: of it for texts. write: writes a head into --out, and says what it is.
    """

    def __init__(
        self,
        head: Any,
        ids: Tensor | None,
        scale: Tensor | None,
        texts: Texts,
        stream: Tensor,
        held_out: list[Known],
        cut: Callable[..., tuple[Tensor, Tensor]],
        lengths: list[int],
        seconds: float,
        own_seconds: float,
        progress: Path,
        write: Callable[[Any, TrainingFacts, "Course"], None],
    ):
        """scale: what the head's states are multiplied by in training. cut: gives the batch of a step from the
        stream, the rows and the step's number."""
        self.head, self.ids, self.scale, self.texts = head, ids, scale, texts
        self.stream, self.held_out = stream, held_out
        self.cut, self.lengths, self.seconds, self.own_seconds = cut, lengths, seconds, own_seconds
        self.file, self.write = progress, write
        self.progress = Progress.read(progress)
        self.rows = packed(texts.answers, lengths)
        self.facts = TrainingFacts()
        self.lines = Lines(self._how_far)
        self.since = (0, 0.0)  # tokens and seconds of learning, in this process
        self.device = next(head.parameters()).device
        self.stepped = time.monotonic()  # the end of the last step
        self.resumed = False

    def batches(self, step: int) -> list[tuple[Tensor, ...]]:
        """The batch of a step; before it the target writes more texts where it is time for them."""
        share = self.facts.seconds / self.seconds
        due = self.own_seconds * min(1.0, share / WRITTEN_UNTIL)
        if self.progress.own_seconds < due and WRITTEN_FROM <= share < WRITTEN_UNTIL:
            self.lines.phase = "writing texts"
            before = self.texts.seconds
            self.texts.write_more(OF_WRITING * self.seconds, self.lines)
            self.progress.own_seconds += self.texts.seconds - before
            self._save()
            self.rows = packed(self.texts.answers, self.lengths)
        self.lines.phase = "training"
        self.began = time.monotonic()
        ids, starts = self.cut(self.stream, self.rows, step)
        return [(ids.to(self.device), starts.to(self.device))]

    def after(self, facts: TrainingFacts) -> None:
        """A step has ended: say how far it is, and score the head each tenth of the time."""
        tokens = facts.tokens - self.facts.tokens if self.resumed else 0
        self.since = (self.since[0] + tokens, self.since[1] + (time.monotonic() - self.began if self.resumed else 0.0))
        self.facts, self.resumed, self.stepped = TrainingFacts(**asdict(facts)), True, time.monotonic()
        self.lines()
        last = 60 * self.progress.growth[-1]["minutes"] / self.seconds if self.progress.growth else 0.0
        next_share = FIRST_SCORE if not last else (int(last / SCORES + 0.25) + 1) * SCORES  # after .08 comes .2
        if next_share * self.seconds <= facts.seconds < self.seconds:
            self.score()

    def score(self) -> None:
        """Replay rounds, and write the head where it is the best so far."""
        head = rounded(self.head, self.scale)
        found = score(head, self.held_out, depth=K, ids=self.ids)
        tokens_per_round = found["tokens_per_round"][K]
        row = {
            "share": round(self.facts.seconds / self.seconds, 3),
            "tokens": self.facts.tokens,
            "minutes": round(self.facts.seconds / 60, 2),
            "tokens_per_round": tokens_per_round,
            "by_position": found["by_position"],
        }
        self.progress.growth.append(row)
        note(f"held-out answers: {self._acceptance()} after {row['minutes']:.1f} min and {row['tokens']:,} tokens")
        if tokens_per_round > self.progress.best:
            self.progress.best = tokens_per_round
            self.write(head, self.facts, self)
        self._save()

    def _save(self) -> None:
        write_whole(self.file, json.dumps(asdict(self.progress)) + "\n")

    def _how_far(self) -> str:
        facts = self.facts
        gone = facts.seconds + time.monotonic() - self.stepped  # writing texts takes time between two steps
        minutes = max(0.0, self.seconds - gone) / 60
        speed = f", {self.since[0] / self.since[1]:,.0f} tokens/s" if self.since[1] else ""
        loss = "" if facts.last_loss is None else f", loss {facts.last_loss:.3f}"
        n_texts = f"{len(self.texts.answers):,} texts"
        return f"{n_texts}, step {facts.steps}{speed}{loss}; {self._acceptance()}; about {minutes:.0f} min left"

    def _acceptance(self) -> str:
        if not self.progress.growth:
            return "not scored yet"
        row = self.progress.growth[-1]
        return f"{row['tokens_per_round']:.2f} tokens a round, by position {' '.join(map(str, row['by_position']))}"


def rounded(head: Any, scale: Tensor | None = None) -> Any:
    """A copy of a head with the weights that are written: for the target's states as they are, rounded to bfloat16.
    What does not learn is shared. scale: (layers * hidden,) what the states are multiplied by in training."""
    frozen = [weight for weight in head.parameters() if not weight.requires_grad]
    shared: dict[int, Any] = {id(weight): nn.Parameter(weight.data, requires_grad=False) for weight in frozen}
    shared |= {id(buffer): buffer for buffer in head.buffers()}
    made = copy.deepcopy(head, shared).eval()
    with torch.no_grad():
        if scale is not None:
            made.fc.weight.mul_(scale)
        for weight in made.parameters():
            if weight.requires_grad:
                weight.copy_(weight.to(torch.bfloat16))
    return made.requires_grad_(False)
