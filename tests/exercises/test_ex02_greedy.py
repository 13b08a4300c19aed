"""The checks of exercise 2: greedy draft and verify, on models that are plain functions."""

import random
from collections.abc import Callable

import pytest

from tests.exercises.answers import whole

NO_EOS: frozenset[int] = frozenset()


TEXT = [50, 51]  # what is committed before most of the rounds below: two ids


class Target:
    """A target that follows a rule, text -> next id, and counts its passes. `text` is what the round begins with."""

    def __init__(self, rule: Callable[[list[int]], int], text: list[int] = TEXT):
        self.rule, self.text, self.passes = rule, text, []

    def __call__(self, ids: list[int], n: int) -> list[int]:
        if n < 0 or ids[: len(self.text)] != self.text or n > len(ids) - len(self.text):
            pytest.fail(self.complaint(ids, n), pytrace=False)
        self.passes.append((list(ids), n))
        return [self.rule(ids[: len(ids) - n + i]) for i in range(n + 1)]

    def complaint(self, ids: list[int], n: int) -> str:
        """Why a pass over `ids`, asked about n + 1 positions, makes no sense."""
        start, n_drafted = f"you called target({ids}, {n}): ", len(ids) - len(self.text)
        if n < 0:
            return start + "n is the number of drafted ids, 0 or more"
        if ids[: len(self.text)] != self.text:
            return start + f"a pass goes over the text, which is {self.text} here, and the drafts after it"
        if n == n_drafted + 1:
            return start + f"{n_drafted} drafted, so n is {n_drafted}; the position after the last draft is counted in"
        return start + f"you drafted fewer ids, {n_drafted}, than you asked the target about; n is how many you drafted"


class Draft:
    """A draft that follows a rule and notes what it was shown."""

    def __init__(self, rule: Callable[[list[int]], int]):
        self.rule, self.seen = rule, []

    def __call__(self, ids: list[int]) -> int:
        self.seen.append(list(ids))
        return self.rule(ids)


def says(*script: int) -> Callable[[list[int]], int]:
    """A rule that continues a text of two ids with `script`, whatever has been written; after its end it says 0."""
    return lambda ids: script[len(ids) - 2] if len(ids) - 2 < len(script) else 0


# --- The two decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafted", "own", "right"),
    [
        ([7, 2, 9], [7, 2, 9, 4], 3),
        ([7, 2, 9], [3, 2, 9, 4], 0),  # only the first one is wrong
        ([7, 2, 9, 4], [7, 5, 9, 4, 8], 1),  # right again after the rejected one
        ([7, 2, 9], [8, 7, 2, 9], 0),  # own, read one position too late, would agree
        ([], [4], 0),  # nothing was drafted
        ([0, 0], [0, 0, 3], 2),
    ],
)
def test_accepted_are_the_leading_agreements(learner, drafted, own, right):
    """Drafted tokens count while they are the target's own; the first rejected one ends it."""
    given = list(drafted), list(own)
    got = learner.count_accepted(*given)
    story = f"drafted {drafted}, target's own {own}: {right} are kept, you got {got}"
    if whole(got) is None:
        pytest.fail(f"count_accepted returns a whole number, you got {got!r}", pytrace=False)
    if given != (drafted, own):
        pytest.fail("count_accepted changed a list that it was given (pop does); only read them", pytrace=False)
    if whole(got) == right:
        return
    if got == 0 < right:
        story += "; the round is not all or nothing: the drafts before the first rejected one are kept"
    elif 0 in drafted:
        story += "; id 0 is a token like any other, not 'nothing'"
    elif got == sum(d == o for d, o in zip(drafted, own, strict=False)):
        story += "; that counts agreements after the first rejected draft too: they continue a text that is gone"
    elif got == right + 1:
        story += "; that counts the rejected token, or the target's own token, as an accepted draft"
    elif got == sum(d == o for d, o in zip(drafted, own[1:], strict=False)):
        story += "; own[i] is the choice for the position of drafted[i], do not shift it"
    pytest.fail(story, pytrace=False)


@pytest.mark.parametrize("own", [[7, 2, 5, 4], [0, 9, 0, 2], [6]])
def test_next_token_is_the_correction_or_the_bonus(learner, own):
    """The target's own choice for the first position that no accepted draft fills."""
    for n_accepted in range(len(own)):
        given = list(own)
        got, right = learner.next_token(given, n_accepted), own[n_accepted]
        if got is not None and whole(got) is None:
            pytest.fail(f"next_token returns an id, a whole number; you got {got!r}", pytrace=False)
        if given != own:
            pytest.fail("next_token changed the list `own` that it was given (pop does); only read it", pytrace=False)
        if whole(got) == right:
            continue
        k = len(own) - 1
        kind = "bonus token" if n_accepted == k else "correction"
        story = f"target's own {own}, {n_accepted} of {k} accepted: the {kind} is {right}, you got {got}"
        if got == own[-1] and n_accepted < k:
            story += "; the last one was chosen after drafts that are rejected"
        elif n_accepted and got == own[n_accepted - 1]:
            story += "; that is the last accepted token once more"
        elif got is None:
            story += "; a round always adds one token of the target's"
        pytest.fail(story, pytrace=False)


# --- One round -------------------------------------------------------------------------------------------------------


def ids_of(block: object) -> list[int]:
    """What a round returned, as ints."""
    if not isinstance(block, list):
        pytest.fail(f"one_round returns a list of ids, you got {block!r}", pytrace=False)
    ids = [whole(token) for token in block]
    if None in ids:
        pytest.fail(f"one_round returns a list of ids, whole numbers; you got {block}", pytrace=False)
    return ids


def explain_round(got: list[int], right: list[int], draft: Draft, drafted: list[int], own: list[int], n: int) -> str:
    """Why a round that should commit `right` is wrong with `got`."""
    if draft.seen != [TEXT + drafted[:i] for i in range(len(drafted))]:
        return f"k = {len(drafted)}: ask the draft {len(drafted)} times, after the text and its own earlier tokens"
    start = f"drafted {drafted}, target's own {own}: commit {right}, you got {got}; "
    if got[: len(TEXT)] == TEXT:
        return start + "return only the new ids, without the text in front"
    if got == drafted[:n]:
        if n == len(drafted):
            return start + "the bonus token is missing: the pass has computed it, and the next one pays for it again"
        return start + "the correction is thrown away: the pass has computed it, and the next one pays for it again"
    if n and got in ([own[0]], [own[n]]):
        return start + "the round is not all or nothing: the drafts before the first rejected one are kept"
    if got == [own[n], *drafted[:n]]:
        return start + "the correction goes after the accepted drafts, not in front of them"
    if got == [*drafted[: n + 1], own[n]]:
        return start + "the rejected draft is written too"
    agreements = sum(d == o for d, o in zip(drafted, own, strict=False))
    if agreements > n and got == [*drafted[:agreements], own[agreements]]:
        return start + "agreements after the first rejected draft were counted too: they continue a text that is gone"
    if got == drafted:
        return start + "you wrote the drafts as they were, rejected or not"
    return start + "accepted drafts first, then the one token of the target's"


@pytest.mark.parametrize(
    ("drafts", "choices", "n"),
    [
        ([1, 2, 3, 4], [1, 2, 9, 7, 5], 2),
        ([1, 2, 3, 4], [9, 2, 3, 7, 5], 0),
        ([8, 8, 8, 8], [8, 0, 8, 5, 8], 1),
        ([3, 1, 4, 1], [3, 1, 4, 1, 5], 4),
        ([6], [6, 0], 1),
    ],
)
def test_a_round_commits_what_is_accepted_and_one_more(learner, drafts, choices, n):
    """Accepted drafts in their order, then the target's own token: a correction, or the bonus token after all k."""
    draft, text = Draft(says(*drafts)), list(TEXT)
    got = ids_of(learner.one_round(Target(says(*choices)), draft, text, len(drafts), 20, NO_EOS))
    assert text == TEXT, "the round changed the list `text` that it was given; build a new list instead"
    right = [*drafts[:n], choices[n]]
    assert got == right, explain_round(got, right, draft, drafts, choices, n)


@pytest.mark.parametrize("n", [0, 4])
def test_one_pass_of_the_target_per_round(learner, n):
    """Draft on top of drafts, then ask the target once, about k + 1 positions, whatever is accepted."""
    choices = [1, 2, 3, 4, 5]
    drafts = [*choices[:n], 9, 9, 9, 9][:4]
    target, draft = Target(says(*choices)), Draft(says(*drafts))
    learner.one_round(target, draft, list(TEXT), 4, 20, NO_EOS)
    assert target.passes, "the round never asked the target"
    if len(target.passes) > 1:
        again = len(target.passes) - 1
        pytest.fail(
            f"{n} of 4 drafts accepted: {len(target.passes)} passes of the target instead of 1; the first pass knows "
            f"the next token already, so {again} more {'is' if again == 1 else 'are'} wasted",
            pytrace=False,
        )
    right = [TEXT + drafts[:i] for i in range(4)]
    assert len(draft.seen) == 4, f"k = 4, so the draft is asked 4 times, not {len(draft.seen)}"
    story = f"the draft must see its own earlier tokens: shown {right[-1]} at last, not {draft.seen[-1]}"
    assert draft.seen == right, story
    ids, asked = target.passes[0]
    story = f"the target's pass goes over the text and the drafts, {TEXT + drafts}, you gave it {ids}"
    assert ids == TEXT + drafts, story
    story = f"4 drafts and the token after them are 5 positions, so target(ids, 4); you asked for target(ids, {asked})"
    assert asked == 4, story


@pytest.mark.parametrize(
    ("drafts", "choices", "right", "why"),
    [
        ([1, 99, 3, 4], [1, 99, 3, 4, 5], [1, 99], "an accepted draft ends the text: nothing after it is written"),
        ([1, 2, 3, 4], [1, 2, 99, 4, 5], [1, 2, 99], "the correction ends the text"),
        ([1, 2, 3, 4], [1, 2, 3, 4, 99], [1, 2, 3, 4, 99], "the bonus token ends the text"),
        ([1, 99, 3, 4], [1, 2, 3, 4, 5], [1, 2], "a rejected draft was never written, so it ends nothing"),
        ([98, 99, 3, 4], [98, 99, 3, 4, 5], [98], "the first id of `eos` ends the text, whichever of them it is"),
        (
            [1, 2, 7, 4],
            [1, 2, 3, 99, 5],
            [1, 2, 3],
            "a choice of the target's after the rejected position is not written",
        ),
    ],
)
def test_end_of_text_inside_a_block(learner, drafts, choices, right, why):
    """What stands after an id of `eos` is cut off; a rejected one does not count."""
    got = ids_of(
        learner.one_round(Target(says(*choices)), Draft(says(*drafts)), list(TEXT), 4, 20, frozenset({98, 99}))
    )
    assert got == right, (
        f"eos 98 and 99, drafted {drafts}, target's own {choices}: commit {right}, you got {got}; {why}"
    )


def test_never_more_than_max_new(learner):
    """k larger than what is left, one token left, and k = 0, which is plain decoding."""
    script = list(range(1, 12))
    for k in (0, 1, 4, 9):
        for max_new in (1, 2, 3, 5, 20):
            target, draft = Target(says(*script)), Draft(says(*script))
            got = ids_of(learner.one_round(target, draft, list(TEXT), k, max_new, NO_EOS))
            drafts = min(k, max_new - 1)
            where = f"k = {k}, max_new {max_new}: "
            story = f"draft at most max_new - 1 tokens, {drafts} here, because the target adds one; you drafted "
            assert len(draft.seen) <= drafts, f"{where}{story}{len(draft.seen)}"
            assert got == script[: drafts + 1], f"{where}commit {script[: drafts + 1]}, you got {got}"
            assert len(target.passes) == 1, f"{where}1 pass of the target, you made {len(target.passes)}"


# --- Many rounds -----------------------------------------------------------------------------------------------------


def decode(
    one_round, target: Target, draft: Draft, text: list[int], k: int, n_new: int, eos=NO_EOS
) -> tuple[list[int], int]:
    """Rounds until `n_new` ids are written or the text ends -> the new ids, the number of rounds."""
    written: list[int] = []
    rounds = 0
    while len(written) < n_new and not (written and written[-1] in eos):
        target.text = text + written
        block = ids_of(one_round(target, draft, text + written, k, n_new - len(written), eos))
        assert block, "a round returned no token at all; it always writes at least the target's own"
        written += block
        rounds += 1
    return written, rounds


def first_difference(written: list[int], plain: list[int], k: int, eos: frozenset[int]) -> str:
    """Where a text leaves the one of plain greedy decoding, in one line."""
    same = next(
        (i for i, (a, b) in enumerate(zip(written, plain, strict=False)) if a != b), min(len(written), len(plain))
    )
    start = f"k = {k}, max_new 25, eos {sorted(eos) or 'none'}: "
    if same == len(plain):
        return start + f"plain greedy decoding ends after {len(plain)} ids, your rounds went on: {written[same:]}"
    return start + f"plain greedy decoding writes {plain[same]} as id {same}, your rounds {written[same : same + 3]}"


# The chapter's prediction: k -> target passes for twelve tokens.
PASSES = {0: 12, 1: 6, 2: 6, 3: 3, 4: 3, 8: 3}


@pytest.mark.whole
def test_the_passes_you_predicted(learner):
    """The chapter's draft misses every fourth token; twelve tokens take as many passes of the target as it says."""
    for k, right in PASSES.items():
        target = Target(lambda ids: ids[-1] + 1)
        draft = Draft(lambda ids: 99 if (ids[-1] + 1) % 4 == 0 else ids[-1] + 1)
        written, _ = decode(learner.one_round, target, draft, [0], k, 12)
        assert written == list(range(1, 13)), f"k = {k}: the target counts to 12, your rounds wrote {written}"
        story = f"k = {k}: {right} passes of the target write these 12 tokens, yours took {len(target.passes)}"
        assert len(target.passes) == right, story


@pytest.mark.whole
def test_any_draft_gives_the_targets_own_text(learner):
    """Good and bad drafts, every k, with and without an end: the text of plain greedy decoding, never more passes."""
    for seed in range(12):
        dice = random.Random(seed)
        next_of = {(a, b): dice.randrange(9) for a in range(9) for b in range(9)}
        accuracy = dice.choice([0.0, 0.3, 0.7, 1.0])

        def rule(ids, next_of=next_of):
            return next_of[ids[-2], ids[-1]]

        def guess(ids, next_of=next_of, accuracy=accuracy, dice=dice):
            right = next_of[ids[-2], ids[-1]]
            return right if dice.random() < accuracy else (right + 1) % 9

        for k in (0, 1, 3, 6):
            for eos in (NO_EOS, frozenset({4})):
                plain = [1, 2]
                while len(plain) < 27 and not (len(plain) > 2 and plain[-1] in eos):
                    plain.append(rule(plain))
                target = Target(rule)
                written, rounds = decode(learner.one_round, target, Draft(guess), [1, 2], k, 25, eos)
                assert written == plain[2:], first_difference(written, plain[2:], k, eos)
                assert len(target.passes) == rounds, f"{len(target.passes)} target passes in {rounds} rounds; one each"
