"""The acceptance curve in the field's form, `speculation_profile.json` as NVIDIA's ModelOpt has proposed it: rates by
position, the mean length, and how many rounds kept 0, 1, ... tokens, with the conditions of the measurement."""

import json
from pathlib import Path
from typing import Any

from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.extensions.servers.measured import Measured
from speclab.records import profiles
from speclab.records.profiles import DRAFTED, NAME, ROUNDS
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import write_whole

__all__ = ["NAME", "profile", "read", "write"]


def profile(found: Measured, conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the profile. EnvironmentProblem where the server counts nothing by position.

    A rate of a position that no round reached is null. The histogram's keys are tokens of a round that drafted, its
    values rounds. Two counts that the form lacks stand among the conditions: rounds, and drafted tokens.
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
        "measurement_conditions": conditions
        | {ROUNDS: int(found.n_rounds) or counts.n_drafts, DRAFTED: counts.n_drafted},
    }


def read(path: Path) -> Measured:
    """Return what a profile says. EnvironmentProblem where it is none."""
    found = profiles.read(path, "--acceptance")
    counts = EngineCounts(
        n_drafts=found.n_drafts,
        n_drafted=found.n_drafted,
        n_accepted=found.n_accepted,
        accepted_at=found.accepted_at,
    )
    return Measured(
        counts=counts,
        n_rounds=found.n_rounds,
        n_tokens=found.n_rounds + found.n_accepted,
        draft_length=found.n_drafted / found.n_drafts,
    )


def write(path: Path, found: Measured, conditions: dict[str, Any]) -> Path:
    """Write the profile, whole or not at all."""
    return write_whole(path, json.dumps(profile(found, conditions), indent=2, allow_nan=False) + "\n")
