"""Wrong answers to exercise 19 that are easy to give: name -> (hole, source)."""


def _chances(
    ends: str = "1 - acceptance[n] if n < len(acceptance) else 1.0",
    row: str = "[reached * ends * chance for chance in guesses]",
    step: str = "reached *= acceptance[n]",
    result: str = "chances",
):
    return (
        "outcome_chances",
        f"""
def outcome_chances(acceptance, guessed):
    chances = []
    reached = 1.0
    for n, guesses in enumerate(guessed):
        ends = {ends}
        chances.append({row})
        if n < len(acceptance):
            {step}
    return {result}
""",
    )


def _fan(
    outcomes: str = "[(-chance, n) for n, row in enumerate(chances) for chance in row if chance > 0]",
    taken: str = "[n for _, n in sorted(outcomes)[:budget]]",
    result: str = "[taken.count(n) for n in range(len(chances))]",
):
    return (
        "fan_out",
        f"""
def fan_out(chances, budget):
    outcomes = {outcomes}
    taken = {taken}
    return {result}
""",
    )


def _time(
    fresh: str = "verify + draft",
    prepared: str = "min(max(verify, prepare), fresh)",
    total: str = "hit * prepared + (1 - hit) * fresh + sync",
):
    return (
        "round_time",
        f"""
def round_time(hit, verify, draft, prepare, sync):
    fresh = {fresh}
    prepared = {prepared}
    return {total}
""",
    )


def _needed(
    allowed: str = "tokens / other",
    none_needed: str = "missed <= allowed",
    never: str = "hit > allowed",
    share: str = "(missed - allowed) / (missed - hit)",
    nothing: str = "0.0",
):
    return (
        "needed_hit_rate",
        f"""
def needed_hit_rate(tokens, verify, draft, prepare, sync, other):
    allowed = {allowed}
    missed, hit = (round_time(chance, verify, draft, prepare, sync) for chance in (0.0, 1.0))
    if {none_needed}:
        return {nothing}
    if {never}:
        return None
    return {share}
""",
    )


WRONG = {
    "a round that gets as far as n has not ended there: the next token must be rejected": _chances(ends="1.0"),
    "after all k tokens the round must still be ended by a rejection": _chances(
        ends="1 - (acceptance[n] if n < len(acceptance) else acceptance[-1] if acceptance else 0.0)"
    ),
    "acceptance is taken as a chance of all rounds, not of those that get there": _chances(
        step="reached = acceptance[n]"
    ),
    "the guess counts alone, however unlikely it is that the round gets there": _chances(row="list(guesses)"),
    "one number for each row: every guess has a chance of its own": _chances(row="[reached * ends * sum(guesses)]"),
    "the guesses of a row are scaled to 1: some tokens nobody guesses": _chances(
        row="[reached * ends * chance / sum(guesses) for chance in guesses]"
    ),
    "the round after all k tokens is left out": _chances(result="chances[:-1]"),
    "what was rejected is multiplied on": _chances(step="reached *= 1 - acceptance[n]"),
    "as many guesses after each number of accepted tokens": _fan(
        taken="[]", result="[min(len(row), budget // len(chances)) for row in chances]"
    ),
    "the most likely row gets the whole budget": _fan(
        taken="[]",
        result="[min(len(row), budget) if sum(row) == max(map(sum, chances)) else 0 for row in chances]",
    ),
    "the least likely outcomes come first": _fan(taken="[n for _, n in sorted(outcomes, reverse=True)[:budget]]"),
    "of equal outcomes the one with more accepted tokens": _fan(
        taken="[n for _, n in sorted(outcomes, key=lambda one: (one[0], -one[1]))[:budget]]"
    ),
    "drafts are prepared for outcomes that cannot happen": _fan(
        outcomes="[(-chance, n) for n, row in enumerate(chances) for chance in row]"
    ),
    "one outcome more than the budget": _fan(taken="[n for _, n in sorted(outcomes)[: budget + 1]]"),
    "at most four guesses a row": _fan(result="[min(4, taken.count(n)) for n in range(len(chances))]"),
    "at most eight rows": _fan(
        outcomes="[(-chance, n) for n, row in enumerate(chances[:8]) for chance in row if chance > 0]"
    ),
    "rows are filled from the first one on, whatever their chances": _fan(taken="[n for _, n in outcomes[:budget]]"),
    "the two devices work one after the other": _time(prepared="min(verify + prepare, fresh)"),
    "a hit takes no longer than the verification, however long preparing takes": _time(prepared="verify"),
    "a prepared draft is waited for, though a fresh one would be there earlier": _time(prepared="max(verify, prepare)"),
    "a miss drafts while the target verifies": _time(fresh="max(verify, draft)"),
    "a miss finishes what was prepared before it drafts": _time(
        fresh="max(verify, prepare) + draft", prepared="max(verify, prepare)"
    ),
    "a hit still drafts": _time(prepared="fresh"),
    "hits and misses are exchanged": _time(total="(1 - hit) * prepared + hit * fresh + sync"),
    "both devices talk after hits alone": _time(total="hit * (prepared + sync) + (1 - hit) * fresh"),
    "both devices talk after misses alone": _time(total="hit * prepared + (1 - hit) * (fresh + sync)"),
    "talking is forgotten": _time(total="hit * prepared + (1 - hit) * fresh"),
    "a prepared draft may take as long as two fresh ones": _time(prepared="min(max(verify, prepare), fresh + draft)"),
    "the speedup of one token a round": _needed(allowed="1 / other"),
    "tokens times the other speed, not divided by it": _needed(allowed="tokens * other"),
    "1.0 where not even hits alone are enough": (
        "needed_hit_rate",
        """
def needed_hit_rate(tokens, verify, draft, prepare, sync, other):
    allowed = tokens / other
    missed, hit = (round_time(chance, verify, draft, prepare, sync) for chance in (0.0, 1.0))
    if missed <= allowed:
        return 0.0
    return min(1.0, (missed - allowed) / (missed - hit)) if missed > hit else 1.0
""",
    ),
    "None where hits alone are just enough": _needed(never="hit >= allowed"),
    "None where no hit is needed": _needed(nothing="None"),
    "below 0 where no hit is needed": _needed(none_needed="missed == hit == allowed"),
    "the rate of misses that are allowed": _needed(share="(allowed - hit) / (missed - hit)"),
    "the share of the time, not of the rounds": _needed(share="(missed - allowed) / missed"),
    "talking costs nothing": (
        "needed_hit_rate",
        """
def needed_hit_rate(tokens, verify, draft, prepare, sync, other):
    allowed = tokens / other
    missed, hit = (round_time(chance, verify, draft, prepare, 0.0) for chance in (0.0, 1.0))
    if missed <= allowed:
        return 0.0
    return None if hit > allowed else (missed - allowed) / (missed - hit)
""",
    ),
}
