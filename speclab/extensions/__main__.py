"""Lists the commands that the extensions add to the lab, one line each.

python -m speclab.extensions
python -m speclab.extensions.NAME --help   # one of them
"""

import sys

from tabulate import tabulate

from speclab.cli import parsing
from speclab.system import extensions
from speclab.system.errors import reports_problems


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Print the list.  -> exit code"""
    parsing.make_parser(__doc__, f"python -m {extensions.PACKAGE}").parse_args(argv)
    commands = sorted(extensions.commands().items())
    rows = [(f"python -m {extensions.PACKAGE}.{name}", line[:1].lower() + line[1:]) for name, line in commands]
    print(tabulate(rows, tablefmt="plain") or "No extension is here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
