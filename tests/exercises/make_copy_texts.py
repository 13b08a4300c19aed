"""Write copy_texts.json: three of the lab's copy prompts and how its target continues them, as ids.

    python -m tests.exercises.make_copy_texts

A drafter's tokens per round follow from the text alone, so exercise 7 is judged by a replay: no model, no clock. The
continuations are the lab pair's target at temperature 0, in float32 on the eager engine.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baseline_autoregressive import autoregressive_decode
from speclab import options, prompts
from speclab.cached_model import CachedModel

FILE = Path(__file__).with_name("copy_texts.json")
CHOSEN = (0, 6, 8)  # of the copy prompts; on these the length and the age of a match matter most
N_TOKENS = 64


def texts() -> list[dict[str, list[int]]]:
    """[{"prompt": ids, "continuation": ids}, ...]"""
    return json.loads(FILE.read_text(encoding="utf-8"))


def chosen_prompts() -> list[prompts.Prompt]:
    tokenizer = AutoTokenizer.from_pretrained(options.LAB_TARGET)
    copies = [pair for pair in prompts.standard() if pair[0] == "copy"]
    return prompts.encode([copies[i] for i in CHOSEN], tokenizer)


def make() -> list[dict[str, list[int]]]:
    model = AutoModelForCausalLM.from_pretrained(options.LAB_TARGET, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.LAB_TARGET)
    target = CachedModel(model, len(tokenizer))
    return [
        {"prompt": prompt.id_list, "continuation": list(autoregressive_decode(target, prompt.ids, N_TOKENS))}
        for prompt in chosen_prompts()
    ]


def replay(propose: Callable[[list[int], int], list[int]], k: int) -> tuple[int, int]:
    """Draft and verify over all texts, in counts: (tokens, rounds), each text's first token from the prompt's pass.

    propose(text, k) -> at most k ids that may follow `text`.
    """
    n_tokens = n_rounds = 0
    for text in texts():
        right, n = text["continuation"], 1
        while n < len(right):
            drafted = propose(text["prompt"] + right[:n], min(k, len(right) - n - 1))
            n_accepted = 0
            while n_accepted < len(drafted) and drafted[n_accepted] == right[n + n_accepted]:
                n_accepted += 1
            n += n_accepted + 1
            n_rounds += 1
        n_tokens += len(right) - 1
    return n_tokens, n_rounds


def main() -> None:
    lines = [json.dumps(text) for text in make()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"wrote {FILE.name}: {len(lines)} prompts, {N_TOKENS} tokens each")


if __name__ == "__main__":
    main()
