"""`--impl exercises`: the functions you wrote in exercises/ decide in the lab's own scripts.

    python baseline_autoregressive.py --impl exercises          # exercise 0 rates the run
    python optimized_speculative.py --impl exercises            # every finished exercise that this run can use
    python optimized_speculative.py --impl exercises:2,3        # these only
    python compare.py --temperature 0.8 --impl exercises:4      # exercise 4 decides the sampled rows
    python compare.py --impl solutions                          # the same with the solutions

Before anything is timed the checks of the exercises in use are run, and one that fails ends the run. Each exercise's
pure functions get an adapter to the part of the loop that they stand for (impl_parts.py). The baseline itself stays the
lab's own.
"""

import argparse
import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor

import check
from draft_models import ModelDrafter, NgramDrafter
from speclab.cli import parsing
from speclab.core.accept import accept_from_logits
from speclab.core.clock import synchronize
from speclab.core.rounds import AcceptResult, DecodeSettings, Draft, Drafter, tokens_of
from speclab.core.sampling import Sampling
from speclab.lab.instruments import LoopFunctions, ReaderFunctions
from speclab.learner.adapters import (
    Steps,
    TheirCatchUp,
    TheirDrafter,
    TheirLength,
    as_float,
    ask,
    finite,
    greedy_verdict,
    in_range,
    sampled_verdict,
    short,
    stopped,
)
from speclab.learner.guard import CLOCK, SECONDS, NeverEnds, at_most, in_one_line, never_ended
from speclab.models.cached import CachedModel, tokens_to_keep
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import Problem, UsageProblem
from speclab.theory.losslessness import judge_divergence

# What an exercise decides in a run, in words.
ROLES = {
    0: "the baseline's rate",
    1: "the shapes",
    2: "greedy verification",
    3: "which tokens stay, and catch-up",
    4: "verification when sampling",
    5: "a prediction for every row",
    6: "the draft length",
    7: "the n-gram drafter",
    8: "the whole loop",
}
WHOLE_LOOP = 8  # only when asked for by number: it takes the place of all others


@dataclass(frozen=True)
class Learner:
    """Which parts of a run are the learner's. Without any it is the lab as it is."""

    package: str = ""  # exercises or solutions
    modules: dict[int, ModuleType] = field(default_factory=dict)  # of the exercises in use
    unfinished: dict[int, str] = field(default_factory=dict)  # those that this run could use, and how far they are
    _said: set[str] = field(default_factory=set, compare=False, repr=False)  # what a run of many prompts says once

    def __bool__(self) -> bool:
        return bool(self.modules)

    def describe(self) -> list[str]:
        """A line for the head of a run; none for the lab as it is."""
        if not self:
            return []
        used = ", ".join(f"{n} ({ROLES[n]})" for n in self.modules)
        rest = ", ".join(f"{n} ({ROLES[n]}: {status})" for n, status in self.unfinished.items())
        return [f"impl    from {self.package}/: {used}" + (f"; the lab's own: {rest}" if rest else "")]

    def to_json(self) -> dict:
        """What a record says about it."""
        return {"package": self.package, "exercises": list(self.modules)}

    # --- the loop -----------------------------------------------------------------------------------------------------

    def functions(self, lab: Callable[..., Iterator]) -> LoopFunctions:
        """The loop of this run: the lab's, with the learner's decisions in it, or exercise 8's."""
        decode = self._whole_loop if WHOLE_LOOP in self.modules else lab
        return LoopFunctions(decode, self.accept, self.roll_back, self.drafter)

    def for_comparison(self, speculative: Callable[..., Iterator]) -> ReaderFunctions:
        """What compare.py hands to the lab."""
        return ReaderFunctions(
            self.functions(speculative),
            self.to_json() if self else None,
            tuple(self.describe()),
            self.predicted if 5 in self.modules else None,
            self.best_length if 6 in self.modules else None,
        )

    def _whole_loop(self, target, drafter, prompt, draft_length, settings: DecodeSettings, **_) -> Iterator:
        generator = settings.generator(target.device)
        args = (target, drafter, prompt, draft_length, settings.max_new_tokens, settings.sampling, generator)
        args = (*args, settings.eos)
        rounds = ask(WHOLE_LOOP, self.modules[WHOLE_LOOP].decode, *args)

        def decode(*_):
            return next(rounds, None)

        decode.__qualname__ = "decode"
        while (round_ := ask(WHOLE_LOOP, decode, *args, lab_inside=True)) is not None:
            yield round_

    @property
    def accept(self) -> Callable[[Draft, Tensor, Sampling, Tensor], AcceptResult]:
        """Exercise 2 on greedy rows, exercise 4 on sampled ones, the lab's own where neither is in use."""
        return self._verify if {2, 4} & self.modules.keys() else accept_from_logits

    def _verify(self, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        if sampling.greedy and 2 in self.modules:
            n_accepted, token = greedy_verdict(self.modules[2], draft, logits)
        elif not sampling.greedy and 4 in self.modules:
            n_accepted, token = sampled_verdict(self.modules[4], draft, sampling.probs(logits), uniforms)
        else:
            return accept_from_logits(draft, logits, sampling, uniforms)
        return AcceptResult(*(torch.tensor([number], device=logits.device) for number in (n_accepted, token)))

    @property
    def tokens_to_keep(self) -> Callable[[int, int], int]:
        """Exercise 3's rule, or the lab's."""
        if 3 not in self.modules:
            return tokens_to_keep
        rule = self.modules[3].tokens_to_keep
        return lambda n_cached, n_committed: in_range(3, rule, 0, n_cached, n_cached, n_committed)

    def roll_back(self, target: CachedModel, n_committed: int) -> None:
        """The lab's fourth step with exercise 3's rule, or as it is."""
        target.crop(self.tokens_to_keep(target.length, n_committed))

    def drafter(self, drafter: Drafter, longest: int | None = None) -> Drafter:
        """The drafter of one decoding: exercise 7 in place of the n-grams, exercise 3 feeding a model, exercise 6
        around any of them where `longest` says up to which length it may choose."""
        if 7 in self.modules and isinstance(drafter, NgramDrafter):
            drafter = TheirDrafter(self.modules[7].MyDrafter)
        elif 3 in self.modules and type(drafter) is ModelDrafter:  # the dial is an instrument and stays the lab's
            drafter = TheirCatchUp(drafter, self.tokens_to_keep, self.modules[3].catch_up)
        if 6 in self.modules and longest is not None:
            drafter = TheirLength(drafter, self.modules[6].next_draft_length, longest)
        return drafter

    # --- numbers ------------------------------------------------------------------------------------------------------

    def rates(
        self, setup: Setup, prompts: list[Prompt], baseline: Callable[..., Iterator], settings: DecodeSettings
    ) -> str:
        """Exercise 0 times the baseline over every prompt once more, warm.  -> a line for each"""
        mine, lines = self.modules[0], []
        for prompt in prompts:

            def again(ids: Tensor = prompt.ids.to(setup.device)) -> Iterator[int]:
                rounds = baseline(setup.target, ids, settings, setup.chunk)
                return (token for round_ in rounds for token in round_.tokens)

            words = (Steps(again), time.perf_counter, functools.partial(synchronize, setup.device), 1)
            found = ask(0, mine.time_decoding, *words, lab_inside=True)
            three = [as_float(answer) for answer in found] if isinstance(found, tuple | list) else []
            if len(three) != 3 or None in three:
                raise stopped(0, mine.time_decoding, f"returned {short(found)}, not three numbers", words)
            speed = finite(0, mine.tokens_per_second, found[2], found[1])
            line = f"{found[2]} tokens, prefill {three[0]:.3f} s, decoding {three[1]:.2f} s: {speed:.1f} tok/s"
            lines.append(f"yours, after a warm-up: {line}")
        return "\n".join(lines)

    def same_text(
        self,
        setup: Setup,
        prompt: Prompt,
        baseline: Callable[..., Iterator],
        tokens: list[int],
        args: argparse.Namespace,
        settings: DecodeSettings,
    ) -> bool:
        """Hold a greedy text against the baseline's and say what was found; a near-tie of two logits is no fault."""
        if not setup.sampling.greedy:
            advice = self._advice(args)
            if advice not in self._said:
                self._said.add(advice)
                print(f"a sampled text has no baseline to equal; {advice}")
            return True
        text = tokens_of(baseline(setup.target, prompt.ids.to(setup.device), settings))
        found = judge_divergence(setup.reference, prompt.id_list, text, tokens, setup.target.vocab_size)
        if found is None:
            print("the baseline's text: identical")
        elif found.numerical:
            print(f"the baseline's text: another choice between two equal logits at new token {found.position}")
        else:
            pair = [setup.tokenizer.decode([t]) if t >= 0 else "the end" for t in found[1:3]]
            print(
                f"WRONG TEXT: at new token {found.position} the baseline says {pair[0]!r} and this run {pair[1]!r}; "
                f"decided by {self.package} {', '.join(map(str, self.modules))}"
            )
        return found is None or found.numerical

    def _advice(self, args: argparse.Namespace) -> str:
        """What judges the exercises of a sampled run."""
        judged = sorted(of_comparison(args) & self.modules.keys())
        if not judged:
            return "leave out --temperature, and the text is held against the baseline's"
        words = ["--temperature", f"{args.temperature:g}"]
        words += [] if args.draft in ("model", "ngram") else ["--draft", args.draft]  # these two it takes anyway
        words += ["--impl", f"{self.package}:{','.join(map(str, judged))}"]
        return f"to judge many of them, type: {parsing.command(check.ROOT / 'compare.py', *words)}"

    def predicted(self, row: dict, rounds: list[tuple[int, int]]) -> dict:
        """Exercise 5 on a row of a comparison and its (drafted, accepted) rounds.

        -> which row it is, the learner's alpha and speedup; None where nothing was tested or nothing calibrated
        """
        mine, alpha, speedup = self.modules[5], None, None
        if any(drafted for drafted, _ in rounds):
            alpha = finite(5, mine.acceptance_rate, rounds)
        k, costs = row["draft_length"], [row[name] for name in ("draft_cost", "verify_cost", "overhead")]
        if alpha is not None and None not in costs:
            speedup = finite(5, mine.predicted_speedup, alpha, k, *costs)
        key = {name: row[name] for name in ("method", "draft_length", "temperature")}
        return {**key, "acceptance_rate": alpha, "speedup": speedup}

    def best_length(
        self, alpha: float, draft_cost: float, verify_cost: Callable[[int], float], overhead: float, longest: int
    ) -> int:
        """Exercise 6's choice for a plan."""
        rule = self.modules[6].best_draft_length
        return in_range(6, rule, 0, longest, alpha, draft_cost, verify_cost, overhead, longest)

    def shapes(self, n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict | None:
        """Exercise 1's table for one pass, without a batch axis (cli/shapes.py); None where it is not in use."""
        if 1 not in self.modules:
            return None
        return ask(1, self.modules[1].shapes, n_cached, n_new, d_model, n_heads, vocab_size)


LAB = Learner()


# --- which exercises ------------------------------------------------------------------------------------------------


def of_decoding(args: argparse.Namespace) -> set[int]:
    """What one decoding of optimized_speculative.py can use."""
    if getattr(args, "trace_shapes", False):
        return {1}
    usable = {3, 6, 4 if args.temperature > 0 else 2} | ({7} if args.draft == "ngram" else set())
    return usable if getattr(args, "trace", None) else usable | {WHOLE_LOOP}  # its rounds have no phases to draw


def of_comparison(args: argparse.Namespace) -> set[int]:
    """What compare.py can use. A plan only asks for the best k; every row of a comparison has a fixed one."""
    if getattr(args, "plan", False) or getattr(args, "verify_plan", False):
        return {6}
    greedy_and_sampled = {2 if float(word) == 0 else 4 for word in str(args.temperature).split(",")}
    return {3, 5} | greedy_and_sampled | ({7} if "ngram" in args.draft.split(",") else set())


def parse(text: str) -> tuple[str, list[int] | None]:
    """--impl's words: "exercises", "solutions", "exercises:2,4".  -> package, numbers (None: all that are finished)"""
    package, colon, rest = text.partition(":")
    words = rest.split(",") if colon else []
    if package not in ("exercises", "solutions") or not all(word.isdecimal() for word in words):
        raise UsageProblem(f"--impl {text}: use exercises, solutions, or some of them, as in --impl exercises:2,3")
    return package, sorted({int(word) for word in words}) or None


def load(text: str | None, usable: set[int]) -> Learner:
    """What `--impl` asks for, checked: of the exercises this run can use, those that are finished.

    Raises UsageProblem where none is, and Problem where a check of one in use fails; then nothing has been timed.
    """
    if text is None:
        return LAB
    package, numbers = parse(text)
    me, known = check.ROOT / "check.py", {exercise.number: exercise for exercise in check.exercises()}
    for number in numbers or []:
        if number not in usable or number not in known:
            what = f"exercise {number}" + (f" ({ROLES[number]})" if number in ROLES else "")
            could = ", ".join(f"{n} ({ROLES[n]})" for n in sorted(usable))
            raise UsageProblem(f"--impl {text}: {what} has no part in this run, which can use {could}")
    if WHOLE_LOOP in (numbers or []) and len(numbers) > 1:
        raise UsageProblem(f"exercise 8 is the whole loop and goes alone; type: --impl {package}:8")
    wanted = numbers or [number for number in sorted(usable - {WHOLE_LOOP}) if number in known]
    chosen = [known[number] for number in wanted]
    check.run_checks(package, chosen)
    _refuse_what_fails(package, chosen)
    unfinished = {exercise.number: exercise.status for exercise in chosen if exercise.status != "done"}
    if unfinished and (numbers or len(unfinished) == len(chosen)):
        what = ", ".join(f"{n} ({ROLES[n]}: {status})" for n, status in unfinished.items())
        words = [str(next(iter(unfinished)))] if numbers else []
        raise UsageProblem(f"--impl {text}: not finished: {what}; type: {parsing.command(me, *words)}")
    modules = {exercise.number: _imported(package, exercise) for exercise in chosen if exercise.status == "done"}
    return Learner(package, modules, unfinished)


def _imported(package: str, exercise: check.Exercise) -> ModuleType:
    """An exercise's file, whose checks have passed in another process."""
    try:
        with at_most(SECONDS["setup"], CLOCK["setup"]):
            return importlib.import_module(f"{package}.{exercise.stem}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        said = never_ended(error) if isinstance(error, NeverEnds) else in_one_line(error)
    again = parsing.command(check.ROOT / "check.py", str(exercise.number))
    raise Problem(f"{package}/{exercise.stem}.py cannot be imported here: {said}; its checks can: {again}")


def _refuse_what_fails(package: str, chosen: list[check.Exercise]) -> None:
    """A line for every check that fails, but one that they have in common is said once; then a Problem."""
    failing = [(exercise, found) for exercise in chosen for found in exercise.of("failed")]
    if not failing:
        return
    for exercise in chosen:
        names: dict[str, list[str]] = {}
        for found in exercise.of("failed"):
            names.setdefault(found.message, []).append(found.name)
        for message, of in names.items():
            which = f", {of[0]}" if len(of) == 1 else f", {len(of)} checks"
            print(f"exercise {exercise.number}{which}: {message}", file=sys.stderr)
    words = [str(failing[0][0].number), *(["--impl", package] if package != "exercises" else [])]
    fails = f"{len(failing)} check{'s fail' if len(failing) > 1 else ' fails'}"
    raise Problem(f"{fails}, so nothing was run; type: {parsing.command(check.ROOT / 'check.py', *words)}")
