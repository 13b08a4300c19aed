"""The checks of exercise 2: greedy draft and verify, on models that are plain functions."""

import itertools
from collections.abc import Callable
from types import ModuleType

from tests.exercises.answers import asked, whole, wrong

TEXT = [50, 51]  # what is committed before most of the rounds below: two ids
Rule = Callable[[list[int]], int]  # the text so far -> the next id
Ids = tuple[int, ...]


class Target:
    """A target that follows a rule and counts its passes. `text` is what the round begins with."""

    def __init__(self, rule: Rule, text: list[int] = TEXT):
        self.rule, self.text, self.passes = rule, text, []

    def __call__(self, ids: list[int], n: int) -> list[int]:
        if ids[: len(self.text)] != self.text or not 0 <= n <= len(ids) - len(self.text):
            rule = f"a pass goes over the text, {self.text} here, and the drafts after it, of which there are n"
            wrong(f"it looks as if yours calls target({ids}, {n}): {rule}")
        self.passes.append((list(ids), n))
        return [self.rule(ids[: len(ids) - n + i]) for i in range(n + 1)]


def says(script: Ids) -> Rule:
    """A rule that continues a text of two ids with `script`, whatever has been written; after its end it says 0."""
    return lambda ids: script[len(ids) - 2] if len(ids) - 2 < len(script) else 0


def blocks(*ids: int) -> list[tuple[Ids, Ids]]:
    """All drafts of up to three of these ids, with all of the target's own choices."""
    both = ((itertools.product(ids, repeat=n) for n in (k, k + 1)) for k in range(4))
    return [pair for k in both for pair in itertools.product(*k)]


@asked(blocks(0, 7), "drafted {}, target's own {}: kept are")
def test_accepted_are_the_leading_agreements(one, drafted, own):
    """count_accepted: drafted tokens count while they are the target's own; the first rejected one ends it."""
    return whole(one.count_accepted(list(drafted), list(own)))


OWN = [(own, n) for own in ((7, 2, 5, 4), (0, 9, 0, 2), (6,)) for n in range(len(own))]


@asked(OWN, "target's own {}, {} accepted: the token after them", [own[n] for own, n in OWN])
def test_next_token_is_the_correction_or_the_bonus(one, own, n):
    """next_token: the target's own choice for the first position that no accepted draft fills; it always adds one."""
    return whole(one.next_token(list(own), n))


ROUND = f"text {TEXT}, the draft says {{}}, the target {{}}, k = {{}}, max_new {{}}, eos {{}}"


def round_of(one: ModuleType, drafts: Ids, choices: Ids, k: int, max_new: int, eos: Ids) -> dict[str, object]:
    target, seen = Target(says(choices)), []

    def draft(ids: list[int]) -> int:
        seen.append(list(ids))
        return says(drafts)(ids)

    block = one.one_round(target, draft, list(TEXT), k, max_new, frozenset(eos))
    block = [whole(token) for token in block]
    return {"committed": block, "the draft is shown": seen, "passes of the target": target.passes}


LONG = tuple(range(1, 12))
PLAIN = [(*pair, len(pair[0]), 20, ()) for pair in blocks(1, 2)]
BUDGETS = [(LONG, LONG, k, max_new, ()) for k in (0, 1, 4, 9) for max_new in (1, 2, 3, 5, 20)]


@asked([*PLAIN, *BUDGETS], ROUND)
def test_a_round_commits_what_is_accepted_and_one_more(one, *case):
    """one_round: accepted drafts in their order, then the target's own token, a correction or the bonus token. So it
    drafts at most max_new - 1; k may be 0."""
    return round_of(one, *case)["committed"]


@asked([(drafts, (1, 2, 3, 4, 5), 4, 20, ()) for drafts in ((9, 8, 7, 6), (1, 2, 3, 4))], ROUND)
def test_one_pass_of_the_target_per_round(one, *case):
    """one_round: draft on top of drafts, then ask the target once, about k + 1 positions, whatever is accepted."""
    return round_of(one, *case)


@asked([(*pair, len(pair[0]), 20, eos) for eos in ((9,), (8, 9)) for pair in blocks(1, 9)], ROUND)
def test_end_of_text_inside_a_block(one, *case):
    """one_round: what stands after an id of `eos` is cut off; a rejected token ends nothing."""
    return round_of(one, *case)["committed"]


# The chapter's prediction: k -> target passes for twelve tokens.
PASSES = {0: 12, 1: 6, 2: 6, 3: 3, 4: 3, 8: 3}
COUNTED = [([*range(1, 13)], n) for n in PASSES.values()]


@asked([(k,) for k in PASSES], "k = {}: the target counts to 12, the ids and the passes of the target", COUNTED)
def test_the_passes_you_predicted(one, k):
    """one_round: twelve tokens, of which the draft misses every fourth, take as many passes as the chapter says."""

    def draft(ids: list[int]) -> int:
        return 99 if (ids[-1] + 1) % 4 == 0 else ids[-1] + 1

    written, target = [], Target(lambda ids: ids[-1] + 1)
    while len(written) < 12:
        target.text = [0, *written]
        block = one.one_round(target, draft, [0, *written], k, 12 - len(written), frozenset())
        if not block:
            wrong("a round returned no token at all; it always writes at least the target's own")
        written += [whole(token) for token in block]
    return written, len(target.passes)
