"""Wrong answers to exercise 11 that are easy to give, several of them from public code: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where it explains every answer they got.
All but those of the last function leave the text right: only what is accepted tells.
"""


def _pairs(states: str = "states[:n]", tokens: str = "text[n_read + 1 :]", n: str = "len(text) - 1 - n_read"):
    return "new_pairs", f"def new_pairs(text, n_read, states):\n    n = {n}\n    return {states}, {tokens}\n"


def _chain(
    before: str = "pass",
    drawn: str = "draw(state)",
    position: str = "position += len(tokens)",
    feed: str = "states, tokens = state, drafted[-1:]",
    end: str = "return drafted",
):
    return (
        "draft_chain",
        f"""
def draft_chain(forward, draw, states, tokens, position, k):
    drafted = []
    {before}
    for i in range(k):
        state = forward(states, tokens, position)
        drafted.append({drawn})
        {position}
        {feed}
    {end}
""",
    )


def _check(
    state: str = "not state.allclose(state_after(text[: i + 1]))",
    token: str = "token != text[i + 1]",
    missing: str = "return i",
    end: str = "return len(text) - 1 if len(read) > len(text) - 1 else None",
    found: str = "return i",
):
    return (
        "first_wrong_pair",
        f"""
def first_wrong_pair(read, text, state_after):
    for i in range(len(text) - 1):
        if i >= len(read):
            {missing}
        state, token = read[i]
        if {token} or {state}:
            {found}
    {end}
""",
    )


OWN_TOKEN = "each state stands beside its own token, which it knows already; the token after it is missing"
LAST_ROWS = "the rows are taken from the end, where the rejected tokens are"
NO_FIRST_ROW = "row 0 is left out: it is the state of the last committed token, which no pass has read before"
TARGETS_AGAIN = "the target's last state is read again at each deeper position, with a token that is not beside it"
TOKEN_AGAIN = "the token of the first pass is read again, not the one that was drafted"

WRONG = {
    OWN_TOKEN: _pairs(tokens="text[n_read:-1]"),
    LAST_ROWS: _pairs(states="states[-n:]"),
    NO_FIRST_ROW: _pairs(states="states[1 : n + 1] if len(states) > n else states[:n]"),
    "all rows are taken, those of rejected tokens too": _pairs(states="states"),
    "each state stands beside the token after the next": _pairs(tokens="[*text[n_read + 2 :], text[-1]]"),
    "the states of the accepted drafts alone: row 0 belongs to the text, too": _pairs(
        states="states[1:n]", tokens="text[n_read + 2 :]"
    ),
    "the last pair is left out: the target's own token goes with the state before it": _pairs(
        states="states[: n - 1]", tokens="text[n_read + 1 : -1]"
    ),
    "only the newest pair is read: what attends to the text finds holes in it": _pairs(
        states="states[n - 1 : n]", tokens="text[-1:]"
    ),
    "the tokens of the whole text come with the states of one pass": _pairs(tokens="text[1:]"),
    "n_read is left out: the rows are counted as if the text began with them": _pairs(n="len(text) - 1"),
    TARGETS_AGAIN: _chain(before="last = states[-1:]", feed="states, tokens = last, drafted[-1:]"),
    TOKEN_AGAIN: _chain(before="last = tokens[-1:]", feed="states, tokens = state, last"),
    "the position stays where it was: each pass overwrites the one before": _chain(position="pass"),
    "the position goes on by one after the first pass, too, which read more pairs than that": _chain(
        position="position += 1"
    ),
    "the chain begins a position too late": _chain(before="position += 1"),
    "every pass reads all pairs again": _chain(
        before="import torch",
        position="pass",
        feed="states, tokens = torch.cat([states, state]), [*tokens, drafted[-1]]",
    ),
    "the first pass reads the last pair alone": _chain(
        before="position += len(tokens) - 1; states, tokens = states[-1:], tokens[-1:]"
    ),
    "the drafted token is drawn from the state that was read, not from the pass's own": _chain(
        drawn="draw(states[-1:])"
    ),
    "the draft's first own state is read at every deeper position": _chain(
        feed="first = state if i == 0 else first; states, tokens = first, drafted[-1:]"
    ),
    "one pass too many: nothing is drawn from the last drafted token": _chain(
        end="forward(states, tokens, position); return drafted"
    ),
    "the ids come in the wrong order": _chain(end="return drafted[::-1]"),
    "the check compares tokens only": _check(state="False"),
    "the check compares states only": _check(token="False"),
    "the check takes the token of the state itself for right": _check(token="token != text[i]"),
    "the check asks for the state one token later": _check(state="not state.allclose(state_after(text[: i + 2]))"),
    "the check passes over pairs that are missing": _check(missing="return None"),
    "the check passes over a pair too many": _check(end="return None"),
    "the check wants states that are equal to the last bit": _check(
        state="not state.equal(state_after(text[: i + 1]))"
    ),
    "the check finds the last wrong pair": _check(
        found="last = i", end="return locals().get('last', len(text) - 1 if len(read) > len(text) - 1 else None)"
    ),
    "the check says whether there is a wrong pair, not where": _check(found="return True"),
    "the check counts positions from 1": _check(found="return i + 1"),
    "the check compares the first number of a state": _check("not state[:1].allclose(state_after(text[: i + 1])[:1])"),
    "the check compares the last number of a state": _check("not state[-1:].allclose(state_after(text[: i + 1])[-1:])"),
    "the check compares the sums of the states": _check("not state.sum().allclose(state_after(text[: i + 1]).sum())"),
    "the check compares the means of the states": _check(
        "not state.mean().allclose(state_after(text[: i + 1]).mean())"
    ),
    "the check lets states differ by 0.5": _check("not state.allclose(state_after(text[: i + 1]), atol=0.5)"),
    "the states are rounded to 16 bits": _pairs(states="states[:n].half()"),
    "the ids are taken out of the caller's text": _pairs(tokens="[text.pop(n_read + 1) for _ in range(n)]"),
    "the ids that wait are taken away from the caller": _chain(
        before="waiting, tokens = tokens, list(tokens); waiting.clear()"
    ),
    "the check takes the pairs away from the caller": _check(end="read.clear(); return None"),
}
