"""The same requests, 1, 2, 4, ... at a time, token by token and with every draft at every length.

Speedups are over plain decoding of as many texts at a time on the same engine; they and the rates are of the rounds in
which every row had a text. What is predicted is made from one text at a time, never from the batches that it is held
against.
"""

from dataclasses import replace

from speclab.extensions.batch import batch_rows
from speclab.extensions.batch.batch_record import BatchRun
from speclab.extensions.batch.decoding.batched_model import check_batch
from speclab.extensions.batch.decoding.drafters import check_drafter, shared_model
from speclab.extensions.batch.expectations import Expectations, OfOne, Way, make_timer, of_one
from speclab.extensions.batch.turns import FIRST, Batches, arms, decode, mean_context, n_distinct, requests_of
from speclab.lab import output_checks
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.run_config import RunConfig
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm
from speclab.records.log import Line, RoundCounts


def compare_batches(config: RunConfig, batches: list[int]) -> tuple[BatchRun, Measurement]:
    """Measure, check, predict.  -> the record, and the texts with what their checks say"""
    decoded = Batches(config)
    context = round(mean_context(config))
    timer = make_timer(config, context, sorted({1, *batches}))
    with kept_when_stopped(lambda: decoded.complete) as stops:
        decode(decoded, arms(config, batches), timer)
    measured, expected = judge(decoded), None
    measured.stop = measured.stop or (stops[0] if stops else None)
    with measured.kept("the rows are complete, what is expected of them is not"):
        if not measured.interrupted:
            pads = config.setup.engine != "c"
            expected = Expectations(context, timer.times, known(decoded), networks_by_row(config), pads)
    return record(decoded, measured, expected, batches), measured


def check(config: RunConfig) -> None:
    """Raise a Problem where the target, or one of the drafters, cannot work on several texts."""
    check_batch(config.setup.target)
    for name, drafter in config.drafters.items():
        check_drafter(name, drafter)


def record(decoded: Batches, measured: Measurement, expected: Expectations | None, batches: list[int]) -> BatchRun:
    """Everything that tables and pictures are views of."""
    config, context = decoded.config, mean_context(decoded.config)
    chosen, sizes = batch_rows.chosen(decoded), sorted({1, *batches})
    floors = [batch_rows.floor(decoded, n) for n in sizes]
    return BatchRun(
        **config.head(measured),
        batches=batches,
        n_requests=len(requests_of(config, max(batches))),
        mean_context=context,
        correctness=measured.correctness,
        costs=expected.facts() if expected else {},
        knees=[*batch_rows.measured_knees(chosen, round(context)), *(expected.knees(sizes) if expected else [])],
        rows=[batch_rows.row(decoded, one, expected) for one in decoded.decodings if one.arm != BASELINE_REPEAT],
        passes=expected.passes() if expected else [],
        chosen=chosen,
        noise=[floor for floor in floors if floor],
        raw=batch_rows.raw(decoded),
        n_distinct=n_distinct(config),
        row_by_row=[name for name, drafter in config.drafters.items() if not shared_model(drafter)],
    )


def networks_by_row(config: RunConfig) -> set[str]:
    """Name the drafts that draw from probabilities, so a network makes them, and have no pass for all rows together."""
    drafters = {name: drafter for name, drafter in config.drafters.items() if not shared_model(drafter)}
    return {name for name, drafter in drafters.items() if any(part.draws for part in drafter.parts)}


def known(decoded: Batches) -> dict[Way, OfOne]:
    """What decoding one text at a time says of every way to decode."""
    ways = {}
    for one, decoding in decoded.decodings.items():
        if one.n_texts == 1 and one.arm != BASELINE_REPEAT:
            rounds = [round_ for rounds in decoding.rounds.values() for round_ in rounds if not round_.prefill]
            taken = sum(made.seconds for made in decoding.passes)
            ways[one.arm.draft, one.arm.draft_length] = of_one(rounds, taken, one.arm.draft_length)
    return ways


def judge(decoded: Batches) -> Measurement:
    """Judge the texts: greedy ones must be those of plain decoding, one at a time; sampled ones must follow the
    target's distribution."""
    config = decoded.config
    temperature, prompts = config.temperatures[0], config.prompts
    most = max((requests_of(config, one.n_texts) for one in decoded.decodings), key=len)
    measured = Measurement(config.bench(), [prompts[number] for number in most])
    measured.graphs = decoded.graphs
    waiting: dict[str, tuple[Arm, float]] = {}
    of_first = decoded.decodings[FIRST]
    for one, decoding in decoded.decodings.items():
        arm = BASELINE if one == FIRST else replace(one.arm, method=f"{one.arm.method}, {one.n_texts} at a time")
        for index, number in enumerate(most):
            own = number if one == FIRST else index  # greedily, copies of a prompt have the same text
            if number not in of_first.ended or own not in decoding.ended:
                continue
            line = Line.begin(arm, temperature, index, prompts[number].kind, prompts[number].ids.shape[1])
            made = [RoundCounts(r.n_drafted, r.n_accepted) for r in decoding.rounds[own] if not r.prefill]
            line.add(0.0, 0.0, decoding.texts[own].tokens, None, made)
            line.lossy_rule = measured.bench.lossy_rule(arm)
            measured.lines.append(line)
        if one != FIRST and (temperature == 0 or arm.speculative):
            waiting[one.name] = arm, temperature
    output_checks.judge(measured, waiting)
    return measured
