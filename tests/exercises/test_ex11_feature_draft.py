"""Checks of exercise 11: what a pass of the draft reads; no text can show it."""

import random
from types import ModuleType

import torch
from torch import Tensor

from tests.exercises.answers import asked, whole, wrong

DICE = random.Random(0)


def after_a_pass(n_before: int, n: int, n_rejected: int) -> tuple[list[int], int, list[int]]:
    """The text after a pass that committed n tokens, n_read, and the digits whose states the pass has computed."""
    text = DICE.sample(range(60), n_before + n + 1)
    return text, n_before, [*text[n_before:-1], *DICE.sample(range(60, 80), n_rejected)]


SIZES = [(0, 3, 0), (0, 1, 0), (3, 1, 3), (3, 2, 2), (2, 3, 1), (1, 4, 0), (3, 1, 0), (1, 1, 5), (39, 8, 2), (0, 39, 0)]
PASSES = [after_a_pass(*sizes) for sizes in SIZES]


def row_of(digit: int) -> Tensor:
    """A state of three numbers, two of them with fractions."""
    return torch.tensor([float(digit), -float(digit) / 4, digit / 7], dtype=torch.float64)


def digit_of(state: Tensor) -> int:
    """The digit whose state this is, to the last bit; -1 where it is the state of none."""
    digit = int(state.reshape(-1)[0])
    return digit if torch.equal(state.reshape(-1).double(), row_of(digit)) else -1


@asked(PASSES, "text {}, n_read {}, a pass over {}: the states, and the ids beside them")
def test_a_state_goes_with_the_token_after_it(one, text, n_read, digits):
    """new_pairs: a state is read beside the token after its own; a rejected token's state never is."""
    states, ids = one.new_pairs(list(text), n_read, torch.stack([row_of(digit) for digit in digits]))
    return {"states": [digit_of(state) for state in states], "ids": [int(token) for token in ids]}


# Pairs that wait (digits of their states, ids), the position of the first one, what is drafted.
CHAINS = [
    (*(DICE.sample(range(60), n) for _ in range(2)), position, DICE.sample(range(60), k))
    for n, position, k in ((3, 2, 3), (1, 4, 4), (2, 0, 1), (2, 0, 0), (7, 200, 7))
]
OWN = 100  # the digit of the draft's own state after the first pass, 101 after the second, ...


def read_in(states: list[int], tokens: list[int], position: int | None) -> str:
    """What a pass reads."""
    words = [f"own {digit - OWN + 1}" if digit >= OWN else str(digit) for digit in states]
    return f"states [{', '.join(words)}] beside {tokens} from position {position} on"


@asked(CHAINS, "states {} and ids {} wait from position {} on, drawn are {}")
def test_deeper_positions_read_the_drafts_own_state(one, digits, tokens, position, ids):
    """draft_chain: the first pass reads the pairs that wait, each later one its own state and the token just drawn."""
    read, drawn_from, left = [], [], list(ids)

    def forward(states: Tensor, tokens: list[int], position: int) -> Tensor:
        if not isinstance(states, Tensor) or states.ndim != 2 or len(states) != len(tokens):
            wrong(f"forward gets m states, (m, width), and m ids; yours hands it {states!r} and {tokens!r}")
        read.append(read_in([digit_of(one) for one in states], [int(token) for token in tokens], whole(position)))
        return row_of(OWN + len(read) - 1)[None]

    def draw(state: Tensor) -> int:
        drawn_from.append(digit_of(state) - OWN + 1)
        return left.pop(0) if left else 0

    given = one.draft_chain(forward, draw, torch.stack([*map(row_of, digits)]), list(tokens), position, len(ids))
    passes = {f"pass {i}": words for i, words in enumerate(read, start=1)}
    return {**passes, "drawn from own states": drawn_from, "returned": [int(token) for token in given]}


TEXT = [1, 2, 3, 5, 8, 4]
RIGHT = [(1, 2), (2, 3), (3, 5), (5, 8), (8, 4)]  # digit of the state, id
TO_THE_BIT = "all right, to the last bit"
MOVED = "0.25 has moved from one number of a state to another one"
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
    *((MOVED, TEXT, RIGHT, position) for position in range(len(RIGHT))),
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


def first_wrong(one: ModuleType, read: list, text: list[int]) -> str:
    given = one.first_wrong_pair(read, list(text), state_after)
    return str(given if given is None or isinstance(given, bool) else whole(given))


READ = "{}: text {}, read as (digit of the state, id) {}: the first wrong position"


@asked(RECORDS, READ, [str(right) for *_, right in RECORDS])
def test_your_check_sees_what_a_text_cannot_show(one, what, text, pairs, right):
    """first_wrong_pair: states and ids count, missing pairs and those too many; rounding is no mistake."""
    off = 1 if what == TO_THE_BIT else 1 + 1e-7  # as the states of another pass may be
    read = [(record_of(digit * off, position), token) for position, (digit, token) in enumerate(pairs, start=1)]
    if what == MOVED:
        read[right][0][right % 3] += 0.25
        read[right][0][(right + 1) % 3] -= 0.25
    return first_wrong(one, read, text)
