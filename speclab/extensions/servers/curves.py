"""Acceptance curves of drafts that are wrong on purpose, one for each shape, counted on the lab's pair.

    python -m speclab.extensions.servers.curves
    python -m speclab.extensions.servers.curves --limit 1       # one prompt of each kind: a try in a minute

Each fault is known from public threads (docs/acceptance-curves.md), and changes no text: it shows in the acceptance by
position. What comes out is a line for each curve, with what the test of shapes says of it.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draft_models import ModelDrafter
from speclab.cli import parsing
from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.servers.counters import EngineCounts, Rounds, of_rounds
from speclab.extensions.servers.diagnose import ENDS, shape_of, shape_of_two
from speclab.extensions.servers.referee import rounds_of
from speclab.models import loading, prompts
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup, load_setup
from speclab.system.errors import reports_problems
from speclab.system.terminal import say

LOW_LAYERS = (0, 1, 2)  # of the target, where the head was trained with three others
WINDOW = 240  # positions that the buffer of states has
LONG_TEXT = 160  # new tokens where a curve is cut by its place in the text
NOISE = 0.4  # of the spread of each matrix of the draft


# --- faults -----------------------------------------------------------------------------------------------------------


class OneOff(FeatureDrafter):
    """Reads every state with the token at its own place, where it should read the token after it."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._tokens, self._last = prompt[:, :-1], int(prompt[0, -1])

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        super().observe(n_accepted, [self._last, *committed[:-1]])
        self._last = committed[-1]


class StaleToken(FeatureDrafter):
    """Reads in every pass after the first one of a round the token before the one that it should read."""

    _before: Tensor

    def _forward(self, states: Tensor, tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
        read = tokens if tokens is self._tokens else self._before  # in the first one, all that was committed
        self._before = tokens[:, -1:]
        return super()._forward(states, read, length)


class Window(FeatureDrafter):
    """Hands the states over in a buffer that ends: behind it, the states of the text's beginning are read again."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._buffer = self._hidden[:, :WINDOW]

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        places = torch.arange(self._length, self._length + self._hidden.shape[1])
        new = self._hidden[:, places >= self._buffer.shape[1]]
        self._buffer = torch.cat([self._buffer, new], dim=1)[:, :WINDOW]
        old = self._buffer[:, places % self._buffer.shape[1]]
        self._hidden = torch.where((places < WINDOW)[None, :, None], self._hidden, old)
        return super().propose(k, uniforms)


def wrong_layers(right: Any, setup: Setup) -> Drafter:
    """Return a head that reads the states after other layers than those that it was trained with."""
    right._layers = LOW_LAYERS
    setup.target.hidden_layers = tuple(sorted({*setup.target.hidden_layers, *LOW_LAYERS}))
    return right


def without_markov(right: Any, setup: Setup) -> Drafter:
    """Return a block draft without its Markov bias: no place of a block knows which token the one before it has got."""
    right.head.markov_head = None
    return right


@torch.no_grad()
def noisy(right: Any, setup: Setup) -> Drafter:
    generator = torch.Generator().manual_seed(0)
    for weight in (one for one in right.draft.model.parameters() if one.ndim > 1):
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.copy_(weight.double() + NOISE * weight.double().std() * noise)
    return right


def target_as_draft(right: Any, setup: Setup) -> Drafter:
    return ModelDrafter(setup.cached(setup.target.model, setup.target.vocab_size))


# --- curves -----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A draft with a fault. right: the draft, a new one for each curve. cut: a place in the text, for a curve of the
    rounds before it and one of those behind it."""

    name: str
    k: int
    right: str
    fault: Callable[[Any, Setup], Drafter] = lambda right, setup: right
    cut: int = 0


CASES = (
    Case("feature head", 4, "feature"),
    Case("one off", 4, "feature", lambda right, setup: OneOff(right.head, right.ids)),
    Case("stale token", 4, "feature", lambda right, setup: StaleToken(right.head, right.ids)),
    Case("other layers", 4, "feature", wrong_layers),
    Case("independent", 7, "block", without_markov),
    Case("k = 16", 16, "model"),
    Case("target as draft", 4, "model", target_as_draft),
    Case("noise", 4, "model", noisy),
    Case("buffer", 4, "feature", lambda right, setup: Window(right.head, right.ids), cut=WINDOW),
)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.curves")
    at_least = parsing.at_least
    parser.add_argument("--limit", type=at_least(0), default=0, metavar="N", help="prompts of each kind (default: all)")
    parser.add_argument("--max-new-tokens", type=at_least(8), default=64, metavar="N", help="per prompt (default: 64)")
    args = parser.parse_args(argv)
    setup = load_setup(loading.LAB_TARGET, engine="eager")
    texts = prompts.first_of_each_kind(prompts.encode(prompts.standard(), setup.tokenizer), args.limit)
    say("curve                     k  rounds     f  tok/rnd  shape: kept of the rounds that reach each position")
    for case in (one for one in CASES if one.right in registry.kinds()):  # the folder of one may be deleted
        found = curves_of(setup, case, texts, args.max_new_tokens)
        for name, counts in found.items():
            say(line(name, case.k, counts))
        if case.cut:
            before, behind = found.values()
            both = shape_of_two(before, behind, ENDS)
            say(f"{' and '.join(found)}: {both.name if both else '-'}")
    return 0


def line(name: str, k: int, counts: EngineCounts) -> str:
    shape, f, tau = shape_of(counts), counts.drafted_fraction or 0.0, 1 + counts.n_accepted / max(1, counts.n_drafts)
    by_position = " ".join("-" if rate is None else f"{rate:.2f}" for rate in counts.conditional[:8])
    return f"{name:<24}{k:>3}{counts.n_drafts:>8}{f:>6.2f}{tau:>9.2f}  {shape.name if shape else '-'}: {by_position}"


def curves_of(setup: Setup, case: Case, texts: Sequence[Prompt], n_tokens: int) -> dict[str, EngineCounts]:
    drafter, parts = case.fault(registry.make(case.right, setup), setup), dict[str, Rounds]()
    for prompt in texts:
        place = prompt.ids.shape[1]
        for one in rounds_of(setup, drafter, prompt, case.k, LONG_TEXT if case.cut else n_tokens):
            name = f"{case.name}: {'before' if place < case.cut else 'behind'}" if case.cut else case.name
            parts.setdefault(name, []).append((one.n_drafted, one.n_accepted))
            place += len(one.tokens)
    return {name: of_rounds(rounds, case.k) for name, rounds in parts.items()}


if __name__ == "__main__":
    sys.exit(main())
