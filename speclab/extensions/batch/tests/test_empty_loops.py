"""Rounds without models, passes between the rounds of a decoding, and CUDA graphs recorded before they are timed."""

from types import SimpleNamespace

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import GREEDY, Sampling
from speclab.extensions.batch import turns
from speclab.extensions.batch.decoding import empty_loops
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.decoding.drafters import batch_drafter
from speclab.extensions.batch.decoding.empty_loops import EmptyLoop, NoPasses, WatchedDrafter
from speclab.extensions.batch.passes import PassTimer
from speclab.extensions.batch.tests.trees import trees
from speclab.extensions.batch.turns import Batches, arms, decode
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from tests.decoding import plain_text
from tests.recorder import graphed, stand_in
from tests.tiny_models import CONTEXT, VOCAB, tiny

SAMPLING = Sampling(temperature=0.8)
LAW = Draft(torch.tensor([[3]]), torch.tensor([1]), torch.full((1, 1, VOCAB), 1 / VOCAB))


@pytest.fixture(scope="module")
def target():
    return CachedModel(tiny("llama"))


def calls_of(monkeypatch, name: str) -> list:
    """What a method of NoPasses is called with from now on."""
    calls, honest = [], getattr(NoPasses, name)
    monkeypatch.setattr(NoPasses, name, lambda self, *args: calls.append(args) or honest(self, *args))
    return calls


# --- the loops without models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLING], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seen", [None, LAW], ids=["tokens", "laws"])
def test_rounds_go_on_for_ever(target, seen, sampling):
    """The texts begin anew before a round would be shorter than the others."""
    n_busy = []
    loop = EmptyLoop(target, accept_from_logits, 2, sampling, k=3, seen=seen)
    for _ in range(3 * empty_loops.ROUNDS):
        assert loop() > 0
        n_busy.append(loop._decoding.passes[-1].n_busy)
    assert set(n_busy) == {2}


def test_every_round_drafts_as_many_tokens(target, monkeypatch):
    """Also where all of them are accepted: the texts begin anew before their ends."""
    calls = calls_of(monkeypatch, "forward")
    loop = EmptyLoop(target, lambda draft, logits, *rest: AcceptResult(draft.size, draft.size), 2, GREEDY, k=3)
    for _ in range(2 * empty_loops.ROUNDS):
        loop()
    assert {tokens.shape[1] for tokens, *_ in calls} == {4}


def test_a_tree_is_verified_as_one_and_kept(target, monkeypatch):
    """The arm's own parents, and the moves in the caches of `keep`."""
    kept, given = calls_of(monkeypatch, "keep"), calls_of(monkeypatch, "forward")
    tree = trees("draft").TreeDraft(torch.tensor([[3, 4, 5]]), torch.tensor([3]), parents=torch.tensor([[-1, 0, 0]]))
    loop = EmptyLoop(target, accept_from_logits, 2, GREEDY, k=3, seen=tree)
    for _ in range(2 * empty_loops.ROUNDS):
        loop()
    assert len(kept) == len(given) == 2 * empty_loops.ROUNDS
    tokens, reads = given[0]
    assert tokens.shape == (2, 4)
    assert reads.shape == (2, 4, 4)
    assert not reads[0, 3, 2], "both are children of the first token"


def test_plain_loops_have_the_chunk_of_the_run(target, monkeypatch):
    """Passes of a chunk reach the host together; the seconds are of one of them."""
    calls = []
    honest = empty_loops.autoregressive_decode_batch
    monkeypatch.setattr(
        empty_loops, "autoregressive_decode_batch", lambda *args: calls.append(args[2:]) or honest(*args)
    )
    loop = EmptyLoop(target, accept_from_logits, 2, GREEDY, chunk=4)
    seconds = loop()
    made = loop._decoding.passes[-1]
    assert calls == [(4,)]
    assert made.n_tokens == 2 * 4
    assert seconds == made.seconds / 4


def test_a_draft_models_own_work_is_part_of_the_loop(target, monkeypatch):
    """Drawing and catching up, with passes of the model that cost nothing."""
    drafter = ModelDrafter(CachedModel(tiny("llama", num_hidden_layers=1)))
    calls = calls_of(monkeypatch, "forward")
    monkeypatch.setattr(CachedModel, "forward", lambda *args: pytest.fail("a pass"))
    EmptyLoop(target, accept_from_logits, 2, GREEDY, k=3, drafter=drafter)()
    assert [tokens.shape[1] for tokens, *_ in calls] == [1, 1, 1, 4]


def test_logits_come_from_a_generator_of_their_own(target):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (NoPasses(target, 2, 3)._logits for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, other)


# --- a draft with a clock on it ---------------------------------------------------------------------------------------


def test_a_watched_draft_proposes_the_same(target):
    batch, watched = BatchedModel(target, 1), WatchedDrafter(batch_drafter(NgramDrafter(), 1))
    batch.start(CONTEXT)
    watched.start(batch, GREEDY, CONTEXT)
    watched.prefill(0, torch.tensor([[1, 2, 3, 4, 1, 2, 3]]), [4])
    assert watched.propose([2], torch.zeros(1, 2)).tokens.tolist() == [[1, 2]]
    assert watched.propose([1], torch.zeros(1, 2)).tokens.tolist() == [[1]]
    assert watched.seen.tokens.tolist() == [[1, 2]], "the longest one"
    assert watched.take() > 0
    watched.propose([2], torch.zeros(1, 2))
    watched.start(batch, GREEDY, CONTEXT)
    assert watched.take() == 0, "what the warm-up took does not count"


# --- passes between rounds --------------------------------------------------------------------------------------------


def test_one_thing_is_timed_at_a_time(target):
    timer = PassTimer({"target": target}, {"target": [(1, 1, 4), (2, 3, 4)]})
    calls = []
    timer.add({("", 0, 1): lambda: calls.append(1) or 0.5})
    assert (timer.n_steps, len(calls)) == (3, 1), "once before the clock counts"
    assert timer.times == {"target": {}}
    for turn in (1, 2):
        for _ in range(timer.n_steps):
            timer.step()
        assert {key: len(timed) for key, timed in timer._timed.items()} == dict.fromkeys(timer._timed, turn)
    assert set(timer.times["target"]) == {(1, 1, 4), (2, 3, 4)}
    assert set(timer.loops) == {("", 0, 1)}


def test_disturbed_moments_count_for_all_alike(target):
    """Rates hold them, too; but nobody knows which pass they would have hit."""
    timer = PassTimer({"target": target}, {"target": [(1, 1, 4), (1, 2, 4)]})
    timer._timed = {("target", (1, 1, 4)): [1.0] * 7 + [9.0], ("target", (1, 2, 4)): [2.0] * 8}
    assert timer.times == {"target": {(1, 1, 4): pytest.approx(4 / 3), (1, 2, 4): pytest.approx(8 / 3)}}


def test_passes_are_timed_between_rounds_all_along(target, monkeypatch):
    """Not in a row: between two of them something else has used the processor."""
    about = run_config(target, {"ngram": NgramDrafter()})
    order = []
    monkeypatch.setattr(turns, "TURNS", 2)
    step, advance = PassTimer.step, BatchDecoding.advance
    monkeypatch.setattr(PassTimer, "step", lambda self: order.append("pass") or step(self))
    monkeypatch.setattr(BatchDecoding, "advance", lambda self: order.append("round") or advance(self))
    decoded = Batches(about)
    timer = PassTimer({"target": target}, {"target": [(1, 1, 9), (2, 1, 9)]})
    decode(decoded, arms(about, [2], thorough=False), timer)
    assert order.count("pass") == 2 * timer.n_steps
    in_a_row = max(len(part) for part in "".join("p" if one == "pass" else "r" for one in order).split("r"))
    assert in_a_row <= 2


# --- CUDA graphs ------------------------------------------------------------------------------------------------------


def run_config(target: CachedModel, drafters: dict, **others) -> SimpleNamespace:
    """Three prompts, twelve tokens each."""
    ids = torch.randint(0, VOCAB, (3, 9), generator=torch.Generator().manual_seed(4))
    setup = SimpleNamespace(target=target, device=target.device, chunk=1, sampling_at=lambda t: GREEDY)
    fields = {
        "setup": setup,
        "prompts": [Prompt("code", "", row[None]) for row in ids],
        "drafters": drafters,
        "draft_lengths": [2],
        "temperatures": [0.0],
        "max_new_tokens": 12,
        "repeats": 1,
        "seed": 0,
        "method": lambda name: name,
        "functions": SimpleNamespace(accept=accept_from_logits),
    }
    return SimpleNamespace(**fields | others)


def test_nothing_is_recorded_while_the_clock_counts(monkeypatch):
    """The texts outgrow a bucket, and drafts are shorter near their ends: all of that is recorded before."""
    stand_in(monkeypatch)
    target = graphed()
    models = {"model": ModelDrafter(graphed(num_hidden_layers=1))}
    about = run_config(target, models, draft_lengths=[3], max_new_tokens=30)
    decoded = Batches(about)
    decode(decoded, arms(about, [2], thorough=False), PassTimer({"target": target}, {"target": [(1, 1, 9)]}))
    assert decoded.graphs.before > 0
    assert decoded.graphs.in_turns == 0
    for decoding in decoded.decodings.values():
        for number, text in decoding.texts.items():
            prompt = about.prompts[number % 3].ids
            assert text.tokens == plain_text(CachedModel(target.model), prompt, 30)


def test_what_is_recorded_late_is_counted(monkeypatch):
    stand_in(monkeypatch)
    target = graphed()
    monkeypatch.setattr(BatchedModel, "prepare", lambda *args: None)
    about = run_config(target, {}, max_new_tokens=40)
    decoded = Batches(about)
    decode(decoded, arms(about, [2], thorough=False), PassTimer({"target": target}, {"target": [(1, 1, 9)]}))
    assert decoded.graphs.in_turns > 0
