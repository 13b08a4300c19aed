"""Methods that were tried, and losses: the text stays the target's, and each number is its definition."""

import itertools

import pytest
import torch

from benchmarks import losses
from benchmarks.shared import learning
from benchmarks.tried import again, carried, copies, sure
from speclab.core.rounds import tokens_of
from speclab.core.sampling import GREEDY
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.lab.training.recipes import Likely, distance
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds
from tests.heads import prompts, trained, trained_block

N_NEW = 24


def block_head():
    return trained_block(markov_rank=3)[1]


MAKES = {
    **{way: lambda way=way: again.AgainDrafter(block_head(), None, way) for way in again.WAYS},
    "carried": lambda: carried.CarriedBlock(block_head()),
    "one carried": lambda: carried.CarriedOne(block_head()),
    "stays": lambda: carried.StayingBlock(block_head()),
    "feature, carried": lambda: carried.CarriedFeature(trained()[1]),
}


def rounds_of(drafter, prompt, k):
    target = CachedModel(trained()[0])
    target.hidden_layers = (0, 1)
    return list(speculative_rounds(target, drafter, prompt, k, N_NEW, GREEDY))


@pytest.mark.parametrize("name", MAKES)
def test_the_text_stays_the_targets(name):
    for prompt in prompts(4)[:, None][1:4:2]:
        rounds = rounds_of(MAKES[name](), prompt, 8)
        assert tokens_of(rounds) == plain_text(CachedModel(trained()[0]), prompt, N_NEW)
        assert any(r.n_rejected for r in rounds)


def test_a_gate_that_stays_shut_is_the_block_alone():
    own, plain = again.AgainDrafter(block_head(), None, "gap", 1.0), BlockDrafter(block_head())
    longest = block_head().config.longest
    for prompt in prompts(4)[:, None]:
        assert rounds_of(own, prompt, 2 * longest) == rounds_of(plain, prompt, longest)


def test_an_open_gate_drafts_two_blocks():
    drafter, longest = again.AgainDrafter(block_head(), None, "own"), block_head().config.longest
    rounds = rounds_of(drafter, prompts(1), 2 * longest)
    assert max(r.n_drafted for r in rounds) == 2 * longest
    assert drafter.n_passes > len(rounds)


@pytest.mark.parametrize(("mine", "plain"), [("carried", BlockDrafter), ("feature, carried", FeatureDrafter)])
def test_states_are_carried_after_a_rejection_alone(mine, plain):
    """Until the first rejection nothing is carried, so both draft the same; later they differ somewhere."""
    head, differs = MAKES[mine]().head, False
    for prompt in prompts(4)[:, None]:
        own, other = rounds_of(MAKES[mine](), prompt, 8), rounds_of(plain(head), prompt, 8)
        until = next((i for i, r in enumerate(own) if r.n_rejected), len(own))
        assert own[: until + 1] == other[: until + 1]
        differs |= own != other
    assert differs


def test_the_area_is_a_share_of_pairs():
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(0, 5, (40,), generator=generator).float()
    right = torch.randint(0, 2, (40,), generator=generator).float()
    pairs = list(itertools.product(score[right == 1], score[right == 0]))
    wanted = sum(float(a > b) + float(a == b) / 2 for a, b in pairs) / len(pairs)
    assert copies.area(score, right) == pytest.approx(wanted)


def test_a_tree_has_the_most_probable_paths():
    """No path outside is more probable than one inside, and each node comes after the one before it."""
    head = block_head()
    block = torch.randn(head.config.longest, head.config.block.vocab_size, dtype=torch.double) * 2
    chances = {}

    def walk(path, chance, before):
        for token, p in zip(*sure.followers(head, block[len(path)], before), strict=True):
            chances[(*path, token)] = chance * p
            if len(path) + 1 < len(block):
                walk((*path, token), chance * p, token)

    walk((), 1.0, 5)
    nodes = sure.tree(head, block, 5, 12, 0.0, 1.0, 0.0)
    paths: list[tuple[int, ...]] = []
    for before, token in nodes:
        paths.append((*(paths[before] if before >= 0 else ()), token))
    assert set(paths) == set(sorted(chances, key=chances.__getitem__)[-12:])
    assert sure.n_right(nodes, list(max(paths, key=len))) == max(map(len, paths))
    least = sorted(chances[path] for path in paths)[4]
    assert len(sure.tree(head, block, 5, 12, least * 1.0001, 1.0, 0.0)) == 7


def test_weights_of_places_are_what_their_acceptance_adds(monkeypatch):
    monkeypatch.setattr(losses, "SMOOTHING", 0.0)
    accepted = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(losses.expected_tokens(accepted).sum(), accepted)
    assert torch.allclose(losses.place_weights(accepted), slope * accepted)
    brute = 1 + sum(accepted[..., : n + 1].prod(-1) for n in range(5))
    assert torch.allclose(losses.expected_tokens(accepted), brute)


def test_todays_loss_is_the_mean_of_each_draft():
    generator = torch.Generator().manual_seed(2)
    probs = torch.rand(2, 3, 6, generator=generator).softmax(-1)
    ids = torch.stack([torch.randperm(9, generator=generator)[:6] for _ in range(6)]).view(2, 3, 6)
    place = losses.Place(Likely(probs, ids), torch.randn(2, 3, 9, generator=generator), 1.0)
    assert losses.of_each(place).mean() == pytest.approx(float(distance(place.target, place.logits)), rel=1e-5)


def test_replayed_counts_are_those_of_a_loop():
    match = torch.rand(30, 6, generator=torch.Generator().manual_seed(3)) < 0.7
    for k in (1, 3, 6):
        n_rounds, n_accepted, n_tested = learning.counts(match, k)
        place, found = 0, []
        while place < len(match):
            found.append(len(list(itertools.takewhile(bool, match[place, :k].tolist()))))
            place += found[-1] + 1
        assert (n_rounds, n_accepted) == (len(found), sum(found))
        assert n_tested == sum(n + (n < k) for n in found)
