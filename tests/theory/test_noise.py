"""When a run's speeds are rough: the decision on noise floors, made up and committed."""

import json
import re
from types import SimpleNamespace

import pytest

from speclab.lab.rows import noise_floors
from speclab.present import screen
from speclab.records.rows import BASELINE, BASELINE_REPEAT, Arm, Decoded, Noise
from speclab.system.files import ROOT
from speclab.theory import attribution
from speclab.theory.attribution import FURTHEST  # before the tests' own bound: see tests/conftest.py


@pytest.fixture(autouse=True)
def bound_of_the_lab(monkeypatch):
    monkeypatch.setattr(attribution, "FURTHEST", FURTHEST)


def floor(low: float | None, high: float | None, ratio: float = 1.0, temperature: float = 0.0) -> Noise:
    return Noise(temperature=temperature, ratio=ratio, low=low, high=high)


NEAR = [(0.95, 1.06), (0.92, 1.09), (None, None, 1.05)]
FAR = {(0.99, 1.115): "1.12", (0.0, 1.01): "99.00", (None, None, 1.2): "1.20", (None, None, 0.8): "1.25"}
THREE = [floor(0.98, 1.02), floor(0.5, 1.3, temperature=0.8), floor(0.85, 1.2, temperature=1.0)]
CASES = [*(([floor(*one)], FAR.get(one)) for one in [*NEAR, *FAR]), (THREE, "2.00"), (THREE[:1], None), ([], None)]


@pytest.mark.parametrize(("floors", "factor"), CASES)
def test_a_floor_that_reaches_further_than_ten_per_cent_is_doubted(floors, factor):
    """The worst temperature decides."""
    assert screen.rough_factor(SimpleNamespace(noise=floors)) == factor


def test_few_committed_records_are_rough():
    """The bound rests on them: of quiet machines, none reaches ten per cent."""
    records = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "results").glob("cpu-*.json")}
    keys, reach = ("temperature", "ratio", "low", "high"), {True: [], False: []}
    for name, record in records.items():
        for part in (record, record.get("eager") or {}, record.get("padded") or {}):
            for entry in part.get("noise") or []:
                noisy = bool(re.fullmatch(r"cpu-2-cores-c(-.00m)?", name))  # their pages say so
                reach[noisy].append(attribution.reach(Noise(**{key: entry[key] for key in keys})))
    assert len(reach[False]) >= 7
    assert max(reach[False]) < 1.095 < attribution.FURTHEST < max(reach[True])


def timed(arm: Arm, *decodings: list[float]) -> list[Decoded]:
    """One sample for each list: the seconds of its repeats."""
    found = [Decoded.begin(arm, 0.0, index, "code", 10) for index, _ in enumerate(decodings)]
    for one, seconds in zip(found, decodings, strict=True):
        for decode in seconds:
            one.add(0.5, decode, [0] * 11)
    return found


def floors_of(first: list[list[float]], second: list[list[float]]) -> list[Noise]:
    return noise_floors([*timed(BASELINE, *first), *timed(BASELINE_REPEAT, *second)])


def test_noise_floor_by_hand():
    """Prompts are paired: neither the order of the samples nor a prompt that only the first run has may matter."""
    [found] = floors_of([[1.0], [2.0], [3.0]], [[2.0], [2.0], [2.0]])
    assert found.ratio == pytest.approx(1.0)
    assert found.low < 1 < found.high
    assert floors_of([[3.0], [3.0]], [[2.0], [2.0]]) == [floor(None, None, pytest.approx(1.5))]
    exact = floors_of([[1.0, 2.0], [2.0, 2.0], [1.0, 3.0]], [[3.0], [4.0], [4.0]])
    assert exact == [floor(pytest.approx(1.0), pytest.approx(1.0))]
    base, again = timed(BASELINE, [1.0], [5.0], [100.0]), timed(BASELINE_REPEAT, [2.0], [4.0])
    assert noise_floors([*base[::-1], *again])[0].ratio == pytest.approx(1.0)
    assert floors_of([[1.0]], []) == []


@pytest.mark.parametrize(
    ("word", "of_speedup", "of_floor"),
    [
        ("unclear", (1.1, 0.98, 1.2), None),  # covers 1
        ("unclear", (0.9, 0.8, 1.0), None),  # touches 1
        ("faster", (1.1, 1.02, 1.2), None),
        ("slower", (0.9, 0.8, 0.99), None),
        ("unclear", (1.02, 1.01, 1.03), (0.96, 1.04)),  # inside
        ("unclear", (0.98, 0.97, 0.99), (0.96, 1.04)),
        ("faster", (1.05, 1.03, 1.07), (0.97, 1.04)),  # sticks out
        ("slower", (0.95, 0.93, 0.97), (0.97, 1.04)),
        ("unclear", (1.04, 1.01, 1.07), (0.91, 0.99)),  # either way
        ("faster", (1.02, 1.01, 1.03), (None, None)),  # floor unknown
        ("unclear", (1.1, None, None), None),  # fewer than three prompts
        ("unclear", (1.0, None, None), None),
    ],
)
def test_verdict(word, of_speedup, of_floor):
    assert attribution.verdict(*of_speedup, of_floor and floor(*of_floor)) == word
