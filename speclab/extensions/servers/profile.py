"""The acceptance curve in the field's form, `speculation_profile.json` as NVIDIA's ModelOpt has proposed it: rates by
position, the mean length, and how many rounds kept 0, 1, ... tokens, with the conditions of the measurement."""

import json
from pathlib import Path
from typing import Any

from speclab.extensions.servers.ask.client import PAGE_BYTES
from speclab.extensions.servers.ask.inputs import text_of
from speclab.extensions.servers.counters import MOST_POSITIONS
from speclab.extensions.servers.measured import Measured
from speclab.extensions.servers.vllm.server_record import EngineCounts
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import shown, write_whole

NAME = "speculation_profile.json"  # beside the weights of a draft


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


def read(path: Path) -> Measured:
    """Return the counts of a profile: its histogram says all of them. EnvironmentProblem where it is none.

    Every draft is taken to have as many tokens as the longest one.
    """
    try:
        found = json.loads(text_of(path, PAGE_BYTES, "--acceptance"))["acceptance_length_histogram"]
        rounds = {int(length): n for length, n in found.items()}
        k = max(rounds) - 1
        good = min(rounds) >= 1 and 1 <= k <= MOST_POSITIONS
        good = good and all(type(n) is int and 0 <= n < 2**53 for n in rounds.values()) and sum(rounds.values()) > 0
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise EnvironmentProblem(
            f"--acceptance {shown(path)} has no acceptance_length_histogram of whole numbers; give a "
            "speculation_profile.json, or f as a number from 0 to 1"
        )
    n_rounds = sum(rounds.values())
    kept = [sum(n for length, n in rounds.items() if length > place + 1) for place in range(k)]
    counts = EngineCounts(n_drafts=n_rounds, n_drafted=n_rounds * k, n_accepted=sum(kept), accepted_at=kept)
    return Measured(counts=counts, n_rounds=n_rounds, n_tokens=n_rounds + sum(kept), draft_length=k)


def write(path: Path, found: Measured, conditions: dict[str, Any]) -> Path:
    """Write the profile, whole or not at all."""
    return write_whole(path, json.dumps(profile(found, conditions), indent=2, allow_nan=False) + "\n")
