"""Checks of exercise 11: what a pass of the draft reads, and how much of it is accepted; no text can show either.

The world of the last two checks: the target adds its last two digits, and at every fifth position one more. The state
of a position is its digit. The draft adds the state and the token of its last pair, and its own state is that token.
"""

import itertools
import re
from types import ModuleType

import pytest
import torch
from torch import Tensor

from draft_models import as_draft
from exercises.scenes import TinyTarget
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from tests.exercises.answers import chapter, named, whole, with_wrong_answer, wrong
from tests.exercises.wrong.ex11_feature_draft import (
    LAST_ROWS,
    NO_FIRST_ROW,
    OWN_TOKEN,
    TARGETS_AGAIN,
    TOKEN_AGAIN,
    WRONG,
)

STEM = "ex11_feature_draft"


# --- the pairs --------------------------------------------------------------------------------------------------------

LATER = [61, 62, 63, 64, 65, 66, 67, 68, 69]
# What happened, the text after it, n_read, and the digits whose states the pass has computed.
PASSES = [
    ("the prompt was read", [1, 2, 3, 5], 0, [1, 2, 3]),
    ("a prompt of one token was read", [7, 4], 0, [7]),
    ("0 of 3 drafts were accepted", [1, 2, 3, 5, 8], 3, [5, 9, 6, 7]),
    ("1 of 3 drafts was accepted", [1, 2, 3, 5, 8, 4], 3, [5, 8, 9, 6]),
    ("2 of 3 drafts were accepted", [1, 2, 3, 5, 8, 4], 2, [3, 5, 8, 9]),
    ("all 3 drafts were accepted", [1, 2, 3, 5, 8, 4], 1, [2, 3, 5, 8]),
    ("nothing was drafted", [1, 2, 3, 5, 8], 3, [5]),
    ("0 of 5 drafts were accepted", [7, 4, 9], 1, [4, 5, 6, 8, 3, 2]),
    ("7 of 9 drafts were accepted after a long text", [*range(40), *LATER[:8]], 39, [39, *LATER[:7], 5, 6]),
    ("a prompt of 40 tokens was read", list(range(40)), 0, list(range(39))),
]


def pairs_of(learner: ModuleType, text: list[int], n_read: int, digits: list[int]) -> tuple[list[int], list[int]]:
    """The digits of the states that it answers, and the ids beside them."""
    about = f"text {text}, n_read {n_read}, a pass over {digits}"
    states = torch.stack([row_of(digit) for digit in digits])
    given = learner.new_pairs(list(text), n_read, states.clone())
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], Tensor):
        wrong(f"{about}: return a pair, a tensor of states and a list of ids; yours returns {given!r}")
    if given[0].ndim != 2 or given[0].shape[1] != 3:
        wrong(f"{about}: the states are of shape (n, width), yours of shape {tuple(given[0].shape)}")
    return [digit_of(state) for state in given[0]], [int(token) for token in given[1]]


def row_of(digit: int) -> Tensor:
    """A state of three numbers, two of them with fractions."""
    return torch.tensor([float(digit), -float(digit) / 4, digit / 7], dtype=torch.float64)


def digit_of(state: Tensor) -> int:
    """The digit whose state this is, to the last bit; -1 where it is the state of none."""
    digit = int(state.reshape(-1)[0])
    return digit if torch.equal(state.reshape(-1).double(), row_of(digit)) else -1


def all_pairs(learner: ModuleType) -> list[tuple[list[int], list[int]]]:
    return [pairs_of(learner, *given) for _, *given in PASSES]


def test_a_state_goes_with_the_token_after_it(learner):
    """new_pairs: a state is read beside the token after its own; a rejected token's state never is."""
    found = all_pairs(learner)
    for (what, text, n_read, digits), given in zip(PASSES, found, strict=True):
        n = len(text) - 1 - n_read
        right = (digits[:n], text[n_read + 1 :])
        if given != right:
            wrong(
                f"{what}, text {text}, n_read {n_read}, a pass over {digits}: the states of {right[0]} are read beside "
                f"{right[1]}, yours gives the states of {given[0]} beside {given[1]}{named(STEM, all_pairs, found)}"
            )


# --- the chain --------------------------------------------------------------------------------------------------------

# Pairs that wait (digits of their states, ids), the position of the first one, what is drafted.
CHAINS = [
    ([3, 5, 8], [5, 8, 4], 2, [2, 6, 8]),
    ([8], [4], 4, [2, 6, 8, 9]),
    ([1, 2], [2, 3], 0, [5]),
    ([1, 2], [2, 3], 0, []),
    ([3, 1, 4, 1, 5, 9, 2], [1, 4, 1, 5, 9, 2, 6], 200, [2, 7, 1, 8, 2, 8, 1]),
]
OWN = 100  # the digit of the draft's own state after the first pass, 101 after the second, ...


def passes_of(learner: ModuleType, digits: list[int], tokens: list[int], position: int, ids: list[int]) -> list:
    """What each pass reads, what each token is drawn from, and what is returned."""
    read, drawn_from, left = [], [], list(ids)

    def forward(states: Tensor, tokens: list[int], position: int) -> Tensor:
        if not isinstance(states, Tensor) or states.ndim != 2 or len(states) != len(tokens):
            wrong(f"forward gets m states, (m, width), and m ids; yours hands it {states!r} and {tokens!r}")
        read.append(([digit_of(state) for state in states], [int(token) for token in tokens], whole(position)))
        return row_of(OWN + len(read) - 1)[None]

    def draw(state: Tensor) -> int:
        drawn_from.append(digit_of(state))
        return left.pop(0) if left else 0

    states = torch.stack([row_of(digit) for digit in digits])
    given = learner.draft_chain(forward, draw, states, list(tokens), position, len(ids))
    if not isinstance(given, tuple | list):
        wrong(f"return the drafted ids, a list; yours returns {given!r}")
    return [read, drawn_from, [int(token) for token in given]]


def all_passes(learner: ModuleType) -> list[list]:
    return [passes_of(learner, *given) for given in CHAINS]


def in_words(read: tuple[list[int], list[int], int]) -> str:
    """What a pass reads."""
    states = [f"own {digit - OWN + 1}" if digit >= OWN else str(digit) for digit in read[0]]
    return f"states [{', '.join(states)}] beside {read[1]} from position {read[2]} on"


def test_deeper_positions_read_the_drafts_own_state(learner):
    """draft_chain: the first pass reads the pairs that wait, each later one its own state and the token just drawn."""
    found = all_passes(learner)
    for (digits, tokens, position, ids), (read, drawn_from, given) in zip(CHAINS, found, strict=True):
        k, end = len(ids), position + len(tokens)
        right = [(digits, tokens, position), *(([OWN + i], [ids[i]], end + i) for i in range(k - 1))][:k]
        about = f"{len(tokens)} pairs wait from position {position} on, k = {k}, drawn are {ids}"
        for i, (expected, own) in enumerate(zip(right, read, strict=False)):
            if own != expected:
                name = named(STEM, all_passes, found)
                wrong(f"{about}: pass {i + 1} reads {in_words(expected)}; yours reads {in_words(own)}{name}")
        if len(read) != k:
            wrong(f"{about}: that takes {k} passes, yours makes {len(read)}{named(STEM, all_passes, found)}")
        if drawn_from != [OWN + i for i in range(k)]:
            wrong(f"{about}: each token is drawn from the state that its pass gave{named(STEM, all_passes, found)}")
        if given != ids:
            wrong(f"{about}: return these, in this order; yours returns {given}{named(STEM, all_passes, found)}")


# --- the check --------------------------------------------------------------------------------------------------------

TEXT = [1, 2, 3, 5, 8, 4]
RIGHT = [(1, 2), (2, 3), (3, 5), (5, 8), (8, 4)]  # digit of the state, id
TO_THE_BIT = "all right, to the last bit"
RECORDS = [  # what is wrong, the text, the pairs, the first wrong position
    (TO_THE_BIT, TEXT, RIGHT, None),
    ("all right but for rounding", TEXT, RIGHT, None),
    ("a token without one after it, and nothing read", [7], [], None),
    ("a state beside its own token", TEXT, [(1, 1), *RIGHT[1:]], 0),
    ("all states beside their own tokens", TEXT, [(digit, digit) for digit, _ in RIGHT], 0),
    ("the state of a rejected 9 in the middle", TEXT, [*RIGHT[:2], (9, 5), *RIGHT[3:]], 2),
    ("the state of a rejected 9 at the end", TEXT, [*RIGHT[:4], (9, 4)], 4),
    ("a wrong id in the middle, a wrong state at the end", TEXT, [*RIGHT[:2], (3, 9), RIGHT[3], (9, 4)], 2),
    ("the last pair is missing", TEXT, RIGHT[:4], 4),
    ("nothing was read", TEXT, [], 0),
    ("the first pair is missing", TEXT, RIGHT[1:], 0),
    ("a rejected token's pair too many", TEXT, [*RIGHT, (4, 9)], 5),
    ("a pair of a text that has none", [7], [(7, 4)], 0),
    ("a long text, all right", [*range(40)], [(i, i + 1) for i in range(39)], None),
    ("a long text, its state 30 is wrong", [*range(40)], [(i + (i == 30), i + 1) for i in range(39)], 30),
    ("a long text, a pair too many", [*range(40)], [(i, i + 1) for i in range(40)], 39),
]


def state_after(ids: list[int]) -> Tensor:
    """Of the last one, whose position counts, too."""
    if not ids:
        wrong("state_after is called without an id: ask for the state of a position with all ids up to this one")
    return record_of(ids[-1], len(ids))


def record_of(digit: float, n: int) -> Tensor:
    """The state of the n-th token."""
    return torch.tensor([float(digit), 1 / n, digit / 7], dtype=torch.float64)


def judged(learner: ModuleType, what: str, text: list[int], pairs: list[tuple[int, int]]) -> object:
    """What it says of these pairs. All but one record's states are rounded as those of another pass may be."""
    rounding = 0.0 if what == TO_THE_BIT else 1e-7
    read = [(record_of(digit * (1 + rounding), position + 1), token) for position, (digit, token) in enumerate(pairs)]
    given = learner.first_wrong_pair(read, list(text), state_after)
    return given if given is None else whole(given) if not isinstance(given, bool) else str(given)


def all_judged(learner: ModuleType) -> list:
    return [judged(learner, what, text, pairs) for what, text, pairs, _ in RECORDS]


def test_your_check_sees_what_a_text_cannot_show(learner):
    """first_wrong_pair: states and ids count, missing pairs and those too many; rounding is no mistake."""
    found = all_judged(learner)
    for (what, text, pairs, right), given in zip(RECORDS, found, strict=True):
        if given != right:
            wrong(
                f"text {text}; read were, as (digit of the state, id), {pairs} ({what}): the first wrong position is "
                f"{right}, yours says {given}{named(STEM, all_judged, found)}"
            )
    for position, (more, less) in itertools.product(range(len(RIGHT)), itertools.permutations(range(3), 2)):
        read = [(record_of(digit, i + 1), token) for i, (digit, token) in enumerate(RIGHT)]
        read[position][0][more] += 0.25
        read[position][0][less] -= 0.25
        if whole(given := learner.first_wrong_pair(read, list(TEXT), state_after)) != position:
            wrong(
                f"text {TEXT}; of the state of position {position} number {more} is 0.25 too large, and number {less} "
                f"is 0.25 too small: {position} is the first wrong position, yours says {given}"
            )


# --- a decoding -------------------------------------------------------------------------------------------------------


def digits_add(ids: list[int]) -> int:
    """The target: the sum of the last two digits, and one more at every fifth position."""
    return (sum(ids[-2:]) + (len(ids) % 5 == 0)) % 10


class Target(TinyTarget):
    """Keeps the states of its last pass: the digit that was read, and the one that the target says next."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(1, m) ids -> (1, m, vocab) logits"""
        logits = super().forward(tokens)
        self.states = torch.stack([tokens[0], logits[0].argmax(-1)], dim=1).double()  # (m, 2)
        return logits


class Adder:
    """A drafter that is fed as the learner says. It reads the last pair alone."""

    def __init__(self, learner: ModuleType):
        self.learner = learner

    def prefill(self, target: Target, prompt: Tensor, sampling) -> None:
        self.target, self.text = target, prompt[0].tolist()
        self.read, self.waiting = [], []  # pairs of the whole text, and those of them that no pass has read
        self.proposed: list[list[int]] = []

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        learner, self.text = self.learner, [*self.text, *committed]
        states, tokens = learner.new_pairs(list(self.text), len(self.read), self.target.states.clone())
        if len(states) != len(tokens):
            wrong(f"text {self.text}: new_pairs gives {len(states)} states and {len(tokens)} ids")
        pairs = list(zip(states, map(int, tokens), strict=True))
        self.read, self.waiting = self.read + pairs, self.waiting + pairs

    def propose(self, k: int, uniforms: Tensor):
        learner, position = self.learner, len(self.read) - len(self.waiting)

        def forward(states: Tensor, tokens: list[int], position: int) -> Tensor:
            own = float(tokens[-1])
            return torch.tensor([[own, (float(states[-1, 0]) + own) % 10]], dtype=torch.float64)

        ids: list[int] = []
        if k and self.waiting:
            states, tokens = torch.stack([state for state, _ in self.waiting]), [token for _, token in self.waiting]
            ids = [
                int(token)
                for token in learner.draft_chain(forward, lambda own: int(own[0, 1]), states, tokens, position, k)
            ]
            self.waiting = []
            self.proposed.append(ids)
        if len(ids) > k:
            wrong(f"asked for {k} tokens, draft_chain returns {len(ids)}")
        return as_draft(ids, self.target.device)


PROMPT, K, N_NEW = torch.tensor([[1, 2]]), 3, 40


def decoded(learner: ModuleType) -> tuple[Adder, list[Round]]:
    """The lab's own loop with a draft that is fed by the learner's functions."""
    drafter = Adder(learner)
    rounds = list(speculative_decode(Target(digits_add), drafter, PROMPT, K, DecodeSettings(N_NEW)))
    text = PROMPT[0].tolist()
    for _ in range(N_NEW):
        text.append(digits_add(text))
    assert [*PROMPT[0].tolist(), *tokens_of(rounds)] == text, "losslessness does not depend on the draft"
    return drafter, rounds


def counted(learner: ModuleType) -> tuple[int, int, int]:
    """Accepted, drafted, rounds."""
    rounds = [r for r in decoded(learner)[1] if not r.prefill]
    return sum(r.n_accepted for r in rounds), sum(r.n_drafted for r in rounds), len(rounds)


ACCEPTED = (23, 43, 16)


@pytest.mark.whole
def test_as_much_is_accepted_as_can_be(learner):
    """The text of a decoding is right in any case, so the drafts that are accepted are counted."""
    found = counted(learner)
    if found != ACCEPTED:
        wrong(
            f"{N_NEW} tokens by rounds of at most {K} drafts: the text is the target's, as it is whatever is drafted; "
            f"{ACCEPTED[0]} of {ACCEPTED[1]} drafts are accepted in {ACCEPTED[2]} rounds, with yours {found[0]} of "
            f"{found[1]} in {found[2]}{named(STEM, counted, found)}"
        )


FEEDS = [OWN_TOKEN, LAST_ROWS, NO_FIRST_ROW]


@pytest.mark.whole
@pytest.mark.parametrize("bug", [None, *FEEDS])
def test_your_check_finds_the_bugs_of_a_decoding(learner, bug):
    """What a draft with a bug has read differs from the definition, though its text is right."""
    other = with_wrong_answer(STEM, *WRONG[bug]) if bug else with_wrong_answer(STEM, *right_chain())
    drafter, _ = decoded(other)
    right = next(
        (
            i
            for i, (state, token) in enumerate(drafter.read)
            if (int(state[0]), token) != (drafter.text[i], drafter.text[i + 1])
        ),
        None,
    )
    assert (right is None) == (bug is None)

    def computed_anew(ids: list[int]) -> Tensor:
        return torch.tensor([float(ids[-1]), float(digits_add(ids))], dtype=torch.float64)

    given = learner.first_wrong_pair(list(drafter.read), list(drafter.text), computed_anew)
    if given != right:
        wrong(
            f"the draft of a decoding, whose text is right, {f'has this bug ({bug})' if bug else 'has no bug'}; its "
            f"first wrong pair is at position {right}, yours says {given}"
        )


def right_chain() -> tuple[str, str]:
    """Nothing wrong: the solution once more."""
    return (
        "new_pairs",
        "def new_pairs(text, n_read, states):\n    return states[: len(text) - 1 - n_read], text[n_read + 1 :]",
    )


# --- the page ---------------------------------------------------------------------------------------------------------

SAID = {
    "right": right_chain(),
    "the token of the state's own position": WRONG[OWN_TOKEN],
    "the last rows of the pass, rejected ones too": WRONG[LAST_ROWS],
    "row 0 left out": WRONG[NO_FIRST_ROW],
    "deeper: the target's last state again": WRONG[TARGETS_AGAIN],
    "deeper: the same token again": WRONG[TOKEN_AGAIN],
}


def test_the_table_of_the_chapter():
    """How much is accepted of what each bug drafts; `decoded` has looked at the text of each."""
    rows = re.findall(r"^ (\S.*?) {2,}(\d+) of (\d+) +([\d.]+)$", chapter(STEM), re.MULTILINE)
    assert [row[0] for row in rows] == list(SAID)
    for name, *said in rows:
        accepted, drafted, n_rounds = counted(with_wrong_answer(STEM, *SAID[name]))
        assert said == [str(accepted), str(drafted), f"{(N_NEW - 1) / n_rounds:.2f}"], name
