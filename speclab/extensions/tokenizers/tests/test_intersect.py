"""A draft by the tokens that two vocabularies share is exact at every temperature."""

import itertools
import random
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

import optimized_speculative
from speclab.core.sampling import Sampling
from speclab.extensions.tokenizers.intersect import IntersectDrafter
from speclab.extensions.tokenizers.shared_tokens import SharedTokens
from speclab.extensions.tokenizers.tests.vocabularies import Pairs
from tests.decoding import ScriptedTarget, speculative_rounds
from tests.test_exact import Job, Prefix, Row, Tables, assert_lossless, inside, paths_of, random_row

SHARED = SharedTokens([0, 1, 2], [4, 0, 2], 4, 5)  # of the target's ids 0 to 3 and the draft's 0 to 4
N_TARGET, N_DRAFT = 4, 5
READS = Pairs(SHARED, N_DRAFT)


def draft_row(seed: int, text: Prefix, zeros: bool) -> Row:
    """Over the draft's ids, some of them shared and some not."""
    rng = random.Random(f"draft {seed} {text}")
    support = sorted({rng.choice(SHARED.draft_ids), *rng.sample(range(N_DRAFT), 2)}) if zeros else list(range(N_DRAFT))
    return random_row(rng, N_DRAFT, support)


def restricted(row: Row) -> Row:
    """The definition: the shared tokens' part of a draft's row, over the target's ids."""
    mass = sum(row[i] for i in SHARED.draft_ids)
    return [row[READS.pairs[i]] / mass if i in READS.pairs else Fraction(0) for i in range(N_TARGET)]


def exact_tables(seed: int, first: int, k: int, zeros: bool) -> Tables:
    """Rows after the prompt [0]: its one certain token `first`, and then anything."""
    tables = Tables(N_TARGET, k, {(): [Fraction(int(i == first)) for i in range(N_TARGET)]}, {})
    for n in range(1, k + 2):
        for later in itertools.product(range(N_TARGET), repeat=n - 1):
            text = (first, *later)
            rng = random.Random(f"target {seed} {text}")
            support = rng.sample(range(N_TARGET), rng.randint(1, N_TARGET)) if zeros else list(range(N_TARGET))
            tables.target[text] = random_row(rng, N_TARGET, sorted(support))
            tables.draft[text] = restricted(draft_row(seed, tuple(READS.prompt([0, *text])), zeros))
    return tables


def centre_of(row: Row, token: int) -> float:
    """The middle of the uniforms that draw this token."""
    return inside((sum(row[:token], Fraction(0)), sum(row[: token + 1], Fraction(0))), Fraction(1, 2))


def first_round(tables: Tables, seed: int, k: int, zeros: bool, uniforms: list[float]):
    """The round after the prompt's, through the loop and the drafter."""
    given = iter([torch.tensor([0.5]), torch.tensor([uniforms], dtype=torch.float64)])
    target = ScriptedTarget(tables.target.__getitem__, 1)
    drafter = IntersectDrafter(ScriptedTarget(lambda text: draft_row(seed, text, zeros), 0), SHARED, READS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimized_speculative, "uniforms", lambda *args: next(given))
        rounds = speculative_rounds(target, drafter, torch.tensor([[0]]), k, k + 2, Sampling(1.0))
        return list(itertools.islice(rounds, 2))[1]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("k", "n_seeds"), [(1, 6), (2, 1)])
def test_a_round_emits_the_targets_joint_law(k, n_seeds, zeros):
    """The law of all that the real loop commits, as a sum of exact volumes; the draft shares three tokens of five."""
    counts = {"accepted": 0, "rejected": 0, "outside": Fraction(0)}
    for seed, first in itertools.product(range(n_seeds), (1, 3)):  # a shared token, and one that the draft lacks
        tables = exact_tables(seed, first, k, zeros)
        job = Job(tables, (first,), k)
        law: dict[Prefix, Fraction] = {}
        for path in paths_of(0, job):
            texts = [(first, *path.tokens[:i]) for i in range(k)]
            drawn = [centre_of(tables.draft[text], token) for text, token in zip(texts, path.tokens, strict=True)]
            for cell in itertools.product(*path.sides):
                volume = path.chance
                for low, high in cell:
                    volume *= high - low
                uniforms = [*drawn, *(inside(box, Fraction(1, 2)) for box in cell)]
                round_ = first_round(tables, seed, k, zeros, uniforms)
                law[tuple(round_.tokens)] = law.get(tuple(round_.tokens), Fraction(0)) + volume
                counts["accepted"] += round_.n_accepted
                counts["rejected"] += round_.n_rejected
        counts["outside"] += sum(chance for block, chance in law.items() if 3 in block)
        assert_lossless(job, SimpleNamespace(law=law))
    assert min(counts.values()) > 0, counts
