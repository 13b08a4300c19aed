#!/usr/bin/env python3
"""How far are you with the exercises, and what is wrong? Start with docs/chapters/README.md.

    python check.py                                      # all exercises: todo, 2 of 4, or done
    python check.py 3                                    # the checks of exercise 3, one line each
    python check.py 3 --run optimized_speculative.py     # your functions of exercise 3 decide in the lab's own script

This starts the command of speclab/extensions/learner; `python check.py --help` says more.
"""

import importlib
import sys
from pathlib import Path

from speclab.system.errors import EnvironmentProblem, reports_problems

COMMAND = "speclab.extensions.learner"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Start the command.  -> exit code"""
    folder = COMMAND.replace(".", "/")
    if not (Path(__file__).parent / folder / "__main__.py").is_file():  # also where only __pycache__ is left of it
        raise EnvironmentProblem(f"the folder {folder} is not here; type: git checkout -- {folder}")
    return importlib.import_module(f"{COMMAND}.__main__").main(argv)


if __name__ == "__main__":
    sys.exit(main())
