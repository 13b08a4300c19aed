"""Wrong answers to exercise 16 that are easy to give, several of them from public code: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where it explains every answer they got.
"""


def _children(
    law: str = "[share / sum(left) for share in left]",
    after: str = "left[token] = left[token] * 0",
    handed: str = "law",
    go_on: str = "len(found) < m and sum(left) > 0",
    drawn: str = "draw(law)",
):
    return (
        "children",
        f"""
def children(row, m, draw):
    found, left = [], list(row)
    while {go_on}:
        law = {law}
        token = {drawn}
        found.append((token, {handed}))
        {after}
    return found
""",
    )


def _accept(
    order: str = "list(enumerate(drawn))",
    test: str = "uniforms[i] * law[token] < left[token]",
    rest: str = "[max(a - b, a * 0) for a, b in zip(left, law)]",
    scaled: str = "[share / sum(rest) for share in rest]",
    end: str = "None, draw(left)",
    kept: str = "i, token",
):
    return (
        "accept_children",
        f"""
def accept_children(target_row, drawn, uniforms, draw):
    left = list(target_row)
    for i, (token, law) in {order}:
        if {test}:
            return {kept}
        rest = {rest}
        left = {scaled}
    return {end}
""",
    )


def _follow(body: str):
    return ("follow", f"\ndef follow(target_row, tokens, draw):\n{body}\n")


NOT_SCALED = "the law of a later child is not scaled to sum to 1"
ONE_LAW = "every child is handed over with the whole row, as if the others had not been drawn"
ON_TARGET = "every child is tested against the target's own row, whatever was rejected before"
LEFT_NOT_SCALED = "what is left after a rejection is not scaled to sum to 1"
BY_SHARE = "the children are tried in the order of their probability, not as they were drawn"
DRAW_EACH = "the target draws again for each child"

WRONG = {
    NOT_SCALED: _children(law="list(left)", drawn="draw([share / sum(left) for share in left])"),
    ONE_LAW: _children(handed="list(row)"),
    "a token may be drawn twice: it is not taken out": _children(after="pass"),
    "the most probable token is taken, not drawn": _children(drawn="law.index(max(law))"),
    "one child too few": _children(go_on="len(found) < m - 1 and sum(left) > 0"),
    "the row that is handed over has lost its own token already": (
        "children",
        """
def children(row, m, draw):
    found, left = [], list(row)
    while len(found) < m and sum(left) > 0:
        token = draw([share / sum(left) for share in left])
        left[token] = left[token] * 0
        found.append((token, list(left)))
    return found
""",
    ),
    "the row that was given is changed": (
        "children",
        """
def children(row, m, draw):
    found = []
    while len(found) < m and sum(row) > 0:
        law = [share / sum(row) for share in row]
        token = draw(law)
        found.append((token, law))
        row[token] = row[token] * 0
    return found
""",
    ),
    "a drawn token becomes 0.0, which makes floats of the fractions": _children(after="left[token] = 0.0"),
    "what is left is compared with 0.0, which makes floats of the fractions": _accept(
        rest="[max(a - b, 0.0) for a, b in zip(left, law)]"
    ),
    ON_TARGET: _accept(test="uniforms[i] * law[token] < target_row[token]"),
    LEFT_NOT_SCALED: _accept(
        scaled="rest", end="None, draw([share / sum(left) for share in left] if sum(left) > 0 else target_row)"
    ),
    BY_SHARE: _accept(order="sorted(enumerate(drawn), key=lambda one: -one[1][1][one[1][0]])"),
    "what is left may be below 0": _accept(
        rest="[a - b for a, b in zip(left, law)]", scaled="rest", end="None, draw([max(a, a * 0) for a in left])"
    ),
    "after rejections the token comes from the target's own row": _accept(end="None, draw(target_row)"),
    "nothing is taken away after a rejection: the rejected token alone is": _accept(
        rest="[a * 0 if place == token else a for place, a in enumerate(left)]"
    ),
    "the uniform is compared with the target's share, without the draft's": _accept(test="uniforms[i] < left[token]"),
    "the test is turned round": _accept(test="uniforms[i] * law[token] >= left[token]"),
    "one uniform serves for all children": _accept(test="uniforms[0] * law[token] < left[token]"),
    "the number of the child is left out": _accept(kept="token, token"),
    "only the first child is tested": _accept(order="list(enumerate(drawn))[:1]"),
    DRAW_EACH: _follow(
        "    for i, token in enumerate(tokens):\n        own = draw(target_row)\n"
        "        if own == token:\n            return i, own\n    return None, draw(target_row)"
    ),
    "where no child carries it, the token is drawn once more": _follow(
        "    own = draw(target_row)\n    if own in tokens:\n        return tokens.index(own), own\n"
        "    return None, draw(target_row)"
    ),
    "the draw is made among the children only": _follow(
        "    row = [share if i in tokens else share * 0 for i, share in enumerate(target_row)]\n"
        "    row = [share / sum(row) for share in row] if sum(row) > 0 else target_row\n"
        "    own = draw(row)\n    return (tokens.index(own) if own in tokens else None), own"
    ),
    "the id is returned for the number": _follow(
        "    own = draw(target_row)\n    return (own if own in tokens else None), own"
    ),
    "of children with the same token the last one is kept": _follow(
        "    own = draw(target_row)\n    return max((i for i, t in enumerate(tokens) if t == own), default=None), own"
    ),
    "the first child is kept whatever is drawn": _follow(
        "    own = draw(target_row)\n    return (0 if tokens else None), own"
    ),
    "two children are drawn at most": _children(go_on="len(found) < min(m, 2) and sum(left) > 0"),
    "three children are drawn at most": _children(go_on="len(found) < min(m, 3) and sum(left) > 0"),
    "two children are tested at most": _accept(order="list(enumerate(drawn))[:2]"),
    "three children are tested at most": _accept(order="list(enumerate(drawn))[:3]"),
    "the children are taken away from the caller": _accept(order="[(i, drawn.pop(0)) for i in range(len(drawn))]"),
    "the children's ids are sorted where the caller has them": _follow(
        "    tokens.sort()\n    own = draw(target_row)\n    return (tokens.index(own) if own in tokens else None), own"
    ),
}
