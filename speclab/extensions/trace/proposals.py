"""What each of several drafts would propose after every token of a greedy text: the data of a page's dials.

A greedy text depends neither on the draft nor on its length. So one decoding, in which every draft is asked in every
round and none is used, says what each of them would propose wherever a round may begin, and a page replays the rounds
of any draft and any length from that (templates/replay.js).
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from draft_models import as_draft
from optimized_speculative import speculative_decode
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Draft, Target, tokens_of
from speclab.core.sampling import Sampling
from speclab.extensions.trace.trace import spell, visible
from speclab.models.cached import CachedModel
from speclab.models.pieces import Pieces

LONGEST = 12  # tokens of a draft, on the dial
DIGITS = "0123456789abc"  # a length of 0 to LONGEST


@dataclass
class DialText:
    """A greedy text, and what each draft would propose after its first 1, 2, ... tokens.

    limit: the decoding's max_new_tokens, which shortens drafts near the end of the text.
    """

    ids: list[int]
    limit: int
    proposals: dict[str, list[list[int]]]


class AskedDrafters(Drafter):
    """Asks several drafters in every round and proposes nothing, so that each round commits one token of the target."""

    def __init__(self, drafters: Mapping[str, Drafter]):
        self.drafters = drafters
        self.proposals: dict[str, list[list[int]]] = {name: [] for name in drafters}

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._device = prompt.device
        for drafter in self.drafters.values():
            drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        for name, drafter in self.drafters.items():
            draft = drafter.propose(k, uniforms)
            self.proposals[name].append(draft.tokens[0, : int(draft.size[0])].tolist())
        return as_draft([], self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        for drafter in self.drafters.values():
            drafter.observe(0, committed)


def asked(target: CachedModel, drafters: Mapping[str, Drafter], prompt: Tensor, settings: DecodeSettings) -> DialText:
    """Decode `prompt` (1, prompt length) greedily, and ask all drafters for up to LONGEST tokens after every token."""
    asker = AskedDrafters(drafters)
    ids = tokens_of(speculative_decode(target, asker, prompt, LONGEST, settings))
    return DialText(ids, settings.max_new_tokens, asker.proposals)


# --- as a page holds it -----------------------------------------------------------------------------------------------


class PieceTable:
    """The different ids of a page's texts and drafts, each with a picture of its text. A page names an id by its place
    here."""

    def __init__(self) -> None:
        self.pictures: list[str] = []
        self._places: dict[int, int] = {}

    def place(self, id_: int, made: Pieces) -> int:
        """Return the place of an id. made: the pieces of a text after which its picture is taken, where it is new."""
        if id_ not in self._places:
            self._places[id_] = len(self.pictures)
            self.pictures.append(visible(spell(made.fork(), [id_])[0]))
        return self._places[id_]

    def packed(self, ids: Iterable[int], made: Pieces) -> str:
        """Return the places of ids as base64 of unsigned integers of two bytes, the lower byte first. Raises
        OverflowError where a page has more tokens than these can number."""
        return base64.b64encode(np.array([self.place(id_, made) for id_ in ids], dtype="<u2").tobytes()).decode()

    def text(self, asked: DialText, made: Pieces) -> dict[str, Any]:
        """Return a text and its proposals as plain JSON. made: the pieces of what the text continues."""
        drafts = {
            name: {
                "sizes": "".join(DIGITS[len(tokens)] for tokens in proposals),
                "ids": self.packed((id_ for tokens in proposals for id_ in tokens), made),
            }
            for name, proposals in asked.proposals.items()
        }
        pieces = spell(made.fork(), asked.ids)
        return {"pieces": pieces, "ids": self.packed(asked.ids, made), "limit": asked.limit, "drafts": drafts}
