"""The sweeps' views: sentences follow the numbers, tables fit, the region of agreement is where it was put."""

import re

import pytest

from speclab.present import sweep_views, sweep_words
from speclab.records import record
from speclab.theory import curves
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
    return {
        "x": x,
        "series": series,
        "method": method or series,
        "target": "models/lab-pair/target",
        "draft": method or series,
        "device": "cpu",
        "dtype": "float32",
        "draft_length": k,
        "temperature": temperature,
        "prompt_kind": kind,
        "n_prompts": 8,
        "n_tokens": n_tokens,
        "seconds": seconds,
        "prefill_seconds": prefill,
        "tokens_per_second": n_tokens / seconds,
        "speedup": speedup,
        "speedup_low": None if half is None else speedup * (1 - half),
        "speedup_high": None if half is None else speedup * (1 + half),
        "speedup_with_prefill": (n_tokens * 0.01 + prefill / 2) / (seconds + prefill),
        "n_rounds": n_rounds,
        "n_drafted": n_rounds * k,
        "n_accepted": accepted,
        "n_rejected": sum(lengths[:-1]),
        "n_emitted": n_tokens,
        "accepted_lengths": lengths,
        "acceptance_rate": alpha if k else None,
        "drafted_fraction": accepted / n_rounds / k if k else None,
        "tokens_per_round": tau,
        "draft_cost": draft_cost if k else None,
        "verify_cost": verify_cost,
        "overhead": overhead,
        "leviathan": leviathan_speedup(alpha, k, draft_cost) if k else None,
        "cost_model": model if k else None,
        "accounting": model,
        "forecast": model,
        "forecast_tokens_per_round": tau,
        "ladder": None,
        "verdict": None,
        "repeat_noise": 0.02,
        "book_formula": book_formula(alpha, k) if k else None,
        "book_formula_drafted_fraction": None,
        "same_as_baseline": True,
    }


SETTINGS = {"target": "models/lab-pair/target", "device": "cpu", "dtype": "float32", "engine": "fast", "n_prompts": 8}
SETTINGS |= {"seed": 0, "max_new_tokens": 64, "repeats": 1}


def sweep(name, points, **more):
    return {
        "schema_version": record.SCHEMA_VERSION,
        "sweep": name,
        "created": "2026-01-02T03:04Z",
        "interrupted": False,
        "machine": {"cpu": "A made-up CPU", "threads": 2, "gpu": None},
        "versions": {
            "python": "3",
            "torch": "2",
            "transformers": "5",
            "commit": "0" * 40,
            "uncommitted_changes": False,
        },
        "settings": SETTINGS,
        "models": {},
        "correctness": [],
        "noise": [{"ratio": 1.003, "low": 0.99, "high": 1.01}],
        "points": points,
        "facts": {},
    } | more


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


def said(made):
    """The words on one line."""
    return " ".join(sweep_views.paragraph(made).split())


def timed(p, speedup, low=None, high=None):
    """Move a point's measured speedup, its seconds and its interval (±10 % unless given)."""
    p["seconds"] *= p["speedup"] / speedup
    low, high = low or speedup * 0.9, high or speedup * 1.1
    return p | {"speedup": speedup, "speedup_low": low, "speedup_high": high}


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error:constrained_layout")  # what is in a picture must have room there
@pytest.mark.parametrize("name", MADE)
def test_views_are_whole_and_fit(name, tmp_path):
    made = MADE[name]()
    record.validate(made)
    assert set(MADE) == set(sweep_views.TITLES) == set(sweep_views.QUESTIONS)
    for p in made["points"]:  # as long as it gets
        for key in ("x", "series"):
            if p[key] == "model":
                p[key] = "models/somebody/a-name-that-no-terminal-can-show-whole-" + "long-" * 3
        p["speedup_high"] *= 10
    lines = (sweep_views.table(made) + "\n" + sweep_views.paragraph(made)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(made["points"])
    path = sweep_views.picture(made, tmp_path, "p")
    assert path == tmp_path / "p.png"
    assert path.stat().st_size > 10_000
    page = sweep_views.page(made, "../plots/p.png")
    assert page.startswith(f"# {sweep_views.TITLES[name]}\n\n{sweep_views.QUESTIONS[name]}\n")
    assert "](../plots/p.png)" in page
    assert sweep_views.paragraph(made) in page
    assert "Measured 2026-01-02 on A made-up CPU" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(made["points"]), "in Markdown one table holds all columns"


@pytest.mark.parametrize("name", MADE)
def test_views_bear_missing_numbers(name, tmp_path):
    """Two prompts give no interval, an unpriced run no predictions; one point is enough to look at."""
    made = MADE[name]()
    for p in made["points"]:
        missing = ("speedup_low", "speedup_high", "draft_cost", "verify_cost", "overhead", "leviathan", "cost_model")
        p |= dict.fromkeys((*missing, "forecast", "repeat_noise"))
    made["noise"] = []
    for points in (made["points"], made["points"][:1], made["points"][-1:], []):
        part = made | {"points": points, "interrupted": True}
        assert "None" not in sweep_views.page(part, "p.png")
        assert "nan" not in sweep_views.page(part, "p.png")
        if points != made["points"][-1:]:
            assert sweep_views.picture(part, tmp_path, "p").exists()
    assert "stopped before its end" in said(made | {"interrupted": True})
    assert "stopped before its end" not in said(made)


def test_report_has_contents_and_all_sections():
    names = list(MADE)
    text = sweep_views.all_pages([MADE[n]() for n in names], {n: f"plots/{n}.png" for n in names})
    for name, title in sweep_views.TITLES.items():
        anchor = re.search(rf"^- \[{title}\]\(#([\w-]+)\)", text, re.M).group(1)
        assert anchor == title.lower().replace(" ", "-")
        assert f"\n## {title}\n" in text
        assert f"](plots/{name}.png)" in text


@pytest.mark.parametrize("width", range(20, 60))
def test_no_line_begins_a_list(width, monkeypatch):
    monkeypatch.setattr(sweep_views, "WIDTH", width)
    text = "The best k is 1. It is off by 12 % (2 %). At k = 16. Then 3 - 4 and alpha = 0.50 stay. So 100 %"
    filled = sweep_views._filled(text)
    assert " ".join(filled.split()) == text
    assert not re.search(r"^(\d+[.)]|[-+*#>]|%)(\s|$)", filled, re.M)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_no_difference_where_the_interval_covers_one():
    p = point(4)
    for low, high, word in ((1.01, 1.4, "faster"), (0.99, 1.4, "unclear"), (1.0, 1.4, "unclear")):
        assert curves.verdict(timed(p, 1.2, low, high)) == word
    for low, high, word in ((0.6, 0.99, "slower"), (0.6, 1.01, "unclear")):
        assert curves.verdict(timed(p, 0.8, low, high)) == word
    assert curves.verdict(timed(p, 1.2, 1.1, 1.3) | {"verdict": "unclear"}) == "unclear"
    alone = timed(p, 1.2) | {"speedup_low": None, "speedup_high": None}
    assert curves.verdict(alone | {"repeat_noise": 0.3}) == "unclear"
    assert curves.verdict(alone | {"repeat_noise": 0.1}) == "faster"
    made = sweep("temperature", [alone | {"x": 0.0}])
    assert "1.20x (no interval), faster" in said(made)
    assert "1.20x unclear" in sweep_views.table(sweep("temperature", [timed(p, 1.2, 0.9, 1.4)]))
    assert "0.80x slower" in sweep_views.table(sweep("temperature", [timed(p, 0.8)]))


def test_end_to_end_is_baseline_over_ours_with_both_prefills():
    """Baseline 0.5 s prefill and 8 s decoding against 1 s and 4 s; at the interval's low end 6 s against 4 s."""
    p = point(64, speedup=2.0, n_tokens=800) | {"prefill_seconds": 1.0, "speedup_with_prefill": 8.5 / 5}
    p |= {"speedup_low": 1.5, "speedup_high": 2.5}
    assert p["seconds"] == pytest.approx(4)
    assert curves.end_to_end(p) == pytest.approx((1.7, 6.5 / 5, 10.5 / 5))
    assert curves.step_seconds(p) == pytest.approx(0.01)


def test_spans():
    ks = [1, 2, 3, 4, 8, 16]
    assert sweep_words.spans([1, 2, 3, 8], ks) == "1 to 3 and 8"
    assert sweep_words.spans([1, 2, 4, 8, 16], ks) == "1, 2 and 4 to 16"
    assert sweep_words.spans([16], ks) == "16"


# --- draft length -----------------------------------------------------------------------------------------------------


def lengths(*speeds, **more):
    return sweep("draft-length", [timed(point(k, k=k), s) for k, s in enumerate(speeds)], **more)


def test_draft_length_follows_the_numbers():
    words = said(lengths(0.95, 1.2, 1.5, 1.45, 0.8, 1.2, 0.85, 0.7))
    assert "the best k is 2 with 1.50x (1.35 to 1.65), faster" in words
    assert "k = 3 lies inside its interval" in words
    assert "faster at k = 1 to 3 and 5, slower at k = 4, 6 and 7" in words
    assert "is below 1 from k = 6 on" in words, "k = 4 is a dip: k = 5 is above 1 again"
    assert "Without a draft, k = 0, the draft-verify loop runs at 0.95x (0.85 to 1.04), unclear" in words
    assert "noise floor of this run: 1.00x (0.99 to 1.01)" in words
    words = said(lengths(0.8, 1.2, 1.1, 1.9, noise=[]))
    assert "the best k is 3 with 1.90x" in words
    assert "inside its interval" not in words
    assert "stays above 1 up to k = 3" in words
    assert "0.80x (0.72 to 0.88), slower" in words
    assert "noise floor" not in words
    words = said(lengths(0.9, 0.7, 0.6, 0.5))
    assert "the best k is 1 with 0.70x (0.63 to 0.77), slower" in words
    assert "below 1 even there" in words


def test_draft_length_judges_forecast_and_book():
    made = lengths(1.0, 1.2, 1.5, 1.0)
    for p, forecast in zip(made["points"], (1.0, 1.8, 1.5, 1.1), strict=True):
        p["forecast"] = forecast
    words = said(made)
    assert "forecast chooses k = 1, which reaches 80.0 % of the best" in words
    assert "off by 10.0 % in the median and 50.0 % at most" in words, "median of 50, 0 and 10 %"
    top = made["points"][-1]
    book = f"{top['book_formula']:.2f}x at k = 3, where 1.00x was measured"
    assert f"highest at the longest draft, {book}: it has no best k" in words
    made["points"][2]["book_formula"] = 9.0  # alpha was higher there
    assert "highest at 9.00x at k = 2" in said(made)


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
    found = curves.agreements(dial(miss)["points"])
    assert [(a.low, a.high) for a in found] == [pytest.approx(r) for r in regions]
    for agreement in found:
        smallest = min(abs(miss(agreement.low + i / 1000 * (agreement.high - agreement.low))) for i in range(1001))
        assert abs(agreement.miss) == pytest.approx(smallest, abs=1e-3)
        assert agreement.low <= agreement.alpha <= agreement.high
        assert agreement.omega == pytest.approx(4 * DRAFT + VERIFY - 1 + OVERHEAD)
        assert agreement.omega_star == pytest.approx(omega_star(agreement.alpha, 4))


def test_region_in_words():
    star = omega_star(0.62, 4)
    words = said(dial(lambda a: 0.5 * (a - 0.62), costs=(0.0, 1.0, star)))
    assert "From alpha = 0.52 to 0.72 the book's formula is within 5 % of the measurement" in words
    assert f"At alpha = 0.62, where the formula is nearest, omega = {star:.2f} and omega* = {star:.2f}: th" in words
    assert ": they meet." in words
    assert "at most ±4.0 %." in words
    words = said(dial(lambda a: 0.5 * (a - 0.62), costs=(0.0, 1.0, star + 0.2), half=0.08))
    assert f"omega = {star + 0.2:.2f} and omega* = {star:.2f}: they do not meet" in words
    assert "at most ±8.0 %, so the ends of the stretch are soft" in words


def test_no_region_in_words():
    words = said(dial(lambda a: 0.2 + (a - 0.3) ** 2))
    assert "Nowhere in this range is the book's formula within 5 %" in words
    assert "nearest at alpha = 0.30, where it is 20 % too high" in words
    assert "omega runs from 0.95 to 0.95, and omega* is at most 0.34: every round costs too much for that" in words
    words = said(dial(lambda a: -0.2 - (a - 0.3) ** 2, costs=(0.01, 1.0, 0.01)))
    assert "nearest at alpha = 0.30, where it is 20 % too low" in words
    assert "every round costs too much" not in words
    unpriced = dial(lambda a: 0.2)
    for p in unpriced["points"]:
        p["verify_cost"] = None
    assert "omega" not in said(unpriced)


def test_break_even():
    """Speedup 0.5 + alpha passes 1 at 0.5, 1.2 times it at 1/3, 0.8 times it at 0.75."""
    made = [timed(point(a, "dial", alpha=a), 0.5 + a, 0.8 * (0.5 + a), 1.2 * (0.5 + a)) for a in (0, 0.2, 0.6, 1)]
    assert curves.break_even(made) == pytest.approx((0.5, 1 / 3, 0.75))
    assert "passes 1 at alpha = 0.50 (95 %: 0.33 to 0.75)" in said(sweep("acceptance", made))
    assert curves.break_even(made[::-1]) == curves.break_even(made), "the order of points says nothing"
    assert "stays above 1 in this range" in said(sweep("acceptance", [timed(p, 1.5) for p in made]))
    assert "stays below 1 in this range" in said(sweep("acceptance", [timed(p, 0.9) for p in made]))
    wide = [p | {"speedup_low": 0.1} for p in made]
    assert "passes 1 at alpha = 0.50: below it" in said(sweep("acceptance", wide)), "no end, no interval"


def test_crossings():
    assert curves.crossings([0, 1, 2, 3], [0, 2, 2, 0], 1) == pytest.approx([0.5, 2.5])
    assert curves.crossings([0, 1, 2], [0, 1, 2], 1) == [1]
    assert curves.crossings([0, 1], [2, 3], 1) == []


def test_predictors_are_ranked_by_their_errors():
    made = dial(lambda a: 0.5)
    for p in made["points"]:
        p |= {"leviathan": 0.8 * p["speedup"], "cost_model": None, "forecast": 1.01 * p["speedup"]}
    made["points"][3]["forecast"] = 1.1 * made["points"][3]["speedup"]
    words = said(made)
    assert "the book's formula 50.0 % (50.0 %), Leviathan 20.0 % (20.0 %) and the forecast 1.0 % (10.0 %)" in words


# --- temperature, output length, context ------------------------------------------------------------------------------


def test_temperature_ends():
    def made(last):
        points = [timed(point(t, alpha=a, temperature=t), s) for t, a, s in ((0.0, 0.8, 1.5), (1.0, 0.5, last))]
        return said(sweep("temperature", points))

    assert "1.00x (0.90 to 1.10) at T = 1: lower. alpha goes from 0.80 to 0.50" in made(1.0)
    assert "faster at T = 0, unclear at T = 1" in made(1.0)
    assert "at T = 1: the intervals overlap, so nothing follows from that" in made(1.3)
    assert "at T = 1: higher" in made(2.5)


def outputs(*verdicts):
    """Output lengths 16, 32, 64, 128 with these end-to-end verdicts: f, n or s. No prefill: end to end is decoding."""
    speeds = {"f": (1.5, 1.2, 1.8), "n": (1.1, 0.8, 1.3), "s": (0.7, 0.5, 0.9)}
    made = [timed(point(n, prefill=0.0), *speeds[v]) for n, v in zip((16, 32, 64, 128), verdicts, strict=True)]
    return said(sweep("output-length", [p | {"speedup_with_prefill": p["speedup"]} for p in made]))


def test_verdict_on_short_outputs():
    words = outputs(*"nfnf")
    assert "does not hold for model here: 32 tokens are already faster, 1.50x (1.20 to 1.80)" in words
    assert "faster end to end from 128 tokens on" in words, "from 32 tokens on it is not: 64 are unclear"
    assert "is not contradicted for model here: no shorter output is faster, some longer" in outputs(*"snff")
    words = outputs(*"ssff")
    assert "holds for model here: no shorter output is faster, some longer ones are" in words
    assert "faster end to end from 64 tokens on: 1.50x (1.20 to 1.80)" in words
    words = outputs(*"snnn")
    assert "contradicted for model here, but 50 is not the limit: no longer output is faster either" in words
    assert "From no measured length on" in words
    assert "unclear at 32 to 128 tokens, slower at 16 tokens" in words
    long = sweep("output-length", [point(64), point(128)])
    assert "is not tested: no output was that short" in said(long)


def test_short_outputs_are_judged_with_the_prompt():
    """Decoding is faster at 16 tokens, the prompt's passes eat it up."""
    p = timed(point(16, n_tokens=16), 1.5, 1.3, 1.7)
    whole = (p["speedup"] * p["seconds"] + 0.5) / (p["seconds"] + 1)
    slow = p | {"prefill_seconds": 1.0, "speedup_with_prefill": whole}
    words = said(sweep("output-length", [slow]))
    assert "faster at 16 tokens; 1.50x" in words
    assert f"slower at 16 tokens; {whole:.2f}x" in words
    assert "holds for model here: no measured output is faster, and none was longer" in words


def test_context_costs():
    made = [timed(point(128, costs=(0.2, 1.1, 0.05)), 1.5), timed(point(1800, costs=(0.1, 1.6, 0.05)), 1.4)]
    made[1]["seconds"] *= 3
    words = said(sweep("context", made))
    assert "from 10.00 to 30.00 ms (x3.00), in such steps c from 0.20 to 0.10, v from 1.10 to 1.60" in words
    assert "the intervals overlap, so nothing follows from that" in words


# --- kinds of drafts --------------------------------------------------------------------------------------------------


def test_winner_of_each_kind():
    def made(*speeds):
        names = ("model", "ngram", "dial:1")
        points = [timed(point(n, "code", method=n), s) for n, s in zip(names, speeds, strict=True)]
        return said(sweep("draft-kind", points))

    words = "Code prompts: ngram wins with 2.00x (1.80 to 2.20), model has 1.50x (1.35 to 1.65), faster"
    assert words in made(1.5, 2, 9)
    assert "Code prompts: model wins with 2.50x" in made(2.5, 1.5, 9)
    assert "no clear winner: ngram has 1.60x (1.44 to 1.76), faster, model has 1.50x" in made(1.5, 1.6, 9)
    words = "no draft is faster than plain decoding, the nearest is ngram with 1.05x (0.95 to 1.16), unclear"
    assert words in made(0.7, 1.05, 9)
    assert "The dial is an instrument" in made(1, 1, 1)
    assert "dial:1 wins" not in made(1.5, 2, 9)


def test_mismatch_says_slower_plainly():
    made = mismatch()
    words = said(made)
    assert "trained: 1.45x (1.30 to 1.59), faster, alpha 0.72" in words
    assert "random: 0.50x (0.45 to 0.55), slower, alpha 0.00" in words
    table = sweep_views.table(made)
    assert [line.split("  ")[0].strip() for line in table.splitlines()[2:]] == list(ALPHAS), "the record's order stays"
    assert "0.50x slower" in table
    assert (
        "costs about the same with all of them, 1.95 to 1.95 decode steps; what it makes goes from 2.88 to 1.00"
        in words
    )
    assert "Every slower row makes fewer tokens" in words
    assert "20 s, 90 steps, 184,320 tokens, loss from 7.67 to 4.10" in words
    made["points"][0] = timed(made["points"][0], 0.8)  # slower in spite of many tokens per round
    made["points"][1]["verify_cost"] = 2.0
    words = said(made | {"facts": {}})
    assert "A round costs from 1.95 to 2.65 decode steps" in words
    assert "Every slower row" not in words
    assert "trained on the spot" not in words
    assert "trained: 0.80x (0.72 to 0.88), slower" in words


# --- definitions ------------------------------------------------------------------------------------------------------


def test_definitions_by_hand():
    """Ten rounds at k = 2: five accept none, two one, three both."""
    p = point(2, k=2) | {"accepted_lengths": [5, 2, 3], "n_accepted": 8, "n_rejected": 7, "n_drafted": 20}
    p |= {"acceptance_rate": 8 / 15, "drafted_fraction": 0.4, "tokens_per_round": 1.8, "n_rounds": 10}
    assert curves.survival(p) == pytest.approx([0.5, 0.3])
    assert 1 + sum(curves.survival(p)) == pytest.approx(p["tokens_per_round"])
    assert curves.output_share(p) == pytest.approx(8 / 18)
    rates = {"α": 8 / 15, "f": 0.4, "s": 8 / 18}
    assert curves.book_fed(p) == pytest.approx({key: book_formula(rate, 2) for key, rate in rates.items()})
    words = said(sweep("definitions", [timed(p, book_formula(0.4, 2))]))
    assert "alpha = 0.53 (accepted of tested), f = 0.40 (accepted of drafted), s = 0.44" in words
    assert "A_1 = 0.50 and all of them with A_2 = 0.30" in words
    assert "f comes nearest" in words
    assert "s comes nearest" in said(sweep("definitions", [timed(p, book_formula(8 / 18, 2))]))


def test_proportional_to_acceptance_times_length():
    points = [point(k, k=k, alpha=0.5) for k in (1, 2, 4)]
    straight = [timed(p, 0.6 * 0.5 * p["x"]) for p in points]
    fit = curves.proportional(straight)
    assert fit.slope == pytest.approx(0.6)
    assert fit.correlation == pytest.approx(1)
    assert fit.errors == pytest.approx([0, 0, 0])
    assert "holds on these numbers: the best such line, 0.60 alpha k, correlation 1.00" in said(
        sweep("definitions", straight)
    )
    bent = [timed(p, s) for p, s in zip(points, (1.2, 1.3, 1.2), strict=True)]
    words = said(sweep("definitions", bent))
    # x = 0.5, 1, 2: slope (0.6 + 1.3 + 2.4) / 5.25 = 0.819; at k = 1 it says 0.41 where 1.2 was measured
    assert "does not hold on these numbers: the best such line, 0.82 alpha k, correlation -0.19" in words
    assert "is 66 % too low at model, k = 1, more than the 10 % allowed" in words
