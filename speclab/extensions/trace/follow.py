"""Loads what one decoding needs, decodes a prompt with both loops, and keeps every round with its phases and the accept
rule's numbers."""

import argparse
import collections
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from baseline_autoregressive import autoregressive_decode
from speclab.cli import decoding
from speclab.cli.decoding import Loaded
from speclab.core.clock import old_objects_frozen
from speclab.core.rounds import AcceptResult, DecodeSettings, Round, tokens_of
from speclab.extensions.trace import positions
from speclab.extensions.trace.trace import Trace, trace
from speclab.lab.bench import SPECULATIVE
from speclab.lab.instruments import LoopFunctions, with_phases
from speclab.models import loading
from speclab.system.terminal import note

WARM = 12  # tokens of each loop before the clocks start: shapes that are new to the backend are slow


def load(args: argparse.Namespace, functions: LoopFunctions | None = None) -> Loaded:
    """Load what the flags ask for. Of several prompts the first is decoded. functions: the parts of the loop; None: the
    lab's own."""
    typed_limit, args.limit = args.limit, 1
    found = decoding.load(args, functions or SPECULATIVE)
    if len(found.prompts) > 1 and (args.prompt or args.prompts or args.texts or typed_limit):
        note("the first prompt is decoded")
    found.drafter.forget()
    return found


def follow(found: Loaded, longest: int | None = None) -> Trace:
    """Decode the prompt with both loops in turns, with times and details of every round.

    longest: how far `functions` may let the drafter draft, where they choose the length.
    """
    setup, settings, drafter = found.setup, found.settings, found.drafter
    ids = found.prompts[0].ids.to(setup.device)
    target = setup.target.with_own_cache()  # both decode side by side

    def plain(settings: DecodeSettings) -> Iterator[Round]:
        return autoregressive_decode(target, ids, settings, setup.chunk)

    def rounds(settings: DecodeSettings) -> Iterator[Round]:
        adapted = found.functions.adapt(drafter, longest)
        return detailed(found.functions, setup.target, adapted, ids, found.draft_length, settings)

    if drafter.needs_text:
        drafter.take_text(tokens_of(plain(settings)))
    warm = replace(settings, max_new_tokens=min(WARM, settings.max_new_tokens))
    for stream in (plain(warm), rounds(warm)):
        collections.deque(stream, maxlen=0)
    seen, plain_seen = in_turns(rounds(settings), plain(settings))
    described = {
        **setup.recorded,
        "draft": loading.short_name(loading.LAB_DRAFT) if found.draft == "model" else found.draft,
        "draft_length": found.draft_length,
        **vars(settings.sampling),
        "seed": settings.seed,
    }
    steps = [(token, seconds) for round_, seconds in plain_seen for token in round_.tokens]
    before = setup.ids_before(found.prompts[0])
    return trace([round_ for round_, _ in seen], steps, setup.tokenizer, found.prompts[0].text, before, described)


@old_objects_frozen()
def in_turns(*streams: Iterator[Round]) -> list[list[tuple[Round, float]]]:
    """Run all to their ends; the one that has used less time goes next, so that all meet the same state of the machine.

    A round takes the seconds of its phases, or what it took to come where it has none: what is looked up for the trace
    beside the phases does not count.

    -> of each stream its rounds, and the seconds after its first one at which they were there
    """
    seen: list[list[tuple[Round, float]]] = [[] for _ in streams]
    used, running = [0.0] * len(streams), set(range(len(streams)))
    while running:
        i = min(running, key=used.__getitem__)
        start = time.perf_counter()
        round_ = next(streams[i])
        elapsed = time.perf_counter() - start
        if not round_.prefill:
            used[i] += elapsed if round_.seconds is None else sum(round_.seconds.values())
        seen[i].append((round_, used[i]))
        if round_.finish is not None:
            running.remove(i)
    return seen


def detailed(functions: LoopFunctions, *args) -> Iterator[Round]:
    """Rounds with their phases and with every number that the accept rule used; `args` as `with_phases` takes them."""
    used: list[Any] = []

    def accept(*inputs) -> AcceptResult:
        used[:] = *inputs, functions.accept(*inputs)
        return used[-1]

    for round_ in with_phases(replace(functions, accept=accept), *args):  # no clock runs between two rounds
        yield round_ if round_.prefill else round_._replace(detail=positions.positions_of(*used))
