"""When a run's speeds are rough: the decision on noise floors, made up and committed."""

import dataclasses
import doctest
import json

import pytest

from speclab.records.rows import Noise
from speclab.system.paths import ROOT
from speclab.theory import attribution
from speclab.theory.attribution import FURTHEST  # before the tests' own bound: see tests/conftest.py


@pytest.fixture(autouse=True)
def bound_of_the_lab(monkeypatch):
    monkeypatch.setattr(attribution, "FURTHEST", FURTHEST)


def floor(low: float | None, high: float | None, ratio: float = 1.0, temperature: float = 0.0) -> Noise:
    return Noise(temperature=temperature, ratio=ratio, low=low, high=high)


def committed() -> list[Noise]:
    return committed_in("cpu-*")


def committed_in(pattern: str) -> list[Noise]:
    records = [json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "results").glob(f"{pattern}.json"))]
    records += [record["padded"] for record in records if record.get("padded")]
    names = [field.name for field in dataclasses.fields(Noise)]  # those of batches and of servers have more
    entries = [entry for record in records for entry in record.get("noise") or []]
    return [Noise(**{name: value for name, value in entry.items() if name in names}) for entry in entries]


def test_the_example():
    result = doctest.testmod(attribution)
    assert result.failed == 0 < result.attempted


@pytest.mark.parametrize(
    ("of_run", "doubted"),
    [
        (floor(0.95, 1.06), False),
        (floor(0.92, 1.09), False),
        (floor(0.80, 1.05), True),
        (floor(0.99, 1.11), True),
        (floor(0.0, 1.01), True),
        (floor(None, None, 1.05), False),
        (floor(None, None, 1.2), True),
        (floor(None, None, 0.8), True),
    ],
)
def test_a_floor_that_reaches_further_than_ten_per_cent_is_doubted(of_run, doubted):
    assert (attribution.too_wide([of_run]) is of_run) == doubted
    assert (attribution.too_wide([of_run]) is None) != doubted


def test_the_worst_temperature_decides():
    floors = [floor(0.98, 1.02), floor(0.5, 1.3, temperature=0.8), floor(0.85, 1.2, temperature=1.0)]
    assert attribution.too_wide(floors) is floors[1]
    assert attribution.too_wide(floors[:1]) is None
    assert attribution.too_wide([]) is None


def test_few_committed_records_are_rough():
    """The bound rests on them: of quiet machines, none reaches ten per cent."""
    noisy = committed_in("cpu-2-cores-compiled") + committed_in("cpu-2-cores-c-?00m")  # their pages say so
    floors = [floor for floor in committed() if floor not in noisy]
    assert len(floors) >= 15
    assert max(map(attribution.reach, floors)) < 1.095 < attribution.FURTHEST < max(map(attribution.reach, noisy))
