"""The batches at which speculation stops paying on machines that are known only from a data sheet."""

from speclab.extensions.batch import pass_costs
from speclab.extensions.batch.batch_record import MachineEntry
from speclab.theory.knees import knee_of

ON_MACHINES = (512, 4096, 16384)  # tokens of context
MACHINE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def on_machines(draft: str, survival: list[float]) -> list[MachineEntry]:
    """Data sheets predict this for a target of 8 billion weights with a draft of one billion, at this acceptance.

    survival: how likely the first 1, 2, ... drafted tokens are all accepted.
    """
    target, small = pass_costs.LLAMA_8B, pass_costs.LLAMA_1B
    entries = []
    for machine in (pass_costs.A100, pass_costs.H100):
        for context in ON_MACHINES:

            def seconds(model: pass_costs.Model, n: int, width: int, machine=machine, context=context) -> float:
                return pass_costs.step_time(machine, model, n * width, n * context, n * width * context)

            speedups = {}
            for n in MACHINE_BATCHES:
                for k in range(1, len(survival) + 1):
                    tokens = pass_costs.lockstep_tokens(survival[:k], 1)
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
