"""The two loops over a batch: the steps of baseline_autoregressive.py and optimized_speculative.py, for several texts.

Rows come to stand at different lengths and end at different times; a row whose text has ended takes the next one.
Texts and counts of rounds are those that the other loops give (tests/test_batch_loops.py). `BatchDecoding` runs a loop
pass by pass, and keeps the seconds that every pass took.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from speclab.core.accept import accept_from_logits
from speclab.core.rounds import AcceptRule, Draft, Round, fetch
from speclab.core.sampling import draw_next, to_host
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.drafters import BatchDrafter
from speclab.extensions.batch.decoding.texts import Clock, Request, Row, Rows

Rounds = Iterator[tuple[int, Round]]  # (number of the request, round)
PassMade = tuple[dict[int, int], float]  # tokens that each text committed, by request; seconds of the whole round


def autoregressive_decode_batch(
    target: BatchedModel, requests: Sequence[Request], chunk: int = 1, clock: Clock = lambda: 0.0
) -> Rounds:
    """Yield (number of the request, round): one token of each text in a pass. chunk: passes that reach the host at
    once, before anybody looks whether a text has ended."""
    rows = Rows(target, requests, chunk, clock)
    tokens = torch.zeros(target.n_rows, dtype=torch.long, device=target.device)  # the last committed ones
    while True:
        for row in rows.admitted():
            round_, tokens = _first(target, row, tokens)
            yield row.number, round_
        if not (busy := rows.busy):
            return
        drawn = []
        for _ in range(min(chunk, max(row.n_left for row in busy))):
            logits = target.forward(tokens.clamp(min=0)[:, None])  # (rows, 1, vocab)
            tokens = draw_next(logits[:, -1], rows.sampling, rows.uniforms(1)[:, 0])  # (rows,)
            drawn.append(tokens)
        n_drawn = len(drawn)
        new = to_host(torch.stack(drawn, dim=1).flatten())
        for row in busy:
            of_row = new[row.place * n_drawn :][: min(n_drawn, row.n_left)]
            yield row.number, row.commit(of_row)
        target.crop(rows.lengths)


def speculative_decode_batch(
    target: BatchedModel,
    drafter: BatchDrafter,
    requests: Sequence[Request],
    draft_length: int,
    accept: AcceptRule = accept_from_logits,
    clock: Clock = lambda: 0.0,
) -> Rounds:
    """Yield (number of the request, round), a round of 1 to k + 1 ids of each text in a pass."""
    rows = Rows(target, requests, draft_length + 1, clock)
    drafter.start(target, rows.sampling, rows.longest)
    tokens = torch.zeros(target.n_rows, dtype=torch.long, device=target.device)  # the last committed ones
    while True:
        for row in rows.admitted():
            round_, tokens = _first(target, row, tokens)
            drafter.prefill(row.place, row.prompt, round_.tokens)
            yield row.number, round_
        if not (busy := rows.busy):
            return
        # 1. Draft, of each row as much as its own budget allows.
        left = {row.place: row.n_left - 1 for row in busy}
        k = [min(draft_length, left.get(place, 0)) for place in range(target.n_rows)]
        draws = rows.uniforms(2 * draft_length + 1)
        draft = drafter.propose(k, draws[:, :draft_length])  # n tokens of each row, of which `size` count

        # 2. Verify: one pass for all rows.
        logits = target.verify(tokens, draft)  # (rows, n + 1, vocab)

        # 3. Accept or reject, row by row, and fetch what was decided.
        result = accept(draft, logits, rows.sampling, judging(draft, draws[:, draft_length:]))
        decided = fetch(draft, result)
        tokens = result.next_token

        # 4. Roll back: each row to its own length.
        rounds = {row.place: row.commit(*decided[row.place][:4]) for row in busy}
        target.crop(rows.lengths)
        drafter.observe({row.place: decided[row.place] for row in busy if not row.finish})
        for row in busy:
            yield row.number, rounds[row.place]


def _first(target: BatchedModel, row: Row, tokens: Tensor) -> tuple[Round, Tensor]:
    """Read the prompt of a row.  -> the round of its first token, and `tokens`, (rows,), with it at the row's place"""
    logits = target.prefill(row.place, row.prompt)  # (1, 1, vocab)
    token = draw_next(logits[:, -1], row.settings.sampling, row.uniforms(1))  # (1,)
    return row.commit(to_host(token)), torch.cat([tokens[: row.place], token, tokens[row.place + 1 :]])


def judging(draft: Draft, uniforms: Tensor) -> Tensor:
    """The uniforms of the accept rule, (rows, n + 1), from those that were drawn for it, (rows, at least n + 1). The
    last one draws the next token: a row with fewer drafted tokens than the widest one uses there the uniform that it
    would use alone, so its text does not depend on the other rows."""
    n = draft.tokens.shape[1]
    return torch.cat([uniforms[:, :n], uniforms.gather(1, draft.size[:, None])], dim=1)


class BatchDecoding:
    """Requests that are decoded side by side. `advance` does the next prompt's pass or the next round of all rows.

    rounds, prefills: by the number of the request, the rounds of each text, and the seconds of its prompt's own pass.
    passes: rounds of all rows, in order. n_tokens: of all texts, of prompts' passes, too. clock: all seconds so far.
    """

    def __init__(self, of_batch: Callable[[Clock], Rounds], n_requests: int):
        self.rounds: dict[int, list[Round]] = {}
        self.prefills: dict[int, float] = {}
        self.passes: list[PassMade] = []
        self.n_tokens, self.clock = 0, 0.0
        self.n_requests = self.n_left = n_requests  # n_left: texts that have not ended
        self._rounds, self._n_busy = of_batch(lambda: self.clock), 0

    @property
    def done(self) -> bool:
        return self.n_left == 0

    @property
    def progress(self) -> float:
        return self.n_tokens / self.n_requests

    def advance(self) -> None:
        start = time.perf_counter()
        number, round_ = next(self._rounds)  # ends with tokens on the host: the device has nothing left to do
        of_pass = [(number, round_)]
        if not round_.prefill:
            of_pass += [next(self._rounds) for _ in range(self._n_busy - 1)]
        seconds = time.perf_counter() - start
        self.clock += seconds
        if round_.prefill:
            self.prefills[number] = seconds
            self._n_busy += 1
        else:
            self.passes.append(({of_text: len(made.tokens) for of_text, made in of_pass}, seconds))
        for of_text, made in of_pass:
            self.rounds.setdefault(of_text, []).append(made)
            self.n_tokens += len(made.tokens)
            if made.finish:
                self._n_busy, self.n_left = self._n_busy - 1, self.n_left - 1
        if self.done:
            self._rounds = iter(())  # frees the caches

    def full(self, n_rows: int) -> list[PassMade]:
        """The passes in which all rows had a text. A batch makes such passes as long as requests wait."""
        return [made for made in self.passes if len(made[0]) == n_rows]

    def by_request(self, n_rows: int, shared: bool = True) -> dict[int, tuple[int, float]]:
        """The tokens and seconds of each text in the passes in which all rows had a text, by the number of the request.
        Rows share a pass in equal parts: it takes as long whichever texts are in it, and texts differ in how many they
        need. Not shared: all passes, each with its whole seconds, as the user of the text waits for them."""
        parts: dict[int, tuple[int, float]] = {}
        for by_text, seconds in self.full(n_rows) if shared else self.passes:
            for number, n_tokens in by_text.items():
                tokens, before = parts.get(number, (0, 0.0))
                parts[number] = tokens + n_tokens, before + seconds / (n_rows if shared else 1)
        return parts

    @property
    def ended(self) -> set[int]:
        return {number for number, rounds in self.rounds.items() if rounds[-1].finish}
