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
ROUNDS, DRAFTED = "n_rounds", "n_drafted_tokens"


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
    """Return the counts of a profile: those of its histogram, and of its conditions where it is the lab's own.
    EnvironmentProblem where it is none.

    Elsewhere every round is taken to have drafted as many tokens as the longest one.
    """
    try:
        whole = json.loads(text_of(path, PAGE_BYTES, "--acceptance"))
        rounds = {int(length): n for length, n in whole["acceptance_length_histogram"].items()}
        k, n_drafts = max(rounds) - 1, sum(rounds.values())
        good = min(rounds) >= 1 and 1 <= k <= MOST_POSITIONS
        good = good and all(type(n) is int and 0 <= n < 2**53 for n in rounds.values()) and n_drafts > 0
        n_accepted = sum((length - 1) * n for length, n in rounds.items())
        about = whole.get("measurement_conditions", {})
        n_rounds, n_drafted = about.get(ROUNDS, n_drafts), about.get(DRAFTED, n_drafts * k)
        good = good and type(n_rounds) is type(n_drafted) is int and n_drafts <= n_rounds < 2**53
        good = good and max(n_accepted, n_drafts) <= n_drafted <= n_drafts * k
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise EnvironmentProblem(
            f"--acceptance {shown(path)} has no acceptance_length_histogram of whole numbers that fit together; give a "
            "speculation_profile.json, or f as a number from 0 to 1"
        )
    kept = [sum(n for length, n in rounds.items() if length > place + 1) for place in range(k)]
    counts = EngineCounts(n_drafts=n_drafts, n_drafted=n_drafted, n_accepted=n_accepted, accepted_at=kept)
    return Measured(counts=counts, n_rounds=n_rounds, n_tokens=n_rounds + n_accepted, draft_length=n_drafted / n_drafts)


def write(path: Path, found: Measured, conditions: dict[str, Any]) -> Path:
    """Write the profile, whole or not at all."""
    return write_whole(path, json.dumps(profile(found, conditions), indent=2, allow_nan=False) + "\n")
