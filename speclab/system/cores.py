"""Is the machine loaded by other work? The system's load average says how many processes wanted a core of late."""

import os

SHARE = 0.5  # of the cores in use by other work, from which on times may be rough
# Of the last minute, before this program has done any work of its own; Windows has none.
AT_START: float | None = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def complaint(average: float | None, n_cores: int) -> str | None:
    """Return one line about the load of a machine with so many cores; None where it is low or not known."""
    if average is None or average <= SHARE * n_cores:
        return None
    return f"other work uses this machine (load average {average:.1f} on {n_cores} cores), so times may be rough"


def busy() -> str | None:
    return complaint(AT_START, os.cpu_count() or 1)
