"""Problems a user can mend. `reports_problems` turns them into one line on stderr and an exit code.

An error names the cause and the next thing to type.
"""

import functools
import sys
from collections.abc import Callable


class Problem(Exception):
    """Base of the errors that are shown as one line."""

    exit_code = 1


class UsageProblem(Problem):
    """The command's words are off."""

    exit_code = 2


class EnvironmentProblem(Problem):
    """A file, a model, a device or a library is not what the command needs."""

    exit_code = 3


def reports_problems(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wrap a script's main(): a Problem becomes its one line and its exit code."""

    @functools.wraps(main)
    def wrapped(*args, **kwargs) -> int:
        try:
            return main(*args, **kwargs) or 0
        except Problem as problem:
            line = " ".join(str(problem).split())
            print(f"error: {line}", file=sys.stderr)
            return problem.exit_code
        except BrokenPipeError:  # the reader of a pipe left; there is nobody to tell
            sys.stderr.close()
            return 0
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130

    return wrapped
