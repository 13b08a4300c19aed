"""The parts of the lab's loops that exercises stand for: what comes out is LoopFunctions, in which these parts are the
learner's and the others the lab's. run.py asks for them. The baseline itself stays the lab's own.
"""

import functools
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter, NgramDrafter
from exercises.guard import restart
from speclab.core.accept import accept_from_logits
from speclab.core.clock import old_objects_frozen, synchronize
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, DecodeSettings, Draft, tokens_of
from speclab.core.rules import TOKEN, Rule
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength
from speclab.extensions.learner.adapters import (
    CheckedDrafter,
    LearnerCatchUp,
    LearnerLength,
    LearnerStop,
    accept_greedy,
    accept_sampled,
    whole_loop,
)
from speclab.extensions.learner.ask import ask, each, finite, seconds, whole
from speclab.extensions.learner.heads import LearnerFeature
from speclab.lab.instruments import Loop, LoopFunctions
from speclab.models.cached import tokens_to_keep
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
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
}
# The field of LoopFunctions that an exercise changes, beside those that `adapt` changes; 10 is another rule.
FIELDS = {1: "shapes", 2: "accept", 3: "keeps", 4: "accept", 8: "decode", 10: "rule"}
WHOLE_LOOP = 8  # takes the place of all others
BLOCK_RULE = 10  # takes the place of exercise 4
BY_NUMBER = {WHOLE_LOOP, BLOCK_RULE}  # only where they are asked for
OWN_RUNS = (14, 15, 16)  # they decode batches and trees: rows_and_trees/command.py
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
    if WHOLE_LOOP in modules:
        loop = functools.partial(whole_loop, modules[WHOLE_LOOP].decode)
    return LoopFunctions(
        loop,
        accept=functools.partial(accept, modules),
        keeps=functools.partial(keep_tokens, modules),
        adapt=functools.partial(adapt, modules),
        rule=TOGETHER if BLOCK_RULE in modules else TOKEN,
        shapes=functools.partial(shapes, modules[1]) if 1 in modules else None,
        is_right=functools.partial(is_right, package, modules),
        about=f"from {package}/: {used}" + (f"; the lab's own: {rest}" if rest else ""),
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
    in drafts with a head, exercise 9 where a draft chooses its length, exercise 6 around any of them where
    `longest` says up to which it may choose. What IN_ITS_PLACE does not name is an instrument, and stays the lab's.

    UsageProblem for a draft that runs a part of the target, with a loop of the learner's own, whose passes are whole.
    """
    if WHOLE_LOOP in modules and any(part.pass_share < 1 for part in drafter.parts):
        raise UsageProblem("the loop of exercise 8 verifies with whole passes; use another --draft")
    if type(drafter) in IN_ITS_PLACE:
        drafter = IN_ITS_PLACE[type(drafter)](modules, drafter)
    if 6 in modules and longest is not None:
        drafter = LearnerLength(drafter, modules[6].next_draft_length, longest)
    return drafter


def _lookup(modules: Modules, drafter: NgramDrafter) -> Drafter:
    return CheckedDrafter(modules[7].MyDrafter) if 7 in modules else drafter


def _model(modules: Modules, drafter: ModelDrafter) -> Drafter:
    if 3 not in modules:
        return drafter
    return LearnerCatchUp(drafter, functools.partial(keep_tokens, modules), modules[3].catch_up)


def _feature(modules: Modules, drafter: FeatureDrafter) -> Drafter:
    return LearnerFeature(drafter, modules[11].new_pairs, modules[11].draft_chain) if 11 in modules else drafter


def _hybrid(modules: Modules, drafter: HybridDrafter) -> Drafter:
    drafter.drafter = adapt(modules, drafter.drafter)
    return drafter


def _auto(modules: Modules, drafter: AutoLength) -> Drafter:
    # A head is asked after each token whether it goes on; exercise 11 has a fixed length.
    drafter.drafter = adapt({n: module for n, module in modules.items() if n != 11}, drafter.drafter)
    goes_on = 9 in modules and drafter.drafter.asks_to_go_on
    return LearnerStop(drafter, modules[9].keep_drafting) if goes_on else drafter


# Exactly these classes: what is derived from one of them is no draft that an exercise writes.
IN_ITS_PLACE: dict[type[Drafter], Callable[[Modules, Any], Drafter]] = {
    NgramDrafter: _lookup,
    ModelDrafter: _model,
    FeatureDrafter: _feature,
    HybridDrafter: _hybrid,
    AutoLength: _auto,
}


# --- a text ----------------------------------------------------------------------------------------------------------


def is_right(
    package: str, modules: Modules, setup: Setup, prompt: Prompt, settings: DecodeSettings, tokens: list[int]
) -> bool:
    """Print exercise 0's numbers of another decoding of the prompt; or hold a greedy text against the baseline's."""
    ids = prompt.ids.to(setup.device)
    if 0 in modules:
        print("yours, after a warm-up:", _rated(modules[0], setup, ids, settings))
        return True
    if not settings.sampling.greedy:
        return True
    baseline = tokens_of(autoregressive_decode(setup.target, ids, settings))
    fine, verdict = judge_text(setup, prompt, baseline, tokens)
    print(verdict if fine else f"{verdict}; decided by {package} {', '.join(map(str, modules))}")
    return fine


@old_objects_frozen()
def _rated(learner: ModuleType, setup: Setup, ids: Tensor, settings: DecodeSettings) -> str:
    def decode() -> Iterator[int]:
        rounds = autoregressive_decode(setup.target, ids, settings, setup.chunk)
        return (token for round_ in rounds for token in round_.tokens)

    return rate(learner, decode, functools.partial(synchronize, setup.device))


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


def judge_text(setup: Setup, prompt: Prompt, baseline: list[int], tokens: list[int]) -> tuple[bool, str]:
    """Hold a greedy text against the baseline's.  -> is it right, and a line that says so

    Functions may pass their checks and still make a wrong text. Another choice between two logits that are equal but
    for rounding is right.
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
    return False, f"WRONG TEXT: at new token {position} the baseline has {expected} and this run {given}"


def shapes(learner: ModuleType, n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict:
    """Exercise 1's table for one pass, without a batch axis."""
    return ask(1, learner.shapes, n_cached, n_new, d_model, n_heads, vocab_size)
