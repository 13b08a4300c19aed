"""What a sweep found, in sentences. Every statement is decided from the record's numbers; nothing is known beforehand.

A value comes with its 95 % interval, "unclear" stands wherever the interval covers 1, and two values differ only
if their intervals do not overlap.
"""

from collections.abc import Callable
from itertools import groupby

from speclab.present.words import number
from speclab.theory import curves as facts
from speclab.theory.curves import Value, decoding, end_to_end, verdict

SHORT_OUTPUT = 50  # tokens; the book: "not for outputs under 50 tokens"
PROPORTIONAL = 0.10  # "proportional" holds where no row is further off
MEETS = 0.10  # of a decode step: omega and omega* count as equal within it
SAME_COST = 0.10  # rounds cost the same if the dearest is at most this much above the cheapest


# --- pieces -----------------------------------------------------------------------------------------------------------


def speed(value: Value) -> str:
    """1.45x (1.31 to 1.64)"""
    interval = "no interval" if value.low is None else f"{value.low:.2f} to {value.high:.2f}"
    return f"{value.value:.2f}x ({interval})"


def judged(point: dict, value: Callable[[dict], Value] = decoding) -> str:
    """1.45x (1.31 to 1.64), faster"""
    return f"{speed(value(point))}, {verdict(point, value)}"


def listed(words: list[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def spans(chosen: list, among: list) -> str:
    """Places in `among`, neighbours joined: "1 to 8 and 12"."""
    words = []
    for _, run in groupby(enumerate(sorted(among.index(x) for x in chosen)), key=lambda pair: pair[1] - pair[0]):
        run = [among[place] for _, place in run]
        ends = [f"{x:g}" for x in (run[0], run[-1])]
        words += [" to ".join(ends)] if len(run) > 2 else [f"{x:g}" for x in run]
    return listed(words)


def verdicts(points: list[dict], place: str, value: Callable[[dict], Value] = decoding) -> str:
    """faster at k = 1 to 8, unclear at k = 9, slower at k = 10 to 16; `place` is "k = {}" """
    xs, said = [p["x"] for p in points], []
    for word in ("faster", "unclear", "slower"):
        chosen = [p["x"] for p in points if verdict(p, value) == word]
        if len(chosen) == len(xs) > 1:
            return f"{word} everywhere, at {place.format(spans(xs, xs))}"
        if chosen:
            said.append(f"{word} at {place.format(spans(chosen, xs))}")
    return ", ".join(said)


def away(ratio: float) -> str:
    """A miss in words: 33 % too high"""
    return f"{percent(abs(ratio), 0)} too {'high' if ratio > 0 else 'low'}"


def percent(share: float, digits: int = 1) -> str:
    return f"{share:.{digits}%}".replace("%", " %")


def off(points: list[dict], predictors: dict[str, str]) -> str | None:
    """How far predictions are from the measurement, median and largest."""
    said = []
    for key, name in predictors.items():
        sizes = facts.typical_and_largest(facts.misses(points, key))
        if sizes:
            said.append(f"{name} {percent(sizes[0])} ({percent(sizes[1])})")
    return f"Off by, median (largest): {listed(said)}." if said else None


def ends(points: list[dict], key: str, digits: int = 2) -> str | None:
    """0.72 to 0.55: the values at both ends of a curve, None where one is missing"""
    first, last = points[0][key], points[-1][key]
    return None if first is None or last is None else f"{first:.{digits}f} to {last:.{digits}f}"


def difference(first: dict, last: dict) -> str:
    """Whether the second of two points is faster than the first."""
    one, other = decoding(first), decoding(last)
    if one.low is None or other.low is None:
        return "without intervals nothing follows from that"
    if not facts.apart(one, other):
        return "the intervals overlap, so nothing follows from that"
    return "higher" if other.value > one.value else "lower"


# --- one function for each sweep --------------------------------------------------------------------------------------


Paragraphs = list[list[str | None]]  # sentences; None is a sentence for which there are no numbers


def draft_length(sweep: dict) -> Paragraphs:
    said: Paragraphs = []
    for label, points in facts.curves(sweep).items():
        top = facts.best(points)
        said.append(_best_length(label, points, top) if top else [f"{label}:"])
        empty = next((p for p in points if p["draft_length"] == 0), None)
        if empty:
            said[-1].append(f"Without a draft, k = 0, the draft-verify loop runs at {judged(empty)}.")
    for floor in sweep["noise"]:
        value = Value(floor["ratio"], floor["low"], floor["high"])
        said.append([f"The baseline against itself, the noise floor of this run: {speed(value)}."])
    return said


def _best_length(label: str, points: list[dict], top: dict) -> list[str]:
    drafted = [p for p in points if p["draft_length"]]
    ks, longest = [p["x"] for p in drafted], drafted[-1]
    said = [
        f"{label}: the best k is {top['x']} with {judged(top)}, chosen and measured on the same prompts; "
        f"{verdicts(drafted, 'k = {}')}."
    ]
    rivals = [p["x"] for p in facts.rivals(points, top)]
    if rivals:
        lie = "lies" if len(rivals) == 1 else "lie"
        said.append(f"k = {spans(rivals, ks)} {lie} inside its interval, so this run does not settle which is best.")
    below = facts.falls_below_one(points)
    if below is None:
        said.append(f"The measured value stays above 1 up to k = {longest['x']}.")
    else:
        where = "even there" if below is top else f"from k = {below['x']} on"
        said.append(f"The measured value is below 1 {where}.")
    forecast = [p for p in drafted if p["forecast"] is not None]
    if forecast:
        chosen = max(forecast, key=lambda p: p["forecast"])
        middle, largest = facts.typical_and_largest(facts.misses(forecast, "forecast"))
        said.append(
            f"The forecast chooses k = {chosen['x']}, which reaches {percent(chosen['speedup'] / top['speedup'])} of "
            f"the best; it is off by {percent(middle)} in the median and {percent(largest)} at most."
        )
    book = [p for p in drafted if p["book_formula"] is not None]
    if len(book) > 1:
        highest = max(book, key=lambda p: p["book_formula"])
        promise = f"{highest['book_formula']:.2f}x at k = {highest['x']}, where {highest['speedup']:.2f}x was measured"
        said.append(
            f"The book's formula is highest at the longest draft, {promise}: it has no best k, at a fixed alpha it "
            "grows with every draft length."
            if highest is book[-1]
            else f"The book's formula, fed with each row's own alpha, is highest at {promise}; at a fixed alpha it "
            "has no best k."
        )
    return said


PREDICTORS = {
    "book_formula": "the book's formula",
    "leviathan": "Leviathan",
    "cost_model": "the cost model",
    "forecast": "the forecast",
}


def acceptance(sweep: dict) -> Paragraphs:
    said: Paragraphs = []
    many = len(facts.curves(sweep)) > 1
    for label, curve in facts.curves(sweep).items():
        points = facts.by_acceptance(curve)
        if len(points) < 2:
            continue
        first, last = points[0], points[-1]
        head = f"{label}: from" if many else "From"
        said.append(
            [
                f"{head} alpha = {first['acceptance_rate']:.2f} to {last['acceptance_rate']:.2f} the speedup goes from "
                f"{judged(first)}, to {judged(last)}.",
                _break_even(points),
            ]
        )
        near = facts.agreements(points)
        said.append([*map(_agreement, near), _softness(points)] if near else [_no_agreement(points)])
        said.append([off(points, PREDICTORS)])
    return said or [["Too few points with an acceptance rate to say anything."]]


def _break_even(points: list[dict]) -> str:
    found = facts.break_even(points)
    if found is None:
        above = all(p["speedup"] >= 1 for p in points)
        below = all(p["speedup"] <= 1 for p in points)
        where = "stays above 1" if above else "stays below 1" if below else "never passes 1 upwards"
        return f"The measured speedup {where} in this range, so there is no break-even acceptance in it."
    alpha, low, high = found
    interval = f" (95 %: {low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    return f"The measured speedup passes 1 at alpha = {alpha:.2f}{interval}: below it this draft does not pay."


WHY = (
    "It does not count the bonus token and the kept part of a partly accepted draft, which makes it too low, nor the "
    "cost of drafting, verifying and everything else in a round, which makes it too high"
)


def _agreement(found: facts.Agreement) -> str:
    near = percent(facts.NEAR, 0)
    head = f"From alpha = {found.low:.2f} to {found.high:.2f} the book's formula is within {near} of the measurement."
    if found.omega is None:
        return head
    pair = f"omega = {found.omega:.2f} and omega* = {found.omega_star:.2f}"
    meets = abs(found.omega - found.omega_star) <= MEETS
    return (
        f"{head} {WHY}; the two cancel where omega, what a round costs beyond one decode step, equals omega*. At "
        f"alpha = {found.alpha:.2f}, where the formula is nearest, {pair}: "
        + ("they meet." if meets else "they do not meet, so something outside this account moved the measurement.")
    )


def _softness(points: list[dict]) -> str | None:
    """How sharp the ends of such a stretch can be."""
    widths = [(p["speedup_high"] - p["speedup_low"]) / 2 / p["speedup"] for p in points if p["speedup_low"] is not None]
    if not widths:
        return None
    soft = ", so the ends of the stretch are soft" if max(widths) > facts.NEAR else ""
    return f"The measurement's own intervals are at most ±{percent(max(widths))}{soft}."


def _no_agreement(points: list[dict]) -> str:
    nearest = facts.nearest_agreement(points)
    head = (
        f"Nowhere in this range is the book's formula within {percent(facts.NEAR, 0)} of the measurement; it is "
        f"nearest at alpha = {nearest.alpha:.2f}, where it is {away(nearest.miss)}."
    )
    if nearest.omega is None:
        return head
    pairs = [(facts.omega(p), facts.omega_star(p["acceptance_rate"], p["draft_length"])) for p in points]
    lowest, highest = min(cost for cost, _ in pairs), max(cost for cost, _ in pairs)
    return (
        f"{head} {WHY}. They would cancel where omega, what a round costs beyond one decode step, equals omega*; here "
        f"omega runs from {lowest:.2f} to {highest:.2f}, and omega* is at most {max(star for _, star in pairs):.2f}"
        + (
            ": every round costs too much for that."
            if all(cost > star for cost, star in pairs)
            else f"; at alpha = {nearest.alpha:.2f} they are {nearest.omega:.2f} and {nearest.omega_star:.2f}."
        )
    )


def temperature(sweep: dict) -> Paragraphs:
    said: Paragraphs = []
    for label, points in facts.curves(sweep).items():
        first, last = points[0], points[-1]
        if len(points) == 1:
            said.append([f"{label}: {judged(first)} at T = {first['x']:g}."])
            continue
        alphas = ends(points, "acceptance_rate")
        said.append(
            [
                f"{label}: from {speed(decoding(first))} at T = {first['x']:g} to {speed(decoding(last))} at "
                f"T = {last['x']:g}: {difference(first, last)}.",
                f"alpha goes from {alphas}." if alphas else None,
                f"Against plain decoding: {verdicts(points, 'T = {}')}.",
            ]
        )
    return said


def output_length(sweep: dict) -> Paragraphs:
    said: Paragraphs = []
    for label, points in facts.curves(sweep).items():
        longest = points[-1]
        said.append(
            [
                f"{label}, decoding alone: {verdicts(points, '{} tokens')}; {speed(decoding(longest))} at "
                f"{longest['x']} tokens.",
                f"With the prompt's own passes counted: {verdicts(points, '{} tokens', end_to_end)}; "
                f"{speed(end_to_end(longest))} at {longest['x']} tokens.",
                _faster_from(points),
                _short_outputs(label, points),
            ]
        )
    return [
        *said,
        ["Intervals with the prompt counted are those of decoding, the seconds of the prompt taken as known."],
    ]


def _faster_from(points: list[dict]) -> str:
    for i, point in enumerate(points):
        if all(verdict(p, end_to_end) == "faster" for p in points[i:]):
            return f"It is faster end to end from {point['x']} tokens on: {speed(end_to_end(point))}."
    return "From no measured length on is it faster end to end."


def _short_outputs(label: str, points: list[dict]) -> str:
    book = f'The book\'s sentence "not for outputs under {SHORT_OUTPUT} tokens"'
    short = [p for p in points if p["x"] < SHORT_OUTPUT]
    if not short:
        return f"{book} is not tested: no output was that short."
    pays = [p for p in short if verdict(p, end_to_end) == "faster"]
    if pays:
        return (
            f"{book} does not hold for {label} here: {pays[0]['x']} tokens are already faster, "
            f"{speed(end_to_end(pays[0]))}."
        )
    sure = all(verdict(p, end_to_end) == "slower" for p in short)
    head = f"{book} {'holds' if sure else 'is not contradicted'} for {label} here"
    longer = [verdict(p, end_to_end) for p in points if p["x"] >= SHORT_OUTPUT]
    if not longer:
        return f"{head}: no measured output is faster, and none was longer."
    if "faster" in longer:
        return f"{head}: no shorter output is faster, some longer ones are."
    return f"{head}, but {SHORT_OUTPUT} is not the limit: no longer output is faster either."


def context(sweep: dict) -> Paragraphs:
    said: Paragraphs = []
    for label, points in facts.curves(sweep).items():
        first, last = points[0], points[-1]
        if len(points) == 1:
            said.append([f"{label}: {judged(first)} behind {first['x']} tokens of prompt."])
            continue
        steps = [facts.step_seconds(p) * 1e3 for p in (first, last)]
        costs = [f"{name} from {ends(points, key)}" for name, key in COSTS.items() if ends(points, key)]
        said.append(
            [
                f"{label}: from {speed(decoding(first))} behind {first['x']} tokens of prompt to "
                f"{speed(decoding(last))} behind {last['x']}: {difference(first, last)}.",
                f"Against plain decoding: {verdicts(points, '{} tokens')}.",
                f"A decode step goes from {steps[0]:.2f} to {steps[1]:.2f} ms (x{steps[1] / steps[0]:.2f})"
                + (f", in such steps {listed(costs)}." if costs else "."),
            ]
        )
    return said


COSTS = {"c": "draft_cost", "v": "verify_cost", "o": "overhead"}


def draft_kind(sweep: dict) -> Paragraphs:
    label, said = facts.labeller(sweep), []
    dials = [p for p in sweep["points"] if p["method"].startswith("dial:")]
    methods = [p for p in sweep["points"] if p not in dials] or sweep["points"]
    for kind in dict.fromkeys(p["series"] for p in methods):
        ranked = sorted((p for p in methods if p["series"] == kind), key=lambda p: -p["speedup"])
        where = {"all": "All prompts", "not looping": "Prompts whose text does not loop"}.get(kind, f"{kind} prompts")
        said.append(f"{where[0].upper() + where[1:]}: {_winner(ranked, label)}.")
    if dials and methods is not sweep["points"]:
        said.append("The dial is an instrument: it knows the answers, so it takes no part in the ranking.")
    return [said]


def _winner(ranked: list[dict], label: Callable[[dict], str]) -> str:
    first, *others = ranked
    if not any(verdict(p) == "faster" for p in ranked):
        return f"no draft is faster than plain decoding, the nearest is {label(first)} with {judged(first)}"
    if not others:
        return f"{label(first)} has {judged(first)}"
    rest = f"{label(others[0])} has {judged(others[0])}"
    if facts.apart(decoding(first), decoding(others[0])):
        return f"{label(first)} wins with {speed(decoding(first))}, {rest}"
    why = "the intervals overlap" if first["speedup_low"] is not None else "there are no intervals"
    return f"no clear winner: {label(first)} has {judged(first)}, {rest}, and {why}"


def mismatch(sweep: dict) -> Paragraphs:
    label, points = facts.labeller(sweep), sweep["points"]
    said = [f"{label(p)}: {judged(p)}, alpha {number(p['acceptance_rate'])}." for p in points]
    costs = [facts.round_cost(p) for p in points]
    why = [_rounds(points, costs)] if None not in costs else []
    training = sweep["facts"].get("training")
    if training:
        why.append(
            f"One of them was trained on the spot: {training['seconds']:.0f} s, {training['steps']} steps, "
            f"{training['tokens']:,} tokens, loss from {training['first_loss']:.2f} to {training['last_loss']:.2f} "
            "nats per token."
        )
    return [said, why]


def _rounds(points: list[dict], costs: list[float]) -> str:
    made = [p["tokens_per_round"] for p in points]
    apart = max(costs) / min(costs) - 1
    how = "about the same with all of them, " if apart <= SAME_COST else "from "
    cost = f"A round costs {how}{min(costs):.2f} to {max(costs):.2f} decode steps"
    said = f"{cost}; what it makes goes from {max(made):.2f} to {min(made):.2f} tokens."
    losing = [(tau, paid) for p, tau, paid in zip(points, made, costs, strict=True) if verdict(p) == "slower"]
    if losing and all(tau < paid for tau, paid in losing):
        said += " Every slower row makes fewer tokens in a round than the round costs in steps."
    return said


def definitions(sweep: dict) -> Paragraphs:
    label, said = facts.labeller(sweep), []
    for name, points in facts.curves(sweep).items():
        known = [p for p in points if p["draft_length"] and p["acceptance_rate"] is not None]
        if not known:
            continue
        last, shares = known[-1], facts.survival(known[-1])
        says = [f"fed with {key} {value:.2f}x" for key, value in facts.book_fed(last).items()]
        said.append(
            [
                f"{name}, k = {last['x']}: alpha = {last['acceptance_rate']:.2f} (accepted of tested), "
                f"f = {last['drafted_fraction']:.2f} (accepted of drafted), s = {facts.output_share(last):.2f} (share "
                f"of the output), tau = {last['tokens_per_round']:.2f} (tokens per round).",
                f"A round accepts at least one drafted token with A_1 = {shares[0]:.2f} and all of them with "
                f"A_{len(shares)} = {shares[-1]:.2f}."
                if shares
                else None,
                f"The book's formula: {listed(says)}; measured {judged(last)}.",
            ]
        )
    known = [p for p in sweep["points"] if p["draft_length"] and p["acceptance_rate"] is not None]
    return [*said, [_closest(known)], [_proportional(known, label)]]


def _closest(points: list[dict]) -> str | None:
    errors: dict[str, list[float]] = {}
    for point in points:
        for key, value in facts.book_fed(point).items():
            errors.setdefault(key, []).append(value / point["speedup"] - 1)
    sizes = {key: facts.typical_and_largest(e) for key, e in errors.items()}
    if not sizes:
        return None
    nearest = min(sizes, key=lambda key: sizes[key][0])
    each = [f"fed with {key} {percent(middle)} ({percent(largest)})" for key, (middle, largest) in sizes.items()]
    return f"Over all rows the book's formula is off by, median (largest): {listed(each)}; {nearest} comes nearest."


def _proportional(points: list[dict], label: Callable[[dict], str]) -> str | None:
    fit = facts.proportional(points)
    if fit is None:
        return None
    known = [p for p in points if p["acceptance_rate"]]
    worst = max(range(len(known)), key=lambda i: abs(fit.errors[i]))
    place = f"{label(known[worst])}, k = {known[worst]['draft_length']}"
    correlation = "" if fit.correlation is None else f", correlation {fit.correlation:.2f}"
    bound = percent(PROPORTIONAL, 0)
    holds = abs(fit.errors[worst]) <= PROPORTIONAL
    return (
        'The book\'s sentence "speedup is proportional to acceptance x draft length" '
        + ("holds on these numbers" if holds else "does not hold on these numbers")
        + f": the best such line, {fit.slope:.2f} alpha k{correlation}, is {away(fit.errors[worst])} at {place}, "
        + (f"within the {bound} allowed." if holds else f"more than the {bound} allowed.")
    )
