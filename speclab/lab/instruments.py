"""A decoding at work, with the seconds of its rounds; and what looks into it from outside: clocks on the phases of a
round, lengths that change, a draft without cost.

The loops know nothing of it: what looks in wraps the target, the drafter and the functions that are passed to a loop.
"""

import functools
import random
import time
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from draft_models import as_draft
from speclab.core.accept import accept_from_logits
from speclab.core.clock import mark, seconds_between
from speclab.core.counts import Counts
from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import AcceptRule, DecodeSettings, Draft, Round, Target, tokens_of
from speclab.core.rules import TOKEN, Rule
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel, tokens_to_keep
from speclab.models.family import family_of
from speclab.records.rows import LOOKUP, Arm, RoundCounts
from speclab.system.errors import EnvironmentProblem
from speclab.theory.costs import RoundTime, catch_ups

Loop = Callable[..., Iterator[Round]]


@dataclass(eq=False)
class Decoding:
    """An arm at work on one prompt. `advance` does one round (of the baseline: one chunk) and books its seconds."""

    arm: Arm
    _rounds: Iterator[Round]
    n_prompt: int
    budget: int
    tokens: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    # Of each round: tokens in the target's cache before it, seconds, round.
    log: list[tuple[int, float, Round]] = field(default_factory=list)

    @property
    def progress(self) -> int:
        return len(self.tokens)

    @property
    def done(self) -> bool:
        return self.progress >= self.budget

    @property
    def rounds(self) -> list[RoundCounts]:
        return [RoundCounts(made.n_drafted, made.n_accepted, made.looked_up) for *_, made in self.log]

    def times(self, temperature: float) -> list[RoundTime]:
        """Return what each round took, and of the baseline the mean step of each chunk, at its middle."""
        found = []
        for (context, seconds, made), catch_up in zip(self.log, catch_ups(self.rounds), strict=True):
            if self.arm.speculative:
                phases, name = made.seconds or {}, self.arm.draft + LOOKUP * made.looked_up
                draft, verify = phases.get("draft", 0.0), phases.get("verify", 0.0)
                what = (name, temperature, context, made.n_drafted, catch_up)
                found.append(RoundTime(*what, draft, verify, seconds - draft - verify, made.n_replays))
            else:
                n = len(made.tokens)
                found.append(RoundTime("", temperature, context + n // 2, 0, 1, 0.0, seconds / n, 0.0))
        return found

    def advance(self) -> None:
        start = time.perf_counter()
        round_ = next(self._rounds)  # ends with tokens on the host, so the device has nothing left to do
        seconds = time.perf_counter() - start
        if round_.prefill:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds
            self.log.append((self.n_prompt + len(self.tokens) - 1, seconds, round_))
        self.counts.add(round_)
        self.tokens += round_.tokens
        if self.done:
            self._rounds = iter(())  # frees the caches, which the next decoding may take


class LibraryDecoding(Decoding):
    """`model.generate` at work on one prompt. options: further ones of `generate`.

    One `advance` decodes the whole text. Its seconds count as decoding and hold the prompt's own pass, too.
    """

    def __init__(self, arm: Arm, model: PreTrainedModel, ids: Tensor, budget: int, **options):
        super().__init__(arm, iter(()), ids.shape[1], budget)
        self.model, self.ids, self.options = model, ids, options

    def advance(self) -> None:
        self.decode_seconds, self.tokens = library_generate(self.model, self.ids, self.budget, **self.options)
        if len(self.tokens) != self.budget:
            raise EnvironmentProblem(f"model.generate gave {len(self.tokens)} tokens of {self.budget}; leave it out")


def library_generate(model: PreTrainedModel, ids: Tensor, max_new_tokens: int, **options) -> tuple[float, list[int]]:
    """Greedy `model.generate` with the lab's settings; `options` add an assistant or prompt lookup.

    ids: (rows, n), with an `attention_mask` in `options` where some are padded.
    -> seconds with prefill, new tokens of the first row
    """
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0} | options
    # No penalties, nothing forced, no end token: the library fills what is left out from the model's own settings.
    settings = GenerationConfig(pad_token_id=0, decoder_start_token_id=family_of(model).start_id(model))
    own, start = model.generation_config, time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.generation_config = settings
            output = model.generate(ids, max_new_tokens=max_new_tokens, **options)  # type: ignore[operator]
        finally:
            model.generation_config = own
    n_before = family_of(model).room(model.config).length_after(ids.shape[1])
    tokens = output[0, n_before:].tolist()  # waits for the device
    return time.perf_counter() - start, tokens


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
        """Return the same with another accept rule; the token rule, the default, leaves what there is."""
        return self if rule.name in (TOKEN.name, self.rule.name) else replace(self, accept=rule.accept, rule=rule)

    def head(self) -> list[str]:
        """Return the lines about these functions in the head of a run; none for the lab as it is."""
        lossy = "LOSSY, the texts do not follow the target's distribution: " if self.rule.law else ""
        rule = f"rule    {self.rule.name}: {lossy}{self.rule.line}"
        return [f"impl    {self.about}"] * bool(self.about) + [rule] * (self.rule.name != TOKEN.name)

    def rounds(self, target: CachedModel, drafter: Drafter, *args) -> Iterator[Round]:
        """Yield the rounds of one decoding; `args` are the loop's further ones: prompt, draft length, settings."""
        return self.on_target(self.decode(target, drafter, *args, accept=self.accept), target)

    def on_target(self, rounds: Iterator[Round], target: CachedModel) -> Iterator[Round]:
        """Yield the same rounds of a decoding with this target, each with the passes that its rollback took. The rule
        `keeps` rolls the target back in them, and its own rule afterwards."""
        own, target.keeps = target.keeps, self.keeps
        n_before = 0  # a decoding begins with a prompt, from which on the target counts
        try:
            for round_ in rounds:
                n_replays, n_before = target.n_replays - n_before, target.n_replays
                yield round_._replace(n_replays=n_replays) if n_replays else round_
        finally:
            target.keeps = own


@dataclass(eq=False)
class PhaseSeconds(UserDict[str, float]):
    """The seconds of a round by phase, which are read when somebody asks for them: reading the events of a GPU takes
    some tenths of a millisecond, which would count as the host's part of the round."""

    _spans: list[tuple[str, Any, Any]]  # phases, and the marks between which each lies
    _prefill: bool

    @functools.cached_property
    def data(self) -> dict[str, float]:  # type: ignore[override]
        found: dict[str, float] = dict.fromkeys(("draft", "verify", "accept", "rollback", "host"), 0.0)
        for phase, start, end in self._spans:
            found[phase] = found.get(phase, 0.0) + seconds_between(start, end)
        whole = found.pop("whole")
        return {"prefill": whole} if self._prefill else found | {"host": whole - sum(found.values())}


def with_phases(functions: LoopFunctions, target: CachedModel, drafter: Drafter, *args) -> Iterator[Round]:
    """Yield the rounds of `functions.rounds(target, drafter, *args)` with the seconds of every phase.

    On CUDA the clock is events, and nothing waits inside a round; elsewhere it waits for the device around each phase,
    which slows a run. The prefill round has one phase, `prefill`. What no other phase covers is the host's.
    """
    device, spans = target.device, list[tuple[str, Any, Any]]()
    # The processor's caches are full of weights after a pass, so every line of the clock takes microseconds there.
    now = time.perf_counter if device.type == "cpu" else functools.partial(mark, device)

    def timed(phase: str, function: Callable) -> Callable:
        def call(*args, **kwargs) -> Any:
            start = now()
            result = function(*args, **kwargs)
            spans.append((phase, start, now()))
            return result

        return call

    timed_target = _Timed(timed, target, verify="verify", forward="verify", commit="rollback", crop="rollback")
    timed_drafter = _Timed(timed, drafter, propose="draft", observe="rollback")
    decoded = functions.decode(timed_target, timed_drafter, *args, accept=timed("accept", functions.accept))
    rounds = functions.on_target(decoded, target)
    while True:
        start = now()
        round_ = next(rounds, None)
        if round_ is None:
            return
        all_spans = [("whole", start, now()), *spans]
        spans.clear()
        yield round_._replace(seconds=PhaseSeconds(all_spans, round_.prefill))


class _Timed:
    """A target or a drafter, some methods of which are `timed`, each as a phase."""

    def __init__(self, timed: Callable[[str, Callable], Callable], inner: Any, **phases: str):
        self._inner = inner
        for name, phase in phases.items():
            setattr(self, name, timed(phase, getattr(inner, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class VariedLength(Wrapper):
    """A drafter that caps its drafts at another length in every round, each of `lengths` equally often."""

    def __init__(self, drafter: Drafter, lengths: list[int], seed: int):
        self.drafter, self._lengths, self._random = drafter, lengths, random.Random(seed)
        self._left: list[int] = []

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        if not self._left:
            self._left = self._random.sample(self._lengths, len(self._lengths))
        length = min(k, self._left.pop())
        return self.drafter.propose(length, uniforms[:, :length])


class ConstantDrafter(Drafter):
    """Proposes id 0 again and again, so that every pass of the target has k + 1 tokens."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._device = prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return as_draft([0] * k, self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None: ...


def reference_text(decode: Loop, target: Target, prompt: Tensor, k: int, settings: DecodeSettings) -> list[int]:
    """Return the target's own text for a dial to replay, made by the speculative loop with passes as wide as those that
    will judge the replay: in bfloat16 the logits of another width may turn a near-tie."""
    return tokens_of(decode(target, ConstantDrafter(), prompt, k, settings))
