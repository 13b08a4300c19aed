"""Arms in turns: nobody is favoured, nobody disturbs another, and the books of rounds and seconds are right.

Where seconds matter the clock is a made-up one (`Machine`): a pass takes what its width and context say, no test waits.
"""

import gc
import random
import weakref
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core import clock
from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import WEIGHT, AutoLength, RoundCosts
from speclab.drafts.oracle import Dial
from speclab.lab import decodings, harness, rows
from speclab.lab.bench import Bench
from speclab.lab.decodings import Decoding
from speclab.lab.harness import Measurement, interleaved, measure
from speclab.lab.instruments import VariedLength
from speclab.lab.turns import once_or_twice, take_turns
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.arms import BASELINE, BASELINE_REPEAT, GENERATE, INSTRUMENT, Arm
from speclab.records.log import End, Line
from speclab.theory import noise
from speclab.theory.costs import RoundTime, StepTime
from tests.decoding import plain_text
from tests.tiny_models import VOCAB, PlainTransformer, perturbed, tiny

CPU = torch.device("cpu")
BUDGET = 24
WARM = Sampling(0.8)
ARMS = [BASELINE, Arm("model", "model", 2), Arm("model", "model", 5), Arm("ngram", "ngram", 3), Arm("dial", "dial", 4)]


class InBlocks(Setup):
    """A machine whose baseline fetches 16 tokens at once, as on a GPU."""

    chunk = 16


class Machine:
    """A made-up clock: passes take seconds by width and context, everything else takes what `tick` says.

    target: (seconds of a pass by width, more for each token in the cache); a prompt's own pass takes 100 seconds.
    """

    PREFILL = 100.0

    def __init__(self, monkeypatch, target, by_width=lambda width: 1.0, slope=0.0, draft=0.25, catch=0.0, tick=0.0):
        self.seconds, self.tick = 0.0, tick
        self.passes: list[tuple[str, int, int]] = []  # (who, width, tokens in the cache before), prompts apart
        fake = SimpleNamespace(perf_counter=self.now)
        monkeypatch.setattr(decodings, "time", fake)
        monkeypatch.setattr(clock, "time", fake)
        start, feed, self.target = CachedModel.prefill, CachedModel.run, target

        def timed_start(model, prompt):
            self.seconds += self.PREFILL
            return start(model, prompt)

        def timed_feed(model, width, one_pass):
            who, context = "target" if self.is_target(model.model) else "draft", model.length
            self.passes.append((who, width, context))
            self.seconds += by_width(width) + slope * context if who == "target" else draft + catch * (width - 1)
            return feed(model, width, one_pass)

        monkeypatch.setattr(CachedModel, "prefill", timed_start)
        monkeypatch.setattr(CachedModel, "run", timed_feed)

    def is_target(self, model) -> bool:
        return model is self.target

    def now(self) -> float:
        self.seconds += self.tick
        return self.seconds


@pytest.fixture(scope="module")
def pair():
    """A target and a draft for it that is often, not always, right."""
    target = PlainTransformer(12, seed=3)
    return target, perturbed(target, 0.3)


def make_bench(pair, budget: int = BUDGET, seed: int = 0, kind: type[Setup] = Setup, accuracy: float = 0.6) -> Bench:
    target, draft = pair
    setup = kind(CachedModel(target), None, "tiny", Sampling(), CPU, torch.float64)
    drafters = {
        "model": ModelDrafter(CachedModel(draft)),
        "ngram": NgramDrafter(),
        "dial": Dial(accuracy, ModelDrafter(CachedModel(draft))),
    }
    return Bench(setup, drafters, budget, seed)


def make_prompt(seed: int = 0, kind: str = "code", n: int = 9, vocab: int = 12) -> Prompt:
    ids = torch.randint(0, vocab, (1, n), generator=torch.Generator().manual_seed(seed))
    return Prompt(kind, f"prompt {seed}", ids)


def finish(decoding: Decoding) -> Decoding:
    while not decoding.done:
        decoding.advance()
    return decoding


# --- turns ------------------------------------------------------------------------------------------------------------


class Script:
    """A decoding that commits what it is told to and notes who else was how far."""

    def __init__(self, steps: list[int], budget: int, log: list):
        self.steps, self.budget, self.log = steps, budget, log
        self.tokens: list[int] = []

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.budget

    @property
    def progress(self) -> int:
        return len(self.tokens)

    def advance(self) -> None:
        self.log.append(self)
        self.tokens += [0] * self.steps.pop(0)


@pytest.mark.parametrize("stride", [0, 7])
@pytest.mark.parametrize("seed", range(8))
def test_the_decoding_that_is_furthest_behind_goes_next(seed, stride):
    """It goes on until it is `stride` tokens further, or done."""
    dice, log = random.Random(seed), []
    budget = dice.randint(1, 30)
    queue = []
    for _ in range(dice.randint(1, 6)):
        steps = [1]  # prefill
        while sum(steps) < budget:
            steps.append(min(dice.randint(1, 5), budget - sum(steps)))
        queue.append(Script(steps, budget, log))
    planned = {id(d): list(d.steps) for d in queue}
    take_turns(queue, stride=stride)
    assert all(d.done and not d.steps and len(d.tokens) == budget for d in queue)
    reached = dict.fromkeys(map(id, queue), 0)
    going, goal = None, 0
    for moved in log:
        if going is None:
            waiting = [id(d) for d in queue if reached[id(d)] < budget]
            least = min(reached[i] for i in waiting)
            going, goal = next(i for i in waiting if reached[i] == least), least + stride
        assert id(moved) == going, "neither the first of those furthest behind, nor the one that has not gone its way"
        reached[going] += planned[going].pop(0)
        if reached[going] >= min(goal, budget):
            going = None


# --- side by side -----------------------------------------------------------------------------------------------------


def all_decodings(bench: Bench, sampling: Sampling, prompt: Prompt) -> list[Decoding]:
    arms = [arm for arm in [*ARMS, BASELINE_REPEAT] if sampling.greedy or arm.draft != "dial"]
    found = [bench.decoding(arm, sampling, prompt, stream=5) for arm in arms]
    for name in ("model", "ngram"):
        lengths = [0, 1, 2, 3, 4]
        found.append(bench.decoding(Arm("instrument", name, 4), sampling, prompt, stream=5, lengths=lengths))
    return found


@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(1.0, top_k=5, top_p=0.9)], ids=str)
def test_side_by_side_as_alone(pair, sampling):
    """Every decoding has caches and random numbers of its own: turns change nothing in what is decoded."""
    prompt = make_prompt(1)
    alone = [finish(d) for d in all_decodings(make_bench(pair), sampling, prompt)]
    together = all_decodings(make_bench(pair), sampling, prompt)
    take_turns(together[::-1])
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens, one.arm
        assert one.rounds == other.rounds, one.arm
    if sampling.greedy:
        text = plain_text(CachedModel(pair[0]), prompt.ids, BUDGET)
        assert all(d.tokens == text for d in together), "an instrument changed the text"
    tried = [r for d in together for r in d.rounds]
    assert any(0 < accepted < drafted for drafted, accepted, _ in tried)
    assert any(0 < accepted == drafted for drafted, accepted, _ in tried)


def test_dial_gets_a_reference_as_long_as_it_needs(pair):
    """A short warm-up must not leave a short reference behind: past its end the real draft would answer."""
    bench, prompt, arm = make_bench(pair, accuracy=1.0), make_prompt(), Arm("dial", "dial", 4)
    finish(bench.decoding(arm, Sampling(), prompt, budget=6))
    long = finish(bench.decoding(arm, Sampling(), prompt))
    assert long.counts.n_rejected == 0
    assert long.counts.n_accepted == BUDGET - 1 - long.counts.n_rounds


# --- the instrument ---------------------------------------------------------------------------------------------------


class Endless:
    """Proposes whatever is asked for and notes it."""

    def __init__(self):
        self.asked: list[tuple[int, int]] = []  # (k, width of the uniforms)

    def propose(self, k, uniforms):
        self.asked.append((k, uniforms.shape[1]))
        return Draft(torch.zeros((1, k), dtype=torch.long), torch.tensor([k]))


def test_every_length_equally_often():
    """Once each in every run through the list, in an order that changes, and never more than k."""
    inner, lengths = Endless(), [0, 1, 2, 3, 4, 2, 2]
    varied = VariedLength(inner, lengths, seed=0)
    for _ in range(10 * len(lengths)):
        varied.propose(4, torch.zeros(1, 4))
    asked = [k for k, _ in inner.asked]
    cycles = [asked[i : i + len(lengths)] for i in range(0, len(asked), len(lengths))]
    assert [sorted(cycle) for cycle in cycles] == [sorted(lengths)] * 10
    assert len({tuple(cycle) for cycle in cycles}) > 5
    assert all(k == width for k, width in inner.asked)
    for k in range(5):
        short = Endless()
        varied = VariedLength(short, [0, 1, 2, 3, 4], seed=1)
        for _ in range(25):
            varied.propose(k, torch.zeros(1, k))
        assert Counter(n for n, _ in short.asked) == Counter(min(k, n) for n in [0, 1, 2, 3, 4] * 5)


def spied_instrument(pair, monkeypatch, name: str, sampling: Sampling, tick: float = 0.0):
    """An instrumented decoding and what its target and draft were really fed, round by round."""
    machine = Machine(monkeypatch, pair[0], by_width=lambda width: 1 + width / 8, slope=0.01, tick=tick)
    bench = make_bench(pair, budget=50)
    arm = Arm("instrument", name, 4)
    decoding = bench.decoding(arm, sampling, make_prompt(4), stream=2, lengths=[0, 0, 1, 2, 3, 4])
    decoding.advance()
    machine.passes.clear()
    rounds = []
    while not decoding.done:
        decoding.advance()
        rounds.append(list(machine.passes))
        machine.passes.clear()
    found = Measurement(None, [])
    found.add(decoding, sampling.temperature)
    return decoding, rounds, found


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=str)
@pytest.mark.parametrize("name", ["model", "ngram"])
def test_instrument_notes_what_really_happened(pair, monkeypatch, name, sampling):
    """Context, drafted tokens and catch-up of every round against the passes that were made."""
    decoding, rounds, found = spied_instrument(pair, monkeypatch, name, sampling)
    assert len(found.rounds) == len(rounds) == len(decoding.rounds)
    caught_up = []
    for seen, passes in zip(found.rounds, rounds, strict=True):
        assert (seen.drafter, seen.temperature) == (name, sampling.temperature)
        (who, width, context) = passes[-1]
        assert who == "target"
        assert seen.context == context, "not the tokens in the target's cache"
        assert seen.n_drafted == width - 1
        drafting = [width for who, width, _ in passes[:-1]]
        assert all(who == "draft" for who, _, _ in passes[:-1])
        if name == "model":
            assert len(drafting) == seen.n_drafted
            if drafting:
                assert seen.catch_up == drafting[0]
                assert set(drafting[1:]) <= {1}
                caught_up.append(drafting[0])
    if name == "model":
        assert {1, 2, 3} <= set(caught_up), "a draft that waited through rounds without a draft was not seen"
    assert any(made.n_accepted for made in decoding.rounds)


def test_phases_and_host_add_up_to_the_round(pair, monkeypatch):
    """A clock that moves whenever it is read leaves time between the phases; the host gets all of it."""
    decoding, rounds, found = spied_instrument(pair, monkeypatch, "model", Sampling(), tick=0.001)
    walls = [seconds for _, seconds, _ in decoding.log]
    for seen, wall, passes in zip(found.rounds, walls, rounds, strict=True):
        assert sum(seen.seconds.values()) == pytest.approx(wall, rel=1e-12)
        assert set(seen.seconds) == {"draft", "verify", "accept", "rollback", "host"}
        _, width, context = passes[-1]
        assert seen.seconds["verify"] == pytest.approx(1 + width / 8 + 0.01 * context + 0.001)
        assert seen.seconds["draft"] == pytest.approx(0.25 * (width - 1) + 0.001)
        assert seen.seconds["host"] > 0.0015, "what lies outside the phases was lost"
    assert found.wall_seconds == pytest.approx(sum(walls)) == pytest.approx(decoding.decode_seconds)
    assert 0 < found.phase_seconds < found.wall_seconds
    between = sum(phases["host"] for phases in (r.seconds for r in found.rounds)) - sum(
        round_.seconds["host"] for _, _, round_ in decoding.log
    )
    assert found.wall_seconds - found.phase_seconds == pytest.approx(between)


# --- books ------------------------------------------------------------------------------------------------------------


def test_blocks_of_a_device_make_one_observation_each(pair, monkeypatch):
    """On a GPU 16 passes wait for one fetch. Their mean stands at the middle of the block; the last may be shorter."""
    budget = 1 + 2 * 16 + 5
    machine = Machine(monkeypatch, pair[0], slope=0.01)
    text = finish(make_bench(pair, budget).decoding(BASELINE, WARM, make_prompt())).tokens
    machine.passes.clear()
    decoding = finish(make_bench(pair, budget, kind=InBlocks).decoding(BASELINE, WARM, make_prompt()))
    assert decoding.tokens == text
    assert decoding.decode_seconds == pytest.approx(sum(1 + 0.01 * context for _, _, context in machine.passes))
    found = Measurement(None, [])
    found.add(decoding, 0.8)
    assert [step.temperature for step in found.steps] == [0.8, 0.8, 0.8]
    for i, step in enumerate(found.steps):
        contexts = [context for _, _, context in machine.passes[16 * i : 16 * i + 16]]
        assert abs(step.context - sum(contexts) / len(contexts)) <= 0.5
        assert step.seconds == pytest.approx(sum(1 + 0.01 * context for context in contexts) / len(contexts))
    assert not found.rounds


def test_steps_of_a_cpu_are_observed_one_by_one(pair, monkeypatch):
    machine = Machine(monkeypatch, pair[0], slope=0.01)
    decoding = finish(make_bench(pair).decoding(BASELINE, Sampling(), make_prompt()))
    found = Measurement(None, [])
    found.add(decoding, 0.0)
    assert [s.context for s in found.steps] == [context for _, _, context in machine.passes]
    assert [s.seconds for s in found.steps] == pytest.approx([1 + 0.01 * c for _, _, c in machine.passes])
    assert len(found.steps) == BUDGET - 1


# --- a whole measurement ----------------------------------------------------------------------------------------------

INSTRUMENTS = {"model": [0, 1, 2, 2, 2], "ngram": [0, 1, 2, 3, 3, 3], "dial": [0, 1, 2, 3, 4]}


def measured(pair, prompts, temperatures=(0.0, 0.8), repeats=1, arms=ARMS, instruments=INSTRUMENTS, **sizes):
    return measure(make_bench(pair, **sizes), list(arms), list(temperatures), prompts, repeats, dict(instruments))


def test_every_arm_at_every_temperature_with_every_repeat(pair):
    prompts = [make_prompt(0), make_prompt(1, "prose")]
    found = measured(pair, prompts, repeats=2, budget=12)
    assert not found.interrupted
    for temperature in (0.0, 0.8):
        for arm in [*ARMS, BASELINE_REPEAT]:
            mine = found.of(arm, temperature)
            if temperature and arm.draft == "dial":
                assert mine == [], "the dial replays greedy text"
                continue
            assert [(s.prompt_index, s.prompt_kind, s.n_prompt) for s in mine] == [(0, "code", 9), (1, "prose", 9)]
            for s in mine:
                assert len(s.prefill_seconds) == len(s.decode_seconds) == len(s.texts) == len(s.rounds) == 2
                assert [len(text) for text in s.texts] == [12, 12]
                assert s.counts.n_emitted == 2 * 11
                assert sum(made.n_accepted + 1 for rounds in s.rounds for made in rounds) == 2 * 11
    assert {(r.drafter, r.temperature) for r in found.rounds} == {
        ("model", 0.0), ("ngram", 0.0), ("dial", 0.0), ("model", 0.8), ("ngram", 0.8),
    }  # fmt: skip
    assert len(found.steps) == 2 * 2 * 2 * 11, "the steps of the second baseline, each prompt, repeat and temperature"


def test_no_long_collection_falls_into_a_turn(pair):
    """And what has become garbage in one turn is gone before the next."""
    frozen, circles = [], []

    class Circle:
        pass

    def schedule(decodings, turn):
        frozen.append(gc.get_freeze_count())
        assert all(circle() is None for circle in circles)
        circle = Circle()
        circle.itself = circle
        circles.append(weakref.ref(circle))
        interleaved(decodings, turn)

    measure(make_bench(pair, 6), [BASELINE], [0.0], [make_prompt()], 2, {}, schedule=schedule)
    assert len(frozen) == 2
    assert all(frozen)


def test_order_turns_round_between_prompts_and_repeats(pair, monkeypatch):
    """Whoever moves first among equals on a prompt moves last in its next repeat. Of four prompts of a kind each half,
    those on which a length is chosen and those that are held out, has one in each order."""
    orders, honest = [], harness.take_turns

    def watched(queue, **how):
        orders.append([(d.arm.label, d.arm.draft) for d in queue])
        honest(queue, **how)

    monkeypatch.setattr(harness, "take_turns", watched)
    prompts = [make_prompt(i) for i in range(4)]
    measured(pair, prompts, temperatures=[0.0], repeats=2, budget=4)
    _, first, *rest = orders  # the first of all is the warm-up
    labels = [label for label, _ in first]
    assert labels[0] == "baseline"
    assert labels.index("baseline again") == len(ARMS) // 2 + 1, "the second baseline belongs in the middle"
    assert [draft for label, draft in first if label.startswith("instrument")] == list(INSTRUMENTS)
    last = first[::-1]
    assert rest == [last, last, first, last, first, first, last]
    held_out = rows.halves((prompt.kind, index) for index, prompt in enumerate(prompts))
    for half in (held_out, {0, 1, 2, 3} - held_out):
        assert [first, last] == sorted((orders[index] for index in half), key=lambda order: order != first)


def test_random_numbers_differ_between_prompts_and_repeats_and_not_between_arms(pair):
    """The same prompt twice. k = 0 uses one random number for a token as the baseline does, so it says the same."""
    arms = [BASELINE, Arm("model", "model", 0), Arm("ngram", "ngram", 0), Arm("model", "model", 3)]
    found = measured(pair, [make_prompt(), make_prompt()], temperatures=[0.8], repeats=2, arms=arms)
    texts = {arm: [tuple(t) for s in found.of(arm, 0.8) for t in s.texts] for arm in [*arms, BASELINE_REPEAT]}
    assert all(len(set(found)) == 4 for found in texts.values()), "two turns drew the same random numbers"
    assert texts[BASELINE] == texts[BASELINE_REPEAT] == texts[arms[1]] == texts[arms[2]]
    assert texts[BASELINE] != texts[arms[3]]
    again = measured(pair, [make_prompt(), make_prompt()], temperatures=[0.8], repeats=2, arms=arms)
    assert [s.texts for s in again.lines] == [s.texts for s in found.lines]
    other = measured(pair, [make_prompt(), make_prompt()], temperatures=[0.8], repeats=2, arms=arms, seed=1)
    assert not {tuple(t) for s in other.of(BASELINE, 0.8) for t in s.texts} & set(texts[BASELINE])


# --- turns that are taken once more -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_quiet", [True, False])
def test_turns_are_taken_once_or_twice(is_quiet):
    """Nobody asks in between: a run that stopped at the first quiet moment would measure luck."""
    taken, forgotten = [], []

    def is_enough() -> bool:
        assert len(taken) == 4
        return is_quiet

    for turn, again in once_or_twice("abcd", is_enough, lambda: forgotten.append(len(taken))):
        taken.append((turn, again))
    assert taken[:4] == [(turn, False) for turn in "abcd"]
    assert taken[4:] == [(turn, True) for turn in "abcd"] * (not is_quiet)
    assert forgotten == [4] * (not is_quiet)


class Noisy:
    """A schedule that slows the second baseline down by `factor` in its first `n` turns; the clock is a made-up one."""

    def __init__(self, monkeypatch, target, factor: float, n: int):
        self.machine = Machine(monkeypatch, target, by_width=lambda width: self.speed * (1 + width / 8), draft=0.25)
        self.speed, self.factor, self.n, self.n_turns, self.orders = 1.0, factor, n, 0, []

    def __call__(self, decodings: list[Decoding], turn: int) -> None:
        self.n_turns += 1
        self.orders.append(turn % 2)
        for decoding in decodings:
            self.speed = self.factor if decoding.arm == BASELINE_REPEAT and self.n_turns <= self.n else 1.0
            finish(decoding)
        self.speed = 1.0


def learning_bench(pair) -> Bench:
    """With a draft whose lengths depend on what it has learned from the prompts before."""
    bench = make_bench(pair)
    auto = AutoLength(ModelDrafter(CachedModel(pair[1])))
    auto.costs = {
        t: RoundCosts(tuple(0.2 * n for n in range(9)), tuple(1 + 0.05 * n for n in range(9))) for t in (0.0, 0.8)
    }
    bench.drafters["model auto"] = auto
    return bench


LEARNING = [*ARMS, Arm("model auto", "model auto", 8, auto=True)]


def noisy_run(pair, monkeypatch, factor: float, n: int, n_prompts: int = 4) -> tuple[Measurement, Noisy]:
    """All prompts at two temperatures. Nothing but the made-up clock moves."""
    monkeypatch.setattr(harness, "measure_costs", lambda *args: None)
    monkeypatch.setattr(noise, "FURTHEST", 1.1)
    bench, schedule = learning_bench(pair), Noisy(monkeypatch, pair[0], factor, n)
    prompts = [make_prompt(i) for i in range(n_prompts)]
    return measure(bench, LEARNING, [0.0, 0.8], prompts, 1, {"model": [0, 1, 2]}, schedule=schedule), schedule


def test_noise_is_answered_with_more_turns_and_changes_no_count(pair, monkeypatch, capsys):
    """Texts, rounds and counts are those of a quiet run, also of a draft that learns; seconds are means over turns."""
    quiet, calm = noisy_run(pair, monkeypatch, 1.0, 0)
    assert calm.n_turns == 8
    found, schedule = noisy_run(pair, monkeypatch, 1.5, 8)
    assert 8 < schedule.n_turns == 16, "the mean of 1 and 1.5 is too wide with every prompt"
    assert [a != b for a, b in zip(schedule.orders[:8], schedule.orders[8:], strict=True)] == [True] * 8
    assert "8 turns are taken once more" in capsys.readouterr().err
    for line, right in zip(found.lines, quiet.lines, strict=True):
        assert (line.arm, line.texts, line.counts, line.rounds) == (right.arm, right.texts, right.counts, right.rounds)
        factor = 1.25 if line.arm == BASELINE_REPEAT else 1.0
        assert line.decode_seconds == pytest.approx([factor * right.decode_seconds[0]], rel=1e-6)
        assert line.again == [0]
        assert right.again is None
    assert any(len({made.n_drafted for made in line.rounds[0]}) > 1 for line in found.lines if line.arm == LEARNING[-1])
    assert len(found.rounds) == 2 * len(quiet.rounds), "costs are fitted to the rounds of all turns"


def test_every_prompt_is_timed_as_often_as_the_others(pair, monkeypatch):
    """Two prompts have no interval: with one of them timed again the ratio would be narrow enough, 1.09."""
    found, schedule = noisy_run(pair, monkeypatch, 1.12, 4, n_prompts=2)
    assert schedule.n_turns == 4 + 4
    assert [len(line.again or []) for line in found.of(BASELINE, 0.0)] == [1, 1]


def test_a_turn_that_makes_other_rounds_does_not_count(pair, monkeypatch, capsys):
    """A draft that remembers the whole run makes other rounds the second time: their seconds are of other work."""
    monkeypatch.setattr(Bench, "forget", lambda bench: None)
    found, _ = noisy_run(pair, monkeypatch, 1.5, 8)
    assert "other rounds when it was timed again; no more turns are taken" in capsys.readouterr().err
    assert not found.interrupted
    again = {line.prompt_index: line.again for line in found.lines}
    assert all(line.again == again[line.prompt_index] for line in found.lines), "arms of a prompt stay paired"


def test_the_seconds_up_to_the_end_of_an_answer_are_means_too():
    line = Line.begin(BASELINE, 0.0, 0, "chat", 3)
    line.add(1.0, 2.0, [1, 2], end=End(1, 1.0))
    other = Line.begin(BASELINE, 0.0, 0, "chat", 3)
    other.add(1.0, 4.0, [1, 2], end=End(1, 3.0))
    other.again = [0]
    line.extend(other)
    line.extend(replace(other, decode_seconds=[6.0], ends=[End(1, 5.0)]))
    assert (line.decode_seconds, line.ends) == ([4.0], [End(1, 3.0)])


def test_filters_reach_every_arm(pair):
    """top_k = 1 is greedy at any temperature."""
    bench = make_bench(pair)
    bench.setup.sampling = Sampling(top_k=1)
    found = measure(bench, ARMS, [0.0, 0.8], [make_prompt()], 1, INSTRUMENTS)
    assert len({tuple(text) for s in found.lines for text in s.texts}) == 1


@pytest.mark.parametrize("stopped_at", [0.0, 0.8])
def test_ctrl_c_keeps_whole_prompts(pair, monkeypatch, stopped_at):
    """Interrupted in the third prompt, also behind its first temperature: two prompts stay, complete in every book."""
    prompts = [make_prompt(i) for i in range(4)]
    honest, n_seen = Bench.decoding, []

    def decoding(bench, arm, sampling, prompt, *args, **kwargs):
        if prompt is prompts[2] and sampling.temperature == stopped_at:
            n_seen.append(arm)
            if len(n_seen) == 3:
                raise KeyboardInterrupt
        return honest(bench, arm, sampling, prompt, *args, **kwargs)

    monkeypatch.setattr(Bench, "decoding", decoding)
    found = measured(pair, prompts, repeats=2, budget=8)
    assert found.interrupted
    for temperature in (0.0, 0.8):
        for arm in [*ARMS, BASELINE_REPEAT]:
            usable = temperature == 0 or arm.draft != "dial"
            assert [s.prompt_index for s in found.of(arm, temperature)] == ([0, 1] if usable else [])
    assert all(len(s.decode_seconds) == 1 for s in found.lines), "the second repeat begins behind the last prompt"
    assert len(found.steps) == 2 * 2 * 7
    assert found.wall_seconds == pytest.approx(sum(sum(r.seconds.values()) for r in found.rounds))


def test_warm_up_meets_every_width_before_the_clock_counts(pair, monkeypatch):
    """Kernels and caches see every shape once; nothing of it is booked."""
    machine = Machine(monkeypatch, pair[0])
    instruments = {"model": [*range(6), 5, 5], "ngram": [*range(4), 3, 3]}
    bench = make_bench(pair, budget=50)
    harness._warm_up(bench, ARMS[:-1], [Sampling(0.8)], [make_prompt()], instruments)
    assert {width for who, width, _ in machine.passes if who == "target"} >= set(range(1, 7))
    assert {width for who, width, _ in machine.passes if who == "draft"} >= {1, 2}


def test_measurements_add_up():
    """Prompts count on, so that a sample of the second keeps its own prompt."""
    first, second = make_prompt(0), make_prompt(1)
    one = Measurement(
        None, [first, second], [Line.begin(BASELINE, 0.0, 1, "code", 3)], wall_seconds=1.0, phase_seconds=0.5
    )
    other = Measurement(None, [second], [Line.begin(BASELINE, 0.0, 0, "code", 3)], wall_seconds=2.0, phase_seconds=1.5)
    other.rounds, other.steps = [RoundTime("model", 0.0, 9, 2, 1, {})], [StepTime(0.0, 9, 1.0)]
    other.stop = KeyboardInterrupt()
    one.extend(other)
    assert [timed.prompt for timed in one.rounds + one.steps] == [2, 2]
    assert [one.prompts[s.prompt_index] is second for s in one.lines] == [True, True]
    assert (one.wall_seconds, one.phase_seconds, one.interrupted) == (3.0, 2.0, True)


def test_generate_says_what_the_baseline_says(monkeypatch):
    """The library's loop: greedy only, no end token of the model's own, all of its time in one number."""
    target = tiny("llama")
    target.generation_config.eos_token_id = list(range(VOCAB))  # would end at once
    target.generation_config.repetition_penalty = 2.0
    bench = make_bench((target, target), budget=10)
    found = measure(bench, [BASELINE, GENERATE], [0.0, 0.8], [make_prompt(vocab=VOCAB)], 2, {})
    (theirs,), (ours,) = found.of(GENERATE, 0.0), found.of(BASELINE, 0.0)
    assert theirs.texts == ours.texts
    assert theirs.prefill_seconds == [0.0, 0.0]
    assert len(theirs.decode_seconds) == 2
    assert theirs.counts.n_emitted == ours.counts.n_emitted
    assert found.of(GENERATE, 0.8) == []
    assert len(found.of(BASELINE, 0.8)) == 1


def test_kinds_of_prompts_take_turns():
    """A slow minute of the machine falls on all kinds; every prompt comes once."""
    kinds = ["code"] * 3 + ["prose"] * 2 + ["copy"]
    prompts = [replace(make_prompt(i), kind=kind) for i, kind in enumerate(kinds)]
    order = harness.mixed(prompts)
    assert [kinds[i] for i in order] == ["code", "prose", "copy", "code", "prose", "code"]
    assert sorted(order) == list(range(6))


def test_an_arm_that_learns_is_taught_by_no_other_arm():
    """Rounds of a draft on auto are the same beside other arms of the same draft, and beside its own instrument."""
    target = PlainTransformer(12, seed=3)
    drafter = AutoLength(ModelDrafter(CachedModel(perturbed(target, 0.3))))
    drafter.costs[0.0] = RoundCosts(tuple(0.2 * n for n in range(9)), tuple(1 + 0.05 * n for n in range(9)))
    setup = Setup(CachedModel(target), None, "tiny", Sampling(), CPU, torch.float64)
    arm, prompts = Arm("model auto", "model auto", 8), [make_prompt(seed) for seed in range(4)]
    found = []
    for others in ([], [Arm("model auto", "model auto", 3), Arm(INSTRUMENT, "model auto", 8)]):
        bench, rounds = Bench(setup, {"model auto": drafter}, 40, seed=0), []
        for prompt in prompts:
            decodings = [bench.decoding(one, Sampling(), prompt) for one in [arm, *others]]
            take_turns(decodings)
            rounds.append(decodings[0].rounds)
        found.append(rounds)
    assert found[0] == found[1]
    assert len({pair for rounds in found[0] for pair in rounds}) > 3, "rounds of one kind would show nothing"
    assert not drafter.seen.get(0.0) or drafter.seen[0.0].depths[0].tested == WEIGHT, "it has learned nothing"


class Partial(NgramDrafter):
    """Says that it runs a half of the target's pass itself."""

    pass_share = 0.5


def test_passes_of_which_a_part_is_left_are_told_apart():
    """Instrumented rounds say where the draft ran a part of the target, also in a hybrid: they cost something else."""
    target = CachedModel(tiny("llama"))
    drafters = {"part": Partial(), "both": HybridDrafter(NgramDrafter(), Partial()), "ngram": NgramDrafter()}
    setup = Setup(target, None, "tiny", Sampling(), CPU, torch.float64, {})
    arms = [BASELINE, *(Arm(name, name, 2) for name in drafters)]
    found = measure(
        Bench(setup, drafters, 12, seed=0), arms, [0.0], [make_prompt()], 1, {name: [0, 2] for name in drafters}
    )
    told = {(r.drafter, r.own_verify) for r in found.rounds}
    assert {("part", True), ("both", True), ("ngram", False)} <= told
    assert told <= {("part", True), ("both", True), ("ngram", False), ("both, lookup", False)}
