"""The sweeps' views: lines and cells follow the numbers, tables fit, the region of agreement is where it was put."""

from dataclasses import replace

import pytest

from speclab.extensions.sweeps import curves, sweep_views
from speclab.extensions.sweeps.sweep_record import Point, SweepRun
from speclab.present import tables
from speclab.records.runs import SCHEMA_VERSION, Machine, Noise, Versions
from speclab.theory.formulas import (
    book_formula,
    cost_model_speedup,
    expected_tokens_per_round,
    leviathan_speedup,
    omega_star,
)

DRAFT, VERIFY, OVERHEAD = 0.15, 1.3, 0.05  # costs of the made-up machine, in decode steps
COSTS = (DRAFT, VERIFY, OVERHEAD)


def point(
    x,
    series="model",
    k=4,
    alpha=0.7,
    speedup=None,
    half=0.1,
    costs=COSTS,
    temperature=0.0,
    kind="all",
    method=None,
    n_tokens=1000,
    prefill=0.2,
):
    """A row of a made-up run with independent acceptance; `half` is the interval's half-width as a share."""
    n_rounds, draft_cost, verify_cost, overhead = 1000, *costs
    shares = [alpha**i * (1 - alpha) for i in range(k)] + [alpha**k]  # of rounds by accepted length
    lengths = [round(n_rounds * share) for share in shares]
    accepted = sum(i * n for i, n in enumerate(lengths))
    tau = expected_tokens_per_round(alpha, k)
    model = cost_model_speedup(tau, k, *costs)
    speedup = model * 0.98 if speedup is None else speedup
    seconds = n_tokens * 0.01 / speedup
    return Point(
        x=x,
        series=series,
        method=method or series,
        target="models/lab-pair/target",
        draft=method or series,
        device="cpu",
        dtype="float32",
        draft_length=k,
        temperature=temperature,
        prompt_kind=kind,
        n_prompts=8,
        n_tokens=n_tokens,
        seconds=seconds,
        prefill_seconds=prefill,
        tokens_per_second=n_tokens / seconds,
        speedup=speedup,
        speedup_low=None if half is None else speedup * (1 - half),
        speedup_high=None if half is None else speedup * (1 + half),
        speedup_with_prefill=(n_tokens * 0.01 + prefill / 2) / (seconds + prefill),
        n_rounds=n_rounds,
        n_drafted=n_rounds * k,
        n_accepted=accepted,
        n_rejected=sum(lengths[:-1]),
        n_emitted=n_tokens,
        accepted_lengths=lengths,
        acceptance_rate=alpha if k else None,
        drafted_fraction=accepted / n_rounds / k if k else None,
        tokens_per_round=tau,
        draft_cost=draft_cost if k else None,
        verify_cost=verify_cost,
        overhead=overhead,
        leviathan=leviathan_speedup(alpha, k, draft_cost) if k else None,
        cost_model=model if k else None,
        accounting=model,
        forecast=model,
        forecast_tokens_per_round=tau,
        ladder=None,
        verdict=None,
        repeat_noise=0.02,
        book_formula=book_formula(alpha, k) if k else None,
        book_formula_drafted_fraction=None,
        same_as_baseline=True,
    )


SETTINGS = {"target": "models/lab-pair/target", "device": "cpu", "dtype": "float32", "engine": "c", "n_prompts": 8}
SETTINGS |= {"seed": 0, "max_new_tokens": 64, "repeats": 1}


def sweep(name, points, noise=(Noise(temperature=0.0, ratio=1.003, low=0.99, high=1.01),), facts=None):
    return SweepRun(
        schema_version=SCHEMA_VERSION,
        sweep=name,
        created="2026-01-02T03:04Z",
        interrupted=False,
        machine=Machine(cpu="A made-up CPU", cores=2, threads=2, memory_gib=8, gpu=None, system="Linux"),
        versions=Versions(python="3", torch="2", transformers="5", commit="0" * 40, uncommitted_changes=False),
        settings=SETTINGS,
        models={},
        correctness=[],
        noise=list(noise),
        points=points,
        facts=facts or {},
    )


def verify_cost(k):
    return 1 + 0.06 * k


def draft_length():
    ks = range(17)
    model = [point(k, k=k, costs=(0.16, verify_cost(k), OVERHEAD)) for k in ks]
    ngram = [point(k, "ngram", k=k, alpha=0.55, costs=(0.002, verify_cost(k), OVERHEAD)) for k in ks]
    return sweep("draft-length", model + ngram)


def acceptance(costs=COSTS):
    dials = [i / 10 for i in range(11)]
    return sweep("acceptance", [point(a, "dial", alpha=a, half=0.04, method=f"dial:{a:g}", costs=costs) for a in dials])


def temperature():
    ts = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
    return sweep(
        "temperature",
        [point(t, name, alpha=a - 0.2 * t, temperature=t) for t in ts for name, a in (("model", 0.75), ("ngram", 0.6))],
    )


def output_length():
    made = []
    for n in (8, 16, 32, 64, 128, 256, 512):
        half = 0.3 * (8 / n) ** 0.4 + 0.02
        made += [point(n, name, n_tokens=n * 8, half=half, speedup=s) for name, s in (("model", 1.4), ("ngram", 1.7))]
    return sweep("output-length", made)


def context():
    return sweep(
        "context",
        [
            point(n, name, alpha=a, costs=(c, 1.3 + n / 9000, 0.05), speedup=s - n / 9000)
            for n in (128, 256, 512, 1024, 1800)
            for name, a, c, s in (("model", 0.7, 0.15, 1.4), ("ngram", 0.8, 0.002, 1.8))
        ],
    )


SPEEDS = {"all": (1.4, 1.6, 1.1), "code": (1.5, 2.2, 1.1), "prose": (1.15, 0.9, 1.05), "copy": (1.5, 2.9, 1.1)}


def draft_kind():
    names, made = ("model", "ngram", "dial:0.5"), []
    for kind, speeds in SPEEDS.items():
        made += [point(n, kind, speedup=s, method=n, kind=kind) for n, s in zip(names, speeds, strict=True)]
    return sweep("draft-kind", made)


ALPHAS = {"trained": 0.72, "noise 0.1": 0.7, "noise 0.2": 0.6, "noise 0.4": 0.3, "20 s of training": 0.25, "random": 0}


def mismatch():
    facts = {"training": {"seconds": 20.0, "steps": 90, "tokens": 184320, "first_loss": 7.67, "last_loss": 4.1}}
    return sweep("mismatch", [point(n, "draft", alpha=a, method=n) for n, a in ALPHAS.items()], facts=facts)


def definitions():
    ks = (1, 2, 4, 8)
    made = [point(k, n, k=k, alpha=a) for n, a in (("model", 0.7), ("ngram", 0.8)) for k in ks]
    return sweep("definitions", made)


MADE = {
    "draft-length": draft_length,
    "acceptance": acceptance,
    "temperature": temperature,
    "output-length": output_length,
    "context": context,
    "draft-kind": draft_kind,
    "mismatch": mismatch,
    "definitions": definitions,
}


def lines(made):
    """All lines of a sweep as one text."""
    return "\n".join(filter(None, sweep_views.lines(made)))


def rows(made):
    """The table's lines as head -> cell."""
    head, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in _markdown(made)]
    return [dict(zip(head, line, strict=True)) for line in found]


def _markdown(made):
    return tables.show([sweep_views.table(made)], markdown=True).splitlines()


def timed(p, speedup, low=None, high=None):
    """Move a point's measured speedup, its seconds and its interval (±10 % unless given)."""
    p.seconds *= p.speedup / speedup
    return replace(p, speedup=speedup, speedup_low=low or speedup * 0.9, speedup_high=high or speedup * 1.1)


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_views_bear_missing_numbers(name, tmp_path):
    """Two prompts give no interval, an unpriced run no predictions; one point is enough to look at."""
    made = MADE[name]()
    missing = ("speedup_low", "speedup_high", "draft_cost", "verify_cost", "overhead", "leviathan", "cost_model")
    missing = dict.fromkeys((*missing, "forecast", "repeat_noise"))
    made = replace(made, noise=[], points=[replace(p, **missing) for p in made.points])
    for points in (made.points, made.points[:1], made.points[-1:], []):
        part = replace(made, points=points, interrupted=True)
        assert "None" not in sweep_views.page(part, "p.png")
        assert "nan" not in sweep_views.page(part, "p.png")
        if points != made.points[-1:]:
            assert sweep_views.picture(part, tmp_path, "p").exists()
    assert "Stopped before the end" in lines(replace(made, interrupted=True))
    assert "Stopped before the end" not in lines(made)
    wrong = replace(made, correctness=[{"arm": "ngram k=4", "passed": False}], unchecked=["model k=4"])
    assert "WRONG OUTPUT: ngram k=4" in lines(wrong)
    assert "NOT CHECKED: model k=4" in lines(wrong)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_no_difference_where_the_interval_covers_one():
    p = point(4)
    for low, high, word in ((1.01, 1.4, "faster"), (0.99, 1.4, "unclear"), (1.0, 1.4, "unclear")):
        assert curves.verdict(timed(p, 1.2, low, high)) == word
    for low, high, word in ((0.6, 0.99, "slower"), (0.6, 1.01, "unclear")):
        assert curves.verdict(timed(p, 0.8, low, high)) == word
    assert curves.verdict(replace(timed(p, 1.2, 1.1, 1.3), verdict="unclear")) == "unclear"
    alone = replace(timed(p, 1.2), speedup_low=None, speedup_high=None)
    assert curves.verdict(replace(alone, repeat_noise=0.3)) == "unclear"
    assert curves.verdict(replace(alone, repeat_noise=0.1)) == "faster"
    (row,) = rows(sweep("temperature", [replace(alone, x=0.0)]))
    assert (row["speedup"], row["95 %"], row["verdict"]) == ("1.20x", "-", "faster")
    (row,) = rows(sweep("temperature", [timed(p, 1.2, 0.9, 1.4)]))
    assert (row["speedup"], row["95 %"], row["verdict"]) == ("1.20x", "0.90 to 1.40", "unclear")
    (row,) = rows(sweep("temperature", [timed(p, 0.8)]))
    assert (row["speedup"], row["verdict"]) == ("0.80x", "slower")


def test_end_to_end_is_baseline_over_ours_with_both_prefills():
    """Baseline 0.5 s prefill and 8 s decoding against 1 s and 4 s; at the interval's low end 6 s against 4 s."""
    p = replace(point(64, speedup=2.0, n_tokens=800), prefill_seconds=1.0, speedup_with_prefill=8.5 / 5)
    p = replace(p, speedup_low=1.5, speedup_high=2.5)
    assert p.seconds == pytest.approx(4)
    assert curves.end_to_end(p) == pytest.approx((1.7, 6.5 / 5, 10.5 / 5))
    assert curves.step_seconds(p) == pytest.approx(0.01)


# --- draft length -----------------------------------------------------------------------------------------------------


def lengths(*speeds, **more):
    return sweep("draft-length", [timed(point(k, k=k), s) for k, s in enumerate(speeds)], **more)


def test_the_best_draft_length_is_named():
    text = lines(lengths(0.95, 1.2, 1.5, 1.45, 0.8, 1.2, 0.85, 0.7))
    assert "model: best k = 2, 1.50x (1.35 to 1.65)" in text
    assert "noise floor, the baseline against itself in the same run: 1.00x (0.99 to 1.01)" in text
    text = lines(lengths(2.8, 1.2, 1.1, 1.9, noise=[]))
    assert "best k = 3, 1.90x (1.71 to 2.09)" in text, "k = 0 drafts nothing"
    assert "noise floor" not in text
    assert lines(lengths(0.9, noise=[])) == ""


def test_cells_are_the_records():
    made = lengths(1.0, 1.2, 1.5, 1.0)
    made.points[2].forecast = 1.8
    row = rows(made)[2]
    assert (row["draft"], row["k"], row["speedup"], row["α"]) == ("model", "2", "1.50x", "0.70")
    assert row["forecast"] == "1.80  +20%"
    assert row["book(α)"] == f"{book_formula(0.7, 2):.2f} {tables.percent(book_formula(0.7, 2) / 1.5 - 1):>5}"
    assert row["tok/rnd"] == f"{expected_tokens_per_round(0.7, 2):.2f}"


# --- acceptance -------------------------------------------------------------------------------------------------------


def dial(miss, costs=COSTS, half=0.04):
    """A dial sweep at k = 4 whose measured values are off the book's formula by miss(alpha)."""
    alphas = [i / 10 for i in range(11)]
    speeds = [book_formula(a, 4) / (1 + miss(a)) for a in alphas]
    made = [point(a, "dial", alpha=a, speedup=s, half=half, costs=costs) for a, s in zip(alphas, speeds, strict=True)]
    return sweep("acceptance", made)


@pytest.mark.parametrize(
    ("miss", "regions"),
    [
        (lambda a: 0.5 * (a - 0.62), [(0.52, 0.72)]),  # a straight line, so its crossings are exact
        (lambda a: -2 * (a - 0.55), [(0.525, 0.575)]),  # in and out between two points, neither of which is near
        (lambda a: abs(a - 0.5) - 0.2, [(0.25, 0.35), (0.65, 0.75)]),
        (lambda a: 0.3 * a - 0.02, [(0.0, 0.07 / 0.3)]),  # begins inside
        (lambda a: 0.04, [(0.0, 1.0)]),
        (lambda a: 0.06, []),
        (lambda a: -0.06 - a, []),
    ],
)
def test_region_of_agreement(miss, regions):
    found = curves.near_book(dial(miss).points)
    assert found == [pytest.approx(r) for r in regions]


def test_omega_meets_omega_star():
    """Where both are the same the two omissions cancel: at alpha = 0.62, if a round costs omega*(0.62)."""
    costs = (0.0, 1.0, omega_star(0.62, 4))
    low, high = curves.omega_crossings(dial(lambda a: 0.0, costs=costs).points)  # omega* rises, then falls again
    assert low == pytest.approx(0.62, abs=0.01)
    assert omega_star(high, 4) == pytest.approx(costs[2], abs=0.01)
    text = lines(dial(lambda a: 0.5 * (a - 0.62), costs=costs))
    assert "book(α) within 5% of the measurement at α = 0.52 to 0.72; ω = ω* at α = 0.62, 0.9" in text
    text = lines(dial(lambda a: 0.2 + (a - 0.3) ** 2))
    assert "book(α) within 5% of the measurement at α = -; ω = ω* at α = -" in text
    unpriced = dial(lambda a: 0.2)
    for p in unpriced.points:
        p.verify_cost = None
    assert "ω = ω* at α = -" in lines(unpriced)
    (row, *_) = rows(unpriced)
    assert row["ω"] == "-"


def test_break_even():
    """Speedup 0.5 + alpha passes 1 at 0.5, 1.2 times it at 1/3, 0.8 times it at 0.75."""
    made = [timed(point(a, "dial", alpha=a), 0.5 + a, 0.8 * (0.5 + a), 1.2 * (0.5 + a)) for a in (0, 0.2, 0.6, 1)]
    assert curves.break_even(made) == pytest.approx((0.5, 1 / 3, 0.75))
    assert "dial: break-even at α = 0.50 (0.33 to 0.75);" in lines(sweep("acceptance", made))
    assert curves.break_even(made[::-1]) == curves.break_even(made), "the order of points says nothing"
    for speed in (1.5, 0.9):
        assert "break-even at α = -;" in lines(sweep("acceptance", [timed(p, speed) for p in made]))
    wide = [replace(p, speedup_low=0.1) for p in made]
    assert "break-even at α = 0.50 (-)" in lines(sweep("acceptance", wide)), "no end, no interval"


# --- the other sweeps' columns ----------------------------------------------------------------------------------------


def test_end_to_end_has_a_verdict_of_its_own():
    """Decoding is faster at 16 tokens, the prompt's passes eat it up."""
    p = timed(point(16, n_tokens=16), 1.5, 1.3, 1.7)
    whole = (p.speedup * p.seconds + 0.5) / (p.seconds + 1)
    (row,) = rows(sweep("output-length", [replace(p, prefill_seconds=1.0, speedup_with_prefill=whole)]))
    assert (row["speedup"], row["verdict"]) == ("1.50x", "faster")
    assert (row["end to end"], row["its verdict"]) == (f"{whole:.2f}x", "slower")


def test_context_has_the_step_and_the_costs():
    made = [timed(point(128, costs=(0.2, 1.1, 0.05)), 1.5), timed(point(1800, costs=(0.1, 1.6, 0.05)), 1.4)]
    made[1].seconds *= 3
    first, last = rows(sweep("context", made))
    assert (first["prompt"], first["t_1 ms"], last["t_1 ms"]) == ("128", "10.00", "30.00")
    assert (first["c"], first["v"], first["o"]) == ("0.200", "1.10", "0.050")
    assert (last["c"], last["v"]) == ("0.100", "1.60")


def test_mismatch_says_slower_plainly():
    made = mismatch()
    found = rows(made)
    assert [row["draft"] for row in found] == list(ALPHAS), "the record's order stays"
    assert (found[0]["speedup"], found[0]["95 %"], found[0]["verdict"]) == ("1.45x", "1.30 to 1.59", "faster")
    assert (found[-1]["speedup"], found[-1]["verdict"], found[-1]["α"]) == ("0.50x", "slower", "0.00")
    assert found[0]["round"] == f"{4 * DRAFT + VERIFY + OVERHEAD:.2f}"
    training = "trained on the spot: 20 s, 90 steps, 184,320 tokens, loss from 7.67 to 4.10 nats per token"
    assert training in lines(made)
    assert "trained on the spot" not in lines(replace(made, facts={}))


# --- definitions ------------------------------------------------------------------------------------------------------


def test_definitions_by_hand():
    """Ten rounds at k = 2: five accept none, two one, three both."""
    p = replace(point(2, k=2), accepted_lengths=[5, 2, 3], n_rounds=10, n_accepted=8, n_rejected=7, n_drafted=20)
    p = replace(p, acceptance_rate=8 / 15, drafted_fraction=0.4, tokens_per_round=1.8)
    assert curves.survival(p) == pytest.approx([0.5, 0.3])
    assert 1 + sum(curves.survival(p)) == pytest.approx(p.tokens_per_round)
    assert curves.output_share(p) == pytest.approx(8 / 18)
    rates = {"α": 8 / 15, "f": 0.4, "s": 8 / 18}
    assert curves.book_fed(p) == pytest.approx({key: book_formula(rate, 2) for key, rate in rates.items()})
    (row,) = rows(sweep("definitions", [timed(p, 1.25)]))
    assert [row[head] for head in ("α", "f", "s", "τ", "A_1", "A_k")] == [
        "0.53",
        "0.40",
        "0.44",
        "1.80",
        "0.50",
        "0.30",
    ]
    for key, rate in rates.items():
        value = book_formula(rate, 2)
        assert row[f"book({key})"] == f"{value:.2f} {tables.percent(value / 1.25 - 1):>5}"
