"""The five scenes of exercise 8: what a user of your loop would report, in worlds small enough to count along.

    python -m exercises.scenes       # your exercises/ex08_bug_hunt.py as it is now

Greedy models that cost nothing stand in for real ones. The checks use them too; what the bugs are does not stand here.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import importlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.cli import parsing
from speclab.core.rounds import Decided, DecodeSettings, Draft, Round, tokens_of
from speclab.core.sampling import Sampling
from speclab.models.family import Room
from speclab.system.errors import reports_problems

# --- small worlds: greedy models that cost nothing; in each of them one bug shows and the others do not --------------

VOCAB = 50


def one_up(ids: list[int]) -> int:
    """The next token depends on the last one alone: such a model does not notice what else is in its cache."""
    return (ids[-1] + 1) % VOCAB


def all_of_it(ids: list[int]) -> int:
    """The next token depends on every token of the text and on its position."""
    mixed = 0
    for token in ids:
        mixed = (31 * mixed + token * token + 7) % 10_007
    return mixed % VOCAB


class TinyTarget:
    """Stands in for a CachedModel. `choose` says what follows the ids that are in the cache."""

    device, max_length = torch.device("cpu"), None

    def __init__(self, choose: Callable[[list[int]], int]):
        self.choose, self.cache, self.n_passes = choose, [], 0
        self.vocab_size = self.n_ids = VOCAB

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return len(self.cache)

    @property
    def room(self) -> Room:
        """Its positions."""
        return Room(self.max_length)

    def prefill(self, prompt: Tensor) -> Tensor:
        """Drop everything and read (1, n) ids.  -> (1, 1, vocab) logits of the next token"""
        self.cache = []
        return self.forward(prompt)[:, -1:]

    def forward(self, tokens: Tensor) -> Tensor:
        """Append (1, m) ids to the cache.  -> (1, m, vocab) logits, row i follows token i"""
        rows = []
        for token in tokens[0].tolist():
            self.cache.append(token)
            rows.append(self.choose(self.cache))
        self.n_passes += 1
        return 9.0 * torch.nn.functional.one_hot(torch.tensor([rows]), VOCAB).double()  # (1, m, vocab)

    def verify(self, last_token: Tensor, draft: Draft) -> Tensor:
        """One pass over the last committed token, (1,), and the n drafted ones.  -> (1, n + 1, vocab) logits"""
        return self.forward(torch.cat([last_token[:, None], draft.tokens], dim=1))

    def commit(self, decided: Decided) -> None:
        """Keep of the last pass what was accepted."""
        self.crop(self.length - decided.n_drafted + decided.n_accepted)

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""
        assert 0 <= length <= self.length, f"cannot keep {length} of the {self.length} tokens in the cache"
        del self.cache[length:]


class TinyDrafter:
    """Proposes what `choose` says after the text so far; every `wrong_at`-th position of the text it is wrong."""

    def __init__(self, choose: Callable[[list[int]], int], wrong_at: int = 0, at_most: int = 99):
        self.choose, self.wrong_at, self.at_most = choose, wrong_at, at_most
        self.text: list[int] = []
        self.asked: list[int] = []  # k of every proposal

    def prefill(self, target: TinyTarget, prompt: Tensor, sampling: Sampling) -> None:
        """Begin a text."""
        self.text = prompt[0].tolist()

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens, each of them certain."""
        self.asked.append(k)
        text = list(self.text)
        for position in range(len(text), len(text) + min(k, self.at_most)):
            is_wrong = self.wrong_at > 0 and position % self.wrong_at == 0
            text.append((self.choose(text) + is_wrong) % VOCAB)
        return as_draft(text[len(self.text) :], TinyTarget.device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Append what was committed to the text."""
        self.text += committed


PROMPT = torch.tensor([[11, 4, 2]])


def rounds(
    learner: ModuleType, target: TinyTarget, drafter: TinyDrafter, k: int, n: int, eos: frozenset[int] = frozenset()
) -> Iterator[Round]:
    """The rounds of the learner's loop at temperature 0; cut off after n + 1, so that no loop runs for ever."""
    return itertools.islice(learner.decode(target, drafter, PROMPT, k, DecodeSettings(n, eos=eos)), n + 1)


def plain(choose: Callable[[list[int]], int], n: int) -> list[int]:
    """What the model writes token by token."""
    text = PROMPT[0].tolist()
    for _ in range(n):
        text.append(choose(text))
    return text[-n:]


def twelfths(*rows: list[int]) -> Tensor:
    """(1, rows, vocab) probabilities"""
    return torch.tensor([rows], dtype=torch.float64) / 12


def decisions(learner: ModuleType, draft: Draft, target_probs: Tensor, size: int) -> list[tuple[int, int]]:
    """(accepted, next token) for uniforms at the midpoints of `size` equal cells of [0, 1), in every combination.

    All combinations weigh the same, so shares are exact.
    """
    midpoints = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    decided = []
    for u in itertools.product(midpoints.tolist(), repeat=target_probs.shape[1]):
        result = learner.accept(draft, target_probs, torch.tensor([u], dtype=torch.float64))
        decided.append((int(result.n_accepted), int(result.next_token)))
    return decided


# --- the scenes: what a user would report ----------------------------------------------------------------------------

TARGET_ROW, DRAFT_ROW = [6, 2, 4], [3, 8, 1]  # twelfths; the draft likes token 1 too much
INDEPENDENT = [1 / 2, 1 / 2 * 1 / 2, 1 / 2 * 1 / 2]  # rejected; kept, rejected; kept, kept: each test a coin of its own


def scene_a(learner: ModuleType) -> list[int]:
    """The draft is always right, k = 4, 21 tokens: how many does each round commit?"""
    return [len(r.tokens) for r in rounds(learner, TinyTarget(one_up), TinyDrafter(one_up), 4, 21) if not r.prefill]


def scene_b(learner: ModuleType) -> tuple[list[int], list[int]]:
    """Temperature 0, k = 3, the draft is wrong at every fourth position: the text token by token, and the loop's."""
    written = rounds(learner, TinyTarget(all_of_it), TinyDrafter(all_of_it, wrong_at=4), 3, 14)
    return plain(all_of_it, 14), tokens_of(written)


def scene_c(learner: ModuleType, k: int = 4) -> list[int]:
    """Tokens count up from 3, 6 means end of text, 12 are asked for: the text."""
    return tokens_of(rounds(learner, TinyTarget(one_up), TinyDrafter(one_up), k, 12, frozenset({6})))


def scene_d(learner: ModuleType) -> list[float]:
    """One drafted token: the share of each token at its position, over all draws there are."""
    share = Counter()
    for token, weight in enumerate(DRAFT_ROW):
        draft = Draft(torch.tensor([[token]]), torch.tensor([1]), twelfths(DRAFT_ROW))
        decided = decisions(learner, draft, twelfths(TARGET_ROW, [4, 4, 4]), 12)
        for n_accepted, next_token in decided:
            share[token if n_accepted else next_token] += weight / 12 / len(decided)
    return [share[token] for token in range(3)]


def scene_e(learner: ModuleType) -> list[float]:
    """Two drafted tokens, each kept half of the time: the share of rounds that keep none, one, both."""
    draft = Draft(torch.tensor([[0, 0]]), torch.tensor([2]))
    counts = Counter(n for n, _ in decisions(learner, draft, twelfths([6, 6], [6, 6], [6, 6]), 4))
    return [counts[n] / counts.total() for n in range(3)]


def scenes(learner: ModuleType) -> str:
    """All five, printed."""

    def line(items: list) -> str:
        return " ".join(f"{item:.2f}" if isinstance(item, float) else str(item) for item in items)

    expected, written = scene_b(learner)
    return "\n".join(
        [
            "A  k = 4, and the draft is always right",
            f"   tokens per round       {line(scene_a(learner))}",
            "B  temperature 0, k = 3, and the draft is wrong now and then",
            f"   token by token         {line(expected)}",
            f"   this loop              {line(written)}",
            "C  token 6 means end of text",
            f"   with -k 0              {line(scene_c(learner, 0))}",
            f"   with -k 4              {line(scene_c(learner, 4))}",
            "D  sampling with one drafted token; shares of tokens 0, 1, 2",
            f"   the target's           {line([w / 12 for w in TARGET_ROW])}",
            f"   the draft's            {line([w / 12 for w in DRAFT_ROW])}",
            f"   this loop's            {line(scene_d(learner))}",
            "E  two drafted tokens, each right half of the time; rounds that keep 0, 1, 2",
            f"   independent tests      {line(INDEPENDENT)}",
            f"   this loop's            {line(scene_e(learner))}",
        ]
    )


@reports_problems
def main(argv: list[str] | None = None) -> None:
    """Print what the loop does in every scene."""
    parsing.make_parser(__doc__).parse_args(argv)
    print(scenes(importlib.import_module("exercises.ex08_bug_hunt")))


if __name__ == "__main__":
    sys.exit(main())
