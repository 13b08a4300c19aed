"""`python -m benchmarks.gpu`: see benchmarks/gpu/command.py."""

import sys

from speclab.system import startup  # noqa: F401 - Ctrl-C before main() runs, and missing libraries, are one line

from benchmarks.gpu.command import main  # isort: skip

if __name__ == "__main__":
    sys.exit(main())
