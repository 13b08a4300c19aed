"""`speculation_profile.json`, the field's form of an acceptance curve, as NVIDIA's ModelOpt has proposed it: reading.

It may come from anywhere: a server, another lab, an earlier day. Its counts are read, and ratios are made from them
here. No torch.
"""

from pathlib import Path
from typing import NamedTuple

from speclab.system.errors import EnvironmentProblem
from speclab.system.files import parse_json, read_bytes, shown

NAME = "speculation_profile.json"  # beside the weights of a draft
ROUNDS, DRAFTED = "n_rounds", "n_drafted_tokens"  # two counts that the form lacks, among the lab's conditions
MOST_POSITIONS, MOST_BYTES, MOST_COUNT = 256, 2**23, 2**53


class Profile(NamedTuple):
    """The counts of a profile. n_rounds: all rounds; n_drafts: those that drafted something; accepted_at: how many of
    these kept the token at position 1, 2, ..."""

    n_rounds: int
    n_drafts: int
    n_drafted: int
    accepted_at: list[int]

    @property
    def draft_length(self) -> int:
        """Return the longest draft."""
        return len(self.accepted_at)

    @property
    def n_accepted(self) -> int:
        """Return all tokens that were kept."""
        return sum(self.accepted_at)


def read(path: Path, flag: str) -> Profile:
    """Return the counts of a profile: those of its histogram, and of its conditions where it is the lab's own.
    EnvironmentProblem, one line that begins with the flag, where it cannot be read or is none.

    Where it has no number of drafted tokens, every round is taken to have drafted as many as the longest one.
    """
    try:
        text = read_bytes(path, MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        is_text = not isinstance(error, UnicodeDecodeError)
        why = (getattr(error, "strerror", None) or error) if is_text else "it is no UTF-8 text"
        raise EnvironmentProblem(f"{flag} {shown(path)}: {why}; give another file") from None
    found = _counts(text)
    if found is None:
        raise EnvironmentProblem(
            f"{flag} {shown(path)} has no acceptance_length_histogram of whole numbers that fit together; give a {NAME}"
        )
    return found


def _counts(text: str) -> Profile | None:
    """Return the counts of the text of a profile; None where it is none, or where they contradict each other."""
    try:
        whole = parse_json(text)
        given = whole["acceptance_length_histogram"]
        rounds = {int(length): n for length, n in given.items()}
        if not all(type(n) is int and 0 <= n < MOST_COUNT for n in rounds.values()) or len(rounds) < len(given):
            return None
        k, n_drafts = max(rounds) - 1, sum(rounds.values())
        n_accepted = sum((length - 1) * n for length, n in rounds.items())
        about = whole.get("measurement_conditions", {})
        n_rounds, n_drafted = about.get(ROUNDS, n_drafts), about.get(DRAFTED, n_drafts * k)
        good = min(rounds) >= 1 and 1 <= k <= MOST_POSITIONS and n_drafts > 0
        good = good and type(n_rounds) is type(n_drafted) is int and n_drafts <= n_rounds < MOST_COUNT
        good = good and max(n_accepted, n_drafts) <= n_drafted <= n_drafts * k
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    if not good:
        return None
    kept = [sum(n for length, n in rounds.items() if length > place + 1) for place in range(k)]
    return Profile(n_rounds, n_drafts, n_drafted, kept)
