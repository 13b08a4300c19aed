"""Greedy texts of the target, its margin at each place, and what drafts would have proposed there."""

from collections.abc import Callable, Sequence

import torch

from baseline_autoregressive import autoregressive_decode
from speclab.core.drafter import Drafter
from speclab.core.proposals import AcceptProbs
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import GREEDY
from speclab.extensions.margins.margin_record import EDGES, SURE, Group, Margins
from speclab.models.checking.uncached import logits_after
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup


def measure(setup: Setup, drafters: dict[str, Drafter], prompt: Prompt, k: int, n_new: int) -> list[Margins]:
    """Decode one prompt with the baseline, and count for each draft what a replay of its rounds accepts."""
    settings = DecodeSettings(n_new)
    text = tokens_of(autoregressive_decode(setup.target, prompt.ids.to(setup.device), settings))
    before = torch.tensor([text[:-1]], dtype=torch.long, device=setup.device)
    size = setup.target.vocab_size
    logits = logits_after(setup.target.model, prompt.ids.to(setup.device), before)[0, :, :size].float()  # (n, vocab)
    first, second = logits.topk(2).values.unbind(-1)
    margins = (first - second).tolist()
    found = []
    for name, drafter in drafters.items():
        law = drafter.law(setup.target, prompt.id_list, text, GREEDY, k)
        rows = law.accept_probs(lambda: GREEDY.probs(logits).cpu(), text)
        found.append(counted(name, prompt.kind, margins, rows, k))
    return found


def counted(name: str, kind: str, margins: Sequence[float], rows: AcceptProbs, k: int) -> Margins:
    """Count one draft on one text.

    margins: of all its places, the first one included, whose token comes with the prompt. rows: for each beginning of a
    round, whether its proposals are accepted, 1 or 0.
    """
    groups = [Group(low=low, n_places=0, n_proposed=0, n_right=0, n_ends=0) for low in EDGES]

    def group_of(place: int) -> Group:
        return next(group for group in reversed(groups) if margins[place] >= group.low)

    n = len(margins)
    for place in range(1, n):
        group, proposed = group_of(place), rows[place][:1]
        group.n_places += 1
        group.n_proposed += len(proposed)
        group.n_right += sum(map(bool, proposed))

    def right(start: int, depth: int, asked: int) -> bool | None:
        proposed = rows[start][:asked]
        return bool(proposed[depth]) if depth < len(proposed) else None

    def surely(start: int, depth: int, asked: int) -> bool | None:
        return True if margins[start + depth] >= SURE else right(start, depth, asked)

    ends, n_rounds = replayed(n, k, right)
    for place in ends:
        group_of(place).n_ends += 1
    return Margins(
        draft=name,
        kind=kind,
        n_tokens=n - 1,
        n_rounds=n_rounds,
        n_sure_rounds=replayed(n, k, surely)[1],
        groups=groups,
    )


def replayed(n: int, k: int, right: Callable[[int, int, int], bool | None]) -> tuple[list[int], int]:
    """Replay the rounds over a text of n tokens, the first of which comes with the prompt.

    right: (first place of the round, number in its draft, tokens that the round asks for) -> whether the drafted token
    is the target's, None where nothing is drafted.  -> the places of the rejected tokens, the number of rounds
    """
    start, ends, n_rounds = 1, [], 0
    while start < n:
        asked, n_accepted = min(k, n - start - 1), 0
        while n_accepted < asked and right(start, n_accepted, asked):
            n_accepted += 1
        if n_accepted < asked and right(start, n_accepted, asked) is False:
            ends.append(start + n_accepted)
        start, n_rounds = start + n_accepted + 1, n_rounds + 1
    return ends, n_rounds
