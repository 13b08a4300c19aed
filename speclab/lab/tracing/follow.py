"""`--trace FILE`: decode a prompt with both loops, and keep every round with its phases and the accept rule's numbers.

The loops are arguments: this module imports none.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

from speclab.core.rounds import DecodeSettings, Drafter, Round, tokens_of
from speclab.drafts.oracle import OracleDraft
from speclab.lab.instruments import Loop, LoopFunctions, with_phases
from speclab.lab.tracing import trace
from speclab.lab.tracing.detail import DetailRecorder
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup

WARM = 12  # tokens of each loop before the clocks start: shapes that are new to the backend are slow


def follow(
    setup: Setup,
    drafter: Drafter,
    draft_name: str,
    prompt: Prompt,
    draft_length: int,
    settings: DecodeSettings,
    baseline: Loop,
    functions: LoopFunctions,
    longest: int | None = None,
) -> trace.Trace:
    """The prompt decoded by both loops in turns, with times and details of every round.

    longest: how far a reader's own rule may draft, where one chooses the length.
    """
    ids = prompt.ids.to(setup.device)
    target = setup.target.twin()  # both decode side by side

    def plain(settings: DecodeSettings) -> Iterator[Round]:
        return baseline(target, ids, settings, setup.chunk)

    def rounds(settings: DecodeSettings) -> Iterator[Round]:
        return detailed(functions, setup.target, functions.adapt(drafter, longest), ids, draft_length, settings)

    if isinstance(drafter, OracleDraft):
        drafter.replay(tokens_of(plain(settings)))
    warm = replace(settings, max_new_tokens=min(WARM, settings.max_new_tokens))
    for stream in (plain(warm), rounds(warm)):
        for _ in stream:
            pass
    seen, steps = race(rounds(settings), plain(settings))
    described = {
        "target": setup.target_name,
        "draft": loading.short_name(loading.LAB_DRAFT) if draft_name == "model" else draft_name,
        "draft_length": draft_length,
        "temperature": settings.sampling.temperature,
        "top_k": settings.sampling.top_k,
        "top_p": settings.sampling.top_p,
        "seed": settings.seed,
        "device": setup.device.type,
        "dtype": setup.dtype_name,
        "engine": setup.engine,
    }
    return trace.trace(seen, steps, setup.tokenizer, prompt.text, prompt.id_list, described)


def detailed(functions: LoopFunctions, *args) -> Iterator[Round]:
    """Rounds with their phases and with every number that the accept rule used; `args` as `with_phases` takes them."""
    recorder = DetailRecorder(functions.accept)
    return recorder.into(with_phases(replace(functions, accept=recorder), *args))


def race(rounds: Iterator[Round], plain: Iterator[Round]) -> tuple[list[Round], list[tuple[int, float]]]:
    """Run both to their ends; the one that has used less time goes next, so that both run on the same machine state.

    -> all rounds; all of the baseline's ids with the seconds at which they were there, its first one's being 0
    """
    seen, first = [next(rounds)], next(plain)
    steps = [(token, 0.0) for token in first.tokens]
    seconds, plain_seconds = 0.0, 0.0
    running = [stream for stream, last in ((rounds, seen[0]), (plain, first)) if last.finish is None]
    while running:
        stream = running[0] if len(running) == 1 else plain if plain_seconds < seconds else rounds
        start = time.perf_counter()
        round_ = next(stream)
        if stream is rounds:
            seen.append(round_)
            seconds += sum(trace.phases(round_.seconds).values())
        else:
            plain_seconds += time.perf_counter() - start
            steps += [(token, plain_seconds) for token in round_.tokens]
        if round_.finish is not None:
            running.remove(stream)
    return seen, steps
