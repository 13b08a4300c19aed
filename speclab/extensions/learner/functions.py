"""`--impl exercises`: the functions you wrote in exercises/ decide in the lab's own scripts.

    python baseline_autoregressive.py --impl exercises          # exercise 0 rates the run
    python optimized_speculative.py --impl exercises            # every finished exercise that this run can use
    python optimized_speculative.py --impl exercises:2,3        # these only
    python compare.py --temperature 0.8 --impl exercises:4      # exercise 4 decides the sampled rows
    python compare.py --temperature 0.8 --impl exercises:10     # exercise 10 in its place
    python optimized_speculative.py -k auto --impl exercises:9  # exercise 9 decides when a draft stops
    python compare.py --draft feature --impl exercises:11       # exercise 11 feeds the head of a feature draft
    python compare.py --draft block --impl exercises:12         # exercise 12 draws the tokens of a block
    python compare.py --impl solutions                          # the same with the solutions

What comes out is LoopFunctions, in which the parts that exercises stand for are the learner's and the others the lab's.
speclab/learner/loading.py asks for them. The baseline itself stays the lab's own.
"""

import functools
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from torch import Tensor

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.accept import TOKEN, Rule, accept_from_logits
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength
from speclab.lab.instruments import Loop, LoopFunctions
from speclab.learner.adapters import (
    CheckedDrafter,
    LearnerCatchUp,
    LearnerLength,
    LearnerStop,
    accept_greedy,
    accept_sampled,
    whole_loop,
)
from speclab.learner.ask import ask, each, finite, seconds, whole
from speclab.learner.guard import restart
from speclab.learner.heads import LearnerBlock, LearnerFeature
from speclab.models.cached import tokens_to_keep
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.rows import Row
from speclab.records.runs import LearnerPrediction
from speclab.system.errors import UsageProblem
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
    9: "when a draft stops",
    10: "verification when sampling, all drafts together",
    11: "what a feature draft reads",
    12: "the walk along a block",
}
WHOLE_LOOP = 8  # takes the place of all others
BLOCK_RULE = 10  # takes the place of exercise 4
BY_NUMBER = {WHOLE_LOOP, BLOCK_RULE}  # only where they are asked for
# What a run says of BLOCK_RULE; a learner's function judges.
TOGETHER = Rule("block", accept_from_logits, "drafted tokens are judged together (block verification)")


Modules = dict[int, ModuleType]  # of the exercises in use, by their numbers


def learner_functions(
    loop: Loop, package: str, modules: Modules, unfinished: dict[int, str] | None = None
) -> LoopFunctions:
    """The lab's `loop` with the learner's decisions in it, or exercise 8's loop.

    unfinished: the exercises that this run could use, and how far they are.
    """
    used = ", ".join(f"{n} ({ROLES[n]})" for n in modules)
    rest = ", ".join(f"{n} ({ROLES[n]}: {status})" for n, status in (unfinished or {}).items())

    def of(number: int, function: Callable) -> Callable | None:
        """A function that asks the exercise of this number; None where it is not in use."""
        return functools.partial(function, modules[number]) if number in modules else None

    if WHOLE_LOOP in modules:
        loop = functools.partial(whole_loop, modules[WHOLE_LOOP].decode)
    return LoopFunctions(
        loop,
        functools.partial(accept, modules),
        functools.partial(keep_tokens, modules),
        functools.partial(adapt, modules),
        TOGETHER if BLOCK_RULE in modules else TOKEN,
        of(0, rate),
        of(1, shapes),
        of(5, predicted),
        package,
        tuple(modules),
        (f"impl    from {package}/: {used}" + (f"; the lab's own: {rest}" if rest else ""),),
    )


# --- the loop ---------------------------------------------------------------------------------------------------------


def accept(modules: Modules, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """An accept rule: exercise 2 on greedy rows, 4 or 10 on sampled ones, the lab's where it is not in use."""
    if sampling.greedy and 2 in modules:
        decided = accept_greedy(modules[2], draft, logits)
    elif not sampling.greedy and BLOCK_RULE in modules:
        rule = modules[BLOCK_RULE].verify_block
        decided = accept_sampled(BLOCK_RULE, rule, draft, sampling.probs(logits), uniforms)
    elif not sampling.greedy and 4 in modules:
        decided = accept_sampled(4, modules[4].verify_draft, draft, sampling.probs(logits), uniforms)
    else:
        return accept_from_logits(draft, logits, sampling, uniforms)
    return AcceptResult(*(torch.tensor([number], device=logits.device) for number in decided))


def keep_tokens(modules: Modules, n_cached: int, n_committed: int) -> int:
    """Exercise 3's rule for a cache of `n_cached` tokens, or the lab's."""
    if 3 not in modules:
        return tokens_to_keep(n_cached, n_committed)
    return ask(3, modules[3].tokens_to_keep, n_cached, n_committed, check=whole(0, n_cached))


def adapt(modules: Modules, drafter: Drafter, longest: int | None = None) -> Drafter:
    """The drafter of one decoding: exercise 7 in place of the n-grams, exercise 3 feeding a model, exercises 11 and
    12 in drafts with a head, exercise 9 where a draft chooses its length, exercise 6 around any of them where
    `longest` says up to which it may choose.

    UsageProblem for early exit with a loop of the learner's own, whose passes are whole.
    """
    if WHOLE_LOOP in modules and any(part.n_target_layers for part in drafter.parts):
        raise UsageProblem("the loop of exercise 8 verifies with whole passes; use another --draft than exit")
    if isinstance(drafter, AutoLength | HybridDrafter):  # the lab's, around a draft that may be the learner's
        inner = drafter.drafter
        # A head under -k auto is asked after each token whether it goes on; exercise 11 has a fixed length.
        is_stepwise_head = isinstance(drafter, AutoLength) and isinstance(inner, FeatureDrafter)
        drafter.drafter = inner if is_stepwise_head else adapt(modules, inner)
    if 7 in modules and isinstance(drafter, NgramDrafter):
        drafter = CheckedDrafter(modules[7].MyDrafter)
    elif 3 in modules and type(drafter) is ModelDrafter:  # an oracle draft is an instrument: the lab's
        drafter = LearnerCatchUp(drafter, functools.partial(keep_tokens, modules), modules[3].catch_up)
    elif 11 in modules and type(drafter) is FeatureDrafter:
        drafter = LearnerFeature(drafter, modules[11].new_pairs, modules[11].draft_chain)
    elif 12 in modules and type(drafter) is BlockDrafter:
        drafter = LearnerBlock(drafter, modules[12].walk)
    if 9 in modules and type(drafter) is AutoLength and drafter.drafter.asks_to_go_on:
        drafter = LearnerStop(drafter, modules[9].keep_drafting)
    if 6 in modules and longest is not None:
        drafter = LearnerLength(drafter, modules[6].next_draft_length, longest)
    return drafter


# --- numbers ----------------------------------------------------------------------------------------------------------


def rate(learner: ModuleType, decode: Callable[[], Iterator[int]], synchronize: Callable[[], None]) -> str:
    """Exercise 0 times one more decoding, after a warm-up.  -> its numbers in a line

    decode: starts a decoding of the same prompt. synchronize: waits for the device.
    """

    def steps() -> Iterator[int]:
        """The decoding; every step restarts the limit on its time."""
        for step in decode():
            restart(seconds(lab_inside=True))
            yield step

    args = (steps, time.perf_counter, synchronize, 1)
    three = each("three numbers", finite, finite, finite)
    prefill, decoding, n_tokens = ask(0, learner.time_decoding, *args, check=three, lab_inside=True)
    speed = ask(0, learner.tokens_per_second, round(n_tokens), decoding, check=finite)
    return f"{n_tokens:g} tokens, prefill {prefill:.3f} s, decoding {decoding:.2f} s: {speed:.1f} tok/s"


def judge_text(
    functions: LoopFunctions, setup: Setup, prompt: Prompt, baseline: list[int], tokens: list[int]
) -> tuple[bool, str]:
    """Hold a greedy text against the baseline's.  -> is it right, and a line that says so

    Another choice between two logits that are equal but for rounding is right too.
    """
    divergence = judge_divergence(setup.reference, prompt.id_list, baseline, tokens, setup.target.vocab_size)
    if divergence is None:
        return True, "the baseline's text: identical"
    position = divergence.position
    if divergence.numerical:
        return True, f"the baseline's text: another choice between two equal logits at new token {position}"
    ids = (divergence.baseline_token, divergence.speculative_token)
    same = baseline[:position]
    expected, given = (repr(setup.token_text(prompt, same, id)) if id >= 0 else "the end" for id in ids)
    what = f"WRONG TEXT: at new token {position} the baseline has {expected} and this run {given}"
    return False, f"{what}; decided by {functions.package} {', '.join(map(str, functions.exercises))}"


def predicted(learner: ModuleType, row: Row, rounds: list[tuple[int, int]]) -> LearnerPrediction:
    """Exercise 5 on a row of a comparison and its (drafted, accepted) rounds.

    -> which row it is, the learner's alpha and speedup; None where nothing was tested or nothing calibrated
    """
    alpha, speedup = None, None
    if any(drafted for drafted, _ in rounds):
        alpha = ask(5, learner.acceptance_rate, rounds, check=finite)
    k, costs = row.draft_length, (row.draft_cost, row.verify_cost, row.overhead)
    if alpha is not None and None not in costs:
        speedup = ask(5, learner.predicted_speedup, alpha, k, *costs, check=finite)
    return LearnerPrediction(
        method=row.method, draft_length=k, temperature=row.temperature, acceptance_rate=alpha, speedup=speedup
    )


def shapes(learner: ModuleType, n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict:
    """Exercise 1's table for one pass, without a batch axis."""
    return ask(1, learner.shapes, n_cached, n_new, d_model, n_heads, vocab_size)
