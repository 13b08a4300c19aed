"""Checks of exercise 7: what a lookup finds, what the loop expects of a drafter, and what it earns on copied text."""

import random

import pytest
import torch
from torch import Tensor

from draft_models import NgramDrafter
from exercises.scenes import TinyTarget
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Draft
from speclab.core.sampling import Sampling
from tests.exercises.answers import wrong
from tests.exercises.make_copy_texts import K, replay

TOKENS_PER_ROUND = 2.58  # to reach on the copy texts at k = 4; the lab's own drafter makes 189 tokens in 72 rounds


# --- lookup ----------------------------------------------------------------------------------------------------------


def test_the_longest_match_wins(learner):
    """lookup: a longer context says more than a more recent one."""
    text = [1, 2, 3, 7, 7, 9, 2, 3, 8, 8, 1, 2, 3]
    given = learner.lookup(list(text), 2)
    if given == [8, 8]:
        wrong(f"{text} ends with 1 2 3, which stood there before: [7, 7] follows. [8, 8] is after the shorter 2 3")
    if given != [7, 7]:
        why = {(): ": does the end of the text match itself?", (1, 2): ", the match itself"}.get(tuple(given), "")
        wrong(f"in {text} the longest match is 1 2 3, and [7, 7] follows it; yours gives {given}{why}")
    if (given := learner.lookup(list(text), 2, longest=2)) != [8, 8]:
        wrong(f"with longest=2 in {text}: [8, 8] follows the later 2 3, no longer match counts; yours gives {given}")
    text = [5, 6, 1, 2, 3, 4, 7, 9, 1, 2, 3, 4, 8, 5, 6, 1, 2, 3, 4]
    if (given := learner.lookup(list(text), 1)) != [8]:
        why = "; a match of 6 is longer than `longest` allows" if given == [7] else ""
        wrong(f"in {text} a match may be 4 long, the more recent of two is followed by 8; yours gives {given}{why}")


def test_the_most_recent_of_equal_matches_wins(learner):
    """lookup: what was written last is the likeliest to go on alike."""
    text = [1, 2, 5, 1, 2, 6, 1, 2]
    given = learner.lookup(list(text), 1)
    if given == [5]:
        wrong(
            f"{text}: 1 2 was followed by 5 first and by 6 later; the later position wins, yours takes the earlier one"
        )
    if given != [6]:
        wrong(f"{text}: 1 2 was followed by 6 when it last stood there; yours gives {given}")
    if (given := learner.lookup([5, 5, 5, 5, 5, 5], K)) != [5]:
        wrong(f"5 5 5 5 5 5: a match may overlap the end, the last one has one id after it: [5]; yours gives {given}")


def test_nothing_is_made_up(learner):
    """lookup: fewer than k ids where the text ends, none without a match, and the list stays as it is."""
    for text, k, right, why in [
        ([1, 2, 3, 1, 2], 8, [3, 1, 2], "three ids stand after the match, so there are no more than three"),
        ([1, 2, 3, 4, 5], 4, [], "the last two ids stand nowhere else; the end is no match for itself"),
        ([1, 2, 1], 4, [], "one id is less than the shortest match"),
        ([7], 4, [], "the text is one id long"),
        ([], 4, [], "the text is empty"),
        ([3, 3], 4, [], "nothing stands in front of the last two ids"),
        ([1, 2, 3, 1, 2], 0, [], "k is 0"),
        ([1, 2, 3, 1, 2], 2, [3, 1], "k is 2"),
    ]:
        given_text = list(text)
        given = learner.lookup(given_text, k)
        if given != right:
            wrong(f"lookup({text}, {k}) must be {right}: {why}; yours gives {given}")
        if given_text != text:
            wrong(f"lookup({text}, {k}) changed the list it was given")
    if (given := learner.lookup([3, 3], 4, shortest=1)) != [3]:
        wrong(f"lookup([3, 3], 4, shortest=1): a match of one id, followed by [3]; yours gives {given}")


@pytest.mark.whole
def test_lookup_agrees_with_the_labs_own(learner):
    """lookup: 300 random texts of few different ids, all lengths of match."""
    dice = random.Random(7)
    n_found = 0
    for _ in range(300):
        text = [dice.randrange(dice.randint(1, 4)) for _ in range(dice.randint(1, 30))]
        longest, k = dice.randint(1, 5), dice.randint(0, 5)
        shortest = dice.randint(1, longest)
        lab = NgramDrafter(longest, shortest)
        lab.prefill(None, torch.tensor([text]), Sampling())
        right = lab.lookup(k)
        n_found += bool(right)
        given = learner.lookup(list(text), k, longest, shortest)
        if given != right:
            wrong(f"lookup({text}, {k}, {longest}, {shortest}) must be {right}, yours gives {given}")
    assert n_found > 100


# --- the drafter -----------------------------------------------------------------------------------------------------


class Elsewhere(torch.Tensor):
    """A prompt that says it lives on another device; reading it works as ever."""

    @property
    def device(self) -> torch.device:
        return torch.device("meta")


def started(drafter_class: type, ids: list[int]):
    """A drafter that has taken in a prompt."""
    drafter = drafter_class()
    drafter.prefill(None, torch.tensor([ids]), Sampling())
    return drafter


def looked_over(draft: object, k: int) -> Draft:
    """A proposal whose form is right; the loop would stumble over any other in words of its own."""
    if not isinstance(draft, Draft):
        wrong(f"propose returns a Draft(tokens, size), yours a {type(draft).__name__}")
    tokens, size = draft.tokens, draft.size
    for name in ("tokens", "size"):
        if not isinstance(value := getattr(draft, name), Tensor):
            wrong(f"{name} of a Draft is a tensor, yours is a {type(value).__name__}")
    if tokens.ndim != 2 or tokens.shape[0] != 1:
        wrong(f"tokens have the shape (1, n), (1, 0) for no proposal; yours have {tuple(tokens.shape)}")
    if tokens.dtype != torch.long:
        why = "; torch takes an empty list for floats, so name the dtype" if tokens.shape[1] == 0 else ""
        wrong(f"tokens have the dtype torch.long, yours {tokens.dtype}{why}")
    if tokens.shape[1] > k:
        wrong(f"at most k = {k} tokens may be proposed, yours are {tokens.shape[1]}")
    if tuple(size.shape) != (1,) or int(size) != tokens.shape[1]:
        wrong(f"{tokens.shape[1]} tokens are proposed, so size is ({tokens.shape[1]},), as a tensor; yours is {size}")
    if draft.probs is not None:
        wrong("a token that was looked up was proposed with certainty: probs is None")
    return draft


class LookedOver:
    """Around a learner's drafter: whoever uses it is handed proposals of the right form only."""

    def __init__(self, drafter):
        self.prefill, self.observe, self._drafter = drafter.prefill, drafter.observe, drafter

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return looked_over(self._drafter.propose(k, uniforms), k)


def proposed(drafter, k: int) -> list[int]:
    """The ids of a proposal whose form is right."""
    return looked_over(drafter.propose(k, torch.zeros((1, k), dtype=torch.float64)), k).tokens[0].tolist()


def nested(drafter) -> str:
    """Words about a text that is a list of lists, which no id is ever found in; else none."""
    kept = [value for value in getattr(drafter, "__dict__", {}).values() if isinstance(value, list)]
    if any(isinstance(item, list) or (isinstance(item, Tensor) and item.ndim) for value in kept for item in value):
        return "is your text a flat list of ids? The prompt is (1, n), so prompt.tolist() is a list in a list"
    return ""


def test_a_proposal_has_the_form_that_the_loop_expects(learner):
    """MyDrafter.propose: shapes, dtype, device, at most k, an empty proposal where nothing matches."""
    for text, k, right in [
        ([1, 2, 3, 1, 2], 8, [3, 1, 2]),
        ([1, 2, 3, 1, 2], 2, [3, 1]),
        ([1, 2, 3, 1, 2], 0, []),
        ([1, 2, 3, 4], 4, []),
    ]:
        drafter = started(learner.MyDrafter, text)
        if (given := proposed(drafter, k)) != right:
            filled = len(given) > len(right) and given[: len(right)] == right
            why = "do not fill up, k is a limit" if filled else nested(drafter)
            wrong(f"after {text} and with k = {k} the proposal is {right}, yours is {given}{': ' * bool(why)}{why}")
    for text in ([1, 2, 3, 1, 2], [1, 2, 3, 4]):
        drafter = learner.MyDrafter()
        drafter.prefill(None, torch.tensor([text]).as_subclass(Elsewhere), Sampling())
        draft = drafter.propose(2, torch.zeros((1, 2)))
        for name in ("tokens", "size"):
            if getattr(draft, name).device.type != "meta":
                wrong(f"{name} must be on the prompt's device: give device=... to torch where you make it")


def test_the_text_is_what_was_committed(learner):
    """MyDrafter.observe: all of `committed` and nothing else becomes text; a proposal is not text yet."""
    drafter = started(learner.MyDrafter, [1, 2, 3, 4, 1, 2])
    for again in ("", ", asked once more,"):
        if (given := proposed(drafter, 2)) != [3, 4]:
            why = nested(drafter) or ("a proposal is no text yet" if again else "")
            about = f"after 1 2 3 4 1 2 and with k = 2 the proposal is [3, 4], yours{again} is {given}"
            wrong(f"{about}{': ' * bool(why)}{why}")
    committed = [3, 9]  # one of the two was accepted, 9 is the target's correction
    drafter.observe(1, committed)
    if committed != [3, 9]:
        wrong("observe changed the list `committed`: it belongs to the loop")
    # Now 1 2 3 4 1 2 3 9. These ids tell apart what a drafter may take for the text.
    drafter.observe(0, [1])
    drafter.observe(0, [2])
    given = proposed(drafter, 3)
    if given != [3, 9, 1]:
        for other, why in [
            ([3, 3, 9], "the accepted proposals are in `committed` already, yours has them twice"),
            ([9, 1, 2], "`committed` holds the accepted proposals too, yours takes only the last id"),
            ([3, 4, 3], "a rejected proposal became text"),
            ([3, 4, 1], "the text does not grow: what was committed has to be found too"),
        ]:
            if given == other:
                wrong(f"the text is 1 2 3 4 1 2 3 9 1 2, so [3, 9, 1] is proposed, yours gives {given}: {why}")
        wrong(f"the text is 1 2 3 4 1 2 3 9 1 2, so [3, 9, 1] is proposed; yours gives {given}")
    drafter.prefill(None, torch.tensor([[8, 1, 2]]), Sampling())
    if (given := proposed(drafter, 3)) != []:
        wrong(f"prefill begins a new text, and 8 1 2 holds nothing to copy; yours still proposes {given}")
    first, second = started(learner.MyDrafter, [1, 2, 3, 1, 2]), started(learner.MyDrafter, [7, 7, 8])
    if proposed(first, 2) != [3, 1] or proposed(second, 2) != []:
        wrong("two drafters share their text: keep it in the object (self), not in the class")


@pytest.mark.whole
def test_the_labs_loop_runs_on_it(learner):
    """MyDrafter in the lab's own loop: the text is the target's, and some proposals are kept."""

    def choose(ids: list[int]) -> int:
        return (3, 1, 4, 1, 5, 9, 2, 6)[len(ids) % 8] if len(ids) % 29 else 40

    prompt = [choose(list(range(n))) for n in range(7)]
    drafter, settings = learner.MyDrafter(), DecodeSettings(max_new_tokens=40)
    found = list(speculative_decode(TinyTarget(choose), LookedOver(drafter), torch.tensor([prompt]), K, settings))
    text, right = [token for r in found for token in r.tokens], [choose(list(range(n))) for n in range(7, 47)]
    if text != right:
        wrong(f"the loop must say {right} whatever the drafter does, with yours it says {text}")
    if not sum(r.n_accepted for r in found):
        why = nested(drafter) or "is the text complete?"
        wrong(f"the text repeats itself every 8 tokens, yet none of your proposals was kept: {why}")


@pytest.mark.whole
def test_copied_text_takes_few_rounds(learner):
    """MyDrafter on three copy prompts of the lab at k = 4: at least 2.58 tokens per round. A count, no clock."""
    drafters = []

    def make() -> LookedOver:
        drafters.append(learner.MyDrafter())
        return LookedOver(drafters[-1])

    n_tokens, n_rounds = replay(make)
    if n_tokens / n_rounds < TOKENS_PER_ROUND:
        known = {
            74: "as many as with matches of 2 ids only, or with the shortest match first",
            78: "as many as when the oldest match wins",
            92: "as many as when only the prompt is searched, not what was written since",
            93: "as many as when only the prompt is searched and copied, not what was written since",
            119: "as many as when a single token is proposed",
            n_tokens: "as many as without a draft",
        }
        why = nested(drafters[-1])
        hint = f", {known[n_rounds]}" if n_rounds in known else ""
        wrong(
            f"{n_tokens} tokens in {n_rounds} rounds{hint}: {n_tokens / n_rounds:.2f} tokens per round, "
            f"{TOKENS_PER_ROUND} are to be reached{'; ' * bool(why)}{why}"
        )
