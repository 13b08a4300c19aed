"""Where speculation stops paying: of measured speedups, of expected ones, and of machines that only a data sheet
describes."""

from collections.abc import Mapping
from typing import Any

from speclab.records.batches import KneeEntry, MachineEntry
from speclab.theory import batching

ON_MACHINES = (512, 4096, 16384)  # tokens of context
MACHINE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def knee_of(draft: str, context: int, source: Any, speedups: Mapping[tuple[int, int], float]) -> KneeEntry:
    """The best length of every batch, and where its speedup falls below 1. speedups: (texts, k) -> speedup"""
    best: dict[int, tuple[int, float]] = {}
    for n in sorted({n for n, _ in speedups}):
        of_batch = {k: speedup for (texts, k), speedup in speedups.items() if texts == n}
        k = batching.best_k(of_batch)
        best[n] = k, of_batch[k]
    knee = batching.knee({n: speedup for n, (_, speedup) in best.items()})
    return KneeEntry(
        draft=draft,
        context=context,
        source=source,
        batch=knee.batch,
        below=knee.below,
        best={str(n): list(pair) for n, pair in best.items()},
    )


def on_machines(draft: str, survival: list[float]) -> list[MachineEntry]:
    """What data sheets say of a target of 8 billion weights with a draft of one, at this acceptance.

    survival: how likely the first 1, 2, ... drafted tokens are all accepted.
    """
    target, small = batching.LLAMA_8B, batching.LLAMA_1B
    entries = []
    for machine in (batching.A100, batching.H100):
        for context in ON_MACHINES:

            def seconds(model: batching.Model, n: int, width: int, machine=machine, context=context) -> float:
                return batching.step_time(machine, model, n * width, n * context, n * width * context)

            speedups = {}
            for n in MACHINE_BATCHES:
                for k in range(1, len(survival) + 1):
                    tokens = batching.lockstep_tokens(survival[:k], 1)
                    round_ = k * seconds(small, n, 1) + seconds(target, n, k + 1)
                    speedups[n, k] = tokens * seconds(target, n, 1) / round_
            knee = knee_of(draft, context, "predicted", speedups)
            entries.append(
                MachineEntry(
                    machine=machine.name,
                    models=f"{target.name} with {small.name}",
                    context=context,
                    batch=knee.batch,
                    below=knee.below,
                    best=knee.best,
                )
            )
    return entries
