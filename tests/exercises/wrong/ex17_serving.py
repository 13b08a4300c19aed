"""Wrong answers to exercise 17 that are easy to give: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where it explains every answer they got.
"""


def _read(
    first: str = "False",
    kind: str = 'counts = line.split()[-1] in ("counter", "histogram")',
    skip: str = 'not counts or not line or line.startswith("#")',
    split: str = "line.rsplit(maxsplit=1)",
    labels: str = """re.findall(r'\\w+="[^"]*"', series)""",
    keep: str = 'label.partition("=")[0] not in LEFT_OUT',
    test: str = "labels",
    lose: str = "False",
    add: str = "found[name] = found.get(name, 0.0) + float(number)",
):
    return (
        "read_counters",
        f"""
def read_counters(page):
    found = {{}}
    counts = {first}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            {kind}
        if {skip}:
            continue
        series, number = {split}
        name = series.partition("{{")[0]
        labels = [label for label in {labels} if {keep}]
        if {test}:
            name += "{{" + ",".join(labels) + "}}"
        if not ({lose}):
            {add}
    return found
""",
    )


def _between(
    wrong: str = "series not in after or after[series] < value",
    then: str = "raise ValueError(series)",
    change: str = "value - before.get(series, 0.0)",
    keep: str = "True",
):
    return (
        "between",
        f"""
def between(before, after):
    for series, value in before.items():
        if {wrong}:
            {then}
    return {{series: {change} for series, value in after.items() if {keep}}}
""",
    )


def _acceptance(
    rejected: str = "drafts - counts[kept_at(k - 1)]",
    alpha: str = "accepted / (accepted + rejected)",
    whole: str = "drafted == k * drafts",
    fraction: str = "accepted / drafted",
    length: str = "1 + accepted / drafts",
    answer: str = "alpha, fraction, length",
):
    return (
        "acceptance",
        f"""
def acceptance(counts, k):
    drafts, drafted, accepted = counts[DRAFTS], counts[DRAFTED], counts[ACCEPTED]
    rejected = {rejected}
    alpha = {alpha} if {whole} else None
    fraction, length = {fraction}, {length}
    return {answer}
""",
    )


def _predict(formula: str):
    return (
        "predict",
        f"""
def predict(plain, k, draft_cost, verify_cost, overhead, tokens_per_round):
    return {formula}
""",
    )


def _stream(
    chunks: str = "[(seconds, n) for seconds, n in chunks if n]",
    empty: str = "raise ValueError",
    first: str = "chunks[0][0]",
    last: str = "chunks[-1][0]",
    after: str = "sum(n for _, n in chunks[1:])",
    answer: str = "first, (last - first) / after if after else 0.0",
):
    return (
        "from_stream",
        f"""
def from_stream(chunks):
    every = chunks
    chunks = {chunks}
    if not sum(n for _, n in chunks):
        {empty}
    first, last = {first}, {last}
    after = {after}
    return {answer}
""",
    )


def _reconcile(
    drafting: str = "[(drafted, accepted) for drafted, accepted in rounds if drafted]",
    drafts: str = "len(drafting)",
    places: str = "range(k)",
    first: str = "says(own_rounds)",
    excuse: str = "own_rounds and own_rounds[-1][0]",
    others: str = "[(drafted, accepted) for drafted in range(1, k + 1) for accepted in range(drafted + 1)]",
    changed: str = "[*own_rounds[:-1], last]",
    names: str = '{"drafts": DRAFTS, "drafted": DRAFTED, "accepted": ACCEPTED}',
):
    return (
        "reconcile",
        f"""
def reconcile(counts, own_rounds, k):
    def counted(rounds):
        drafting = {drafting}
        own = {{DRAFTS: {drafts}, DRAFTED: sum(n for n, _ in drafting), ACCEPTED: sum(n for _, n in drafting)}}
        return own | {{kept_at(i): sum(n > i for _, n in drafting) for i in {places}}}

    def says(rounds):
        return all(counts[series] == n for series, n in counted(rounds).items())

    if {first}:
        return "equal"
    if {excuse}:
        others = {others}
        if any(says({changed}) for last in others):
            return "last round"
    own = counted(own_rounds)
    names = {names}
    return next((name for name, series in names.items() if counts[series] != own[series]), "accepted")
""",
    )


WRONG = {
    "gauges are counted, too": _read(kind="counts = True"),
    "a gauge after a counter is counted, too": _read(
        kind='counts = counts or line.split()[-1] in ("counter", "histogram")'
    ),
    "what stands before the first TYPE line is counted": _read(first="True"),
    "gauges are told by their name alone": _read(kind="counts = not line.split()[2].endswith('_created')"),
    "everything but gauges is counted": _read(kind='counts = line.split()[-1] != "gauge"'),
    "summaries are counted, too": _read(kind='counts = line.split()[-1] in ("counter", "histogram", "summary")'),
    "what has no kind of its own is counted": _read(
        kind='counts = line.split()[-1] in ("counter", "histogram", "untyped", "unknown")'
    ),
    "what ends in _created is left out, though its kind is that of a counter": _read(
        lose='series.partition("{")[0].endswith("_created")'
    ),
    "inf and NaN are left out": _read(lose='number.strip("+-").lower() in ("inf", "nan")'),
    "NaN is left out": _read(lose='number == "NaN"'),
    "inf and NaN count as 0": _read(lose='number in ("+Inf", "NaN", "inf") and found.setdefault(name, 0.0) == 0'),
    "a number begins with a digit": _read(lose="not number[0].isdigit()"),
    "histograms are left out": _read(kind='counts = line.split()[-1] == "counter"'),
    "one engine stands for all: the last one": _read(add="found[name] = float(number)"),
    "one engine stands for all: the first one": _read(add="found.setdefault(name, float(number))"),
    "values are cut to whole numbers: the sum of a histogram is in seconds": _read(
        add="found[name] = found.get(name, 0.0) + int(float(number))"
    ),
    "all labels are left out, so that places and buckets are added up": _read(keep="False"),
    "the engine stays in the name": _read(keep='not label.startswith("model_name=")'),
    "model_name stays in the name": _read(keep='not label.startswith("engine=")'),
    "labels that only begin like those of LEFT_OUT are left out, too": _read(keep="not label.startswith(LEFT_OUT)"),
    "{} stays where no label is left": _read(test='"{" in series'),
    "a line is split at its first blank: a label's value may hold one": _read(
        split='(line.split(" ")[0], line.split(" ")[-1])'
    ),
    "labels are split at commas: a value may hold one": _read(
        labels='filter(None, series.partition("{")[2].removesuffix("}").split(","))'
    ),
    "a value ends at the first }: it may hold one": _read(
        labels="""re.findall(r'\\w+="[^"]*"', series.partition("{")[2].partition("}")[0])"""
    ),
    "the value after, not the difference": _between(change="value"),
    "before less after": _between(change="before.get(series, 0.0) - value"),
    "a new series is left out": _between(keep="series in before"),
    "a new series raises KeyError": _between(change="value - before[series]"),
    "a series that stood still is left out": _between(keep="value != before.get(series, 0.0)"),
    "a series that is gone goes unnoticed": _between(wrong="after.get(series, value) < value"),
    "a counter that fell goes unnoticed": _between(wrong="series not in after"),
    "a fall of less than 1 goes unnoticed: values are compared as whole numbers": _between(
        wrong="series not in after or int(after[series]) < int(value)"
    ),
    "a small fall is taken for rounding: a counter never falls": _between(
        wrong="series not in after or after[series] < value - 1e-3"
    ),
    "a fall of less than 1 is taken for rounding": _between(wrong="series not in after or after[series] <= value - 1"),
    "a counter that fell counts as 0": _between(
        wrong="series not in after", change="max(0.0, value - before.get(series, 0.0))"
    ),
    "a counter that stands still counts as fallen": _between(wrong="series not in after or after[series] <= value"),
    "alpha is f: tokens behind a rejected one were never tested": _acceptance(alpha="accepted / drafted"),
    "every round counts as one with a rejection": _acceptance(rejected="drafts"),
    "rounds with a rejection are told by their first token": _acceptance(rejected="drafts - counts[kept_at(0)]"),
    "rounds that kept all count as those with a rejection": _acceptance(rejected="counts[kept_at(k - 1)]"),
    "alpha is how often the first token is kept": _acceptance(alpha="counts[kept_at(0)] / drafts"),
    "alpha is said where drafts came shorter than k": _acceptance(whole="True"),
    "short drafts are told by their sum, which may be a multiple of k all the same": _acceptance(
        whole="not drafted % k"
    ),
    "short drafts are told by their mean, which may be whole all the same": _acceptance(whole="not drafted % drafts"),
    "alpha is left out where drafts are whole": _acceptance(whole="drafted != k * drafts"),
    "f is left to the tested ones: it is accepted / drafted": _acceptance(fraction="accepted / (accepted + rejected)"),
    "the target's own token is forgotten": _acceptance(length="accepted / drafts"),
    "tokens of a round over drafted tokens": _acceptance(length="1 + accepted / drafted"),
    "f comes first, alpha second": _acceptance(answer="fraction, alpha, length"),
    "one drafted token is paid, whatever k is": _predict(
        "plain * (draft_cost + verify_cost + overhead) / tokens_per_round"
    ),
    "drafting costs nothing": _predict("plain * (verify_cost + overhead) / tokens_per_round"),
    "verifying costs a plain token": _predict("plain * (k * draft_cost + 1 + overhead) / tokens_per_round"),
    "verify_cost is taken for what comes on top of a plain token": _predict(
        "plain * (k * draft_cost + 1 + verify_cost + overhead) / tokens_per_round"
    ),
    "the overhead is forgotten": _predict("plain * (k * draft_cost + verify_cost) / tokens_per_round"),
    "the overhead is paid for every drafted token": _predict(
        "plain * (k * (draft_cost + overhead) + verify_cost) / tokens_per_round"
    ),
    "every round makes k + 1 tokens": _predict("plain * (k * draft_cost + verify_cost + overhead) / (k + 1)"),
    "one more token than tokens_per_round: the target's own is in it": _predict(
        "plain * (k * draft_cost + verify_cost + overhead) / (tokens_per_round + 1)"
    ),
    "the seconds of a round, not of a token": _predict("plain * (k * draft_cost + verify_cost + overhead)"),
    "plain tokens, not seconds": _predict("(k * draft_cost + verify_cost + overhead) / tokens_per_round"),
    "the speedup, not the seconds": _predict("tokens_per_round / (k * draft_cost + verify_cost + overhead)"),
    "the tokens of the first chunk count for the time after it": _stream(
        after="sum(n for _, n in chunks)",
    ),
    "all tokens but one came after the first chunk: it may carry several": _stream(
        after="sum(n for _, n in chunks) - 1"
    ),
    "chunks are taken for tokens: one carries several": _stream(after="len(chunks) - 1"),
    "the time after the request, not after the first chunk": _stream(answer="first, last / after if after else 0.0"),
    "the first number is that of an empty chunk": _stream(first="every[0][0]"),
    "the time ends with an empty chunk": _stream(last="every[-1][0]"),
    "the seconds to the first chunk are shared by its tokens": _stream(first="chunks[0][0] / chunks[0][1]"),
    "a division by 0 where nothing came after the first chunk": _stream(answer="first, (last - first) / after"),
    "an answer without a token is taken for one of no time": _stream(empty="return 0.0, 0.0"),
    "tokens a second, not seconds per token": _stream(
        answer="first, after / (last - first) if after and last > first else 0.0"
    ),
    "rounds that draft nothing are counted: no counter of the server does": _reconcile(
        drafting="rounds", drafts="len(rounds)"
    ),
    "the places are not compared: as many may be kept at other places": _reconcile(places="range(0)"),
    "only the number of drafts is compared": _reconcile(first="counts[DRAFTS] == counted(own_rounds)[DRAFTS]"),
    "the last round has no excuse": _reconcile(excuse="False"),
    "a last round that drafted nothing has an excuse": _reconcile(excuse="own_rounds"),
    "the last round must have drafted k": _reconcile(others="[(k, accepted) for accepted in range(k + 1)]"),
    "the last round must keep nothing": _reconcile(others="[(drafted, 0) for drafted in range(1, k + 1)]"),
    "the last round must have drafted as many": _reconcile(
        others="[(own_rounds[-1][0], accepted) for accepted in range(own_rounds[-1][0] + 1)]"
    ),
    "the last round may draft at most as many": _reconcile(
        others="[(drafted, kept) for drafted in range(1, own_rounds[-1][0] + 1) for kept in range(drafted + 1)]"
    ),
    "the last round may draft at least as many": _reconcile(
        others="[(drafted, kept) for drafted in range(own_rounds[-1][0], k + 1) for kept in range(drafted + 1)]"
    ),
    "the last round may keep at most what the lab's drafted": _reconcile(
        others="[(drafted, kept) for drafted in range(1, k + 1) for kept in range(min(drafted, own_rounds[-1][0]) + 1)]"
    ),
    "a round before one that drafted nothing has the excuse: only the very last one has it": _reconcile(
        excuse="any(drafted for drafted, _ in own_rounds)",
        changed="[*[one for one in own_rounds if one[0]][:-1], last]",
    ),
    "the last round must keep as many": _reconcile(
        others="[(drafted, own_rounds[-1][1]) for drafted in range(1, k + 1)]"
    ),
    "the last round may keep more than it drafted": _reconcile(
        others="[(drafted, accepted) for drafted in range(1, k + 1) for accepted in range(k + 1)]"
    ),
    "the last round may draft more than k": _reconcile(
        others="[(drafted, accepted) for drafted in range(1, 2 * k + 1) for accepted in range(drafted + 1)]"
    ),
    "the last round may be missing": _reconcile(
        others="[(drafted, accepted) for drafted in range(k + 1) for accepted in range(drafted + 1)]"
    ),
    "the first round has the excuse, not the last one": _reconcile(changed="[*own_rounds[1:], last]"),
    "one more round has the excuse": _reconcile(changed="[*own_rounds, last]"),
    "equal counts are called a last round": _reconcile(first="False"),
    "drafted tokens are looked at before drafts": _reconcile(
        names='{"drafted": DRAFTED, "drafts": DRAFTS, "accepted": ACCEPTED}'
    ),
    "accepted tokens are looked at before drafted ones": _reconcile(
        names='{"drafts": DRAFTS, "accepted": ACCEPTED, "drafted": DRAFTED}'
    ),
    "any line that begins with # ends the kind": _read(
        kind='counts = line.split()[-1] in ("counter", "histogram")\n'
        '        elif line.startswith("#"):\n            counts = False'
    ),
    "a counter's name ends in _total": _read(
        skip='not counts or not line or line.startswith("#") '
        'or not line.split("{")[0].split()[0].endswith(("_total", "_bucket", "_count", "_sum"))'
    ),
    "the labels are sorted": _read(labels="""sorted(re.findall(r'\\w+="[^"]*"', series))"""),
    "the chunks are sorted": _stream(chunks="sorted((seconds, n) for seconds, n in chunks if n)"),
}
