"""The interface of every drafter: three calls of the loop, and the questions that the lab asks of a drafter.

A new kind inherits from `Drafter`, writes `prefill`, `propose` and `observe`, and overrides the answers that are wrong
for it. Nobody asks which kind a drafter is.

A `Law` is the proposals that a drafter would have made along a text that is known, and how likely they are accepted.
A place is (tokens of the text before the round, number in its draft, tokens that the round asks for). The numbers are
for rules that judge each drafted token by itself: a token that is drawn from q is kept with min(1, q / p) where the
text has it, p being the target's probability there; a token that is certain is kept where it is the text's own.
"""

import copy
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from speclab.core.rounds import Draft, Round, Target
from speclab.core.sampling import GREEDY, Sampling

Place = tuple[int, int, int]


@dataclass(eq=False)
class Law:
    """Tokens are drawn from distributions, in every round that may begin within a text of n tokens.

    rows: number in the draft -> (at least n - number, vocab), for rounds that begin after 0, 1, ... tokens; zeros where
    nothing is proposed. sizes: (n,), the largest number of tokens of a draft, by its beginning.
    """

    rows: Callable[[int], Tensor]
    sizes: Sequence[int]

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> list[Sequence[float]]:
        """Return the probability that each proposed token is accepted, given that those before it were: a row for each
        of n beginnings. target_probs: gives the target's distributions along the text, (n, vocab)."""
        n, ids = len(text), torch.tensor(text, dtype=torch.long)[:, None]
        by_target = target_probs().gather(1, ids)[:, 0].double()  # (n,)
        found: list[list[float]] = [[] for _ in text]
        for depth in range(min(max(self.sizes, default=0), n)):
            by_draft = self.rows(depth).gather(1, ids[depth:])[:, 0].double()
            here = by_target[depth:]
            # Where rounding gives the target's own token no mass, the draft's probability decides.
            ratios = torch.where(here > 0, (by_draft / here).clamp(max=1), (by_draft > 0).double())
            for row, size, ratio in zip(found, self.sizes, ratios.tolist(), strict=False):
                row += [ratio] * (depth < size)
        return list(found)

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        """Return the distribution of each place, (places, vocab)."""
        rows = [self.rows(depth)[start] for start, depth, _ in places]
        return torch.stack(rows) if rows else self.rows(0)[:0]


class CertainLaw(Law):
    """Tokens are certain. proposals: the longest draft of each beginning; a shorter one is the beginning of it."""

    def __init__(self, proposals: Sequence[Sequence[int]], vocab_size: int):
        self._proposals, self._vocab_size = proposals, vocab_size

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> list[Sequence[float]]:
        return [
            [float(token == own) for token, own in zip(tokens, text[n:], strict=False)]
            for n, tokens in enumerate(self._proposals)
        ]

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        rows = torch.zeros(len(places), self._vocab_size)
        for row, (start, depth, asked) in zip(rows, places, strict=True):
            for token in self._proposals[start][:asked][depth : depth + 1]:
                row[token] = 1.0
        return rows


class Drafter:
    """Proposes tokens for one row of text. Where a drafter has several `parts`, the attributes describe each."""

    is_model = False  # it is a draft model with the target's ids
    draws = False  # its tokens are drawn from probabilities when sampling; else they are certain
    needs_text = False  # it needs a greedy text of the target, which `take_text` gives it
    branches = False  # its drafts have several tokens for one place
    chooses_length = False  # it chooses in every round how many tokens to draft
    longest_draft = sys.maxsize  # tokens
    runs_target = False  # its draft runs a part of the target's pass, and the verification only the rest of it
    asks_to_go_on = False  # it calls `keep_drafting` with the probability of each token: does it draft another one?
    keep_drafting: Callable[[float], bool] | None = None
    costs: dict[float, Any] | None = None  # of rounds by temperature, for a drafter that chooses by them

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Drop all state and read a prompt, (1, prompt length) ids. The target has just read it."""
        raise NotImplementedError

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose tokens after everything committed, so that at most `k` of them can be accepted. uniforms: (1, n) in
        [0, 1) with n >= k; a draft has at most n tokens."""
        raise NotImplementedError

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take in what the round made final: `committed` holds `n_accepted` proposed ids and one of the target's."""
        raise NotImplementedError

    @property
    def parts(self) -> tuple["Drafter", ...]:
        """The drafters that propose the tokens: itself, or those that it is made of, a lookup before its model."""
        return (self,)

    @property
    def models(self) -> tuple[Any, ...]:
        """The draft models, CachedModels with the target's ids, whose passes it runs."""
        return ()

    @property
    def room(self) -> int:
        """The number of tokens that it can draft after what is committed."""
        return sys.maxsize

    def with_draft(self, change: Callable[["Drafter"], "Drafter"]) -> "Drafter":
        """Return the drafter with `change` applied to its model part. A plain drafter is that part itself."""
        return change(self)

    def pass_widths(self, most: int) -> set[int]:
        """Return the widths of its models' passes for drafts of up to `most` tokens: a model catches up with one token
        or two; where more have waited, it reads at most four in a pass."""
        return {2, 4}

    def as_drafted(self, chain: Draft) -> Draft:
        """Turn a chain into a draft of the kind that it makes, which is recorded for a GPU before a run."""
        return chain

    def forget(self) -> None:
        """Drop what it has learned from texts, and share nothing of it with its copies any more; costs stay."""

    def take_text(self, text: list[int]) -> None:
        """Take the greedy text of the prompt that comes next."""

    def law(self, target: Any, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        """Return the law of its proposals along `text` after `prompt`, in drafts of up to k tokens. target: a
        CachedModel. Here a copy is led along the text; a drafter that draws its tokens overrides this."""
        led, proposals = copy.deepcopy(self), []
        led.prefill(target, torch.tensor([prompt]), GREEDY)
        for token in text:
            proposals.append(led.propose(k, torch.zeros(1, k)).tokens[0].tolist())
            led.observe(0, [token])
        return CertainLaw(proposals, target.vocab_size)

    def described(self, round_: Round) -> Round:
        """Return a round that has just ended, with what only the drafter knows of it."""
        return round_

    def describe(self, name: str, engine: str) -> str | None:
        """Return a line for the head of a run; None where the name says it. engine: the target's."""
        return None

    def lengths(self, asked: list[int]) -> list[int]:
        """Return how many tokens its drafts have for each length in `asked`; one entry where these have no effect."""
        return asked

    def check_prompts(self, prompts: Sequence[list[int]]) -> None:
        """Raise UsageProblem for a prompt that it cannot read."""


class Wrapper(Drafter):
    """A drafter around another one, `drafter`, which makes its drafts or some of them, and answers for it."""

    drafter: Drafter
    prefill, observe, parts, models, room, law, as_drafted, described, check_prompts = (
        property(operator.attrgetter(f"drafter.{name}"))
        for name in ["prefill", "observe", "parts", "models", "room", "law", "as_drafted", "described", "check_prompts"]
    )


class Lookup(Drafter):
    """A drafter that copies from the text: what it proposes is certain, and follows from the text alone."""

    matched = 0  # tokens of the match that the last lookup found; a hybrid trusts long matches more

    def lookup(self, k: int) -> list[int]:
        """Return at most k ids that may follow the text. Nothing but `matched` changes."""
        raise NotImplementedError
