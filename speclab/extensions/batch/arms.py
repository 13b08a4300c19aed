"""The arms of a run of batches: ways to decode, each with a number of texts side by side, and the requests of each."""

from dataclasses import dataclass

from speclab.lab.run_config import RunConfig
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm

TIMES_FULL = 3  # how often a batch is filled at least


@dataclass(frozen=True)
class BatchArm:
    """A way to decode, `n_texts` at a time."""

    arm: Arm
    n_texts: int
    lockstep: bool = False

    @property
    def name(self) -> str:
        """The name by which checks and notes call it."""
        return f"{self.arm.label}, {self.n_texts} at a time" + ", in lockstep" * self.lockstep


FIRST = BatchArm(BASELINE, 1)  # plain decoding of one text at a time, which all others are judged by


def arms(config: RunConfig, batches: list[int], thorough: bool) -> list[BatchArm]:
    """All ways to decode, FIRST first; plain decoding twice for every batch: its distance from itself is noise.

    In lockstep a batch has no two copies of a prompt: greedily they would always keep as many tokens as each other.
    """
    sizes = sorted({1, *batches})
    ways: list[BatchArm] = []
    for name, drafter in config.drafters.items():
        for k in drafter.lengths(config.draft_lengths):
            if k:
                arm = Arm(config.method(name), name, k)
                together = [n for n in sizes if thorough and 1 < n <= n_distinct(config) and not arm.branches]
                ways += [BatchArm(arm, n) for n in sizes] + [BatchArm(arm, n, True) for n in together]
    middle = len(ways) // 2  # half a round of turns away from the first, as the other arms are on average
    again = [BatchArm(BASELINE_REPEAT, n) for n in sizes]
    return [*(BatchArm(BASELINE, n) for n in sizes), *ways[:middle], *again, *ways[middle:]]


def n_distinct(config: RunConfig) -> int:
    """The number of different prompts."""
    return len({tuple(prompt.id_list) for prompt in config.prompts})


def requests_of(config: RunConfig, n_texts: int) -> list[int]:
    """The numbers of the prompts: all of them, as often as it takes to fill the batch TIMES_FULL times."""
    n_prompts = len(config.prompts)
    return [*range(n_prompts)] * max(-(-TIMES_FULL * n_texts // n_prompts), config.repeats)
