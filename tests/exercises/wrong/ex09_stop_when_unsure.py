"""Wrong answers to exercise 9 that are easy to give: name -> (hole, source). Every one must fail a check."""


def _expected(start: str = "1.0", survival: str = "survival * chance", first: str = "[expected]") -> tuple[str, str]:
    return (
        "expected_tokens",
        f"""
def expected_tokens(drawn, later):
    survival, expected = 1.0, {start}
    for chance in drawn:
        survival = {survival}
        expected += survival
    numbers = {first}
    for chance in later:
        survival = {survival}
        numbers.append(numbers[-1] + survival)
    return numbers
""",
    )


def _keep(line: str, worth: str = "tokens - rate * cost", costs: str = "costs[len(drawn):]") -> tuple[str, str]:
    return (
        "keep_drafting",
        f"""
def keep_drafting(drawn, later, costs, rate):
    pairs = zip(expected_tokens(drawn, later), {costs})
    worth = [{worth} for tokens, cost in pairs]
    return {line}
""",
    )


def _draft(
    before: str = "pass",
    stop: str = "not keep(list(probabilities))",
    after: str = "break",
    end: str = "return tokens, rows",
) -> tuple[str, str]:
    return (
        "draft_until_unsure",
        f"""
def draft_until_unsure(next_row, draw, uniforms, keep):
    tokens, rows, probabilities = [], [], []
    for i, uniform in enumerate(uniforms):
        row = next_row(tokens)
        token = draw(row, uniform)
        {before}
        tokens, rows = [*tokens, token], [*rows, row]
        probabilities.append(float(row[token]))
        if i + 1 < len(uniforms) and {stop}:
            {after}
    {end}
""",
    )


DROPPED = "the token that makes the draft unsure is dropped after it was looked at"

WRONG = {
    DROPPED: _draft(after="return tokens[:-1], rows[:-1]"),
    "a token that is not likely is not handed over": _draft(before="if row[token] < 0.5: return tokens, rows"),
    "stops where keep says yes": _draft(stop="keep(list(probabilities))"),
    "never asks": _draft(stop="False"),
    "asks about the last token alone": _draft(stop="not keep(probabilities[-1:])"),
    "asks with the largest probability of the row, not the one of the drawn token": _draft(
        before="probabilities.append(float(row.max()))", stop="not keep(list(probabilities[::2]))"
    ),
    "returns a row too few": _draft(end="return tokens, rows[:-1]"),
    "draws with one uniform": _draft(before="token = draw(row, uniforms[0])"),
    "takes the most probable token": _draft(before="token = int(row.argmax())"),
    "the target's own token is forgotten": _expected(start="0.0"),
    "the chances are not multiplied: each token counts by itself": _expected(survival="chance"),
    "the chances are added": _expected(survival="survival + chance"),
    "the drafted tokens are left out": _expected(first="[1.0]"),
    "looks one token ahead": _keep("len(worth) > 1 and worth[1] > worth[0]"),
    "keeps drafting among equals": _keep("any(longer >= worth[0] for longer in worth[1:])"),
    "compares tokens alone": _keep("any(longer > worth[0] for longer in worth[1:])", worth="tokens"),
    "compares tokens per cost: a round is not alone": _keep(
        "any(longer > worth[0] for longer in worth[1:])", worth="tokens / cost"
    ),
    "the costs begin at a draft of nothing": _keep(
        "any(longer > worth[0] for longer in worth[1:])", costs="costs[:len(later) + 1]"
    ),
    "the last one decides": _keep("worth[-1] > worth[0]"),
    "each length is compared with the one before it, not with a draft that ends now": _keep(
        "any(longer > shorter for shorter, longer in zip(worth, worth[1:]))"
    ),
    "looks two tokens ahead": _keep("any(longer > worth[0] for longer in worth[1:3])"),
    "looks six tokens ahead": _keep("any(longer > worth[0] for longer in worth[1:7])"),
    "asks the draft twice for each token": _draft(before="row = next_row(list(tokens))"),
    "takes the uniforms away from the caller": _draft(end="uniforms.clear(); return tokens, rows"),
    "takes the costs away from the caller": _keep("[costs.clear()] and any(longer > worth[0] for longer in worth[1:])"),
}
