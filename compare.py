#!/usr/bin/env python3
"""Baseline against speculative decoding on the same prompts: agreement first, then speed, then why.
A table, its reasons, a record (JSON), a page and pictures come out. Exit code 1 means: a text is wrong.

    python compare.py --quick                                # the lab's own pair, a minute; without it, a few
    python compare.py --target lab:200m --temperature 0      # the lab's text at the price of 200M parameters
    python compare.py --target Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct,ngram
    python -m speclab.extensions                             # further commands: a plan, sweeps, batches, servers
"""

import sys
from typing import Any

from speclab.system import startup  # isort: skip  # noqa: F401 - it says what takes so long; Ctrl-C is one line

from speclab.cli import compare


def main(argv: list[str] | None = None, functions: Any = None) -> int:
    """Run the script. `functions` can replace parts of the run (speclab/lab/instruments.py).  -> exit code"""
    return compare.run(__doc__, argv, functions)


if __name__ == "__main__":
    sys.exit(main())
