"""What looks into a decoding from outside: clocks on the phases of a round, and draft lengths that change.

The loops know nothing of them. They wrap the target, the drafter and the functions that are passed to a loop.
"""

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from speclab.core.accept import accept_from_logits
from speclab.core.clock import give_back, mark, seconds_between
from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import AcceptRule, Draft, Round, Target
from speclab.core.rules import TOKEN, Rule
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel, tokens_to_keep
from speclab.theory.costs import PHASES

Loop = Callable[..., Iterator[Round]]


class PhaseClock:
    """Seconds by phase. On CUDA by events that are read when somebody asks, so that nothing waits inside a round;
    elsewhere it waits for the device around each phase, and a run with it is slower than one without."""

    def __init__(self, device: torch.device):
        self._device = device
        self._spans: list[tuple[str, Any, Any]] = []

    def timed(self, phase: str, function: Callable) -> Callable:
        """The same function, whose calls count for `phase`."""

        def call(*args, **kwargs) -> Any:
            start = mark(self._device)
            result = function(*args, **kwargs)
            self._spans.append((phase, start, mark(self._device)))
            return result

        return call

    def reader(self) -> Callable[[], dict[str, float]]:
        """Return a function that reads the seconds of all calls since the last reader, by phase. It is called once."""
        spans, self._spans = self._spans, []

        def read() -> dict[str, float]:
            seconds: dict[str, float] = {}
            for phase, start, end in spans:
                seconds[phase] = seconds.get(phase, 0.0) + seconds_between(start, end)
            give_back(self._device, [moment for _, *moments in spans for moment in moments])
            return seconds

        return read


class LateSeconds(Mapping[str, float]):
    """Seconds by phase that are read when somebody asks for them: reading the events of a round takes some tenths of a
    millisecond, which would count as the host's part of it."""

    def __init__(self, read: Callable[[], dict[str, float]]):
        self._read = read

    @functools.cached_property
    def _seconds(self) -> dict[str, float]:
        return self._read()

    def __getitem__(self, phase: str) -> float:
        return self._seconds[phase]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seconds)

    def __len__(self) -> int:
        return len(self._seconds)


class _Timed:
    """An object some of whose methods are timed."""

    def __init__(self, inner: Any, clock: PhaseClock, **phases: str):
        self._inner, self._clock, self._phases = inner, clock, phases

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._clock.timed(self._phases[name], value) if name in self._phases else value


@dataclass(frozen=True)
class LoopFunctions:
    """The parts of a run that the caller of a script's main() may replace, and what it wants to look at.

    decode: the loop, called as speculative_decode is. keeps: CachedModel.keeps of the target.
    adapt: (drafter, longest draft or None) -> the drafter to use.
    shapes: what the caller says of the shapes of one pass.
    is_right: (setup, prompt, settings, new tokens) is called after each text of the two scripts that print texts; it
    may print more about it. Where it returns False, the exit code is 1.
    look_at: (record, measurement) is called once a comparison is measured and judged.
    """

    decode: Loop
    accept: AcceptRule = accept_from_logits
    keeps: Callable[[int, int], int] = tokens_to_keep
    adapt: Callable[[Drafter, int | None], Drafter] = lambda drafter, longest: drafter
    rule: Rule = TOKEN  # what `accept` is
    shapes: Callable[..., dict] | None = None
    is_right: Callable[..., bool] = lambda setup, prompt, settings, tokens: True
    look_at: Callable[..., None] | None = None
    about: str = ""  # what the head of a run and its record say of these functions; empty for the lab as it is

    def judged_by(self, rule: Rule) -> "LoopFunctions":
        """The same with another of the lab's accept rules; the token rule, the default, leaves what there is."""
        return self if rule.name in (TOKEN.name, self.rule.name) else replace(self, accept=rule.accept, rule=rule)

    def head(self) -> list[str]:
        """The line about these functions in the head of a run; none for the lab as it is."""
        return [f"impl    {self.about}"] if self.about else []

    def rounds(self, target: CachedModel, drafter: Drafter, *args) -> Iterator[Round]:
        """The rounds of one decoding; `args` are the loop's further ones: prompt, draft length, settings."""
        decoded = self.decode(target, drafter, *args, accept=self.accept)
        return with_replays(with_rule(decoded, target, self.keeps), target)


def with_phases(functions: LoopFunctions, target: CachedModel, drafter: Drafter, *args) -> Iterator[Round]:
    """`functions.rounds(target, drafter, *args)` with the seconds of every phase.

    The prefill round has one phase, `prefill`. What no other phase covers is the host's.
    """
    clock = PhaseClock(target.device)
    decoded = functions.decode(
        _Timed(target, clock, verify="verify", forward="verify", commit="rollback", crop="rollback"),
        _Timed(drafter, clock, propose="draft", observe="rollback"),
        *args,
        accept=clock.timed("accept", functions.accept),
    )
    rounds = with_replays(with_rule(decoded, target, functions.keeps), target)
    while True:
        start = mark(target.device)
        round_ = next(rounds, None)
        if round_ is None:
            return
        read = functools.partial(_of_round, target.device, start, mark(target.device), clock.reader(), round_.prefill)
        yield round_._replace(seconds=LateSeconds(read) if target.device.type == "cuda" else read())


def _of_round(
    device: torch.device, start: Any, end: Any, phases: Callable[[], dict[str, float]], prefill: bool
) -> dict[str, float]:
    """Read the seconds of a round between two marks, by phase."""
    whole, found = seconds_between(start, end), phases()
    give_back(device, [start, end])
    if prefill:
        return {"prefill": whole}
    seconds = {phase: found.get(phase, 0.0) for phase in PHASES}
    return seconds | {"host": whole - sum(seconds.values())}


def with_rule(rounds: Iterator[Round], target: CachedModel, keeps: Callable[[int, int], int]) -> Iterator[Round]:
    """These are the same rounds; the rule `keeps` rolls the target back in them, and its own rule elsewhere."""
    while True:
        own, target.keeps = target.keeps, keeps
        try:
            round_ = next(rounds, None)
        finally:
            target.keeps = own
        if round_ is None:
            return
        yield round_


def with_replays(rounds: Iterator[Round], target: CachedModel) -> Iterator[Round]:
    """The same rounds of a decoding with this target; each says how many passes its rollback took."""
    n_before = 0  # a decoding begins with a prompt, from which on the target counts
    for round_ in rounds:
        n_replays, n_before = target.n_replays - n_before, target.n_replays
        yield round_._replace(n_replays=n_replays) if n_replays else round_


def with_parts(rounds: Iterator[Round], drafter: Drafter) -> Iterator[Round]:
    """The same rounds, each with what the drafter, which they have asked for drafts, knows of it."""
    return map(drafter.described, rounds)


class VariedLength(Wrapper):
    """A drafter that caps its drafts at another length in every round, each of `lengths` equally often.

    Near the token limit a draft is shorter than its length says.
    """

    def __init__(self, drafter: Drafter, lengths: list[int], seed: int):
        self.drafter, self._lengths, self._random = drafter, lengths, random.Random(seed)
        self._left: list[int] = []

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter read the prompt."""
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens, and at most this round's length."""
        if not self._left:
            self._left = self._random.sample(self._lengths, len(self._lengths))
        length = min(k, self._left.pop())
        return self.drafter.propose(length, uniforms[:, :length])

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Tell the drafter what was committed."""
        self.drafter.observe(n_accepted, committed)
