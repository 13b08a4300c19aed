#!/usr/bin/env python3
"""Baseline against speculative decoding on the same prompts: agreement first, then speed, then why.

What comes out: what ran, whether the outputs agree, the measured speedups, what the book's formula and two predictions
said about them, a ladder of factors from the formula to the measurement, a run record (JSON), the tables in Markdown,
and pictures.

    python compare.py                             # the lab's own pair: no network, no GPU, a few minutes
    python compare.py --quick                     # a minute
    python -m speclab.extensions                  # further commands: a plan, sweeps, vLLM's servers
    python compare.py --quick --trace trace.html  # and look at a decoding, round by round, in a browser
    python compare.py --draft model,ngram,dial:0.9 -k 1,2,4,8 --temperature 0 --by-kind
    python compare.py --target lab:200m --temperature 0        # the lab's text at the price of 200M parameters
    python compare.py --target Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct,ngram --device cuda

The arms of a prompt decode side by side and take turns step by step, so that they meet the same machine. Prefill and
decoding are timed apart. Timed runs produce a fixed number of tokens: an end-of-text token does not stop them.
Exit code 1 if a greedy difference is not a near-tie, or a sampled row fails its statistics.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys

from speclab.cli import compare


def main(argv: list[str] | None = None) -> int:
    """Run the script.  -> exit code"""
    return compare.run(__doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
