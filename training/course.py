"""What happens between the steps of a head's training.

Its target writes more texts, in the first half of the time; the head is scored by replayed rounds on held-out answers
each tenth of it, and the best one so far stands in --out.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from speclab.system.terminal import note
from training.scoring import Known, score
from training.steps import TrainingFacts
from training.texts import Texts, packed

K = 4  # drafted tokens of a replayed round
FIRST_SCORE, SCORES = 0.08, 0.1  # shares of the time: the first score, which leaves a head, and all others
WRITTEN_FROM, WRITTEN_UNTIL = 0.02, 0.6  # shares of the time between which texts are written; until then rates rise
OF_WRITING = 0.03  # share of the time that the texts written side by side may take


class Course:
    """Gives the batches of a training, and looks after each step at what is due.

    growth: one entry for each score. seconds: of the whole training. own_seconds: of it for texts.
    """

    def __init__(
        self,
        head: Any,
        ids: Tensor | None,
        scale: Tensor | None,
        texts: Texts,
        held_out: list[Known],
        cut: Callable[[dict[int, tuple[Tensor, Tensor]], int], tuple[Tensor, Tensor]],
        lengths: list[int],
        seconds: float,
        own_seconds: float,
        write: Callable[[Any, "Course"], None],
    ):
        """scale: what the head's states are multiplied by in training. cut: gives the batch of a step from the rows and
        the step's number. write: writes a head into --out, and says what it is."""
        self.head, self.ids, self.scale, self.texts, self.held_out = head, ids, scale, texts, held_out
        self.cut, self.lengths, self.seconds, self.own_seconds, self.write = cut, lengths, seconds, own_seconds, write
        self.growth: list[dict[str, Any]] = []
        self.best, self.written, self.next_score = 0.0, 0.0, FIRST_SCORE
        self.rows, self.facts = packed(texts.answers, lengths), TrainingFacts()
        self.device = next(head.parameters()).device

    def batches(self, step: int) -> list[tuple[Tensor, ...]]:
        """The batch of a step; before it the target writes more texts where it is time for them."""
        share = self.facts.seconds / self.seconds
        if WRITTEN_FROM <= share < WRITTEN_UNTIL and self.written < self.own_seconds * share / WRITTEN_UNTIL:
            self.written += self.texts.write_more(OF_WRITING * self.seconds)
            self.rows = packed(self.texts.answers, self.lengths)
        ids, starts = self.cut(self.rows, step)
        return [(ids.to(self.device), starts.to(self.device))]

    def after(self, facts: TrainingFacts) -> None:
        """A step has ended: score the head each tenth of the time."""
        self.facts = TrainingFacts(**asdict(facts))
        if self.next_score * self.seconds <= facts.seconds < self.seconds:
            self.score()
            self.next_score = (int(facts.seconds / self.seconds / SCORES + 0.25) + 1) * SCORES  # after .08 comes .2

    def score(self) -> None:
        """Replay rounds, and write the head where it is the best so far."""
        head = rounded(self.head, self.scale)
        found = score(head, self.held_out, depth=K, ids=self.ids)
        row = {
            "share": round(self.facts.seconds / self.seconds, 3),
            "tokens": self.facts.tokens,
            "minutes": round(self.facts.seconds / 60, 2),
            "tokens_per_round": found["tokens_per_round"][K],
            "by_position": found["by_position"],
        }
        self.growth.append(row)
        note(
            f"{row['minutes']:.1f} min, {row['tokens']:,} tokens, {len(self.texts.answers):,} texts; held-out answers: "
            f"{row['tokens_per_round']:.2f} tokens a round, by position {' '.join(map(str, row['by_position']))}"
        )
        if row["tokens_per_round"] > self.best:
            self.best = row["tokens_per_round"]
            self.write(head, self)


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
