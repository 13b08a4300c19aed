"""Lists the commands that the extensions add to the lab, one line each.

python -m speclab.extensions
python -m speclab.extensions.NAME --help   # one of them
"""

import importlib
import sys

from tabulate import tabulate

from speclab.cli import parsing
from speclab.system import extensions
from speclab.system.errors import reports_problems


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Print the list.  -> exit code"""
    parsing.make_parser(__doc__, f"python -m {extensions.PACKAGE}").parse_args(argv)
    rows = []
    for name in sorted(extensions.names("__main__")):
        package = f"{extensions.PACKAGE}.{name}"
        line = (importlib.import_module(package).__doc__ or "").split("\n")[0].removesuffix(".")
        rows.append((f"python -m {package}", line[:1].lower() + line[1:]))
    print(tabulate(rows, tablefmt="plain") or "No extension is here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
