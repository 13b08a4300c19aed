"""The rules by their names, the laws of the lossy ones, and whole runs with them."""

import pytest
import torch

import compare
import optimized_speculative
from speclab.core.rounds import Draft
from speclab.core.rules import rule_of
from speclab.core.sampling import Sampling
from speclab.engines.cuda import graphs
from speclab.extensions.rules.distance import distances
from speclab.extensions.rules.lossy import typical_threshold
from speclab.system.errors import UsageProblem
from tests.lab.test_lossy import run  # noqa: F401 - a fixture
from tests.recorder import stand_in


@pytest.mark.parametrize(
    ("row", "threshold"),
    [
        ([1.0, 0.0, 0.0, 0.0], 0.09),  # sqrt(0.09) * 1 is above it
        ([0.25] * 4, 0.3 / 4),  # exp(-H) is 1/4
        ([0.5, 0.5, 0.0, 0.0], 0.09),
        ([0.7, 0.1, 0.1, 0.1], 0.09),
    ],
)
def test_threshold_of_typical_acceptance(row, threshold):
    assert typical_threshold(torch.tensor(row).double(), 0.09).item() == pytest.approx(threshold)


def test_distances_of_a_known_case():
    """min(q, p / L) = (4/9, 1/3), so the law is (4/9, 5/9); typical acceptance keeps every draft."""
    p, q = torch.tensor([[1 / 3, 2 / 3]]).double(), torch.tensor([[2 / 3, 1 / 3]]).double()
    found = [
        distances(rule_of(rule), p, q).item() for rule in ("lenient:0.75", "typical:0.3", "token", "block", "lenient:1")
    ]
    assert found == pytest.approx([1 / 9, 1 / 3, 0, 0, 0])


@pytest.mark.parametrize(
    "name",
    ["lenient", "lenient:0", "lenient:1.5", "lenient:nan", "typical:1", "typical:-1", "lossy:0.5", "block:1", ""],
)
def test_no_other_names(name, capsys):
    with pytest.raises(UsageProblem, match="there is no accept rule"):
        rule_of(name)
    assert compare.main(["--target", "nowhere", "--temperature", "0.8", "--rule", name]) == 2
    assert "lenient:0.5" in capsys.readouterr().err
    assert optimized_speculative.main(["--target", "nowhere", "--temperature", "0.8", "--rule", name]) == 2


def test_a_name_is_written_in_one_way():
    names = ["lenient:1e-1", "lenient:1", "lenient:1.0", "typical:.3", "token"]
    assert [rule_of(name).name for name in names] == ["lenient:0.1", "lenient:1", "lenient:1", "typical:0.3", "token"]
    assert [rule_of(name).law is None for name in names] == [False, True, True, False, True]


def test_each_rule_has_a_graph_of_its_own(monkeypatch):
    """On a GPU the number of a rule belongs to what is recorded: two of them must not share a graph."""
    stand_in(monkeypatch)
    logits = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]).double().log()
    draft = Draft(torch.tensor([[0]]), torch.tensor([1]), torch.tensor([[[1.0, 0.0]]]).double())
    before, uniforms = graphs.captures.n, torch.tensor([[0.7, 0.9]]).double()
    for _ in range(2):
        kept = [
            rule_of(name).accept(draft, logits, Sampling(1.0), uniforms).n_accepted.item()
            for name in ("lenient:0.9", "lenient:0.5", "typical:0.7", "typical:0.9", "lenient:1")
        ]
        assert kept == [0, 1, 1, 1, 0]
    assert graphs.captures.n - before == 5


def test_a_draft_that_is_no_chain_is_refused():
    draft = Draft(torch.tensor([[0, 1]]), torch.tensor([2]), parents=torch.tensor([[-1, -1]]))
    for name in ("block", "lenient:0.5", "typical:0.3"):
        with pytest.raises(UsageProblem, match="judges chains of tokens"):
            rule_of(name).accept(draft, torch.zeros(1, 3, 4), Sampling(1.0), torch.zeros(1, 3))


@pytest.mark.parametrize("rule", [pytest.param("lenient:0.25", marks=pytest.mark.full), "typical:0.01"])
def test_every_row_of_a_lossy_rule_says_so_and_how_far_it_is_off(run, rule):  # noqa: F811
    code, _, record = run(rule)
    assert code == 0
    drafted = [row for row in record.rows if row.draft_length and row.method == "model"]
    assert drafted
    assert all(row.lossy_rule == rule and 0.001 < row.total_variation < 1 for row in drafted)
    every, *kinds = (row.total_variation for row in drafted)
    assert every == pytest.approx(sum(kinds) / len(kinds))  # all prompts have as many tokens
