"""Both decoders on the same prompts, in turns: the measurements that compare.py and its plans are made of.

The arms of one prompt decode side by side, each with caches of its own over the same weights. The arm with the fewest
tokens goes next, for STRIDE tokens. A shared machine changes its speed within a tenth of a second; arms that take turns
this often run on the same machine state and are always near the same position of the text. They do not change after
every round: the first pass behind another arm finds the processor's caches full of what that one read, and so the
baseline, whose rounds give one token each, would pay for that more often than the others.

Beside the timed arms run two kinds of instrument, which give the costs that explain the timed arms' speedups: the
baseline once more (its distance from the first one is the noise floor), and for every draft one decoding with a clock
on each phase of a round, whose draft lengths change from round to round.

Where the noise floor is too wide after the last turn, the same turns are taken once more, with the same random numbers
and with drafts that have forgotten what they learned. So texts and counts are the same, and only seconds are averaged.
"""

import contextlib
import functools
import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts.lengths import LONGEST
from speclab.lab.bench import Bench
from speclab.lab.decodings import Decoding
from speclab.lab.round_costs import measure_costs
from speclab.lab.turns import Recorded, once_or_twice, take_turns, timed_turns
from speclab.models.prompts import Prompt
from speclab.records.arms import BASELINE, BASELINE_REPEAT, INSTRUMENT, LOOKUP, Arm
from speclab.records.log import Line
from speclab.records.rows import as_written
from speclab.system.errors import Problem, is_out_of_memory
from speclab.system.terminal import note, progress
from speclab.theory import attribution
from speclab.theory.attribution import noise_floor
from speclab.theory.costs import RoundTime, StepTime, catch_ups

WARM_UP_TOKENS = 24
STRIDE = 16  # tokens that an arm decodes before the next one goes on
COST_PROMPTS = 2  # on which the costs of rounds are measured for -k auto and hybrid


@contextlib.contextmanager
def kept_when_stopped(complete: Callable[[], str]) -> Iterator[list[BaseException]]:
    """Keep what is measured where Ctrl-C, a Problem or lack of memory ends the code inside.

    complete() is called at that moment and returns, in words, what is complete. The words are printed, and the
    exception is put into the list that the context gives instead of being raised. Where complete() returns "", the
    exception is raised.
    """
    stops: list[BaseException] = []
    try:
        yield stops
    except BaseException as stop:
        expected = isinstance(stop, KeyboardInterrupt | Problem) or is_out_of_memory(stop)
        if not expected or not (what := complete()):
            raise
        note(f"stopped by: {stop}; {what}" if str(stop) else f"stopped; {what}")
        stops.append(stop)


class OtherRounds(Exception):
    """A turn that was taken again made other rounds than before, so its seconds are those of other work."""


@dataclass
class Measurement:
    """Everything that was timed on some prompts. `lines` holds only prompts that every arm finished."""

    bench: Bench
    prompts: list[Prompt]
    lines: list[Line] = field(default_factory=list)
    rounds: list[RoundTime] = field(default_factory=list)  # of the instrumented decodings
    steps: list[StepTime] = field(default_factory=list)  # of the second baseline
    correctness: list[dict] = field(default_factory=list)  # what speclab/lab/output_checks.py says
    unchecked: list[str] = field(default_factory=list)  # the arms whose texts it has not judged, or not all
    wall_seconds: float = 0.0  # of the instrumented rounds, and what their phases add up to
    phase_seconds: float = 0.0
    graphs: Recorded = field(default_factory=Recorded)
    stop: BaseException | None = None  # what ended it early

    @property
    def interrupted(self) -> bool:
        """Whether something ended it early."""
        return self.stop is not None

    def of(self, arm: Arm, temperature: float) -> list[Line]:
        """The lines of one arm at one temperature."""
        return [s for s in self.lines if s.arm == arm and s.temperature == temperature]

    def extend(self, other: "Measurement") -> None:
        """Add a measurement of the same target on the same machine; its prompts count on from these."""
        n = len(self.prompts)
        self.lines += [replace(line, prompt_index=line.prompt_index + n) for line in other.lines]
        self.prompts = [*self.prompts, *other.prompts]
        self.rounds += [one._replace(prompt=one.prompt + n) for one in other.rounds]
        self.steps += [one._replace(prompt=one.prompt + n) for one in other.steps]
        self.correctness += other.correctness
        self.unchecked += other.unchecked
        self.wall_seconds += other.wall_seconds
        self.phase_seconds += other.phase_seconds
        self.graphs.before = max(self.graphs.before, other.graphs.before)
        self.graphs.in_turns += other.graphs.in_turns
        self.stop = self.stop or other.stop

    @contextlib.contextmanager
    def kept(self, complete: str) -> Iterator[None]:
        """As `kept_when_stopped`; the first exception is also kept in `stop`."""
        with kept_when_stopped(lambda: complete) as stops:
            yield
        if stops and not self.stop:
            self.stop = stops[0]

    def add(self, decoding: Decoding, temperature: float, prompt: int = 0) -> None:
        """Keep what an instrument measured. prompt: its index."""
        if not decoding.arm.speculative:
            for context, seconds, chunk in decoding.log:
                n = len(chunk.tokens)
                self.steps.append(StepTime(temperature, context + n // 2, seconds / n, prompt))
            return
        for (context, seconds, round_), n_waiting in zip(decoding.log, catch_ups(decoding.rounds), strict=True):
            phases = dict(round_.seconds or {})
            in_phases = sum(phases.values())
            self.wall_seconds += seconds
            self.phase_seconds += in_phases
            phases["host"] += seconds - in_phases
            name = decoding.arm.draft + LOOKUP * round_.looked_up
            what = (name, temperature, context, round_.n_drafted, 1 if round_.looked_up else n_waiting, phases)
            own_verify = decoding.own_verify and not round_.looked_up
            self.rounds.append(RoundTime(*what, prompt, own_verify, round_.n_replays))


def interleaved(decodings: list[Decoding], turn: int) -> None:
    """Finish the decodings of one turn side by side; who is first among equals changes from turn to turn."""
    take_turns(decodings if turn % 2 == 0 else decodings[::-1], stride=STRIDE)


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
    """All arms over all prompts, in turns. Ctrl-C keeps the turns that every arm has finished.

    `instruments`: for each draft the lengths that its instrumented decoding tries; with any of them the baseline, which
    is the first of `arms`, runs a second time, too. `schedule` finishes the decodings of a turn; it gets them and the
    turn's number. With a second baseline, turns are taken again where the noise floor is too wide (`once_or_twice`).
    """
    if instruments:
        middle = (len(arms) + 1) // 2  # half a round of turns away from the first, as the other arms are on average
        arms = [*arms[:middle], BASELINE_REPEAT, *arms[middle:]]
    measured = Measurement(bench, prompts)
    lines: dict[tuple[int, float, Arm], Line] = {}
    samplings = [bench.setup.sampling_at(temperature) for temperature in temperatures]
    turns = [(repeat, index) for repeat in range(repeats) for index in mixed(prompts)]

    def complete() -> str:
        n = len({index for index, *_ in lines})
        return f"{n} prompt{'s are' if n != 1 else ' is'} complete" if n else ""

    n_turns = len(turns) * len(temperatures)
    warm_up = functools.partial(_warm_up, bench, arms, samplings, prompts, instruments)
    with (
        kept_when_stopped(complete) as stops,
        progress(n_turns, "turn", title) as bar,
        timed_turns(measured.graphs, warm_up),
    ):

        def begin_again() -> None:
            bench.forget()  # an arm that learns has learned as much as before in every turn
            bar.total += n_turns
            note(f"{title}: the baseline differs too much from itself; {n_turns} turns are taken once more")

        try:
            for (repeat, index), is_again in once_or_twice(turns, lambda: _is_quiet(lines), begin_again):
                finished: list[tuple[Decoding, Line]] = []
                for sampling in samplings:
                    decodings = _one_turn(bench, index, repeat, arms, sampling, prompts[index], instruments)
                    # In both orders in both `halves`, and in the other order when it is taken again.
                    schedule(decodings, index + index // 2 + repeat + is_again)
                    done = [(decoding, _line_of(bench, decoding, sampling, prompts, index)) for decoding in decodings]
                    if is_again:
                        _mark_again(lines, [line for _, line in done], repeat)
                    finished += done
                    bar.update()
                gc.collect()  # between the times, what has become garbage inside; the rest is frozen
                for decoding, line in finished:  # only now: every arm has finished this prompt
                    _book(measured, lines, decoding, line)
        except OtherRounds as differs:
            note(f"{differs}; no more turns are taken")
    measured.stop = stops[0] if stops else None
    measured.lines = sorted(lines.values(), key=lambda line: line.prompt_index)
    return measured


def _is_quiet(lines: dict[tuple[int, float, Arm], Line]) -> bool:
    """Tell whether no noise floor is too wide so far; there is none without a second baseline."""
    by_temperature: dict[float, tuple[list[Line], list[Line]]] = {}
    for (_, temperature, arm), line in lines.items():
        if arm in (BASELINE, BASELINE_REPEAT):
            by_temperature.setdefault(temperature, ([], []))[arm == BASELINE_REPEAT].append(line)
    return attribution.too_wide(filter(None, (noise_floor(*both) for both in by_temperature.values()))) is None


def _mark_again(lines: dict[tuple[int, float, Arm], Line], again: list[Line], repeat: int) -> None:
    """Mark the lines of a turn that is taken once more.

    Raises OtherRounds where an arm has not done the same work as before.
    """
    for line in again:
        line.again = [repeat]
        before = lines.get((line.prompt_index, line.temperature, line.arm))
        if before and (before.texts[repeat], before.rounds[repeat]) != (line.texts[0], line.rounds[0]):
            raise OtherRounds(f"{line.arm.label}, prompt {line.prompt_index}: other rounds when it was timed again")


def _line_of(bench: Bench, decoding: Decoding, sampling: Sampling, prompts: list[Prompt], index: int) -> Line:
    """What a decoding of prompt number `index` leaves behind."""
    line = Line.begin(decoding.arm, sampling.temperature, index, prompts[index].kind, decoding.n_prompt)
    line.lossy_rule = bench.lossy_rule(decoding.arm)
    line.loops = (decoding.arm == BASELINE and decoding.budget < bench.max_new_tokens) or None
    line.add(
        as_written(decoding.prefill_seconds),
        as_written(decoding.decode_seconds),
        decoding.tokens,
        decoding.counts if decoding.arm.speculative else None,  # the baseline: a pass for a token
        decoding.rounds,
        decoding.end(bench.setup.eos) if prompts[index].chat else None,
    )
    return line


def _book(measured: Measurement, lines: dict[tuple[int, float, Arm], Line], decoding: Decoding, line: Line) -> None:
    """Keep what a decoding gave: an instrument its costs, every other arm its line."""
    arm, key = decoding.arm, (line.prompt_index, line.temperature, decoding.arm)
    if arm.method == INSTRUMENT or arm == BASELINE_REPEAT:
        measured.add(decoding, line.temperature, line.prompt_index)
    if arm.method == INSTRUMENT:
        return
    if key in lines:
        lines[key].extend(line)
    else:
        lines[key] = line


def mixed(prompts: list[Prompt]) -> list[int]:
    """Indexes of the prompts, the kinds taking turns: a slow minute of the machine must not fall on one kind alone."""
    queues: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        queues.setdefault(prompt.kind, []).append(index)
    longest = max(map(len, queues.values()))
    return [queue[i] for i in range(longest) for queue in queues.values() if i < len(queue)]


def _one_turn(
    bench: Bench,
    index: int,
    repeat: int,
    arms: list[Arm],
    sampling: Sampling,
    prompt: Prompt,
    instruments: dict[str, list[int]],
) -> list[Decoding]:
    """Every arm and every instrument that can decode like this, ready to work on one prompt."""
    stream = repeat * 100_003 + index  # another one for every prompt and repeat, the same for every arm
    budget = bench.budget(prompt, sampling)
    instrumented = {Arm(INSTRUMENT, draft, max(lengths)): lengths for draft, lengths in instruments.items()}
    return [  # an instrument's rounds say what they cost, whatever the text: it decodes all of it
        bench.decoding(
            arm, sampling, prompt, stream, None if arm in instrumented else budget, lengths=instrumented.get(arm)
        )
        for arm in [*arms, *instrumented]
        if sampling.greedy or not bench.greedy_only(arm)
    ]


def _warm_up(
    bench: Bench, arms: list[Arm], samplings: list[Sampling], prompts: list[Prompt], instruments: dict[str, list[int]]
) -> None:
    """Meet every shape once before the clock counts."""
    budget = min(WARM_UP_TOKENS, bench.max_new_tokens)
    used = [bench.drafters[arm.draft] for arm in arms if arm.draft]
    priced = {name: d for name, d in bench.drafters.items() if d in used and d.costs is not None}
    lengths = {arm.draft_length for arm in arms if arm.draft}.union(range(LONGEST + 1) if priced else ())
    longest = max(prompt.ids.shape[1] for prompt in prompts) + bench.max_new_tokens + max(lengths, default=0)
    bench.prepare(lengths, samplings, longest)
    # The first prompt, sampled if anything is; on CUDA graphs both, for what draws tokens is recorded, too.
    chosen = samplings if bench.on_graphs else [max(samplings, key=lambda s: s.temperature)]
    for sampling in chosen:
        prompt = prompts[0]
        decodings = [bench.decoding(arm, sampling, prompt, budget=budget) for arm in arms]
        for draft, tried in instruments.items():
            arm = Arm(INSTRUMENT, draft, max(tried))
            decodings.append(bench.decoding(arm, sampling, prompt, lengths=sorted(set(tried))))
        take_turns(decodings)
        for decoding in decodings:  # reading gives the events back, which later rounds then need not make
            for _, _, round_ in decoding.log:
                dict(round_.seconds or {})
    bench.forget()
    timed = [prompts[index].ids.to(bench.setup.device) for index in mixed(prompts)[:COST_PROMPTS]]
    for drafter, sampling in itertools.product(priced.values(), samplings):
        settings = DecodeSettings(bench.max_new_tokens, sampling, seed=bench.seed)
        measure_costs(bench.functions, bench.setup.target, drafter, timed, settings)
