"""Wrong answers to exercise 18 that are easy to give: name -> (hole, source)."""


def _rates(before: str = "(curve.rounds, *curve.kept)", rate: str = "kept / reached if reached else None"):
    return (
        "conditional",
        f"""
def conditional(curve):
    before = {before}
    return [{rate} for kept, reached in zip(curve.kept, before, strict=False)]
""",
    )


def _share(share: str):
    return ("accepted_share", f"\ndef accepted_share(curve):\n    return {share}\n")


def _cause(
    few: str = "curve.rounds < 30",
    states: str = "rates[0] < 0.15",
    recursion: str = "rates[1] < rates[0] / 2",
    independent: str = "rates[0] > rates[1] > rates[2] and rates[2] < rates[1] * 2 / 3",
    tested: str = "curve.rounds + sum(curve.kept[:-1])",
    half: str = "k // 2",
    long: str = "k >= 6 and sum(curve.kept[half:]) < 0.15 * accepted",
    everything: str = "accepted_share(curve) >= 0.9",
    rates: str = "[rate or 0.0 for rate in conditional(curve)]",
):
    return (
        "diagnose",
        f"""
def diagnose(curve):
    rates = {rates}
    accepted, k = sum(curve.kept), len(curve.kept)
    tested, half = {tested}, {half}
    if {few}:
        return "too few"
    if {everything}:
        return "unverified"
    if {states}:
        return "states"
    if k > 1 and {recursion}:
        return "recursion"
    if k > 2 and {independent}:
        return "independent"
    if accepted / tested < 0.55:
        return "another draft"
    if {long}:
        return "k too long"
    return "fine"
""",
    )


WRONG = {
    "the share of all rounds, not of those that reach the position": _rates(before="[curve.rounds] * len(curve.kept)"),
    "0 where no round reached the position: that is not known": _rates(rate="kept / reached if reached else 0.0"),
    "of the drafted tokens, not of the rounds": _rates(before="(curve.drafted, *curve.kept)"),
    "accepted tokens of a round, not of the drafted tokens": _share("sum(curve.kept) / curve.rounds"),
    "the share of the first position stands for f": _share("curve.kept[0] / curve.rounds"),
    "the last position stands for all accepted tokens": _share("curve.kept[-1] / curve.rounds"),
    "few rounds are judged, too": _cause(few="False"),
    "30 rounds are too few: they are the first that count": _cause(few="curve.rounds <= 30"),
    "what is kept everywhere is fine": _cause(everything="False"),
    "f has to be above 0.9": _cause(everything="accepted_share(curve) > 0.9"),
    "the first position alone says whether everything is kept": _cause(everything="rates[0] >= 0.9"),
    "0.15 of the rounds is nothing, too": _cause(states="rates[0] <= 0.15"),
    "nothing at the first position is another draft": _cause(states="False"),
    "a cliff is where all rounds fall by half: the conditional rate counts": _cause(
        recursion="curve.kept[1] < curve.rounds / 2"
    ),
    "exactly half is a cliff, too": _cause(recursion="rates[1] <= rates[0] / 2"),
    "the cliff is not looked for": _cause(recursion="False"),
    "rates of all rounds fall for every draft": _cause(
        independent="curve.kept[0] > curve.kept[1] > curve.kept[2] and curve.kept[2] < curve.kept[1] * 2 / 3"
    ),
    "a third rate that is low is enough: all three must fall": _cause(independent="rates[2] < rates[1] * 2 / 3"),
    "three rates that fall are enough: the third must be far lower": _cause(
        independent="rates[0] > rates[1] > rates[2]"
    ),
    "tokens behind a rejected one were never tested": _cause(tested="curve.drafted"),
    "the rounds that kept all k tested one token more: there was none": _cause(tested="curve.rounds + accepted"),
    "the second half begins behind the middle, (k + 1) // 2": _cause(half="(k + 1) // 2"),
    "k = 5 is too long, too": _cause(long="sum(curve.kept[half:]) < 0.15 * accepted"),
    "a long k is too long, whatever its end brings": _cause(long="k >= 6"),
    "the last position alone stands for the second half": _cause(long="k >= 6 and curve.kept[-1] < 0.15 * accepted"),
}
