"""The checks of exercise 2: greedy draft and verify, on models that are plain functions."""

import itertools
import random
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


def decode(one: ModuleType, rule: Rule, guess: Rule, text: list[int], k: int, n_new: int, eos: Ids) -> tuple:
    """Rounds until `n_new` ids are written or the text ends -> the new ids, passes of the target, rounds."""
    written, n_rounds, target = [], 0, Target(rule)
    while len(written) < n_new and not (written and written[-1] in eos):
        target.text = text + written
        block = one.one_round(target, guess, text + written, k, n_new - len(written), frozenset(eos))
        if not block:
            wrong("a round returned no token at all; it always writes at least the target's own")
        written += [whole(token) for token in block]
        n_rounds += 1
    return written, len(target.passes), n_rounds


# The chapter's prediction: k -> target passes for twelve tokens.
PASSES = {0: 12, 1: 6, 2: 6, 3: 3, 4: 3, 8: 3}
COUNTED = [([*range(1, 13)], n) for n in PASSES.values()]


@asked([(k,) for k in PASSES], "k = {}: the target counts to 12, the ids and the passes of the target", COUNTED)
def test_the_passes_you_predicted(one, k):
    """one_round: twelve tokens, of which the draft misses every fourth, take as many passes as the chapter says."""

    def draft(ids: list[int]) -> int:
        return 99 if (ids[-1] + 1) % 4 == 0 else ids[-1] + 1

    return decode(one, lambda ids: ids[-1] + 1, draft, [0], k, 12, ())[:2]


def models(seed: int) -> tuple[Rule, Rule]:
    """A target that looks at two ids, and a draft that is right now and then."""
    dice = random.Random(seed)
    next_of = {(a, b): dice.randrange(9) for a in range(9) for b in range(9)}
    accuracy = dice.choice([0.0, 0.3, 0.7, 1.0])

    def rule(ids: list[int]) -> int:
        return next_of[ids[-2], ids[-1]]

    return rule, lambda ids: rule(ids) if dice.random() < accuracy else (rule(ids) + 1) % 9


def plain(seed: int, _: int, eos: Ids) -> tuple[list[int], bool]:
    text, rule = [1, 2], models(seed)[0]
    while len(text) < 27 and not (len(text) > 2 and text[-1] in eos):
        text.append(rule(text))
    return text[2:], True


DECODINGS = list(itertools.product(range(12), (0, 1, 3, 6), ((), (4,))))
SAME = "models {}, k = {}, max_new 25, eos {}: the text of plain decoding, in one pass a round"


@asked(DECODINGS, SAME, [plain(*case) for case in DECODINGS])
def test_any_draft_gives_the_targets_own_text(one, seed, k, eos):
    """one_round: good and bad drafts give the text of plain greedy decoding, in one pass of the target a round."""
    text, n_passes, n_rounds = decode(one, *models(seed), [1, 2], k, 25, eos)
    return text, n_passes == n_rounds
