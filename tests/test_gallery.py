"""Tests that kill the mutants of tests/mutants/, each named after what must hold.

Small models and exact cases. A round's uniforms run over grids whose cells end where the rule's steps do, so most laws
here are exact sums, not statistics; the one statistic says its false-alarm rate.
"""

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import baseline_autoregressive
import optimized_speculative
from draft_models import ModelDrafter, NgramDrafter
from speclab.cli import decoding, flags
from speclab.core import accept as accept_module
from speclab.core.accept import accept
from speclab.core.counts import Counts
from speclab.core.rounds import Decided, Draft, Round
from speclab.core.sampling import Sampling, draw
from speclab.drafts import registry
from speclab.models.cached import CachedModel
from speclab.models.family import Room
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.theory.formulas import book_formula, expected_tokens_per_round
from tests.decoding import speculative_rounds
from tests.llamas import tiny_llama
from tests.small_tokenizers import byte_level

CPU = torch.device("cpu")
SAMPLED = Sampling(temperature=1.0)


# ---------------------------------------------------------------- what the tests stand on


class TableModel:
    """Stands in for a CachedModel: the next token depends on the last one alone, so thousands of rounds are cheap."""

    device, room, max_length = CPU, Room(None), None

    def __init__(self, probs: Tensor):
        self.logits, self.length = probs.log(), 0  # probs: (vocab, vocab)
        self.vocab_size = self.n_ids = len(probs)

    def replace_unknown(self, ids: Tensor) -> Tensor:
        return ids

    def chain(self, tokens: Tensor, k: int) -> None:
        """There is no call of several passes."""

    def prefill(self, prompt: Tensor) -> Tensor:
        self.length = prompt.shape[1]
        return self.logits[prompt[:, -1:]]

    def forward(self, tokens: Tensor) -> Tensor:
        self.length += tokens.shape[1]
        return self.logits[tokens]

    def verify(self, last_token: Tensor, draft: Draft) -> Tensor:
        return draft.verified_by(self, last_token)

    def commit(self, decided: Decided) -> None:
        self.crop(self.length - decided.n_drafted + decided.n_accepted)

    def crop(self, length: int) -> None:
        self.length = length


class WatchedDrafter(ModelDrafter):
    """A ModelDrafter that notes what it proposed and after which text."""

    def prefill(self, target, prompt, sampling):
        super().prefill(target, prompt, sampling)
        self.text, self.proposals = prompt[0].tolist(), []  # proposals: (length of the text, ids)

    def propose(self, k, uniforms):
        draft = super().propose(k, uniforms)
        self.proposals.append((len(self.text), draft.tokens[0].tolist()))
        return draft

    def observe(self, n_accepted, committed):
        super().observe(n_accepted, committed)
        self.text += committed


def nearly(model, amount: float, seed: int = 0):
    """A copy with noise on its weights: a draft that is often right and often wrong."""
    generator, other = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(amount * weight.std() * noise)
    return other


@pytest.fixture(scope="module")
def target():
    return tiny_llama(seed=1)


@pytest.fixture(scope="module")
def draft(target):
    return nearly(target, 0.05)


def decode(target, drafter, prompt, k=4, n=48, sampling=Sampling(), eos=frozenset()) -> list[Round]:
    """At most n rounds, so that a decoder that does not stop fails a test instead of hanging it."""
    target = target if isinstance(target, TableModel) else CachedModel(target)
    generator = torch.Generator().manual_seed(0)
    return list(itertools.islice(speculative_rounds(target, drafter, prompt, k, n, sampling, generator, eos), n))


def tokens_of(rounds: list[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


def assert_all_outcomes(rounds: list[Round]) -> None:
    """No test of a loop means anything unless drafts were rejected at once, in part, and not at all."""
    kinds = {(r.n_accepted > 0, r.n_accepted < r.n_drafted) for r in rounds if r.n_drafted}
    assert kinds == {(False, True), (True, True), (True, False)}


@torch.inference_mode()
def greedy_choices(model, ids: list[int], start: int) -> list[int]:
    """The model's own choice at every place of `ids` from `start` on, from one pass without a cache."""
    logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits[start - 1 : -1].argmax(-1).tolist()


def grid(size: int, n: int) -> Tensor:
    """All n-tuples of the midpoints of `size` equal cells of [0, 1).  -> (size ** n, n)"""
    points = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    return torch.cartesian_prod(*[points] * n).reshape(-1, n)


def twelfths(*parts: int) -> Tensor:
    return torch.tensor(parts, dtype=torch.float64) / 12


# Acceptance ratios and residuals of these are multiples of 1/12 too (1/36 for the one-hot drafts used below), so a grid
# of as many cells gives exact laws.
TARGET_ROWS = torch.stack([twelfths(3, 3, 3, 3), twelfths(5, 3, 3, 1), twelfths(1, 2, 3, 6)])  # two drafted, one more
DRAFT_ROWS = torch.stack([twelfths(6, 6, 0, 0), twelfths(3, 6, 3, 0)])


def shares(ids: Tensor, n: int = 4) -> Tensor:
    return torch.bincount(ids, minlength=n).double() / len(ids)


def one_round(drafted: Tensor | None = None, rows: slice = slice(0, 2)):
    """Every round there is: drafted tokens by inverse CDF, or `drafted` (n,) as a one-hot draft; then `accept`.

    -> drafted ids (cases, n), accepted (cases,), next token (cases,); all cases have the same weight
    """
    target_rows, draft_rows = TARGET_ROWS[rows.start : rows.stop + 1], DRAFT_ROWS[rows]
    n = len(draft_rows)
    u = grid(12, 2 * n + 1) if drafted is None else grid(36, n + 1)
    if drafted is None:
        tokens = torch.stack([draw(draft_rows[i].expand(len(u), -1), u[:, i]) for i in range(n)], dim=1)
        probs, u = draft_rows.expand(len(u), -1, -1), u[:, n:]
    else:
        tokens, probs = drafted.expand(len(u), -1), None
    sizes = torch.full((len(u),), n)
    verdict = accept(Draft(tokens, sizes, probs), target_rows.expand(len(u), -1, -1), u)
    return tokens, verdict.n_accepted, verdict.next_token


def test_drafted_positions_are_judged_at_the_texts_temperature():
    """The first token of all rounds with one draft from logits at temperature 1/2: the target's."""
    u, sampling = grid(12, 3), Sampling(temperature=0.5)
    tokens = draw(DRAFT_ROWS[1].expand(len(u), -1), u[:, 0])
    draft = Draft(tokens[:, None], torch.ones(len(u), dtype=torch.long), DRAFT_ROWS[1:].expand(len(u), -1, -1))
    logits = sampling.temperature * TARGET_ROWS[1:].log()  # so that they give TARGET_ROWS at this temperature
    result = accept_module.accept_from_logits(draft, logits.expand(len(u), -1, -1), sampling, u[:, 1:])
    first = torch.where(result.n_accepted == 1, tokens, result.next_token)
    torch.testing.assert_close(shares(first), TARGET_ROWS[1])


def joint_law(tokens: Tensor, n_accepted: Tensor, next_token: Tensor) -> Tensor:
    """Law of three tokens: what a round commits, and after it what the target would go on with.  -> (4, 4, 4)"""
    (_, second, third), weight = TARGET_ROWS, 1 / len(tokens)
    law = torch.zeros(4, 4, 4, dtype=torch.float64)
    none, one, both = (n_accepted == n for n in range(3))
    cells = (tokens[both, 0], tokens[both, 1], next_token[both])
    law.index_put_(cells, torch.tensor(weight, dtype=torch.float64), accumulate=True)
    law.index_put_((tokens[one, 0], next_token[one]), weight * third, accumulate=True)
    law.index_put_((next_token[none],), weight * second[:, None] * third, accumulate=True)
    return law


def the_targets_law() -> Tensor:
    first, second, third = TARGET_ROWS
    return first[:, None, None] * second[:, None] * third


# ---------------------------------------------------------------- order and number of committed tokens


def test_correction_follows_accepted_drafts(target, draft, prompt):
    drafter = WatchedDrafter(CachedModel(draft))
    rounds = decode(target, drafter, prompt)[1:]
    assert_all_outcomes(rounds)
    for round_, (_, proposed) in zip(rounds, drafter.proposals, strict=True):
        n = round_.n_accepted
        assert round_.tokens[:n] == proposed[:n]
        assert n == len(proposed) or round_.tokens[n] != proposed[n]


def test_bonus_token_after_full_acceptance(target, prompt):
    rounds = decode(target, ModelDrafter(CachedModel(target)), prompt, k=3, n=1 + 4 * 5)  # draft = target
    assert [r.n_accepted for r in rounds[1:]] == [3] * 5
    assert [len(r.tokens) for r in rounds[1:]] == [4] * 5


def test_correction_is_kept_after_partial_acceptance(target, draft, prompt):
    rounds = decode(target, ModelDrafter(CachedModel(draft)), prompt)[1:]
    assert_all_outcomes(rounds)
    partial = [r for r in rounds if 0 < r.n_accepted < r.n_drafted]
    assert [len(r.tokens) for r in partial] == [r.n_accepted + 1 for r in partial]


def test_a_round_commits_one_token_more_than_it_accepts(target, draft, prompt):
    rounds = decode(target, ModelDrafter(CachedModel(draft)), prompt)
    assert_all_outcomes(rounds)
    assert len(tokens_of(rounds)) == sum(r.n_accepted for r in rounds) + len(rounds)


def test_one_target_pass_per_round(target, draft, prompt):
    model = CachedModel(target)
    n_passes = [model.n_passes for _ in speculative_rounds(model, ModelDrafter(CachedModel(draft)), prompt, 4, 30)]
    assert len(n_passes) > 8
    assert n_passes == list(range(1, len(n_passes) + 1))


# ---------------------------------------------------------------- greedy output, and what the caches hold


def test_greedy_output_is_the_targets_own_choice(target, draft, prompt):
    rounds = decode(target, ModelDrafter(CachedModel(draft)), prompt)
    assert_all_outcomes(rounds)
    output = tokens_of(rounds)
    assert output == greedy_choices(target, prompt[0].tolist() + output, prompt.shape[1])


def test_greedy_keeps_no_draft_but_the_argmax(monkeypatch, target, draft, prompt):
    """Uniforms of 0 accept whatever has any probability: at temperature 0 only the target's choice has."""
    monkeypatch.setattr(optimized_speculative, "uniforms", lambda shape, *_: torch.zeros(shape, dtype=torch.float64))
    rounds = decode(target, ModelDrafter(CachedModel(draft)), prompt)
    assert_all_outcomes(rounds)
    output = tokens_of(rounds)
    assert output == greedy_choices(target, prompt[0].tolist() + output, prompt.shape[1])


def test_target_cache_holds_all_but_the_last_committed_token(target, draft, prompt):
    model, n_tokens, rounds = CachedModel(target), 0, []
    for round_ in itertools.islice(speculative_rounds(model, ModelDrafter(CachedModel(draft)), prompt, 4, 48), 48):
        rounds.append(round_)
        n_tokens += len(round_.tokens)
        # The library's own count of cached rows, not ours.
        assert model._backend._cache.get_seq_length() == prompt.shape[1] + n_tokens - 1
    assert_all_outcomes(rounds)


def test_proposals_are_the_draft_models_own_continuation(target, draft, prompt):
    """A stale or missing row in the draft's cache changes no output, only what it proposes: look there."""
    drafter = WatchedDrafter(CachedModel(draft))
    rounds = decode(target, drafter, prompt)
    assert_all_outcomes(rounds)
    for length, proposed in drafter.proposals:
        assert proposed == greedy_choices(draft, drafter.text[:length] + proposed, length)


# ---------------------------------------------------------------- the accept rule, exactly


def test_joint_law_of_a_round_is_the_targets():
    law = joint_law(*one_round())
    torch.testing.assert_close(law, the_targets_law(), rtol=0, atol=1e-12)


def test_joint_law_of_a_one_hot_round_is_the_targets():
    law = joint_law(*one_round(torch.tensor([1, 2])))
    torch.testing.assert_close(law, the_targets_law(), rtol=0, atol=1e-12)


def test_correction_comes_from_the_residual():
    _, n_accepted, next_token = one_round(rows=slice(1, 2))
    rejected = next_token[n_accepted == 0]
    assert len(rejected) > 0
    torch.testing.assert_close(shares(rejected), twelfths(8, 0, 0, 4), rtol=0, atol=1e-12)  # norm(max(0, p - q))


def test_rejected_token_is_not_redrawn_from_target():
    for drafted in range(4):
        _, n_accepted, next_token = one_round(torch.tensor([drafted]), slice(1, 2))
        rejected = next_token[n_accepted == 0]
        assert len(rejected) > 0
        assert (rejected != drafted).all()


@pytest.mark.parametrize("drafted", [None, torch.tensor([1, 2])], ids=["drawn", "one-hot"])
def test_bonus_token_follows_the_targets_last_row(drafted):
    _, n_accepted, next_token = one_round(drafted)
    bonus = next_token[n_accepted == 2]
    assert len(bonus) > 0
    torch.testing.assert_close(shares(bonus), TARGET_ROWS[2], rtol=0, atol=1e-12)


def test_each_draft_is_tested_with_its_own_row():
    """Row i is the target's distribution before drafted token i."""
    tokens = torch.tensor([[2, 0, 1]])
    rows = torch.eye(4, dtype=torch.float64)[[2, 0, 1, 3]][None]
    verdict = accept(Draft(tokens, torch.tensor([3])), rows, torch.full((1, 4), 0.5, dtype=torch.float64))
    assert (verdict.n_accepted.item(), verdict.next_token.item()) == (3, 3)


def test_acceptance_tests_of_one_round_are_independent():
    """Both drafts are kept with probability 1/2: none, one or two in 2, 1 and 1 of 4 cases."""
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    u = grid(4, 3)
    draft = Draft(torch.zeros(len(u), 2, dtype=torch.long), torch.full((len(u),), 2))
    verdict = accept(draft, half.expand(len(u), 3, 2), u)
    assert shares(verdict.n_accepted, 3).tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("draft_probs", [None, [[[1.0, 0.0]]], [[[0.0, 1.0]]]], ids=["one-hot", "q 1", "q 0"])
def test_token_of_target_probability_zero_is_never_kept(draft_probs):
    probs = None if draft_probs is None else torch.tensor(draft_probs, dtype=torch.float64)
    target_probs = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    zeros = torch.zeros(1, 2, dtype=torch.float64)  # `torch.rand` can return 0
    verdict = accept(Draft(torch.tensor([[0]]), torch.tensor([1]), probs), target_probs, zeros)
    assert (verdict.n_accepted.item(), verdict.next_token.item()) == (0, 1)


def test_token_of_weight_zero_is_never_drawn():
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    below_one = 1 - 2**-53
    drawn = [draw(weights, torch.tensor([u], dtype=torch.float64)).item() for u in (0.0, 0.5, below_one)]
    assert drawn == [1, 3, 3]


def test_residual_without_mass_falls_back_to_the_target():
    """p is below q by one rounding and above it nowhere: norm(max(0, p - q)) would be 0/0."""
    q = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)
    p = torch.tensor([[[0.5, 0.5 - 2**-53], [0.5, 0.5]]], dtype=torch.float64)
    u = torch.tensor([[1 - 2**-53, 0.25]], dtype=torch.float64)
    verdict = accept(Draft(torch.tensor([[1]]), torch.tensor([1]), q), p, u)
    assert (verdict.n_accepted.item(), verdict.next_token.item()) == (0, 0)


# ---------------------------------------------------------------- randomness and sampling


def test_sampled_text_follows_the_targets_law():
    """Chi-square of 3000 steps of a Markov chain, decoded with a draft of another law. False-alarm rate 1e-6."""
    generator = torch.Generator().manual_seed(0)
    target_table, draft_table = (
        (0.7 * torch.randn(5, 5, generator=generator, dtype=torch.float64)).softmax(-1) for _ in range(2)
    )
    rounds = decode(
        TableModel(target_table), ModelDrafter(TableModel(draft_table)), torch.tensor([[0]]), 3, 3001, SAMPLED
    )
    assert_all_outcomes(rounds)
    text = torch.tensor([0, *tokens_of(rounds)])
    seen = torch.bincount(text[:-1] * 5 + text[1:], minlength=25).view(5, 5).double()
    expected = seen.sum(-1, keepdim=True) * target_table
    assert len(text) == 3002
    assert expected.min() > 5
    chi_square = ((seen - expected) ** 2 / expected).sum().item()
    assert chi_square < 65.42  # scipy.stats.chi2.isf(1e-6, 5 * 4)


def test_proposals_follow_the_probabilities_they_are_scored_with(prompt):
    """Uniforms 1/2n, 3/2n, ...: every id is proposed n q times, to within one."""
    n, drafter = 48, ModelDrafter(CachedModel(tiny_llama(seed=5, n_layers=1, vocab_size=8)))
    ids, proposed = prompt % 8, []
    for u in grid(n, 1):
        drafter.prefill(drafter.draft, ids, SAMPLED)
        drafter.observe(0, [3])
        draft = drafter.propose(1, u[None])
        proposed.append(draft.tokens[0, 0])
    counts = shares(torch.stack(proposed), 8) * n
    assert (counts > 0).sum() > 2
    assert ((counts - n * draft.probs[0, 0]).abs() <= 1).all()


def test_every_uniform_is_used_once(monkeypatch):
    """What the draft and the accept rule get, over all rounds, are different numbers (a false alarm has odds 2^-40)."""
    used: list[float] = []

    class Watched(ModelDrafter):
        def propose(self, k, uniforms):
            used.extend(uniforms[0].tolist())
            return super().propose(k, uniforms)

    def watched_accept(draft, target_probs, uniforms):
        used.extend(uniforms[0].tolist())
        return accept(draft, target_probs, uniforms)

    monkeypatch.setattr(accept_module, "accept", watched_accept)
    table = torch.full((4, 4), 0.25, dtype=torch.float64)
    rounds = decode(TableModel(table), Watched(TableModel(table)), torch.tensor([[0]]), 3, 41, SAMPLED)
    assert len(rounds) == 11
    assert len(used) == 10 * (2 * 3 + 1)
    assert len(set(used)) == len(used)


def test_token_id_zero_can_be_drawn():
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    assert draw(weights, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist() == [0, 0]


def test_token_id_zero_is_a_token_like_any_other(prompt):
    model = tiny_llama(seed=2, vocab_size=4)
    rounds = decode(model, ModelDrafter(CachedModel(nearly(model, 0.1))), prompt % 4, 3, 60, SAMPLED)
    assert_all_outcomes(rounds)
    output = tokens_of(rounds)
    assert len(output) == 60
    assert any(0 in r.tokens[: r.n_accepted] for r in rounds)  # as an accepted draft
    assert any(r.tokens[-1] == 0 for r in rounds)  # as a correction or a bonus token
    assert rounds[-1].finish == "length"


def test_nucleus_keeps_the_crossing_token():
    logits = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    expected = torch.tensor([0.0, 0.625, 0.375], dtype=torch.float64)
    torch.testing.assert_close(Sampling(1.0, top_p=0.6).probs(logits), expected)


@pytest.mark.parametrize("top_p", [0.1, 0.55, 0.65, 0.85, 0.95])
def test_kept_mass_reaches_top_p(top_p):
    probs = torch.tensor([0.1, 0.6, 0.2, 0.1], dtype=torch.float64)
    kept = Sampling(1.0, top_p=top_p).probs(probs.log()) > 0
    assert probs[kept].sum() >= top_p


# ---------------------------------------------------------------- where the text ends


def test_nothing_follows_an_eos_inside_a_block(target, prompt):
    """Every id of the output in turn is the EOS, so it falls on every place of a fully accepted block."""
    free = tokens_of(decode(target, ModelDrafter(CachedModel(target)), prompt, k=4, n=16))
    lengths = set()
    for eos in set(free[1:]) - {free[0]}:
        rounds = decode(target, ModelDrafter(CachedModel(target)), prompt, k=4, n=16, eos=frozenset([eos]))
        assert tokens_of(rounds) == free[: free.index(eos) + 1]
        assert rounds[-1].finish == "eos"
        lengths.add(len(rounds[-1].tokens))
    assert lengths == {1, 2, 3, 4, 5}


def test_drafts_after_an_eos_are_not_counted_as_accepted(target, prompt):
    free = tokens_of(decode(target, ModelDrafter(CachedModel(target)), prompt, k=4, n=16))
    eos = next(token for i, token in enumerate(free) if i % 5 == 2 and free.index(token) == i)
    last = decode(target, ModelDrafter(CachedModel(target)), prompt, k=4, n=16, eos=frozenset([eos]))[-1]
    assert (len(last.tokens), last.n_drafted, last.n_accepted, last.n_rejected) == (2, 4, 2, 0)


def test_budget_is_met_exactly(target, draft, prompt):
    for n in range(1, 13):
        rounds = decode(target, ModelDrafter(CachedModel(draft)), prompt, k=5, n=n)
        assert len(tokens_of(rounds)) == n
        assert [r.finish for r in rounds] == [None] * (len(rounds) - 1) + ["length"]


def test_never_drafts_more_than_the_budget_can_take(target, prompt):
    rounds = decode(target, ModelDrafter(CachedModel(target)), prompt, k=4, n=13)
    assert [r.n_drafted for r in rounds] == [0, 4, 4, 1]  # 1 + 5 + 5 + 2 tokens


# ---------------------------------------------------------------- counts, formulas, and what the scripts print


def rounds_of(*accepted: int, k: int) -> list[Round]:
    return [Round([9] * (n + 1), k, n, int(n < k)) for n in accepted]


def counted(rounds: list[Round]) -> Counts:
    counts = Counts()
    for round_ in rounds:
        counts.add(round_)
    return counts


def test_prompt_pass_is_no_round_of_decoding():
    counts = counted([Round([9], prefill=True), *rounds_of(2, 0, k=2)])
    assert (counts.n_rounds, counts.n_emitted, counts.tokens_per_round) == (2, 4, 2.0)
    assert counts.accepted_lengths == {2: 1, 0: 1}


def test_emitted_counts_tokens_of_the_text_not_of_the_draft():
    counts = counted(rounds_of(0, 1, 4, k=4))
    assert (counts.n_emitted, counts.n_drafted) == (1 + 2 + 5, 12)


def test_alpha_divides_by_tested_positions():
    counts = counted(rounds_of(0, 0, 1, 2, k=2))  # 3 kept, 3 rejected, 2 never tested
    assert (counts.acceptance_rate, counts.drafted_fraction) == (3 / 6, 3 / 8)


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_formula_of_tau_fed_with_alpha_gives_tau(k):
    """Of 2^k rounds at alpha 1/2, 2^(k-1-n) accept n < k and one accepts all."""
    accepted = [n for n in range(k) for _ in range(2 ** (k - 1 - n))] + [k]
    counts = counted(rounds_of(*accepted, k=k))
    assert expected_tokens_per_round(counts.acceptance_rate, k) == pytest.approx(counts.tokens_per_round)
    assert book_formula(counts.acceptance_rate, k) == pytest.approx(1 / (0.5 + 0.5 / k))


SCRIPTS = [baseline_autoregressive, optimized_speculative]


@pytest.fixture
def script(monkeypatch, capsys, prompt):
    """Runs a script on a tiny model, 3 prompts of 7 tokens and a clock: 100 s for a prompt's pass, 1 s for another."""

    class Clock:
        now = 0.0

    class TimedModel(CachedModel):
        def prefill(self, prompt):
            Clock.now += 100.0
            return super().prefill(prompt)

        def run(self, n_tokens, one_pass):
            Clock.now += 1.0
            return super().run(n_tokens, one_pass)

    def no_drafts(*_):
        return NgramDrafter(longest=40, shortest=40)  # the text is too short for a match

    tokenizer = byte_level()
    reasons = dict.fromkeys(("device", "dtype", "threads", "engine"), "test")
    setup = Setup(
        TimedModel(tiny_llama(seed=3, n_layers=1)), tokenizer, "tiny", Sampling(), CPU, torch.float64, reasons
    )
    monkeypatch.setattr(decoding, "time", SimpleNamespace(perf_counter=lambda: Clock.now))
    monkeypatch.setattr(flags, "setup_from", lambda *_: setup)
    monkeypatch.setattr(flags, "read_prompts", lambda *_: [Prompt("test", "text", prompt)] * 3)
    monkeypatch.setattr(registry.Choice, "make", no_drafts)

    def run(module) -> str:
        assert module.main(["--max-new-tokens", "11"]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "of them decoded after" in line)

    return run


@pytest.mark.parametrize("module", SCRIPTS, ids=lambda module: module.__name__)
def test_scripts_count_the_decoded_tokens_alone(script, module):
    """Not the 7 of each prompt, not the one its pass gives, no characters."""
    assert script(module).startswith("33 tokens, 30 of them decoded after the prompts' own passes in ")


@pytest.mark.parametrize("module", SCRIPTS, ids=lambda module: module.__name__)
def test_scripts_time_the_same_passes_in_both_arms(script, module):
    """10 passes after each of 3 prompts' own."""
    assert script(module).endswith(" own passes in 30.00 s: 1.0 tok/s")
