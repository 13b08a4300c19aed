"""Wrong answers to exercise 14 that are easy to give, several of them from public code: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where it explains every answer they got.
"""


def _positions(starts: str = "starts[:, None]", step: str = "torch.arange(m)", answer: str = "at"):
    return (
        "positions",
        f"""
def positions(lengths, m):
    import torch
    starts = torch.tensor(lengths)
    at = {starts} + {step}
    return {answer}
""",
    )


def _visible(line: str, answer: str = "seen"):
    return (
        "visible",
        f"""
def visible(lengths, m, total):
    import torch
    starts = torch.tensor(lengths)[:, None]
    ends, places = starts + torch.arange(m), torch.arange(total)
    seen = {line}
    return {answer}
""",
    )


def _rolled(one: str, before: str = "pass", answer: str = "lengths"):
    return (
        "rolled_back",
        f"""
def rolled_back(lengths, n_accepted, ended):
    import torch
    {before}
    lengths = [{one} for length, n, over in zip(lengths, n_accepted, ended)]
    return {answer}
""",
    )


def _admit(body: str):
    return (
        "admit",
        f"""
def admit(rows, waiting):
    rows, waiting = list(rows), list(waiting)
{body}
    return rows, waiting
""",
    )


WRONG = {
    "all texts stand at the longest one's position": _positions("starts.max().expand(len(lengths), 1)"),
    "all texts stand at the shortest one's position": _positions("starts.min().expand(len(lengths), 1)"),
    "all tokens of a pass stand at one position": _positions("starts[:, None]", "torch.zeros(m, dtype=torch.long)"),
    "positions begin behind the first token of the pass, not at it": _positions("starts[:, None] + 1"),
    "positions begin at 0 in every pass": _positions("0 * starts[:, None]"),
    "every token reads up to the longest text's end: places behind a text are read": _visible(
        "places <= ends.max(0).values.expand(len(lengths), m)[..., None]"
    ),
    "every token reads the whole buffer": _visible("(places >= 0).expand(len(lengths), m, total)"),
    "a token does not read itself": _visible("places < ends[..., None]"),
    "tokens of the pass read each other, later ones too": _visible(
        "(places < starts + m)[:, None].expand(len(lengths), m, total)"
    ),
    "tokens of the pass read the text before, and of the pass nothing": _visible(
        "(places < starts)[:, None].expand(len(lengths), m, total)"
    ),
    "as many places as the first text has are read in all": _visible(
        "(places <= ends[:1, :, None]).expand(len(lengths), m, total)"
    ),
    "the last committed token is not kept: it was in the pass, too": _rolled("0 if over else length + n"),
    "the target's own next token is kept: it has been in no pass": _rolled("0 if over else length + n + 2"),
    "every text keeps as many as the one that accepted fewest: right texts, but wasted passes, and the accepted tokens "
    "that were dropped have been committed": _rolled("0 if over else length + 1 + fewest", "fewest = min(n_accepted)"),
    "every text keeps as many as the one that accepted most: rejected tokens stay": _rolled(
        "0 if over else length + 1 + most", "most = max(n_accepted)"
    ),
    "a text that has ended keeps its cache": _rolled("length + 1 + n"),
    "a text that has not ended is dropped": _rolled("length + 1 + n if over else 0"),
    "all lengths become that of the longest text": _rolled(
        "0 if over else longest", "longest = max(length + 1 + n for length, n in zip(lengths, n_accepted))"
    ),
    "the last one that waits goes first": _admit(
        "    for i, text in enumerate(rows):\n        if text is None and waiting:\n            rows[i] = waiting.pop()"
    ),
    "one text in a call, though several rows are free": _admit(
        "    if None in rows and waiting:\n        rows[rows.index(None)] = waiting.pop(0)"
    ),
    "rows are filled only when all have ended": _admit(
        "    if all(text is None for text in rows):\n        rows = (waiting + rows)[: len(rows)]\n"
        "        waiting = waiting[len(rows) :]"
    ),
    "text number 0 is taken for none": _admit(
        "    for i, text in enumerate(rows):\n        if not text and waiting:\n            rows[i] = waiting.pop(0)"
    ),
    "the last row is filled first": _admit(
        "    for i in reversed(range(len(rows))):\n        if rows[i] is None and waiting:\n"
        "            rows[i] = waiting.pop(0)"
    ),
    "the lists that were given are changed": (
        "admit",
        """
def admit(rows, waiting):
    for i, text in enumerate(rows):
        if text is None and waiting:
            rows[i] = waiting.pop(0)
    return rows, waiting
""",
    ),
    "rows that have ended leave, and the others move up: their caches would have to move": _admit(
        "    n = len(rows)\n    rows = [text for text in rows if text is not None]\n"
        "    while len(rows) < n:\n        rows.append(waiting.pop(0) if waiting else None)"
    ),
    "a token reads the last 16 places alone": _visible("(places <= ends[..., None]) & (places > ends[..., None] - 16)"),
    "positions are no whole numbers": _positions("starts[:, None].float()"),
    "positions are a list": _positions(answer="at.tolist()"),
    "the mask is a list": _visible("places <= ends[..., None]", "seen.tolist()"),
    "the mask is of whole numbers": _visible("places <= ends[..., None]", "seen.long()"),
    "the lengths are a tensor": _rolled("0 if over else length + 1 + n", answer="torch.tensor(lengths)"),
    "the lengths are an array": _rolled("0 if over else length + 1 + n", answer="torch.tensor(lengths).numpy()"),
    "the lengths are no whole numbers": _rolled("0.0 if over else length + 1.0 + n"),
    "positions are of 8 bits": _positions("starts[:, None].char()", "torch.arange(m).char()"),
    "no position is above 63": _positions("starts[:, None].clamp(max=63)"),
    "four rows are looked at": _admit(
        "    for place, text in enumerate(rows[:4]):\n        if text is None and waiting:\n"
        "            rows[place] = waiting.pop(0)"
    ),
}
