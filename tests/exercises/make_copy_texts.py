"""The texts of exercise 7, copy_texts.json: three of the lab's copy prompts and how its target continues them, as ids.

    python -m tests.exercises.make_copy_texts --rounds   # how many rounds your exercises/ex07_ngram.py takes on them
    python -m tests.exercises.make_copy_texts            # write the file anew

A drafter's tokens per round follow from the text alone, so exercise 7 is judged by a replay: no model, no clock. The
continuations are the lab pair's target at temperature 0, in float32 on the eager engine.
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
from transformers import AutoModelForCausalLM, AutoTokenizer

from baseline_autoregressive import autoregressive_decode
from exercises import Todo
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import Sampling
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem, reports_problems

FILE = Path(__file__).with_name("copy_texts.json")
CHOSEN = (0, 6, 8)  # of the copy prompts; on these the length and the age of a match matter most
N_TOKENS = 64
K = 4  # draft length of the count


def texts() -> list[dict[str, list[int]]]:
    """[{"prompt": ids, "continuation": ids}, ...]"""
    return json.loads(FILE.read_text(encoding="utf-8"))


def chosen_prompts() -> list[prompts.Prompt]:
    tokenizer = AutoTokenizer.from_pretrained(loading.LAB_TARGET)
    copies = [pair for pair in prompts.standard() if pair[0] == "copy"]
    return prompts.encode([copies[i] for i in CHOSEN], tokenizer)


def make() -> list[dict[str, list[int]]]:
    model = AutoModelForCausalLM.from_pretrained(loading.LAB_TARGET, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(loading.LAB_TARGET)
    target, settings = CachedModel(model, len(tokenizer)), DecodeSettings(N_TOKENS)
    return [
        {"prompt": prompt.id_list, "continuation": tokens_of(autoregressive_decode(target, prompt.ids, settings))}
        for prompt in chosen_prompts()
    ]


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


def rounds_line(make_drafter: Callable[[], Drafter]) -> str:
    """What --rounds prints."""
    n_tokens, n_rounds = replay(make_drafter)
    return f"k = {K}: {n_tokens} tokens in {n_rounds} rounds, {n_tokens / n_rounds:.2f} tokens per round"


@reports_problems
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", action="store_true", help="count the rounds of your drafter and write nothing")
    if parser.parse_args(argv).rounds:
        try:
            print(rounds_line(importlib.import_module("exercises.ex07_ngram").MyDrafter))
        except Todo as todo:
            raise UsageProblem(f"there is nothing to count yet, todo: {todo}; type: python check.py 7") from todo
        return
    lines = [json.dumps(text) for text in make()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"wrote {FILE.name}: {len(lines)} prompts, {N_TOKENS} tokens each")


if __name__ == "__main__":
    sys.exit(main())
