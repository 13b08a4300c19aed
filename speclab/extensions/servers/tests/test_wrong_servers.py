"""Servers that were wrong on purpose, as they were measured once: what today's rules say of them."""

import json
import re
from types import SimpleNamespace

import pytest

from speclab.extensions.servers import diagnose
from speclab.extensions.servers.counters import EngineCounts
from speclab.extensions.servers.diagnose import MORE, Diagnosis, Measured
from speclab.system.files import ROOT

RECORDS = sorted((ROOT / "results").glob("*wrong-servers.json"))
ANSWERS_OF_TODAY = {"wrong layers": MORE, "wrong layers in vLLM": MORE}  # the records are older than this answer
SHAPES = {shape.name: shape for shape in vars(diagnose).values() if isinstance(shape, diagnose.Shape)}


def judged_again(one: SimpleNamespace) -> Diagnosis:
    """Return what today's rules say of a recorded server. What its record has on the screen alone is read there."""
    text = "\n".join(one.screen)
    kept = re.search(r"kept of all rounds that draft([ .\d]+)", text)
    at = [round(float(rate) * one.n_drafts) for rate in kept[1].split()] if kept else []
    counts = EngineCounts(n_drafts=one.n_drafts, n_drafted=one.n_drafted, n_accepted=one.n_accepted, accepted_at=at)
    others, tau = re.search(r"(\d+) other requests", text), one.tokens_per_round
    n_rounds = max(one.n_drafts, one.n_accepted / (tau - 1)) if tau > 1.05 else one.n_drafts
    speed = {"plain_seconds": 1.0, "seconds": 1 / one.speedup, "n_running": int(others[1]) if others else 0}
    found = Measured(counts=counts, n_rounds=n_rounds, n_tokens=n_rounds * tau, **speed)
    # Of two faulty shapes the records have names that are not those of today.
    return diagnose.diagnose(found, next((SHAPES.get(name, diagnose.ENDS) for name in one.shapes), None))


@pytest.mark.parametrize("record", RECORDS, ids=[path.stem for path in RECORDS])
def test_every_recorded_server_gets_the_answer_that_stands_beside_it(record):
    """All sets, so that no rule is made for one of them alone."""
    for one in (SimpleNamespace(**each) for each in json.loads(record.read_text())["wrong"]):
        if one.tokens_per_round:
            said = judged_again(one).answer
            recorded = one.answer.removeprefix("the text is wrong, and of its speed: ")
            assert said == ANSWERS_OF_TODAY.get(one.name, recorded)
