"""The acceptance curve in the field's form, `speculation_profile.json` as NVIDIA's ModelOpt has proposed it: rates by
position, the mean length, and how many rounds kept 0, 1, ... tokens, with the conditions of the measurement."""

import json
from pathlib import Path
from typing import Any

from speclab.extensions.servers.measured import Measured
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import write_whole


def profile(found: Measured, conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the profile. EnvironmentProblem where the server counts nothing by position.

    A rate of a position that no round reached is null. The histogram's keys are tokens of a round that drafted, its
    values rounds.
    """
    counts = found.counts
    if counts is None or not found.marginal:
        raise EnvironmentProblem(
            "--acceptance-profile needs acceptance by position, which this server does not count; ask vLLM, or "
            "llama-server with --metrics"
        )
    reached = [counts.n_drafts, *counts.accepted_at, 0]
    return {
        "conditional_accept_rates": found.conditional,
        "marginal_accept_rates": found.marginal,
        "mean_accept_length": 1 + counts.n_accepted / counts.n_drafts,
        "acceptance_length_histogram": {str(n + 1): reached[n] - reached[n + 1] for n in range(len(reached) - 1)},
        "measurement_conditions": conditions,
    }


def write(path: Path, found: Measured, conditions: dict[str, Any]) -> None:
    """Write the profile, whole or not at all."""
    write_whole(path, json.dumps(profile(found, conditions), indent=2, allow_nan=False) + "\n")
