"""Both decoders on the same prompts, in turns: the measurements that compare.py and its plans are made of.

The arms of one prompt decode side by side, each with caches of its own over the same weights. The arm with the fewest
tokens goes next, for STRIDE tokens. A shared machine changes its speed within a tenth of a second; arms that take turns
this often run on the same machine state and are always near the same position of the text. They do not change after
every round: the first pass behind another arm finds the processor's caches full of what that one read, and so the
baseline, whose rounds give one token each, would pay for that more often than the others.

Beside the timed arms run two kinds of instrument, which give the costs that explain the timed arms' speedups: the
baseline once more (its distance from the first one is the noise floor), and for every draft one decoding with a clock
on each phase of a round, whose draft lengths change from round to round. The clock and the changes make rounds longer.
So each draft also has a control, one of its timed arms once more in the same turn, and its costs are scaled to the
seconds of that (theory/costs.py).
"""

import contextlib
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from speclab.core.clock import old_objects_frozen
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts.lengths import LONGEST
from speclab.lab.bench import Bench
from speclab.lab.instruments import Decoding
from speclab.lab.round_costs import measure_costs
from speclab.models.prompts import Prompt
from speclab.records.rows import BASELINE, BASELINE_REPEAT, CONTROL, INSTRUMENT, Arm, Decoded
from speclab.system.errors import Problem, is_out_of_memory
from speclab.system.terminal import note, progress
from speclab.theory.costs import RoundTime

WARM_UP_TOKENS = 24
STRIDE = 16  # tokens that an arm decodes before the next one goes on
COST_PROMPTS = 2  # on which the costs of rounds are measured for -k auto and hybrid


@contextlib.contextmanager
def kept_when_stopped(complete: Callable[[], str]) -> Iterator[list[BaseException]]:
    """Keep what is measured where Ctrl-C, a Problem or lack of memory ends the code inside: the exception is put into
    the list that the context gives. complete() says what is complete; where that is "", the exception is raised."""
    stops: list[BaseException] = []
    try:
        yield stops
    except BaseException as stop:
        expected = isinstance(stop, KeyboardInterrupt | Problem) or is_out_of_memory(stop)
        if not expected or not (what := complete()):
            raise
        note(f"stopped{f' by: {stop}' if str(stop) else ''}; {what}")
        stops.append(stop)


@dataclass
class Measurement:
    """Everything that was timed on some prompts: only of those that every arm has finished."""

    bench: Bench
    prompts: list[Prompt]
    lines: list[Decoded] = field(default_factory=list)
    rounds: list[RoundTime] = field(default_factory=list)  # of the instrumented decodings
    controls: list[RoundTime] = field(default_factory=list)
    steps: list[RoundTime] = field(default_factory=list)  # of the second baseline
    correctness: list[dict] = field(default_factory=list)  # what speclab/lab/comparison.py says
    stop: BaseException | None = None  # what ended the run early

    def of(self, arm: Arm, temperature: float) -> list[Decoded]:
        return [line for line in self.lines if line.arm == arm and line.temperature == temperature]

    def book(self, decoding: Decoding, temperature: float, index: int) -> None:
        """Keep what a decoding of this prompt gave: an instrument or a control its rounds, every other arm one more
        repeat, the second baseline both."""
        arm = decoding.arm
        if arm.method in (INSTRUMENT, CONTROL):
            (self.rounds if arm.method == INSTRUMENT else self.controls).extend(decoding.times(temperature))
            return
        if arm == BASELINE_REPEAT:
            self.steps += decoding.times(temperature)
        line = next((one for one in self.of(arm, temperature) if one.prompt_index == index), None)
        if line is None:
            line = Decoded.begin(arm, temperature, index, self.prompts[index].kind, decoding.n_prompt)
            line.lossy_rule = self.bench.lossy_rule(arm)
            line.loops = (arm == BASELINE and decoding.budget < self.bench.max_new_tokens) or None
            self.lines.append(line)
        counts = decoding.counts if arm.speculative else None  # the baseline: a pass for a token
        line.add(decoding.prefill_seconds, decoding.decode_seconds, decoding.tokens, counts, decoding.rounds)


def take_turns(arms: Sequence[Any], after_step: Callable[[Any], None] | None = None, stride: float = 0.0) -> None:
    """Finish them all; the one that is least far goes next, the first of the sequence among equals.

    arms: at work on a text, a batch, or requests to a server. Each has `advance`, which does a step, `progress` in a
    unit that all share, and `done`. after_step: is called with the arm that has made a step. stride: how far an arm
    goes, at least one step, before the next one is chosen.
    """
    while waiting := [arm for arm in arms if not arm.done]:
        moved = min(waiting, key=lambda arm: arm.progress)
        goal = moved.progress + stride
        while True:
            moved.advance()
            if after_step:
                after_step(moved)
            if moved.done or moved.progress >= goal:
                break


def interleaved(decodings: list[Decoding], number: int) -> None:
    """Finish the decodings of one turn. Who is first among equals changes with this number, prompt index + repeat."""
    take_turns(decodings if number % 2 == 0 else decodings[::-1], stride=STRIDE)


def mixed(prompts: list[Prompt]) -> list[int]:
    """Indexes of the prompts, the kinds taking turns: a slow minute of the machine must not fall on one kind alone."""
    queues: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        queues.setdefault(prompt.kind, []).append(index)
    return [i for one_of_each in itertools.zip_longest(*queues.values()) for i in one_of_each if i is not None]


def measure(
    bench: Bench,
    arms: list[Arm],
    temperatures: list[float],
    prompts: list[Prompt],
    repeats: int,
    instruments: dict[str, list[int]],
    title: str = "measuring",
    schedule: Callable[[list[Decoding], int], None] = interleaved,
) -> Measurement:
    """Decode all prompts with all arms, in turns. Ctrl-C keeps the turns that every arm has finished.

    instruments: for each draft the lengths that its instrumented decoding tries; without lengths it has none. With any
    draft the baseline, the first of `arms`, runs twice. schedule: finishes the decodings of a turn (see `interleaved`).
    """
    if instruments:
        middle = (len(arms) + 1) // 2  # half a round of turns away from the first, as the other arms are on average
        arms = [*arms[:middle], BASELINE_REPEAT, *arms[middle:]]
    tools = {Arm(INSTRUMENT, draft, max(lengths)): lengths for draft, lengths in instruments.items() if lengths}
    measured = Measurement(bench, prompts)
    samplings = [bench.setup.sampling_at(temperature) for temperature in temperatures]
    turns = [(repeat, index) for repeat in range(repeats) for index in mixed(prompts)]
    owns = [own for one in tools if (own := [arm for arm in arms if arm.draft == one.draft])]
    kinds, n_seen = list(dict.fromkeys(prompt.kind for prompt in prompts)), Counter[str]()

    def complete() -> str:
        n = len({line.prompt_index for line in measured.lines})
        return f"{n} prompt{'s are' if n != 1 else ' is'} complete" if n else ""

    _warm_up(bench, arms, samplings, prompts, tools)
    with (
        kept_when_stopped(complete) as stops,
        progress(len(turns) * len(samplings), "turn", title) as bar,
        old_objects_frozen(),
    ):
        for repeat, index in turns:
            kind = prompts[index].kind  # each kind meets one length after the other, and begins with another one
            twins = [own[(kinds.index(kind) + n_seen[kind]) % len(own)] for own in owns]
            n_seen[kind] += 1
            asked = [one for arm in arms for one in (arm, replace(arm, method=CONTROL))[: 1 + (arm in twins)]]
            stream = repeat * 100_003 + index  # another one for every prompt and repeat, the same for every arm
            finished: list[tuple[Decoding, float]] = []
            for sampling in samplings:
                budget = bench.budget(prompts[index], sampling)
                decodings = [
                    bench.decoding(arm, sampling, prompts[index], stream, budget, tools.get(arm))
                    for arm in [*asked, *tools]
                    if sampling.greedy or not bench.greedy_only(arm)
                ]
                schedule(decodings, index + repeat)
                finished += [(decoding, sampling.temperature) for decoding in decodings]
                bar.update()
            gc.collect()  # between the times, what has become garbage inside; the rest is frozen
            for decoding, temperature in finished:  # only now: every arm has finished this prompt
                measured.book(decoding, temperature, index)
    measured.stop = next(iter(stops), None)
    measured.lines.sort(key=lambda line: line.prompt_index)
    return measured


def _warm_up(
    bench: Bench, arms: list[Arm], samplings: list[Sampling], prompts: list[Prompt], tools: dict[Arm, list[int]]
) -> None:
    """Meet every shape once before the clock counts, and give drafts that choose by them the costs of their rounds."""
    budget = min(WARM_UP_TOKENS, bench.max_new_tokens)
    used = dict.fromkeys(arm.draft for arm in arms if arm.draft)
    priced = [drafter for name in used if (drafter := bench.drafters[name]).costs is not None]
    lengths = {arm.draft_length for arm in arms if arm.draft}.union(range(LONGEST + 1) if priced else ())
    longest = max(prompt.ids.shape[1] for prompt in prompts) + bench.max_new_tokens + max(lengths, default=0)
    on_graphs = bench.prepare(lengths, samplings, longest)
    # The first prompt, sampled if anything is; on CUDA graphs both, for what draws tokens is recorded, too.
    for sampling in samplings if on_graphs else [max(samplings, key=lambda s: s.temperature)]:
        controls = [replace(tool, method=CONTROL) for tool in tools]  # they need graph caches of their own
        tried = {arm: sorted(set(tools.get(arm, ()))) for arm in [*arms, *tools, *controls]}
        take_turns([bench.decoding(arm, sampling, prompts[0], 0, budget, tried[arm]) for arm in tried])
    bench.taught.clear()
    timed = [prompts[index].ids.to(bench.setup.device) for index in mixed(prompts)[:COST_PROMPTS]]
    for drafter, sampling in itertools.product(priced, samplings):
        settings = DecodeSettings(bench.max_new_tokens, sampling, seed=bench.seed)
        measure_costs(bench.functions, bench.setup.target, drafter, timed, settings)
