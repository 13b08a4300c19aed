"""Records of comparisons: those that are committed, and some made by hand. Nothing is decoded here."""

import json
from dataclasses import replace

from speclab.records.files import SCHEMA_VERSION, ComparisonRun
from speclab.records.rows import Noise, Row, Rung
from speclab.system.files import ROOT
from speclab.theory.attribution import EFFECTS, RUNGS
from speclab.theory.formulas import book_formula, expected_tokens_per_round, leviathan_speedup

RECORDS = {path: json.loads(path.read_text()).keys() for path in sorted((ROOT / "results").glob("*.json"))}
COMPARISONS = [path for path, entries in RECORDS.items() if {"correctness", "costs"} <= entries]  # that are committed
# What each rung after the bonus multiplies by, if a test does not say otherwise.
USUAL = (0.65, 0.83, 0.96, 0.94, 0.98, 0.99, 1.02, 0.97)[: len(EFFECTS) - 1]
KINDS = {"code": 1.05, "prose": 0.75, "copy": 1.2}


def make_row(
    method: str = "model",
    k: int = 4,
    temperature: float = 0.0,
    kind: str = "all",
    alpha: float = 0.7,
    effects: tuple[float, ...] = USUAL,
    **other,
) -> Row:
    """A row of the record with a consistent ladder: the formula, the bonus, then `effects`."""
    rungs = [book_formula(alpha, k), expected_tokens_per_round(alpha, k)]
    for effect in effects:
        rungs.append(rungs[-1] * effect)
    measured, n_rounds = rungs[-1], 400
    n_drafted = n_rounds * k
    n_accepted = round(n_rounds * (expected_tokens_per_round(alpha, k) - 1))
    ladder = [Rung(name=name, speedup=value) for name, value in zip(RUNGS, rungs, strict=True)]
    values = {
        "method": method, "draft": method, "draft_length": k, "temperature": temperature, "prompt_kind": kind,
        "n_prompts": 12 if kind == "all" else 4, "seconds": 9.0, "tokens_per_second": 99.5 * measured,
        "speedup": measured, "speedup_low": measured * 0.9, "speedup_high": measured * 1.12,
        "speedup_with_prefill": measured * 0.97, "n_rounds": n_rounds, "n_drafted": n_drafted,
        "n_accepted": n_accepted, "n_rejected": n_rounds // 2, "n_emitted": n_rounds + n_accepted,
        "acceptance_rate": alpha,
        "drafted_fraction": n_accepted / n_drafted, "tokens_per_round": 1 + n_accepted / n_rounds,
        "draft_cost": 0.13, "verify_cost": 1.2, "overhead": 0.05,
        "book_formula": book_formula(alpha, k),
        "book_formula_drafted_fraction": book_formula(n_accepted / n_drafted, k),
        "same_as_baseline": True if temperature == 0 else None,
        "leviathan": leviathan_speedup(alpha, k, 0.13), "cost_model": rungs[4], "accounting": rungs[-2],
        "forecast": rungs[-2], "forecast_tokens_per_round": 2.1, "ladder": ladder,
        "verdict": "faster" if measured > 1.1 else "slower" if measured < 0.9 else "unclear",
    }  # fmt: skip
    return Row(**values | other)


def bare(row: Row) -> Row:
    """The same row in a run whose costs were never calibrated."""
    unknown = ("accounting", "forecast", "forecast_tokens_per_round", "leviathan", "cost_model", "ladder", "draft_cost")
    return replace(row, **dict.fromkeys((*unknown, "verify_cost", "overhead", "verdict")))


def plain_row(method: str = "baseline", temperature: float = 0.0, kind: str = "all", speedup: float = 1.0) -> Row:
    """The baseline, or the library's generate()."""
    nothing = ("acceptance_rate", "drafted_fraction", "tokens_per_round", "book_formula")
    counts = {"n_drafted": 0, "n_accepted": 0, "n_rejected": 0, "draft": None, "draft_length": 0}
    speed = {"speedup": speedup, "speedup_low": 1.0, "speedup_high": 1.0, "speedup_with_prefill": 1.0}
    unknown = dict.fromkeys((*nothing, "book_formula_drafted_fraction"))
    return replace(bare(make_row(method, 1, temperature, kind)), **unknown, **counts, **speed, tokens_per_second=99.5)


def make_run(
    methods=("model", "ngram"), lengths=(2, 4, 6, 8), temperatures=(0.0, 0.8), kinds=tuple(KINDS)
) -> ComparisonRun:
    """A comparison as compare.py records it: some rows win, some lose, one is interrupted by nothing."""
    rows, correctness = [], []
    for t in temperatures:
        for kind in ("all", *kinds):
            rows.append(plain_row(temperature=t, kind=kind))
            for i, method in enumerate(methods):
                for k in lengths:
                    alpha = min(0.95, (0.7 - 0.1 * i - 0.1 * t) * KINDS.get(kind, 1.0))
                    first = (max(0.3, 0.95 - 0.06 * k), 0.85 - 0.01 * k) if i == 0 else (0.995, 0.5)
                    rows.append(make_row(method, k, t, kind, alpha, (*first, *USUAL[2:])))
            if t == 0:
                rows.append(plain_row("generate", t, kind, 0.93))
        for method in methods:
            entry = {"arm": f"{method} k={lengths[0]}", "temperature": t, "passed": True}
            greedy = {"n_prompts": 12, "differences": []}
            sampled = {"n_tokens": 768, "z_residual": 1.2, "z_surprise": -0.4, "bound": 4.9}
            correctness.append(entry | (greedy if t == 0 else sampled))
    return ComparisonRun(
        schema_version=SCHEMA_VERSION,
        created="2026-11-21T13:00Z",
        interrupted=False,
        machine={"cpu": "AMD EPYC", "cores": 2, "threads": 2, "gpu": None, "system": "Linux"},
        versions={
            "python": "3.11.7", "torch": "2.13.0+cpu", "transformers": "5.23.0", "commit": "a8a881a6ae17e97bcb7e69d0",
            "uncommitted_changes": False,
        },
        settings={
            "target": "models/lab-pair/target", "device": "cpu", "dtype": "float32", "engine": "c", "n_prompts": 12,
            "draft_lengths": list(lengths), "temperatures": list(temperatures), "max_new_tokens": 64, "repeats": 1,
            "seed": 0,
        },
        models={"target": "llama, 12 layers", "model": "llama, 1 layer"},
        prompts={"n": 12, "kinds": list(kinds), "n_cut": 2},
        correctness=correctness,
        noise=[Noise(temperature=t, ratio=1.01, low=0.99, high=1.03) for t in temperatures],
        costs=[],
        rows=rows,
        raw=[],
    )  # fmt: skip


def three_regimes() -> ComparisonRun:
    """A run as `compare.py` makes it without flags: two temperatures, and two short runs."""
    eager, run, padded = (make_run(lengths=(2, 4, 8), temperatures=ts) for ts in ((0.0,), (0.0, 0.8), (0.0,)))
    eager.settings["engine"], padded.settings["target"] = "eager", "lab:200m"
    eager = replace(eager, weight_bytes=40_000_000, bandwidth=25e9)
    padded = replace(padded, weight_bytes=800_000_000, bandwidth=25e9)
    return replace(run, weight_bytes=40_000_000, bandwidth=25e9, eager=eager, padded=padded)
