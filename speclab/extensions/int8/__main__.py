"""What is plain decoding with the rounded weights worth, and what does it change in the text?

    python -m speclab.extensions.int8 --target smollm2 --texts served --limit 1

The target and the rounded target decode every prompt greedily, in turns. What comes out: by kind of text, the tokens
before the first difference, and the speed of the rounded target as a factor. It is the baseline that a draft of rounded
weights has beside it: it may be faster than that draft, and it writes another text. `compare.py --draft int8` keeps the
target's text.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys
import time
from typing import NamedTuple

from baseline_autoregressive import autoregressive_decode
from speclab.cli import flags
from speclab.core.rounds import DecodeSettings
from speclab.extensions.int8.int8_flags import make_parser
from speclab.extensions.int8.kinds import rounded_target
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.present.tables import Cell, Table, number, show, speedup
from speclab.system.errors import reports_problems
from speclab.system.terminal import note, progress, say


class Pair(NamedTuple):
    """Both texts of some prompts. n_same: tokens before the first difference. seconds: of decoding, the prompts apart;
    the target's, then those of the rounded one."""

    kind: str
    n_texts: int
    n_tokens: int
    n_same: int
    n_identical: int
    seconds: tuple[float, float]


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Decode in both ways, and print the table.  -> exit code"""
    args = make_parser(__doc__).parse_args(argv)
    setup, prompts = flags.load(args, temperature=0.0)
    rounded = rounded_target(setup)
    note(setup.describe())
    pairs = []
    for model in (setup.target, rounded):  # the first passes of a process are slow
        _decoded(model, prompts[0], min(args.max_new_tokens, 8))
    with progress(len(prompts), "prompt", "decoding") as bar:
        for turn, prompt in enumerate(prompts):
            models = (setup.target, rounded)
            done = {model: _decoded(model, prompt, args.max_new_tokens) for model in models[:: 1 - 2 * (turn % 2)]}
            pairs.append(compared(prompt.kind, *(done[model] for model in models)))
            bar.update()
    kinds = [total([p for p in pairs if p.kind == kind], kind) for kind in dict.fromkeys(p.kind for p in pairs)]
    say(show([Table([*kinds, total(pairs, "all")], COLUMNS)]), end="")
    return 0


def _decoded(model: CachedModel, prompt: Prompt, n_new: int) -> tuple[list[int], float]:
    """Return the new ids, and the seconds of decoding without the prompt's own pass."""
    rounds = autoregressive_decode(model, prompt.ids.to(model.device), DecodeSettings(n_new))
    text = list(next(rounds).tokens)
    start = time.perf_counter()
    text += [token for round_ in rounds for token in round_.tokens]
    return text, time.perf_counter() - start


def compared(kind: str, own: tuple[list[int], float], rounded: tuple[list[int], float]) -> Pair:
    """Compare the target's text and seconds with those of the rounded target."""
    (text, seconds), (other, other_seconds) = own, rounded
    n_same = next((i for i, (a, b) in enumerate(zip(text, other, strict=True)) if a != b), len(text))
    return Pair(kind, 1, len(text), n_same, int(n_same == len(text)), (seconds, other_seconds))


def total(pairs: list[Pair], kind: str) -> Pair:
    """Return the sum of several pairs."""
    texts, tokens, same, identical = (sum(column) for column in list(zip(*pairs, strict=True))[1:5])
    return Pair(
        kind, texts, tokens, same, identical, (sum(p.seconds[0] for p in pairs), sum(p.seconds[1] for p in pairs))
    )


COLUMNS: dict[str, Cell] = {
    "kind": lambda pair: pair.kind,
    "texts": lambda pair: str(pair.n_texts),
    "identical": lambda pair: str(pair.n_identical),
    "tokens": lambda pair: str(pair.n_tokens),
    "before the first difference": lambda pair: number(pair.n_same / pair.n_tokens),
    "speed (rough)": lambda pair: speedup(pair.seconds[0] / pair.seconds[1]),
}


if __name__ == "__main__":
    sys.exit(main())
