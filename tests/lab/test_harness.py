"""Arms in turns: nobody is favoured, nobody disturbs another, and the books of rounds and seconds are right.

Where seconds matter the clock is a made-up one (`Machine`): a pass takes what its width and context say, no test waits.
"""

import gc
import random
import weakref
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core import clock
from speclab.core.rounds import Round
from speclab.core.sampling import Sampling
from speclab.drafts.lengths import WEIGHT, AutoLength, RoundCosts
from speclab.lab import harness, instruments
from speclab.lab.bench import Bench
from speclab.lab.harness import interleaved, measure, take_turns
from speclab.lab.instruments import Decoding, VariedLength
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.rows import BASELINE, BASELINE_REPEAT, CONTROL, GENERATE, INSTRUMENT, Arm
from tests.decoding import plain_text
from tests.tiny_models import VOCAB, PlainTransformer, perturbed, tiny

CPU = torch.device("cpu")
BUDGET, LONG = 24, 70
WARM = Sampling(0.8)
LENGTHS = [("model", 2), ("model", 5), ("ngram", 3), ("asking", 4)]
ARMS = [BASELINE, *(Arm(name, name, k) for name, k in LENGTHS)]
INSTRUMENTS = {"model": [0, 1, 2, 2, 2], "ngram": [0, 1, 2, 3, 3, 3], "asking": [0, 1, 2, 3, 4]}


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
        for module in (clock, instruments):
            monkeypatch.setattr(module, "time", fake)
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


class Asking(ModelDrafter):
    """Does not draft before it has the text, as an instrument that replays it."""

    needs_text = True

    def take_text(self, text):
        self.text = text

    def prefill(self, target, prompt, sampling):
        assert sampling.greedy
        assert len(self.text) == BUDGET
        super().prefill(target, prompt, sampling)


def make_bench(pair, budget: int = BUDGET, seed: int = 0, kind: type[Setup] = Setup) -> Bench:
    target, draft = pair
    setup = kind(CachedModel(target), None, "tiny", Sampling(), CPU, torch.float64)
    drafters = {"model": ModelDrafter(CachedModel(draft)), "asking": Asking(CachedModel(draft))}
    drafters["ngram"] = NgramDrafter()
    return Bench(setup, drafters, budget, seed)


def make_prompt(seed: int = 0, kind: str = "code", n: int = 9, vocab: int = 12) -> Prompt:
    ids = torch.randint(0, vocab, (1, n), generator=torch.Generator().manual_seed(seed))
    return Prompt(kind, f"prompt {seed}", ids)


def finish(decoding: Decoding) -> Decoding:
    while not decoding.done:
        decoding.advance()
    return decoding


def measured(pair, prompts, temperatures=(0.0, 0.8), repeats=1, arms=ARMS, instruments=INSTRUMENTS, **sizes):
    return measure(make_bench(pair, **sizes), list(arms), list(temperatures), prompts, repeats, dict(instruments))


# --- turns ------------------------------------------------------------------------------------------------------------


class ScriptedBench(Bench):
    """Its decodings commit as many tokens as dice say, and note each of their steps; no model is run.

    stop_at: the number of the decoding that Ctrl-C meets, warm-up included.
    """

    def __init__(self, seed: int, stop_at: int | None = None):
        drafters = {name: NgramDrafter() for name in INSTRUMENTS}
        super().__init__(Setup(None, None, "tiny", Sampling(), CPU, torch.float64), drafters, LONG, seed)
        self.dice, self.steps, self.asked, self.stop_at = random.Random(seed), [], [], stop_at

    def whole_text(self, prompt):
        return list(range(LONG))

    def decoding(self, arm, sampling, prompt, stream=0, budget=None, lengths=None):
        if len(self.asked) == self.stop_at:
            raise KeyboardInterrupt
        mine = len(self.asked)
        self.asked.append((arm, sampling.temperature, prompt, stream))

        def rounds():
            phases = dict.fromkeys(("draft", "verify", "accept", "rollback", "host"), 0.0)
            left, n = LONG, 1
            while left:
                self.steps.append((mine, n))
                yield Round([7] * n, n - 1, n - 1, 0, prefill=left == LONG, seconds=phases)
                left, n = left - n, min(left - n, self.dice.randint(1, 6))

        return Decoding(arm, rounds(), prompt.ids.shape[1], LONG)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_arms_take_turns(seed, stopped):
    """In each turn the arm that is furthest behind goes next, for sixteen tokens; who is first among equals changes
    from turn to turn; a turn has one stream of random numbers; kinds of prompts alternate; the instruments run beside
    the arms, and a control of each, whose length changes; the second baseline is in the middle. Ctrl-C leaves whole
    prompts."""
    kinds = ["code"] * 3 + ["prose"] * 2 + ["copy"]
    prompts = [make_prompt(i, kind) for i, kind in enumerate(kinds)]
    arms, tools, temperatures = ARMS[: 2 + seed % 3], dict(list(INSTRUMENTS.items())[: seed % 3]), [0.0, 0.8]
    n_arms = n_warm_up = len(arms) + bool(tools) + 2 * len(tools)
    turns = [(repeat, index) for repeat in range(2) for index in (0, 3, 5, 1, 4, 2)]
    n_finished = 1 + seed if stopped else len(turns)
    # Behind the first temperature of its turn, and in the middle of it.
    stop_at = n_warm_up + n_finished * 2 * n_arms + (n_arms + 1 if seed % 2 else 1) if stopped else None
    bench = ScriptedBench(seed, stop_at)
    found = measure(bench, arms, temperatures, prompts, 2, tools)
    assert bool(found.stop) == stopped
    for arm in [*arms, BASELINE_REPEAT] if tools else arms:
        for temperature in temperatures:
            n_repeats = {line.prompt_index: len(line.decode_seconds) for line in found.of(arm, temperature)}
            assert n_repeats == Counter(sorted(index for _, index in turns[:n_finished])), arm
            assert all(line.n_prompt == 9 and line.prompt_kind == kinds[line.prompt_index] for line in found.lines)
            assert all(line.n_emitted == len(line.texts) * (LONG - 1) for line in found.lines)
    assert {one.drafter for one in found.rounds} == set(tools)
    assert bool(found.steps) == bool(tools)
    every = [arm for arm, *_ in bench.asked[:n_warm_up] if arm.method != CONTROL]
    assert [arm.draft for arm in every if arm.method == INSTRUMENT] == list(tools)
    assert not tools or every.index(BASELINE_REPEAT) == (len(arms) + 1) // 2
    streams, lengths = set(), dict[str, set[int]]()
    for turn in range(n_finished):
        first = n_warm_up + turn * 2 * n_arms
        asked = bench.asked[first : first + 2 * n_arms]
        assert [one[0] for one in asked if one[0].method != CONTROL] == every * 2
        for before, (arm, *_) in pairwise(asked):
            if arm.method == CONTROL:
                assert arm == replace(before[0], method=CONTROL)
                lengths.setdefault(arm.draft, set()).add(arm.draft_length)
        assert sorted(one[0].draft for one in asked if one[0].method == CONTROL) == sorted([*tools] * 2)
        assert [one[1] for one in asked] == [0.0] * n_arms + [0.8] * n_arms
        assert {one[2].text for one in asked} == {prompts[turns[turn][1]].text}
        (stream,) = {one[3] for one in asked}
        streams.add(stream)
        for numbers in (range(first, first + n_arms), range(first + n_arms, first + 2 * n_arms)):
            steps = [step for step in bench.steps if step[0] in numbers]
            assert_least_goes_next(steps, list(numbers)[:: (-1) ** sum(turns[turn])])
    assert len(streams) == n_finished
    if n_finished > 2:
        assert lengths == {draft: {arm.draft_length for arm in arms if arm.draft == draft} for draft in tools}
    assert not tools or {r.drafter for r in found.controls} == set(tools)


@pytest.mark.parametrize("sizes", [(4,), (1, 5), (1, 1, 2), (5, 4, 2)])
def test_a_control_has_every_length_with_every_kind_of_prompt(sizes):
    prompts = [make_prompt(i, kind) for kind, size in enumerate(sizes) for i in range(size)]
    measure(bench := ScriptedBench(0), ARMS, [0.0], prompts, 4, INSTRUMENTS)
    found = {(arm.draft, arm.draft_length, prompt.kind) for arm, _, prompt, _ in bench.asked if arm.method == CONTROL}
    assert len(found) == len(sizes) * sum(arm.draft in INSTRUMENTS for arm in ARMS)


def assert_least_goes_next(steps: list[tuple[int, int]], queue: list[int]) -> None:
    """Of the arms in this order; each step is (arm, tokens). An arm goes on until it is STRIDE tokens further."""
    reached, going, goal = dict.fromkeys(queue, 0), None, 0
    for arm, n in steps:
        if going is None:
            going = min((one for one in queue if reached[one] < LONG), key=reached.__getitem__)
            goal = min(reached[going] + 16, LONG)
        assert arm == going, "neither the first of those furthest behind, nor the one that has not gone its way"
        reached[arm] += n
        going = None if reached[arm] >= goal else going
    assert set(reached.values()) == {LONG}


@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(1.0, top_k=5, top_p=0.9)], ids=str)
def test_side_by_side_as_alone(pair, sampling):
    """Every decoding has caches and random numbers of its own: turns change nothing in what is decoded."""
    prompt = make_prompt(1)

    def every() -> list[Decoding]:
        bench, arms = make_bench(pair), [arm for arm in [*ARMS, BASELINE_REPEAT] if sampling.greedy or arm != ARMS[-1]]
        tools = {Arm(INSTRUMENT, name, 4): [0, 1, 2, 3, 4] for name in ("model", "ngram")}
        return [bench.decoding(arm, sampling, prompt, 5, lengths=tools.get(arm)) for arm in [*arms, *tools]]

    alone, together = [finish(decoding) for decoding in every()], every()
    take_turns(together[::-1])
    for one, other in zip(alone, together, strict=True):
        assert (one.tokens, one.rounds) == (other.tokens, other.rounds), one.arm
    if sampling.greedy:
        text = plain_text(CachedModel(pair[0]), prompt.ids, BUDGET)
        assert all(decoding.tokens == text for decoding in together), "an instrument changed the text"
    tried = [made for decoding in together for made in decoding.rounds]
    assert any(0 < accepted < drafted for drafted, accepted, _ in tried)
    assert any(0 < accepted == drafted for drafted, accepted, _ in tried)


# --- the instrument ---------------------------------------------------------------------------------------------------


def test_every_length_equally_often():
    """Once each in every run through the list, in an order that changes, and never more than k."""
    lengths, asked = [0, 1, 2, 3, 4, 2, 2], []
    inner = SimpleNamespace(propose=lambda k, uniforms: asked.append((k, uniforms.shape[1])))
    varied = VariedLength(inner, lengths, seed=0)
    for _ in range(10 * len(lengths)):
        varied.propose(4, torch.zeros(1, 4))
    cycles = [[k for k, _ in asked[i : i + 7]] for i in range(0, 70, 7)]
    assert all(sorted(cycle) == sorted(lengths) for cycle in cycles)
    assert len(set(map(tuple, cycles))) > 5
    assert all(k == width for k, width in asked)
    asked.clear()
    for _ in range(5 * len(lengths)):
        varied.propose(3, torch.zeros(1, 3))
    assert Counter(k for k, _ in asked) == Counter(min(3, k) for k in lengths * 5)


@pytest.mark.parametrize("tick", [0.0, 0.001])
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=str)
@pytest.mark.parametrize("name", ["model", "ngram"])
def test_instrument_notes_what_really_happened(pair, monkeypatch, name, sampling, tick):
    """Context, drafted tokens, catch-up and phases of every round against the passes that were made. A clock that moves
    whenever it is read leaves time between the phases; the host gets all of it."""
    machine = Machine(monkeypatch, pair[0], by_width=lambda width: 1 + width / 8, slope=0.01, tick=tick)
    bench, arm = make_bench(pair, budget=50), Arm(INSTRUMENT, name, 4)
    decoding = bench.decoding(arm, sampling, make_prompt(4), stream=2, lengths=[0, 0, 1, 2, 3, 4])
    passes = []
    decoding.advance()
    while not decoding.done:
        machine.passes.clear()
        decoding.advance()
        passes.append(list(machine.passes))
    caught_up, times = set(), decoding.times(sampling.temperature)
    for seen, (context, wall, _), (*drafting, verifying) in zip(times, decoding.log, passes, strict=True):
        assert (seen.drafter, seen.temperature, seen.context) == (name, sampling.temperature, context)
        assert verifying == ("target", seen.n_drafted + 1, seen.context), "not the tokens in the target's cache"
        widths = [width for who, width, _ in drafting if who == "draft"]
        assert len(widths) == len(drafting) == (seen.n_drafted if name == "model" else 0)
        assert widths[:1] in ([], [seen.catch_up])
        assert set(widths[1:]) <= {1}
        caught_up |= set(widths[:1])
        assert seen.draft + seen.verify + seen.rest == pytest.approx(wall, rel=1e-12)
        assert seen.verify == pytest.approx(1 + (seen.n_drafted + 1) / 8 + 0.01 * context + tick)
        assert seen.draft == pytest.approx(0.25 * len(widths) + tick)
        assert seen.rest >= 1.5 * tick, "what lies outside the phases was lost"
    assert decoding.decode_seconds == pytest.approx(sum(wall for _, wall, _ in decoding.log))
    assert decoding.prefill_seconds == pytest.approx(200 if name == "model" else 100, abs=0.1), "each reads the prompt"
    assert name == "ngram" or {1, 2, 3} <= caught_up, "a draft that waited through rounds without a draft was not seen"
    assert any(made.n_accepted for made in decoding.rounds)


@pytest.mark.parametrize(("kind", "sizes"), [(Setup, [1] * 37), (InBlocks, [16, 16, 5])])
def test_blocks_of_a_device_make_one_observation_each(pair, monkeypatch, kind, sizes):
    """On a GPU 16 passes wait for one fetch. Their mean stands at the middle of the block; the last may be shorter."""
    machine = Machine(monkeypatch, pair[0], slope=0.01)
    text = finish(make_bench(pair, 38).decoding(BASELINE, WARM, make_prompt())).tokens
    machine.passes.clear()
    decoding = finish(make_bench(pair, 38, kind=kind).decoding(BASELINE, WARM, make_prompt()))
    assert decoding.tokens == text
    contexts = iter([context for *_, context in machine.passes])
    for step, n in zip(decoding.times(0.8), sizes, strict=True):
        mean = sum(next(contexts) for _ in range(n)) / n
        assert (step.temperature, step.verify) == (0.8, pytest.approx(1 + 0.01 * mean))
        assert abs(step.context - mean) <= 0.5
    assert decoding.decode_seconds == pytest.approx(sum(1 + 0.01 * context for *_, context in machine.passes))


# --- a whole measurement ----------------------------------------------------------------------------------------------


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


def test_random_numbers_differ_between_prompts_and_repeats_and_not_between_arms(pair):
    """The same prompt twice. k = 0 uses one random number for a token as the baseline does, so it says the same."""
    arms = [BASELINE, Arm("model", "model", 0), Arm("ngram", "ngram", 0), Arm("model", "model", 3)]
    found = measured(pair, [make_prompt(), make_prompt()], temperatures=[0.8], repeats=2, arms=arms)
    texts = {arm: [tuple(t) for s in found.of(arm, 0.8) for t in s.texts] for arm in [*arms, BASELINE_REPEAT]}
    assert all(len(set(found)) == 4 for found in texts.values()), "two turns drew the same random numbers"
    assert texts[BASELINE] == texts[BASELINE_REPEAT] == texts[arms[1]] == texts[arms[2]]
    assert texts[BASELINE] != texts[arms[3]]
    other = measured(pair, [make_prompt(), make_prompt()], temperatures=[0.8], repeats=2, arms=arms, seed=1)
    assert not {tuple(t) for s in other.of(BASELINE, 0.8) for t in s.texts} & set(texts[BASELINE])


def test_filters_reach_every_arm(pair):
    """top_k = 1 is greedy at any temperature."""
    bench = make_bench(pair)
    bench.setup.sampling = Sampling(top_k=1)
    found = measure(bench, ARMS, [0.0, 0.8], [make_prompt()], 1, INSTRUMENTS)
    assert len({tuple(text) for line in found.lines for text in line.texts}) == 1


def test_warm_up_meets_every_width_before_the_clock_counts(pair, monkeypatch):
    """Kernels and caches see every shape once; nothing of it is booked."""
    machine = Machine(monkeypatch, pair[0])
    tools = {Arm(INSTRUMENT, "model", 5): [*range(6), 5, 5], Arm(INSTRUMENT, "ngram", 3): [*range(4), 3, 3]}
    harness._warm_up(make_bench(pair, budget=50), ARMS[:-1], [WARM], [make_prompt()], tools)
    assert {width for who, width, _ in machine.passes if who == "target"} >= set(range(1, 7))
    assert {width for who, width, _ in machine.passes if who == "draft"} >= {1, 2}


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
