"""The same requests, 1, 2, 4, ... at a time, token by token and with every draft at every length.

Speedups are over plain decoding of as many texts at a time on the same engine; they and the rates are of the rounds in
which every row had a text. What is predicted is made from passes over one text and from the loops without their models,
never from the batches that it is held against.
"""

from dataclasses import replace

import torch

from speclab.core.clock import old_objects_frozen
from speclab.extensions.batch import batch_rows
from speclab.extensions.batch.batch_record import BatchRun
from speclab.extensions.batch.decoding.batched_model import check_batch
from speclab.extensions.batch.decoding.drafters import check_drafter, shared_model
from speclab.extensions.batch.decoding.row_buffers import Programs
from speclab.extensions.batch.expectations import Draft, Expectations, expectations, known_of, make_timer
from speclab.extensions.batch.turns import FIRST, Batches, arms, decode, mean_context, n_distinct, requests_of
from speclab.lab import output_checks
from speclab.lab.decodings import library_generate
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.run_config import RunConfig
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm
from speclab.records.facts import Facts
from speclab.records.log import Line, RoundCounts
from speclab.system.terminal import progress


def compare_batches(
    config: RunConfig, batches: list[int], thorough: bool = False, programs: Programs | None = None
) -> tuple[BatchRun, Measurement]:
    """Measure, check, predict.  -> the record, and the texts with what their checks say

    thorough: measure also in lockstep, with long contexts, with the library, and predict other machines. programs: the
    passes that are compiled.
    """
    decoded = Batches(config, programs=programs or {})
    contexts = {n: mean_context(config, n) for n in sorted({1, *batches})}
    timer = make_timer(config, round(contexts[1]), sorted(contexts), thorough, programs)
    with kept_when_stopped(lambda: decoded.complete) as stops:
        decode(decoded, arms(config, batches, thorough), timer)
    measured, expected, others = judge(decoded), None, []
    measured.stop = measured.stop or (stops[0] if stops else None)
    with measured.kept("the rows are complete, what is expected of them is not"):
        if not measured.interrupted:
            others = library_batches(config, batches) if thorough else []
            one_draft = {key: watched.take() for key, watched in decoded.watched.items()}
            expected = expectations(contexts, known(decoded), timer, one_draft)
    return record(decoded, measured, expected, batches, thorough, others), measured


def check(config: RunConfig) -> None:
    """Raise a Problem where the target, or one of the drafters, cannot work on several texts."""
    check_batch(config.setup.target)
    for name, drafter in config.drafters.items():
        check_drafter(name, drafter)


def record(
    decoded: Batches,
    measured: Measurement,
    expected: Expectations | None,
    batches: list[int],
    thorough: bool,
    others: list[dict],
) -> BatchRun:
    """Everything that tables and pictures are views of. others: what the library's batches took"""
    config, context = decoded.config, mean_context(decoded.config, 1)
    chosen = batch_rows.chosen(decoded)
    floors = [batch_rows.floor(decoded, n) for n in sorted({1, *batches})]
    return BatchRun(
        **config.head(measured),
        batches=batches,
        thorough=thorough,
        n_requests=len(requests_of(config, max(batches))),
        mean_context=context,
        correctness=measured.correctness,
        costs=expected.facts() if expected else {},
        library=others,
        knees=[*batch_rows.measured_knees(chosen, round(context)), *(expected.knees() if expected else [])],
        machines=expected.machines() if expected and thorough else [],
        rows=[batch_rows.row(decoded, one, expected) for one in decoded.decodings if one.arm != BASELINE_REPEAT],
        passes=expected.passes() if expected else [],
        chosen=chosen,
        noise=[floor for floor in floors if floor],
        raw=batch_rows.raw(decoded),
        n_distinct=n_distinct(config),
        row_by_row=[name for name, drafter in config.drafters.items() if not shared_model(drafter)],
    )


def known(decoded: Batches) -> dict[tuple[str, int], Draft]:
    """The facts that decoding one text at a time gives about every draft at every length."""
    drafts = {}
    for one, decoding in decoded.decodings.items():
        if one.arm.speculative and one.n_texts == 1:
            made = [round_ for rounds in decoding.rounds.values() for round_ in rounds if not round_.prefill]
            counts = [(round_.n_drafted, round_.n_accepted) for round_ in made]
            drafts[one.arm.draft, one.arm.draft_length] = known_of(counts, one.arm.draft_length)
    return drafts


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
        if one.lockstep:
            arm = replace(arm, method=f"{arm.method}, in lockstep")
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


# --- the library's own batches ----------------------------------------------------------------------------------------


@old_objects_frozen()
def library_batches(config: RunConfig, batches: list[int]) -> list[Facts]:
    """Return the tokens of all texts and the seconds of every batch, the prompts' own pass included; greedy.

    The library pads the prompts on the left. All texts of its batch start together and end together, and it has no
    assisted decoding of more than one text.
    """
    entries = []
    with progress(len(batches), "size", "the library's batches") as bar:
        for n_texts in batches:
            prompts = [config.prompts[i % len(config.prompts)].ids[0] for i in range(n_texts)]
            longest = max(map(len, prompts))
            ids = torch.stack([torch.nn.functional.pad(one, (longest - len(one), 0)) for one in prompts])
            mask = torch.stack([torch.arange(longest) >= longest - len(one) for one in prompts]).long()
            ids, mask = ids.to(config.setup.device), mask.to(config.setup.device)
            model, n_new = config.setup.target.model, config.max_new_tokens
            library_generate(model, ids, n_new, attention_mask=mask)  # a warm-up
            seconds, tokens = library_generate(model, ids, n_new, attention_mask=mask)
            entries.append({"n_texts": n_texts, "n_tokens": n_texts * len(tokens), "seconds": seconds})
            bar.update()
    return entries
