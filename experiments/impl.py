"""`--impl exercises`: the functions you wrote in exercises/ decide in the lab's own scripts.

    python baseline_autoregressive.py --impl exercises          # exercise 0 rates the run
    python optimized_speculative.py --impl exercises            # every finished exercise that this run can use
    python optimized_speculative.py --impl exercises:2,3        # these only
    python compare.py --temperature 0.8 --impl exercises:4      # exercise 4 decides the sampled rows
    python compare.py --impl solutions                          # the same with the solutions

Each exercise's pure functions get an adapter to the part of the loop that they stand for. Before anything is timed the
checks of the exercises in use are run, and one that fails ends the run. What an adapter is told is looked at before the
loop gets it: an impossible answer is one line that names the function. A possible but wrong answer makes a wrong text,
and the run's own comparison with the baseline reports it. The baseline itself stays the lab's own.
"""

import argparse
import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import check
from draft_models import Drafter, ModelDrafter, NgramDrafter
from speclab import flags
from speclab.cached_model import CachedModel, tokens_to_keep
from speclab.errors import Problem, UsageProblem
from speclab.losslessness import judge_divergence
from speclab.options import Setup
from speclab.prompts import Prompt
from speclab.sampling import NOT_FINITE, Draft, Sampling, Verdict, draw, to_host, verify
from speclab.timing import synchronize

# What an exercise decides in a run, in words.
ROLES = {
    0: "the baseline's rate",
    1: "the shapes",
    2: "greedy verification",
    3: "rollback and catch-up",
    4: "verification when sampling",
    5: "a prediction for every row",
    6: "the draft length",
    7: "the n-gram drafter",
    8: "the whole loop",
}
WHOLE_LOOP = 8  # only when asked for by number: it takes the place of all others
FIRST_LENGTH = 4  # tokens of the first draft, before the rule of exercise 6 has seen a round


def ask(number: int, function: Callable, *args) -> Any:
    """Call the learner's function; an exception in it becomes one line with the file's name and line."""
    try:
        return function(*args)
    except Problem:
        raise
    except Exception as error:
        frame = error.__traceback__
        while frame.tb_next is not None:
            frame = frame.tb_next
        code = frame.tb_frame.f_code
        place = f"{flags.shown(Path(code.co_filename))}:{frame.tb_lineno}"
        raise _stopped(number, function, f"raised {type(error).__name__}: {error} ({place})") from error


def _stopped(number: int, function: Callable, what: str) -> Problem:
    name = getattr(function, "__qualname__", str(function))
    return Problem(f"exercise {number}: {name} {what}; type: {flags.command(check.ROOT / 'check.py', str(number))}")


def in_range(number: int, function: Callable, answer: Any, smallest: int, largest: int) -> int:
    """A learner's answer that must be a whole number between two others."""
    if isinstance(answer, Tensor) and answer.numel() == 1 and not answer.is_floating_point():
        answer = answer.item()
    if not isinstance(answer, int) or not smallest <= answer <= largest:
        raise _stopped(number, function, f"returned {answer!r}, not a whole number from {smallest} to {largest}")
    return int(answer)


@dataclass(frozen=True)
class Impl:
    """Which parts of a run are the learner's. Without any it is the lab as it is."""

    package: str = ""  # exercises or solutions
    modules: dict[int, ModuleType] = field(default_factory=dict)  # of the exercises in use
    unfinished: dict[int, str] = field(default_factory=dict)  # those that this run could use, and how far they are

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

    def decoder(self, lab: Callable[..., Iterator], rules: Callable) -> Callable[..., Iterator]:
        """The loop of this run: the lab's, with the learner's decisions in it, or exercise 8's.

        `rules` makes the lab's Rules of a verify and a tokens_to_keep.
        """
        if WHOLE_LOOP in self.modules:
            return self._whole_loop
        if not {2, 3, 4} & self.modules.keys():
            return lab
        return functools.partial(lab, rules=rules(self.verify, self.tokens_to_keep))

    def _whole_loop(self, *args, detail: bool = False, time_phases: bool = False) -> Iterator:
        if detail or time_phases:
            raise UsageProblem("exercise 8's loop has no trace and no clock on its phases; leave out --trace")
        decode = self.modules[WHOLE_LOOP].decode
        rounds = ask(WHOLE_LOOP, decode, *args)
        while (round_ := ask(WHOLE_LOOP, next, rounds, None)) is not None:
            yield round_

    @property
    def verify(self) -> Callable[[Draft, Tensor, Sampling, Tensor], Verdict]:
        """Exercise 2 on greedy rows, exercise 4 on sampled ones, the lab's own where neither is in use."""
        return self._verify if {2, 4} & self.modules.keys() else verify

    def _verify(self, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        if sampling.greedy and 2 in self.modules:
            n_accepted, token = greedy_verdict(self.modules[2], draft, logits)
        elif not sampling.greedy and 4 in self.modules:
            n_accepted, token = sampled_verdict(self.modules[4], draft, sampling.probs(logits), uniforms)
        else:
            return verify(draft, logits, sampling, uniforms)
        return Verdict(*(torch.tensor([number], device=logits.device) for number in (n_accepted, token)))

    @property
    def tokens_to_keep(self) -> Callable[[int, int], int]:
        """Exercise 3's rule, or the lab's."""
        if 3 not in self.modules:
            return tokens_to_keep
        rule = self.modules[3].tokens_to_keep
        return lambda n_cached, n_committed: in_range(3, rule, ask(3, rule, n_cached, n_committed), 0, n_cached)

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
        self, setup: Setup, prompts: list[Prompt], decode: Callable, args: argparse.Namespace, eos: frozenset[int]
    ) -> str:
        """Exercise 0 times the baseline over every prompt once more, warm.  -> a line for each"""
        mine, lines = self.modules[0], []
        for prompt in prompts:

            def again(ids: Tensor = prompt.ids.to(setup.device)) -> Iterator[int]:
                generator = torch.Generator(setup.device).manual_seed(args.seed)
                budget = args.max_new_tokens
                return decode(setup.target, ids, budget, setup.sampling, generator, eos, chunk=setup.chunk)

            found = ask(0, mine.time_decoding, again, time.perf_counter, lambda: synchronize(setup.device), 1)
            try:
                prefill, seconds, n_tokens = found
                speed = ask(0, mine.tokens_per_second, n_tokens, seconds)
                line = f"{n_tokens} tokens, prefill {prefill:.3f} s, decoding {seconds:.2f} s: {speed:.1f} tok/s"
            except (TypeError, ValueError):
                raise _stopped(0, mine.time_decoding, f"returned {found!r}, not three numbers") from None
            lines.append(f"yours, after a warm-up: {line}")
        return "\n".join(lines)

    def same_text(
        self,
        setup: Setup,
        prompt: Prompt,
        decode: Callable,
        tokens: list[int],
        args: argparse.Namespace,
        eos: frozenset[int],
    ) -> bool:
        """Hold a greedy text against the baseline's and say what was found; a near-tie of two logits is no fault."""
        if not setup.sampling.greedy:
            words = f"--temperature {args.temperature:g} --impl {args.impl}"
            print(f"a sampled text has no baseline to equal; python compare.py {words} judges many of them")
            return True
        baseline = list(decode(setup.target, prompt.ids.to(setup.device), args.max_new_tokens, eos=eos))
        found = judge_divergence(setup.target, prompt.id_list, baseline, tokens, args.draft_length + 1)
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

    def predicted(self, row: dict, rounds: list[tuple[int, int]]) -> dict:
        """Exercise 5 on a row of a comparison and its (drafted, accepted) rounds.

        -> which row it is, the learner's alpha and speedup; None where nothing was tested or nothing calibrated
        """
        mine, alpha, speedup = self.modules[5], None, None
        if any(drafted for drafted, _ in rounds):
            alpha = ask(5, mine.acceptance_rate, rounds)
        k, costs = row["draft_length"], [row[name] for name in ("draft_cost", "verify_cost", "overhead")]
        if alpha is not None and None not in costs:
            speedup = ask(5, mine.predicted_speedup, alpha, k, *costs)
        key = {name: row[name] for name in ("method", "draft_length", "temperature")}
        return {**key, "acceptance_rate": alpha, "speedup": speedup}

    def best_length(
        self, alpha: float, draft_cost: float, verify_cost: Callable[[int], float], overhead: float, longest: int
    ) -> int:
        """Exercise 6's choice for a plan."""
        rule = self.modules[6].best_draft_length
        return in_range(6, rule, ask(6, rule, alpha, draft_cost, verify_cost, overhead, longest), 0, longest)

    def shapes(self, n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict | None:
        """Exercise 1's table for one pass, without a batch axis (speclab/shapes.py); None where it is not in use."""
        if 1 not in self.modules:
            return None
        return ask(1, self.modules[1].shapes, n_cached, n_new, d_model, n_heads, vocab_size)


LAB = Impl()


def greedy_verdict(mine: ModuleType, draft: Draft, logits: Tensor) -> tuple[int, int]:
    """Exercise 2 on logits (1, n + 1, vocab).  -> n_accepted, next token"""
    highest, own = logits[0].max(-1)  # (n + 1,)
    own = to_host(torch.where(highest.isfinite(), own, NOT_FINITE))
    drafted = draft.tokens[0].tolist()
    count, choose = mine.count_accepted, mine.next_token
    n_accepted = in_range(2, count, ask(2, count, drafted, list(own)), 0, len(drafted))
    return n_accepted, in_range(2, choose, ask(2, choose, own, n_accepted), 0, logits.shape[-1] - 1)


def sampled_verdict(mine: ModuleType, draft: Draft, target_probs: Tensor, uniforms: Tensor) -> tuple[int, int]:
    """Exercise 4 on probabilities (1, n + 1, vocab) and uniforms (1, n + 1).  -> n_accepted, next token"""
    if not target_probs.isfinite().all():
        return 0, NOT_FINITE  # the loop says so in its own words
    drafted, vocab = draft.tokens[0], target_probs.shape[-1]
    draft_probs = draft.probs
    if draft_probs is None:  # prompt lookup is certain of what it proposes
        draft_probs = torch.nn.functional.one_hot(draft.tokens, vocab).to(target_probs.dtype)

    def draw_one(probs: Tensor, uniform: float) -> int:
        """(vocab,) probabilities and a number in [0, 1) -> an id"""
        return int(draw(probs[None], uniforms.new_tensor([uniform]))[0])

    # Copies: the draft's were made in inference mode, where a learner's in-place step would be refused.
    args = (drafted.tolist(), draft_probs[0].clone(), target_probs[0].clone(), uniforms[0].tolist(), draw_one)
    rule = mine.verify_draft
    answer = ask(4, rule, *args)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise _stopped(4, rule, f"returned {answer!r}, not a pair (n_accepted, next token)")
    return in_range(4, rule, answer[0], 0, len(drafted)), in_range(4, rule, answer[1], 0, vocab - 1)


class TheirCatchUp(ModelDrafter):
    """A draft model that is rolled back and fed as exercise 3 says."""

    def __init__(self, drafter: ModelDrafter, keep: Callable[[int, int], int], catch_up: Callable):
        super().__init__(drafter.draft)
        self._keep, self._catch_up = keep, catch_up
        self._committed: list[int] = []

    def start(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        super().start(target, prompt, sampling)
        self._committed = prompt[0].tolist()

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._committed += committed
        self._n_committed = len(self._committed)
        kept = self._keep(self.draft.length, self._n_committed)
        self.draft.rollback(kept)
        answer = ask(3, self._catch_up, list(self._committed), kept)
        # Too much or too little would be lossless and never seen in the text: only the draft would get worse.
        if list(answer) != self._committed[kept:]:
            raise _stopped(
                3,
                self._catch_up,
                f"returned {len(answer)} ids with {kept} of {self._n_committed} committed ones in the draft's cache, "
                "and they are not those that are missing there",
            )
        self._not_fed = list(answer)


class TheirDrafter:
    """Exercise 7's drafter; what it proposes is looked at before the target is fed with it."""

    def __init__(self, kind: Callable[[], Drafter]):
        self._inner, self._vocab_size = ask(7, kind), 0

    def start(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._vocab_size = target.vocab_size
        ask(7, self._inner.start, target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        draft = ask(7, self._inner.propose, k, uniforms)
        tokens = getattr(draft, "tokens", None)
        fine = isinstance(tokens, Tensor) and tokens.dtype == torch.long and tokens.ndim == 2 and tokens.shape[0] == 1
        if not fine or tokens.shape[1] > k or not ((tokens >= 0) & (tokens < self._vocab_size)).all():
            what = f"ids of shape (1, n), n at most {k}, from 0 to {self._vocab_size - 1}"
            raise _stopped(7, self._inner.propose, f"returned {tokens!r} as its tokens, not {what}")
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        ask(7, self._inner.observe, n_accepted, committed)


class TheirLength:
    """Around any drafter: exercise 6's rule chooses how long the next draft may be."""

    def __init__(self, drafter: Drafter, rule: Callable[[int, int, int, int], int], longest: int):
        self._drafter, self._rule, self._longest = drafter, rule, longest
        self._length = min(FIRST_LENGTH, longest)
        self._n_drafted: int | None = None  # None before the first round

    def start(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._length, self._n_drafted = min(FIRST_LENGTH, self._longest), None
        self._drafter.start(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        length = min(k, self._length)
        draft = self._drafter.propose(length, uniforms[:, :length])
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        if self._n_drafted is not None:
            length = ask(6, self._rule, self._length, self._n_drafted, n_accepted, self._longest)
            self._length = in_range(6, self._rule, length, 0, self._longest)
        self._drafter.observe(n_accepted, committed)


# --- which exercises ------------------------------------------------------------------------------------------------


def of_decoding(args: argparse.Namespace) -> set[int]:
    """What one decoding of optimized_speculative.py can use."""
    if getattr(args, "trace_shapes", False):
        return {1}
    return {3, 6, WHOLE_LOOP, 4 if args.temperature > 0 else 2} | ({7} if args.draft == "ngram" else set())


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


def load(text: str | None, usable: set[int]) -> Impl:
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
    print(f"running the checks of {package} {', '.join(map(str, wanted))} first", file=sys.stderr)
    check.run_checks(package, chosen)
    failing = [(exercise, found) for exercise in chosen for found in exercise.of("failed")]
    for exercise, found in failing:
        print(f"exercise {exercise.number}, {found.name}: {found.message}", file=sys.stderr)
    if failing:
        words = [str(failing[0][0].number), *(["--impl", package] if package != "exercises" else [])]
        fails = f"{len(failing)} check{'s fail' if len(failing) > 1 else ' fails'}"
        raise Problem(f"{fails}, so nothing was run; type: {flags.command(me, *words)}")
    unfinished = {exercise.number: exercise.status for exercise in chosen if exercise.status != "done"}
    if unfinished and (numbers or len(unfinished) == len(chosen)):
        what = ", ".join(f"{n} ({ROLES[n]}: {status})" for n, status in unfinished.items())
        words = [str(next(iter(unfinished)))] if numbers else []
        raise UsageProblem(f"--impl {text}: not finished: {what}; type: {flags.command(me, *words)}")
    modules = {e.number: importlib.import_module(f"{package}.{e.stem}") for e in chosen if e.status == "done"}
    return Impl(package, modules, unfinished)
