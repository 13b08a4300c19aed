"""Solution 17: serving.

Chapter: docs/chapters/17-serving.md. Check: python check.py 17 --impl solutions
"""

import re

SPECULATION = "vllm:spec_decode_num_"
DRAFTS = SPECULATION + "drafts_total"  # rounds that drafted something
DRAFTED = SPECULATION + "draft_tokens_total"
ACCEPTED = SPECULATION + "accepted_tokens_total"
LEFT_OUT = ("engine", "model_name")  # labels that say whose a value is, not what it counts


def kept_at(place: int) -> str:
    """The series that counts the rounds that kept the drafted token at this place of the draft, 0 for the first one."""
    return f'{SPECULATION}accepted_tokens_per_pos_total{{position="{place}"}}'


def read_counters(page: str) -> dict[str, float]:
    r"""What a /metrics page has counted.  -> series and value, the sum over all engines behind the page

    A line `# TYPE name kind` says what the lines after it are, up to the next such line, whatever they are called.
    Those of a counter or of a histogram count; those of any other kind (a gauge goes up and down) are left out, as is
    what stands before the first such line. Other lines that begin with # say nothing here. The rest are values: `name
    number`, or `name{label="value",label="value"} number`. There is no quotation mark in a value, but any other
    character may be. A number is written as Python's float() reads it, +Inf and NaN too.

    A series is called as on the page, without the labels of LEFT_OUT, and without {} where no other one is left. Lines
    that are called the same then are added up.

    >>> page = '# TYPE n_total counter\nn_total{engine="0",at="1"} 2.0\nn_total{engine="1",at="1"} 3.0\n'
    >>> read_counters(page + '# TYPE busy gauge\nbusy 1.0\n')
    {'n_total{at="1"}': 5.0}
    """
    found: dict[str, float] = {}
    counts = False
    for line in page.split("\n"):
        if line.startswith("# TYPE "):
            counts = line.split()[-1] in ("counter", "histogram")
        if not counts or not line or line.startswith("#"):
            continue
        # Split at the last blank: a label's value may have some, too.
        series, number = line.rsplit(maxsplit=1)
        name = series.partition("{")[0]
        labels = [label for label in re.findall(r'\w+="[^"]*"', series) if label.partition("=")[0] not in LEFT_OUT]
        if labels:
            name += "{" + ",".join(labels) + "}"
        found[name] = found.get(name, 0.0) + float(number)
    return found


def between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """How far every series of `after` went on since `before`, both as read_counters gives them.

    One that is new began at 0. ValueError where one fell, or is gone: then it is not the server of before, or that one
    was started again.

    >>> between({"n_total": 5.0}, {"n_total": 7.0, "m_total": 1.0})
    {'n_total': 2.0, 'm_total': 1.0}
    """
    for series, value in before.items():
        if after.get(series, -1.0) < value:
            raise ValueError(f"{series} fell from {value}, or is gone")
    return {series: value - before.get(series, 0.0) for series, value in after.items()}


def acceptance(counts: dict[str, float], k: int) -> tuple[float | None, float, float]:
    """The three numbers that are called acceptance.  -> alpha, f, tokens of a round

    counts: as `between` gives them, of a server that drafts k tokens in a round; their series are DRAFTS, DRAFTED,
    ACCEPTED, and kept_at(0) to kept_at(k - 1). There was at least one draft.

    alpha: accepted / tested. A round tests its tokens up to the first rejected one. None where some draft was shorter
    than k: then no counter tells how many tokens were tested. f: accepted / drafted. Tokens of a round: the accepted
    ones, and the target's own.

    >>> acceptance({DRAFTS: 4.0, DRAFTED: 8.0, ACCEPTED: 4.0, kept_at(0): 3.0, kept_at(1): 1.0}, 2)
    (0.5714285714285714, 0.5, 2.0)
    """
    drafts, drafted, accepted = counts[DRAFTS], counts[DRAFTED], counts[ACCEPTED]
    # A round that kept its last token has rejected none; every other round has rejected exactly one.
    rejected = drafts - counts[kept_at(k - 1)]
    alpha = accepted / (accepted + rejected) if drafted == k * drafts else None
    return alpha, accepted / drafted, 1 + accepted / drafts


def predict(
    plain: float, k: int, draft_cost: float, verify_cost: float, overhead: float, tokens_per_round: float
) -> float:
    """Seconds per token with speculation, where a token without it takes `plain` seconds.

    All costs are in plain tokens: `draft_cost` of one drafted token, `verify_cost` of the target's pass over k + 1
    tokens, `overhead` of everything else in a round.

    >>> predict(0.5, 4, 0.125, 1.25, 0.25, 2.0)  # a round: 2 plain tokens, 1 second
    0.5
    """
    return plain * (k * draft_cost + verify_cost + overhead) / tokens_per_round


def from_stream(chunks: list[tuple[float, int]]) -> tuple[float, float]:
    """Seconds to the first token, and seconds per token after it.

    chunks: of one answer, for each chunk the seconds since the request, and how many tokens it carries. That may be
    several; it may be none at the beginning and at the end, and such a chunk does not count. The tokens of the first
    chunk were there at its time: they took none of the time after it. Where nothing came after it, the second number
    is 0.0. ValueError where there is no token.

    >>> from_stream([(0.125, 0), (0.25, 2), (0.75, 1), (1.25, 3), (1.5, 0)])
    (0.25, 0.25)
    """
    chunks = [(seconds, n) for seconds, n in chunks if n]
    if not chunks:
        raise ValueError("the answer has no token")
    first, last = chunks[0][0], chunks[-1][0]
    n_after = sum(n for _, n in chunks[1:])
    return first, (last - first) / n_after if n_after else 0.0


def reconcile(counts: dict[str, float], own_rounds: list[tuple[int, int]], k: int) -> str:
    """Whether a server counted the rounds that the lab makes of the same text with the same draft.

    counts: of one answer, as `between` gives them: DRAFTS, DRAFTED, ACCEPTED, kept_at(0) to kept_at(k - 1).
    own_rounds: (drafted, accepted) of the lab's rounds, in their order. A round that drafts nothing is in no counter of
    the server.

    "equal": every counter says what these rounds say. "last round": they would, if the last of own_rounds had drafted
    another number from 1 to k, or kept another number of these; never where the last of own_rounds drafts nothing. Else
    the first of these that is not equal: "drafts", "drafted", "accepted".

    >>> counts = {DRAFTS: 2.0, DRAFTED: 4.0, ACCEPTED: 3.0, kept_at(0): 2.0, kept_at(1): 1.0}
    >>> [reconcile(counts, rounds, 2) for rounds in ([(2, 2), (2, 1)], [(2, 2), (2, 0)], [(2, 1)])]
    ['equal', 'last round', 'drafts']
    """

    def counted(rounds: list[tuple[int, int]]) -> dict[str, float]:
        drafting = [(drafted, accepted) for drafted, accepted in rounds if drafted]
        own = {
            DRAFTS: len(drafting),
            DRAFTED: sum(drafted for drafted, _ in drafting),
            ACCEPTED: sum(accepted for _, accepted in drafting),
        }
        return own | {kept_at(place): sum(accepted > place for _, accepted in drafting) for place in range(k)}

    def says(rounds: list[tuple[int, int]]) -> bool:
        return all(counts[series] == n for series, n in counted(rounds).items())

    if says(own_rounds):
        return "equal"
    # There are few last rounds, so try them all; each must fit every counter, the places among them.
    if own_rounds and own_rounds[-1][0]:
        others = [(drafted, accepted) for drafted in range(1, k + 1) for accepted in range(drafted + 1)]
        if any(says([*own_rounds[:-1], last]) for last in others):
            return "last round"
    own = counted(own_rounds)
    names = {"drafts": DRAFTS, "drafted": DRAFTED}
    return next((name for name, series in names.items() if counts[series] != own[series]), "accepted")
