"""Wrong answers to exercise 13 that are easy to give: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where it explains every answer they got.
"""


def _step(
    reading: str = "2 * model.weights / machine.bandwidth",
    arithmetic: str = "2 * model.weights * n_texts * width / machine.flops",
    cache: str = "n_texts * context * model.place_bytes / machine.bandwidth",
    total: str = "max(reading, arithmetic) + cache",
):
    return (
        "step_time",
        f"""
def step_time(machine, model, n_texts, width, context):
    reading = {reading}
    arithmetic = {arithmetic}
    cache = {cache}
    return {total}
""",
    )


def _best(
    step: str = "step_time(machine, target, n_texts, 1, context)",
    drafting: str = "step_time(machine, draft, n_texts, 1, context)",
    round_: str = "k * drafting + step_time(machine, target, n_texts, k + 1, context)",
    tokens: str = "1.0",
    add: str = "tokens += share",
    speedup: str = "tokens * step / round_",
    test: str = "speedup > highest",
    start: str = "0, 1.0",
):
    return (
        "best_k",
        f"""
def best_k(machine, target, draft, n_texts, context, survival):
    step = {step}
    drafting = {drafting}
    best, highest = {start}
    tokens = {tokens}
    for k, share in enumerate(survival, start=1):
        {add}
        round_ = {round_}
        speedup = {speedup}
        if {test}:
            best, highest = k, speedup
    return best, highest
""",
    )


def _knee(
    never: str = "False",
    small: str = "speedups[0] <= 1",
    first: str = "batches[0]",
    share: str = "(speedups[i - 1] - 1) / (speedups[i - 1] - speedups[i])",
    found: str = "math.exp(low + share * (high - low))",
    none: str = "None",
    test: str = "speedups[i] <= 1",
):
    return (
        "knee",
        f"""
def knee(batches, speedups):
    import math
    if {never}:
        return None
    if {small}:
        return {first}
    for i in range(1, len(batches)):
        if {test}:
            share = {share}
            low, high = math.log(batches[i - 1]), math.log(batches[i])
            return {found}
    return {none}
""",
    )


WRONG = {
    "reading and arithmetic are added: they go on at the same time": _step(total="reading + arithmetic + cache"),
    "the shorter of reading and arithmetic counts": _step(total="min(reading, arithmetic) + cache"),
    "the weights are read once for every text: a batch reads them once for all": _step(
        reading="2 * n_texts * model.weights / machine.bandwidth"
    ),
    "the weights are read once for every token": _step(
        reading="2 * n_texts * width * model.weights / machine.bandwidth"
    ),
    "a weight has one byte": _step(reading="model.weights / machine.bandwidth"),
    "a weight takes a product, and no sum": _step(arithmetic="model.weights * n_texts * width / machine.flops"),
    "the arithmetic is that of one token": _step(arithmetic="2 * model.weights / machine.flops"),
    "the arithmetic is that of one text": _step(arithmetic="2 * model.weights * width / machine.flops"),
    "the cache is read for every token of a text: once is enough for all of them": _step(
        cache="n_texts * width * context * model.place_bytes / machine.bandwidth"
    ),
    "one text's cache stands for all: texts share weights, never a cache": _step(
        cache="context * model.place_bytes / machine.bandwidth"
    ),
    "the cache costs nothing": _step(cache="0"),
    "the cache hides behind the arithmetic": _step(total="max(reading + cache, arithmetic)"),
    "the target's pass is over k tokens, not k + 1": _best(
        round_="k * drafting + step_time(machine, target, n_texts, k, context)"
    ),
    "verifying costs a step, however wide it is": _best(round_="k * drafting + step"),
    "drafting costs nothing": _best(round_="step_time(machine, target, n_texts, k + 1, context)"),
    "the draft makes one pass, whatever k is": _best(
        round_="drafting + step_time(machine, target, n_texts, k + 1, context)"
    ),
    "the draft drafts for one text": _best(drafting="step_time(machine, draft, 1, 1, context)"),
    "the draft reads no context": _best(drafting="step_time(machine, draft, n_texts, 1, 0)"),
    "plain decoding is that of one text: the baseline is a batch, too": _best(
        step="step_time(machine, target, 1, 1, context)"
    ),
    "the target's own token is forgotten": _best(tokens="0.0"),
    "the last share stands for the tokens: they must be added up": _best(add="tokens = 1 + share"),
    "every drafted token counts as accepted": _best(add="tokens += 1"),
    "the longer of two equally fast lengths": _best(test="speedup >= highest"),
    "never leaves speculation off": _best(start="1, 0.0"),
    "tokens of a round, whatever it costs": _best(speedup="tokens"),
    "None where even the first batch gains nothing": _knee(first="None"),
    "the last batch where the speedup never falls to 1": _knee(none="batches[-1]"),
    "the first batch at or below 1, not interpolated": _knee(found="batches[i]"),
    "the last batch above 1, not interpolated": _knee(found="batches[i - 1]"),
    "a straight line over the batch, not over its logarithm": _knee(
        found="batches[i - 1] + share * (batches[i] - batches[i - 1])"
    ),
    "the share of the way is turned round": _knee(share="(1 - speedups[i]) / (speedups[i - 1] - speedups[i])"),
    "the last time that the speedup falls to 1, not the first": (
        "knee",
        """
def knee(batches, speedups):
    import math
    if speedups[0] <= 1:
        return batches[0]
    found = None
    for i in range(1, len(batches)):
        if speedups[i] <= 1 < speedups[i - 1]:
            share = (speedups[i - 1] - 1) / (speedups[i - 1] - speedups[i])
            low, high = math.log(batches[i - 1]), math.log(batches[i])
            found = math.exp(low + share * (high - low))
    return found
""",
    ),
    "None where the last batch gains again: later ones do not matter": _knee(never="speedups[-1] > 1"),
    "None where the last batch gains more than the first": _knee(never="speedups[-1] > max(1, speedups[0])"),
    "a first batch without a gain is passed over where a later one gains": _knee(small="max(speedups) <= 1"),
    "a speedup of 1 at the last batch is no knee": _knee(test="speedups[i] < 1"),
    "the line begins at the lowest speedup so far": _knee(
        share="(min(speedups[:i]) - 1) / (min(speedups[:i]) - speedups[i])"
    ),
    "no draft is longer than six tokens": _best(test="k <= 6 and speedup > highest"),
}
