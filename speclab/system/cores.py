"""Is the machine loaded by other work? The system's load average says how many processes wanted a core of late."""

import os

SHARE = 0.5  # of the cores in use by other work, from which on times may be rough
# Of the last minute, before this program has done any work of its own; Windows has none.
AT_START: float | None = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy() -> str | None:
    """Return one line about the load; None where it is low or not known."""
    n_cores = os.cpu_count() or 1
    if AT_START is None or SHARE * n_cores >= AT_START:
        return None
    return f"other work uses this machine (load average {AT_START:.1f} on {n_cores} cores), so times may be rough"
