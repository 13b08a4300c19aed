"""The joint law of several sampled tokens, over many rounds of the real cached loop, is the target's: by chi-square.

tests/test_filtered_laws.py enumerates one round with every kind of draft. `make test` runs two of these laws, `make
test-full` all.
"""

import functools
import itertools
from dataclasses import dataclass, field

import pytest
import scipy.stats
import torch
from torch import Tensor

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.drafter import Drafter
from speclab.core.rounds import Round
from speclab.core.rules import rule_of
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.suffix import SuffixDrafter
from speclab.models.cached import CachedModel
from tests.decoding import reference_probs, speculative_rounds
from tests.grids import and_in_full
from tests.heads import tiny_head
from tests.rules import RULES
from tests.tiny_models import PlainTransformer, on_engine, perturbed, tiny

IDS = 5  # vocabulary of the sampled models
DEPTH = 4  # tokens looked at; their law is tested as tokens 1-3 and as tokens 2-4
PROMPT = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0]])  # every token occurs early, so an n-gram of one is found


@dataclass(frozen=True)
class Law:
    """A sampling setting, a draft, and how many decodings to count."""

    temperature: float
    k: int
    top_k: int = 0
    top_p: float = 1.0
    draft: str = "model"
    seed: int = field(default=7, compare=False)

    def __str__(self) -> str:
        return f"{self.draft}-k{self.k}-T{self.temperature}-topk{self.top_k}-topp{self.top_p}"


OFTEN = [Law(1.2, 3), Law(1.0, 3, draft="ngram")]
ON_C = [f"{family} on c" for family in ("llama", "gpt2", "mistral_window")]
LAWS = [Law(1.0, 3, draft="suffix"), *(Law(1.0, 2, draft=one) for one in ("hybrid", "feature on c", *ON_C))]
LAWS += [Law(1.0, 3, 4, 0.9, draft) for draft in ("model", "ngram", "bad")]
N_DRAWS = 1500
# Each law is tested twice. All of them together raise a false alarm with probability below 1e-6 (Bonferroni).
ALARM = 1e-6 / (2 * (len(OFTEN) + len(LAWS) + 40))


def exact_law(model: torch.nn.Module, law: Law) -> Tensor:
    """Joint law of the next DEPTH tokens from uncached passes.  -> (IDS,) * DEPTH, float64"""
    joint = torch.ones(1, dtype=torch.float64)  # (IDS ** depth,)
    for depth in range(DEPTH):
        prefixes = torch.tensor(list(itertools.product(range(IDS), repeat=depth)), dtype=torch.long)
        ids = torch.cat([PROMPT.expand(len(prefixes), -1), prefixes.view(len(prefixes), depth)], dim=1)
        with torch.inference_mode():
            logits = model(ids, use_cache=False).logits[:, -1]
        rows = [reference_probs(row, law.temperature, law.top_k, law.top_p) for row in logits.double().tolist()]
        joint = (joint[:, None] * torch.tensor(rows, dtype=torch.float64)).flatten()
    return joint.view((IDS,) * DEPTH)


def decode_often(
    target: CachedModel, drafter, law: Law, n_draws: int, rule: str = "token"
) -> tuple[Tensor, list[Round]]:
    """Decode `n_draws` times with different seeds.  -> how often each DEPTH-gram came, and all rounds

    The budget leaves room for k drafts in the first round; a decoding is left once it has said DEPTH tokens.
    """
    sampling, size = Sampling(law.temperature, law.top_k, law.top_p), (law.k, DEPTH + law.k)
    seen = torch.zeros((IDS,) * DEPTH, dtype=torch.float64)
    rounds = []
    for n in range(n_draws):
        tokens, seed = [], law.seed + 1_000_003 * n
        for r in speculative_rounds(target, drafter, PROMPT, *size, sampling, seed, accept=rule_of(rule).accept):
            tokens += r.tokens
            rounds.append(r)
            if len(tokens) >= DEPTH:
                break
        seen[tuple(tokens[:DEPTH])] += 1
    return seen, rounds


def chi_square(seen: Tensor, law: Tensor) -> tuple[float, int]:
    """Pearson's test; the rarest bins are merged until about 5 are expected in each.  -> p-value, bins left

    A token that the law gives probability 0 is no matter of statistics: it fails at once.
    """
    assert seen[law == 0].sum() == 0, "a token of probability 0 was said"
    expected, order = (law.flatten() * seen.sum()).sort()
    _, group = (expected.cumsum(0) / 5).floor().unique(return_inverse=True)
    group = (group - 1).clamp(min=0)  # the rarest, of which less than 5 are expected, go with the next ones
    both = torch.stack([seen.flatten()[order], expected])
    observed, expected = torch.zeros(2, int(group.max()) + 1, dtype=torch.float64).index_add(1, group, both)
    return float(scipy.stats.chisquare(observed, expected).pvalue), len(observed)


def p_values(seen: Tensor, law: Tensor) -> tuple[float, float]:
    """Tokens 1-3, and tokens 2-4, where most blocks begin in one round and end in the next."""
    early, n_early = chi_square(seen.sum(-1), law.sum(-1))
    late, n_late = chi_square(seen.sum(0), law.sum(0))
    assert min(n_early, n_late) >= 6, "too few bins to see anything"
    return early, late


@functools.cache
def models_of(family: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A target and a draft: the classic mistakes shift this law by much more than the statistics can miss."""
    target = PlainTransformer(IDS, seed=3) if family == "plain" else tiny(family, dtype=torch.float32, vocab_size=IDS)
    return target, perturbed(target, 0.4 if family == "plain" else 0.2)


def sampled_pair(kind: str) -> tuple[CachedModel, Drafter]:
    """A target and a drafter, of models of their own or of a family in this kind: "gpt2 on c"."""
    family, _, engine = kind.partition(" on ")
    models = models_of(("llama" if family == "feature" else family) if engine else "plain")
    target, draft = (CachedModel(model, fast=on_engine(engine, model)) for model in models)
    target.hidden_layers = (0, 1) if family == "feature" else ()
    drafters = {
        "bad": lambda: ModelDrafter(CachedModel(PlainTransformer(IDS, seed=2))),
        "ngram": lambda: NgramDrafter(2, 1),
        "suffix": lambda: SuffixDrafter(least=0.05),
        "hybrid": lambda: HybridDrafter(NgramDrafter(2, 1), ModelDrafter(draft)),
        "feature on c": lambda: FeatureDrafter(tiny_head(vocab=IDS).float()),
    }
    drafter = drafters.get(kind, lambda: ModelDrafter(draft))()
    if family == "feature":
        drafter.use_c()
    return target, drafter


def check_law(law: Law, target: torch.nn.Module | CachedModel, drafter, n_draws: int, rule: str = "token") -> None:
    cached = target if isinstance(target, CachedModel) else CachedModel(target)
    seen, rounds = decode_often(cached, drafter, law, n_draws, rule)
    checked = [r for r in rounds if not r.prefill]
    assert sum(r.n_accepted for r in checked) > n_draws / 20
    assert sum(r.n_rejected for r in checked) > n_draws / 20
    assert any(r.n_accepted and not r.n_rejected for r in checked), "no bonus token"
    assert law.k == 1 or any(r.n_accepted and r.n_rejected for r in checked), "no partly accepted round"
    values = p_values(seen, exact_law(cached.model, law))
    assert min(values) > ALARM, f"{law}: the joint law of tokens 1-3 or 2-4 is not the target's: p = {values}"


@pytest.mark.parametrize("law", and_in_full(OFTEN, LAWS), ids=str)
def test_joint_law(law):
    """Any bias of drafting, acceptance, correction, bonus or rollback shows in the joint law of three tokens."""
    check_law(law, *sampled_pair(law.draft), N_DRAWS)


OTHERS = [("ngram", "token"), *(("model", rule) for rule in RULES if rule != "token")]


@pytest.mark.parametrize(("kind", "rule"), and_in_full([("model", "token")], OTHERS))
def test_joint_law_of_lengths_that_choose_themselves(kind, rule):
    """How far a draft goes depends on the tokens that it drew, and on everything before."""
    target, drafter = sampled_pair(kind)
    auto = AutoLength(drafter)
    # A rule that keeps fewer tokens is tried with a cheaper draft: otherwise next to nothing would be drafted.
    price = 0.0 if kind == "ngram" else 0.2 if rule == "token" else 0.05
    auto.costs[1.0] = RoundCosts((0.0, price, 2 * price, 3 * price), (1.0, 1.0, 1.001, 1.2))
    check_law(Law(1.0, 3), target, auto, 1000, rule)
