#!/usr/bin/env python3
"""How far are you with the exercises, and what is wrong? Start with docs/chapters/README.md.

    python check.py                                      # all exercises: todo, 2 of 4, or done
    python check.py 3                                    # the checks of exercise 3, one line each
    python check.py 3 --run optimized_speculative.py     # your functions of exercise 3 decide in the lab's own script

This starts the command of speclab/extensions/learner; `python check.py --help` says more.
"""

import importlib
import sys

from speclab.system.errors import EnvironmentProblem, reports_problems

COMMAND = "speclab.extensions.learner"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Start the command.  -> exit code"""
    try:
        command = importlib.import_module(f"{COMMAND}.__main__")
    except ModuleNotFoundError as error:
        if error.name not in (COMMAND, f"{COMMAND}.__main__"):
            raise
        folder = COMMAND.replace(".", "/")
        raise EnvironmentProblem(f"the folder {folder} is not here; type: git checkout -- {folder}") from None
    return command.main(argv)


if __name__ == "__main__":
    sys.exit(main())
