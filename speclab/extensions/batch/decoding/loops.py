"""The two loops over a batch: the steps of baseline_autoregressive.py and optimized_speculative.py, for several texts.

Every round accepts a different number of tokens in each row, so the rows come to stand at different lengths and end at
different times; a row whose text has ended takes the next one. The texts are those that the other loops give, and so
are the counts of every round: speclab/extensions/batch/tests/test_batch_loops.py.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from speclab.core.accept import accept_from_logits
from speclab.core.rounds import AcceptRule, Draft, Round, fetch
from speclab.core.sampling import draw_next, to_host
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.drafters import BatchDrafter
from speclab.extensions.batch.decoding.texts import Clock, Request, Row, Rows


def autoregressive_decode_batch(
    target: BatchedModel, requests: Sequence[Request], chunk: int = 1, clock: Clock = lambda: 0.0
) -> Iterator[tuple[int, Round]]:
    """Yield (number of the request, round): one token of each text in a pass.

    A chunk is what reaches the host together: passes before anybody looks whether a text has ended.
    """
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
) -> Iterator[tuple[int, Round]]:
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
        target.commit(decided, rows.lengths)
        drafter.observe({row.place: decided[row.place] for row in busy if not row.finish})
        for row in busy:
            yield row.number, rounds[row.place]


def _first(target: BatchedModel, row: Row, tokens: Tensor) -> tuple[Round, Tensor]:
    """Read the prompt of a row.  -> the round of its first token, and `tokens`, (rows,), with it at the row's place"""
    logits = target.prefill(row.place, row.prompt)  # (1, 1, vocab)
    token = draw_next(logits[:, -1], row.settings.sampling, row.uniforms(1))  # (1,)
    return row.commit(to_host(token)), torch.cat([tokens[: row.place], token, tokens[row.place + 1 :]])


def judging(draft: Draft, uniforms: Tensor) -> Tensor:
    """The uniforms of the accept rule, (rows, n + 1), from those that were drawn for it, (rows, at least n + 1).

    The rule draws the next token with the last uniform. A row with fewer drafted tokens than the widest one uses, for
    its next token, the uniform that it would use alone, so its text does not depend on the other rows.
    """
    n = draft.tokens.shape[1]
    return torch.cat([uniforms[:, :n], uniforms.gather(1, draft.size[:, None])], dim=1)
