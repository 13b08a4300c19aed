"""A short second comparison: the lab's pair is padded until a pass of the target costs what reading its weights costs.

The lab's own target is so small that most of a pass is the launching of kernels. A large model's pass is the reading of
its weights. Speculation gains differently in the two, so a run shows both.
"""

from dataclasses import replace

from speclab.drafts import registry
from speclab.lab.run_config import RunConfig
from speclab.models import prompts
from speclab.models.memory import USABLE, free_memory
from speclab.models.padded import sizes
from speclab.models.setup import load_setup

SIZES = ("lab:50m", "lab:100m", "lab:200m", "lab:1b", "lab:2b", "lab:8b")
SECONDS = 75.0  # that the second comparison may take
READINGS = 4700  # of the target's weights that take as long as it: passes of all arms, prefill, loading, checks
DRAFT_SHARE = 10  # the padded draft has a tenth of the target's parameters, a usual ratio: 8b and 1b, 70b and 8b
PROMPTS_OF_A_KIND, NEW_TOKENS, LENGTHS = 2, 32, [2, 4]


def choose_size(bandwidth: float, free: int | None, itemsize: int, copies: int = 1) -> str | None:
    """Return the largest size whose comparison takes SECONDS at most and whose weights fit; None where none does.

    bandwidth: bytes a second. free: bytes of memory, None: not known. itemsize: bytes of a parameter. copies: how often
    the weights lie in memory.
    """
    chosen = None
    for size in SIZES:
        n_bytes = sizes.millions_of(size) * 10**6 * itemsize
        needed = n_bytes * copies * (1 + 1 / DRAFT_SHARE)
        if READINGS * n_bytes / bandwidth <= SECONDS and (free is None or needed <= USABLE * free):
            chosen = size
    return chosen


def size_for(config: RunConfig, bandwidth: float) -> str | None:
    """Return the size for this run's machine, dtype and engine."""
    device, dtype = config.setup.device, config.setup.dtype
    copies = 2 if config.setup.engine == "c" else 1  # it has a copy of its own
    return choose_size(bandwidth, free_memory(device), dtype.itemsize, copies)


def padded_kinds(kinds: list[str], size: str) -> list[str]:
    """Return `--draft` for a target of this size: the lab's draft at a tenth of it; lookups and the lab's head stay;
    others are left out."""
    tenth = [name for name, (n, *_) in sizes.SIZES.items() if n * DRAFT_SHARE == sizes.millions_of(size)]
    drafts = [f"lab:{name}" for name in tenth if sizes.rows_of(name) == sizes.rows_of(size)]
    usable = ("model", "feature", "hybrid", *registry.lookups())
    return [drafts[0] if kind == "model" else kind for kind in kinds if kind in usable]


def second_config(config: RunConfig, size: str, kinds: list[str]) -> RunConfig:
    """Return the second comparison: some of the same prompts at the first temperature. Loads and checks the padded
    models.

    kinds: the words of `--draft`. Raises a Problem where the models cannot be loaded.
    """
    setup = config.setup
    padded = load_setup(size, setup.sampling_at(0.0), setup.device.type, setup.dtype_name, setup.wish)
    return replace(
        config,
        setup=padded,
        drafters=registry.make_all(registry.read_all(padded_kinds(kinds, size)), padded, config.seed),
        prompts=prompts.first_of_each_kind(config.prompts, PROMPTS_OF_A_KIND),
        draft_lengths=LENGTHS,
        temperatures=config.temperatures[:1],
        max_new_tokens=min(NEW_TOKENS, config.max_new_tokens),
        repeats=1,
    )
