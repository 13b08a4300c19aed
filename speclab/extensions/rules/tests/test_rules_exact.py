"""The rules, enumerated exactly as the token rule is in tests/test_exact.py, with its helpers.

The lossy rules are enumerated in the same way: their output has the law by which a run measures their distance.
"""

import functools

import pytest
import torch

from speclab.core.accept import accept
from speclab.core.rounds import Draft
from speclab.extensions.rules.block import accept_block
from speclab.extensions.rules.follow import accept_follow
from speclab.extensions.rules.lossy import lenient_law, typical_law
from speclab.extensions.rules.tests.pieces import EPSILON, LENIENCE, conditional, lenient, lenient_of_1, played, typical
from tests.test_exact import (
    CLAUSES,
    CONTRACT,
    FAMILIES,
    PER_SHAPE,
    SHAPES,
    Job,
    Judge,
    a_verdict_that_is_constant_in_every_box,
    clause_id,
    floats,
    one_round,
    random_tables,
)

JUDGES = {
    "block": Judge(functools.partial(played, rule=accept_block), keeps_all=False),
    # With the last shape it has most boxes.
    "follow": Judge(functools.partial(played, rule=accept_follow), keeps_all=False, own=True, shapes=SHAPES[:-1]),
}
OF_FOLLOW = (one_round, a_verdict_that_is_constant_in_every_box)
HELD = [(name, *case) for name in JUDGES for case in CONTRACT if name == "block" or case[0] in OF_FOLLOW]


@pytest.mark.parametrize(("name", "clause", "family"), HELD, ids=clause_id)
def test_a_lossless_rule_keeps_the_contract(name, clause, family):
    clause(JUDGES[name], family)


@pytest.mark.parametrize("rule", [lenient, typical])
@pytest.mark.parametrize("family", CLAUSES[a_verdict_that_is_constant_in_every_box])
def test_the_verdict_of_a_lossy_rule_is_constant_in_every_box(family, rule):
    a_verdict_that_is_constant_in_every_box(Judge(functools.partial(played, rule=rule)), family)


@pytest.mark.parametrize("family", ["dense", "zeros", "target forbids", "identical", "one-hot"])
def test_block_verification_never_keeps_fewer(family):
    """In every instance, and more in some where a draft spreads over several tokens; one-hot drafts gain nothing."""
    more = 0
    for vocab, k in SHAPES:
        jobs = [Job(random_tables(seed, vocab, k, k + 1, family), (), k) for seed in range(4)]
        for by_token, by_block in zip(*(played(jobs, rule) for rule in (accept, accept_block)), strict=True):
            assert by_block.n_accepted >= by_token.n_accepted
            more += by_block.n_accepted > by_token.n_accepted
    assert (more > 0) == (family not in ("identical", "one-hot"))


def test_a_block_of_impossible_tokens_is_not_kept_at_zero():
    """Uniforms may be 0: a token of target probability 0 is not kept then, and the target's own comes."""
    draft = Draft(torch.tensor([[0, 0]]), torch.tensor([2]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).double())
    target_probs = torch.tensor([[[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]]).double()
    result = accept_block(draft, target_probs, torch.zeros(1, 3).double())
    assert (result.n_accepted.item(), result.next_token.item()) == (0, 1)


LAWS = {
    lenient: functools.partial(lenient_law, lenience=float(LENIENCE)),
    typical: functools.partial(typical_law, epsilon=float(EPSILON)),
}
EXACT_WITH = {  # families in which the law is the target's after all
    lenient: ("identical", "disjoint", "greedy"),
    typical: ("disjoint", "greedy"),
}


def test_a_lenience_of_one_is_the_token_rule():
    """Box by box, not only in law."""
    for family in FAMILIES:
        jobs = [Job(random_tables(seed, 3, 2, 3, family), (), 2) for seed in range(6)]
        by_token, by_lenience = (played(jobs, rule) for rule in (accept, lenient_of_1))
        assert [outcome.verdicts for outcome in by_token] == [outcome.verdicts for outcome in by_lenience]


@pytest.mark.parametrize("rule", LAWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_lossy_rule_emits_the_law_that_its_distance_is_measured_by(family, rule):
    """At every tested place, given the tokens before it; a bonus token has the target's own law."""
    lossy = 0
    for vocab, k in SHAPES:
        jobs = [Job(random_tables(seed, vocab, k, k + 1, family), (), k) for seed in range(PER_SHAPE)]
        for job, outcome in zip(jobs, played(jobs, rule), strict=True):
            for prefix, law in conditional(outcome.law).items():
                p, q = (
                    torch.tensor(floats(rows[prefix]), dtype=torch.float64)
                    for rows in (job.tables.target, job.tables.draft)
                )
                expected = LAWS[rule](p, q) if len(prefix) < k else p
                found = [float(law.get(token, 0)) for token in range(vocab)]
                assert found == pytest.approx(expected.tolist(), abs=1e-12)
                lossy += (expected - p).abs().max().item() > 1e-3
                assert not (expected[p == 0] != 0).any(), "a token of target probability 0 was kept"
    assert (lossy > 0) == (family not in EXACT_WITH[rule])
