"""How many rounds your exercises/ex07_ngram.py takes on the texts of exercise 7.

    python -m tests.exercises.count_rounds

A drafter's tokens per round follow from the text alone, so exercise 7 is judged by a replay: no model, no clock.
copy_texts.json has three of the lab's copy prompts and how the lab pair's target continues them, as ids.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from exercises import Todo
from speclab.core.drafter import Drafter
from speclab.core.sampling import Sampling
from speclab.system.errors import UsageProblem, reports_problems

K = 4  # draft length of the count


def texts() -> list[dict[str, list[int]]]:
    """[{"prompt": ids, "continuation": ids}, ...]"""
    return json.loads(Path(__file__).with_name("copy_texts.json").read_text(encoding="utf-8"))


def replay(make_drafter: Callable[[], Drafter], k: int = K) -> tuple[int, int]:
    """Draft and verify over all texts, in counts: (tokens, rounds), each text's first token from the prompt's pass."""
    n_tokens = n_rounds = 0
    for text in texts():
        right, n = text["continuation"], 1
        drafter = make_drafter()
        drafter.prefill(None, torch.tensor([text["prompt"]]), Sampling())
        drafter.observe(0, right[:1])
        while n < len(right):
            longest = min(k, len(right) - n - 1)
            drafted = drafter.propose(longest, torch.zeros((1, longest), dtype=torch.float64)).tokens[0].tolist()
            n_accepted = next((i for i, token in enumerate(drafted) if token != right[n + i]), len(drafted))
            drafter.observe(n_accepted, right[n : n + n_accepted + 1])
            n += n_accepted + 1
            n_rounds += 1
        n_tokens += len(right) - 1
    return n_tokens, n_rounds


@reports_problems
def main(argv: list[str] | None = None) -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    try:
        n_tokens, n_rounds = replay(importlib.import_module("exercises.ex07_ngram").MyDrafter)
    except Todo as todo:
        raise UsageProblem(f"there is nothing to count yet, todo: {todo}; type: python check.py 7") from todo
    print(f"k = {K}: {n_tokens} tokens in {n_rounds} rounds, {n_tokens / n_rounds:.2f} tokens per round")


if __name__ == "__main__":
    sys.exit(main())
