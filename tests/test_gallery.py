"""Tests of the decoding that no other file has: random numbers, sampled texts in the long run, what scripts print."""

import itertools
import math
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
from speclab.core.rounds import AcceptResult, Draft, Round, tokens_of
from speclab.core.sampling import Sampling, draw
from speclab.drafts import registry
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from tests.decoding import ScriptedTarget, speculative_rounds
from tests.llamas import tiny_llama
from tests.small_tokenizers import byte_level

CPU = torch.device("cpu")


class Chain(ScriptedTarget):
    """Its next token depends on the last one alone, so thousands of rounds are cheap. rows: (vocab, vocab)"""

    def __init__(self, rows: Tensor):
        self.rows = rows.log()
        super().__init__(lambda text: rows[0], 0)

    def _logits(self, first: int) -> Tensor:
        return self.rows[self.tokens[first:]][None]


def sampled(target_table: Tensor, drafter: ModelDrafter, n: int) -> list[Round]:
    """n tokens of a Markov chain, in at most n rounds, so that a loop that does not stop fails a test."""
    rounds = speculative_rounds(Chain(target_table), drafter, torch.tensor([[0]]), 3, n, Sampling(1.0))
    rounds = list(itertools.islice(rounds, n))
    kinds = {(r.n_accepted > 0, r.n_accepted < r.n_drafted) for r in rounds if r.n_drafted}
    assert kinds >= {(False, True), (True, False)}, "drafts were rejected, and others were kept"
    return rounds


# ---------------------------------------------------------------- sampled texts in the long run

IDS, N_OF_EACH = 5, (40, 160, 640)  # successors of each id
# N numbers that are drawn independently have a mean total variation of at most sqrt(cells) / 2 / sqrt(N), and are
# further off by t with a probability of at most exp(-2 N t^2) (McDiarmid). All sizes together raise a false alarm with
# a probability below 1e-6.
BOUND = math.sqrt(IDS**2) / 2 + math.sqrt(math.log(len(N_OF_EACH) * 1e6) / 2)


def total_variations() -> dict[int, float]:
    """Of the successors of each id in a sampled text from the target's law: by their number N, times the root of N.

    The n-th successor of an id is drawn from its row, whatever stands before it, so these numbers are independent.
    """
    generator = torch.Generator().manual_seed(11)  # tables in whose texts no id is rare
    target, draft = (torch.randn(IDS, IDS, generator=generator, dtype=torch.float64).softmax(-1) for _ in range(2))
    n_tokens = 8 * N_OF_EACH[-1]
    rounds = sampled(target, ModelDrafter(Chain(draft)), n_tokens)
    text = torch.tensor([0, *tokens_of(rounds)])
    assert len(text) == n_tokens + 1
    found = {}
    for n in N_OF_EACH:
        after = [text[1:][text[:-1] == token][:n] for token in range(IDS)]
        assert min(map(len, after)) == n
        seen = torch.stack([torch.bincount(tokens, minlength=IDS) for tokens in after]) / n
        found[n * IDS] = float((seen - target).abs().sum(-1).mean()) / 2 * math.sqrt(n * IDS)
    return found


def test_total_variation_falls_as_one_over_the_root_of_the_number_of_tokens():
    assert max(total_variations().values()) < BOUND


def test_the_total_variation_of_a_biased_rule_has_a_floor(monkeypatch):
    """Public bug 4, the correction drawn from p: what it is off by does not fall with more tokens."""

    def biased(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        n_accepted = accept(draft, target_probs, uniforms).n_accepted
        return AcceptResult(n_accepted, draw(target_probs[0, n_accepted], uniforms[:, -1]))

    monkeypatch.setattr(accept_module, "accept", biased)
    found = total_variations()
    few, many = min(found), max(found)
    assert found[many] > BOUND
    assert found[many] / math.sqrt(many) > 0.6 * found[few] / math.sqrt(few)


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
    coin = torch.full((4, 4), 0.25, dtype=torch.float64)
    other = torch.eye(4, dtype=torch.float64) * 0.96 + 0.01
    rounds = sampled(coin, Watched(Chain(other)), 41)
    assert len(used) == len(set(used)) >= 2 * sum(r.n_drafted for r in rounds) + len(rounds) - 1


def test_residual_without_mass_falls_back_to_the_target():
    """p is below q by one rounding and above it nowhere: norm(max(0, p - q)) would be 0/0."""
    q = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)
    p = torch.tensor([[[0.5, 0.5 - 2**-53], [0.5, 0.5]]], dtype=torch.float64)
    u = torch.tensor([[1 - 2**-53, 0.25]], dtype=torch.float64)
    verdict = accept(Draft(torch.tensor([[1]]), torch.tensor([1]), q), p, u)
    assert (verdict.n_accepted.item(), verdict.next_token.item()) == (0, 0)


# ---------------------------------------------------------------- what the scripts print

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
    setup = Setup(TimedModel(tiny_llama(seed=3, n_layers=1)), tokenizer, "tiny", Sampling(), CPU, torch.float64)
    monkeypatch.setattr(decoding, "time", SimpleNamespace(perf_counter=lambda: Clock.now))
    monkeypatch.setattr(flags, "setup_from", lambda *_: setup)
    monkeypatch.setattr(flags, "read_prompts", lambda *_: [Prompt("test", "text", prompt)] * 3)
    monkeypatch.setattr(registry.Choice, "make", no_drafts)

    def run(module) -> str:
        assert module.main(["--max-new-tokens", "11"]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "of them decoded after" in line)

    return run


@pytest.mark.parametrize("module", SCRIPTS, ids=lambda module: module.__name__)
def test_scripts_count_and_time_the_decoded_tokens_alone(script, module):
    """Not the 7 of each prompt, not the one its pass gives, no characters; 10 passes after each of 3 prompts' own."""
    own = "33 tokens, 30 of them decoded after the prompts' own passes"
    assert script(module) == f"{own} in 30.00 s: 1.0 tok/s"
