"""Rates of servers by exact counts: every printed or recorded rate worked out as a fraction."""

from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from speclab.extensions.servers import server_rows
from speclab.extensions.servers.client import Answer
from speclab.extensions.servers.served import Served
from speclab.extensions.servers.server_turns import Sent
from speclab.models.prompts import Prompt
from speclab.records.arms import BASELINE, Arm

MODEL = Arm("model", "model", 2)


def test_a_servers_row_is_exact(monkeypatch):
    """First chunks of one, two and four tokens: their tokens and their seconds are no decoding."""

    def sent(arm: Arm, index: int, n_tokens: int, n_first: int, first: float, decode: float) -> Sent:
        return Sent(arm, MODEL, 0.7, index, Answer([1] * n_tokens, n_first, 3, first, decode), None)

    prompts = [Prompt("code", "", torch.tensor([[1, number]])) for number in range(3)]
    config = SimpleNamespace(prompts=prompts, temperatures=[0.7], drafters={"model": SimpleNamespace(draws=True)})
    served = Served(config, None)
    served.sent = [sent(BASELINE, i, 17, 1, 2.0, 4.0) for i in range(3)]
    served.sent += [sent(MODEL, i, 17, n_first, 1.0, 2.5) for i, n_first in enumerate((1, 2, 4))]
    plain, fast = server_rows.rows(served, None, {}, {})
    scaled = [Fraction(5, 2) / (17 - n_first) * 16 for n_first in (1, 2, 4)]  # to all tokens but one
    assert (plain.n_tokens, plain.seconds, plain.first_seconds, plain.tokens_per_second) == (48, 12.0, 6.0, 4.0)
    assert (fast.n_tokens, fast.seconds, fast.first_seconds) == (16 + 15 + 13, 7.5, 3.0)
    assert fast.tokens_per_second == float(Fraction(44) / Fraction(15, 2))
    assert fast.speedup == pytest.approx(float(12 / sum(scaled)), rel=1e-15)
    assert fast.speedup_with_prefill == pytest.approx(float(18 / (sum(scaled) + 3)), rel=1e-15)
