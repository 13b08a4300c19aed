"""Checks of exercise 19: a matrix in the order of registers, its product, and what a token reads."""

import itertools
from collections import Counter

import torch

from solutions import ex19_whole_pass as right
from tests.exercises.answers import asked, simplest

Rows = list[list[float]]


def whole_numbers(rows: int, columns: int, seed: int) -> Rows:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(1, 10, (rows, columns), generator=draws).tolist()


MATRICES = [
    ([[number / 2 for number in row] for row in whole_numbers(rows, 3, rows)], lanes)
    for rows, lanes in itertools.product((1, 2, 4, 5, 7, 8), (1, 2, 4))
]


@asked(simplest(MATRICES), "{} with {} lanes")
def test_a_load_brings_a_column_of_several_rows(one, weight, lanes):
    """pack: block b holds the rows from b * lanes on, column by column, and rows that are missing are 0."""
    packed = one.pack(torch.tensor(weight, dtype=torch.bfloat16), lanes)
    return {"the blocks": packed.tolist(), "their type": str(packed.dtype)}


PRODUCTS = [
    (whole_numbers(rows, columns, 10 + m), whole_numbers(m, columns, m), most)
    for (rows, columns), m, most in itertools.product(((2, 1), (4, 3), (6, 5)), (1, 2, 5, 8, 9), (1, 2, 4, 8))
]
LANES = 2


@asked(simplest(PRODUCTS), f"rows {{}} in blocks of {LANES}, tokens {{}}, at most {{}} at once")
def test_a_weight_is_loaded_once_for_all_tokens_of_a_group(one, weight, x, most):
    """product: [i, b * lanes + r] is the sum over j of x[i, j] times weight r of load(b, j), and each group of tokens
    loads every (b, j) once."""
    packed, loads = right.pack(torch.tensor(weight, dtype=torch.float64), LANES), Counter()

    def load(b: int, j: int) -> torch.Tensor:
        loads[int(b), int(j)] += 1
        return packed[b, j].clone()

    found = one.product(load, *packed.shape[:2], torch.tensor(x, dtype=torch.float64), most)
    return {"the product": found.tolist(), "loads of each weight": sorted(loads.values())}


CACHES = simplest(
    (size, whole, mask, scale)
    for size, whole, scale in itertools.product((1, 3), (0, 1, 4), (1, 1000))
    for n in range(4)
    for mask in itertools.product((False, True), repeat=n)
)


SEED = 270  # no answer is near the middle of two rounded numbers: see the last test


def a_cache(size: int, whole: int, mask: tuple[bool, ...], scale: int) -> tuple[torch.Tensor, ...]:
    """Query, keys and values. Rows that are not read hold NaN, or in every other case what looks like a number. In
    half of the cases all scores are below 0."""
    draws = torch.Generator().manual_seed(SEED + size + whole)
    query, *cache = (torch.randint(1, 9, (n, size), generator=draws) / 4.0 for n in (1, whole + 4, whole + 4))
    for rows in cache:
        rows[whole:][[not (i < len(mask) and mask[i]) for i in range(4)]] = 9.0 if len(mask) % 2 else torch.nan
    return scale * (-1) ** (whole + sum(mask)) * query[0], *cache


def as_given(size: int, whole: int, mask: tuple[bool, ...], scale: int) -> str:
    query, keys, values = (one.tolist() for one in a_cache(size, whole, mask, scale))
    return f"query {query}, keys {keys}, values {values}, whole {whole}, mask {list(mask)}"


@asked(CACHES, as_given)
def test_what_a_token_reads(one, size, whole, mask, scale):
    """attend: the softmax of the scores weighs the values of the whole rows and of those of the mask; no other row is
    touched, so it may hold NaN."""
    return rounded(one.attend(*a_cache(size, whole, mask, scale), whole, list(mask)))


def rounded(found: torch.Tensor) -> str:
    return str((found.double().round(decimals=4) + 0.0).tolist())


def test_the_solution_is_torchs_own():
    """The product of torch, and its attention where everything is finite."""
    for weight, x, most in PRODUCTS:
        matrix, tokens = (torch.tensor(rows, dtype=torch.float64) for rows in (weight, x))
        packed = right.pack(matrix, 4)
        found = right.product(lambda b, j, packed=packed: packed[b, j], *packed.shape[:2], tokens, most)
        assert torch.equal(found[:, : len(matrix)], tokens @ matrix.T)
        assert not found[:, len(matrix) :].any()
    query, keys, values = torch.randn(3, 6, 4, dtype=torch.float64)
    mask = torch.tensor([True] * 3 + [True, False, True])
    expected = torch.nn.functional.scaled_dot_product_attention(query[:1], keys, values, mask[None], scale=1.0)
    assert torch.allclose(right.attend(query[0], keys, values, 3, [True, False, True]), expected[0])
    for case in CACHES:
        exact, usual = ([one.to(dtype) for one in a_cache(*case)] for dtype in (torch.float64, torch.float32))
        assert len({rounded(right.attend(*cache, case[1], list(case[2]))) for cache in (exact, usual)}) == 1
