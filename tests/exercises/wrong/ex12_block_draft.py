"""Wrong answers to exercise 12 that are easy to give, several of them from public code: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where it explains every answer they got.
"""


def _best(
    survival: str = "survival *= chance",
    cost: str = "draft_costs[k] + verify_costs[k] + overhead",
    test: str = "speed > highest",
    start: str = "0, 1.0",
    otherwise: str = "pass",
    tokens: str = "1.0",
    speed: str = "tokens / cost",
):
    return (
        "best_length",
        f"""
def best_length(acceptance, draft_costs, verify_costs, overhead):
    best, highest = {start}
    survival, tokens = 1.0, {tokens}
    for k, chance in enumerate(acceptance, start=1):
        {survival}
        tokens += survival
        cost = {cost}
        speed = {speed}
        if {test}:
            best, highest = k, speed
        else:
            {otherwise}
    return best
""",
    )


def _expected(line: str):
    return (
        "expected_accepted",
        f"""
def expected_accepted(target_first, target_second, draft_first, draft_second):
    kept = target_first.minimum(draft_first)
    overlap = target_second.minimum(draft_second).sum(-1)
    return {line}
""",
    )


def _walk(
    row: str = "probs(slot + bias(before))",
    drawn: str = "draw(row)",
    handed: str = "row",
    after: str = "before = token",
    start: str = "pass",
    end: str = "return tokens, rows",
):
    return (
        "walk",
        f"""
def walk(logits, bias, last, probs, draw):
    import torch
    tokens, rows, before = [], [], last
    {start}
    for i, slot in enumerate(logits):
        row = {row}
        token = {drawn}
        tokens.append(token)
        rows.append({handed})
        {after}
    {end}
""",
    )


BASE_HANDED = "the slot's own row is handed over, not the one that its token was drawn from"
BASE_DRAWN = "the token is drawn from the slot's own row, and the row with the bias is handed over"
ONE_HOT = "the row is handed over as if the token had been certain, though it was drawn"
NO_BIAS = "the bias is left out: the slots do not see each other"
LAST_FOR_ALL = "every slot gets the bias by the last committed token"
SHIFTED = "the bias is that of the token before the one before: shifted by one slot"

WRONG = {
    BASE_HANDED: _walk(handed="probs(slot)"),
    BASE_DRAWN: _walk(drawn="draw(probs(slot))"),
    ONE_HOT: _walk(handed="torch.nn.functional.one_hot(torch.tensor(token), len(row)).to(row)"),
    NO_BIAS: _walk(row="probs(slot)"),
    LAST_FOR_ALL: _walk(after="pass"),
    SHIFTED: _walk(after="before = last if i == 0 else tokens[i - 1]"),
    "the first slot gets no bias: the token before it is the last committed one": _walk(
        row="probs(slot + bias(before)) if i else probs(slot)"
    ),
    "the bias is added to the probabilities, not to the logits": _walk(row="probs(slot) + bias(before)"),
    "the bias is taken away": _walk(row="probs(slot - bias(before))"),
    "the bias of all tokens before is added up": _walk(
        start="total = bias(last)", row="probs(slot + total)", after="before = token; total = total + bias(token)"
    ),
    "logits are handed over, not a distribution": _walk(handed="slot + bias(before)"),
    "the slots are walked from right to left": _walk(
        start="logits = logits.flip(0)", end="return tokens[::-1], rows[::-1]"
    ),
    "the most probable token is taken, not drawn": _walk(drawn="int(row.argmax())"),
    "the first row is handed over for every token": _walk(handed="rows[0] if rows else row"),
    "a row too few is handed over": _walk(end="return tokens, rows[:-1]"),
    "the last committed token is returned with the drafted ones": _walk(end="return [last, *tokens], rows"),
    "the price is k times that of the first token": _best(cost="k * draft_costs[1] + verify_costs[k] + overhead"),
    "the price is that of one token, whatever is drafted": _best(cost="draft_costs[1] + verify_costs[k] + overhead"),
    "the pass over k + 1 tokens is priced as one over k": _best(cost="draft_costs[k] + verify_costs[k - 1] + overhead"),
    "the overhead is forgotten": _best(cost="draft_costs[k] + verify_costs[k]"),
    "verifying is free": _best(cost="draft_costs[k] + 1 + overhead"),
    "the acceptances are not multiplied: each position counts by itself": _best(survival="survival = chance"),
    "the first position's acceptance stands for all": _best(survival="survival *= acceptance[0]"),
    "the target's own token is forgotten": _best(tokens="0.0"),
    "stops at the first length that is slower: costs have steps": _best(otherwise="break"),
    "the longer of two equally fast lengths": _best(test="speed >= highest"),
    "never leaves speculation off": _best(start="1, 0.0"),
    "the most tokens, whatever they cost": _best(speed="tokens"),
    "the sum of both acceptances: the second token is not tested where the first was rejected": _expected(
        "float(kept.sum() + overlap.mean())"
    ),
    "the second token's acceptance is averaged over the draft's first tokens, rejected ones included": _expected(
        "float(kept.sum() + (draft_first * overlap).sum())"
    ),
    "the second token's acceptance is averaged over the target's first tokens": _expected(
        "float(kept.sum() + (target_first * overlap).sum())"
    ),
    "two averages are multiplied: after some first tokens the second one is better than after others": _expected(
        "float(kept.sum() + kept.sum() * overlap.mean())"
    ),
    "the second token is averaged over columns, the tokens after, not over rows": _expected(
        "float(kept.sum() + (kept * target_second.minimum(draft_second).sum(0)).sum())"
    ),
    "the chance that both are accepted, without the first": _expected("float((kept * overlap).sum())"),
    "the chance that the texts are equal, p times q": _expected(
        "float((target_first * draft_first).sum() + (kept * (target_second * draft_second).sum(-1)).sum())"
    ),
    "the target's own token is counted as accepted": _expected("1 + float(kept.sum() + (kept * overlap).sum())"),
    "the bias stays that of the second token": _walk(after="before = token if len(tokens) < 2 else before"),
    "slot and bias are made distributions of their own, which are multiplied": _walk(
        row="probs(slot) * probs(bias(before)) / (probs(slot) * probs(bias(before))).sum()"
    ),
    "no draft is longer than eight tokens": _best(test="k <= 8 and speed > highest"),
    "the bias is written into the slots": _walk(row="probs(slot.add_(bias(before)))"),
    "the slot is written into the bias": _walk(row="probs(bias(before).add_(slot))"),
    "the slot's probabilities are written into the bias": _walk(
        row="bias(before).copy_(probs(slot + bias(before)))", handed="row.clone()"
    ),
    "the bias that was used is set to 0": _walk(after="bias(before).zero_(); before = token"),
}
