"""Wrong answers to exercise 15 that are easy to give, several of them from public code: name -> (hole, source).

Every one must fail a check. The checks also call a mistake by its name here, where it explains every answer they got.
"""


def _positions(body: str):
    return ("positions", f"\ndef positions(parents, length):\n{body}\n")


def _mask(body: str):
    return (
        "mask",
        f"""
def mask(parents):
    import torch
    n = len(parents) + 1
    seen = torch.zeros(n, n, dtype=torch.bool)
{body}
    return seen
""",
    )


def _path(
    test: str = "parent + 1 == row and tokens[i] == own[row]",
    take: str = "fitting[0]",
    go_on: str = "row = path[-1] + 1",
    stop: str = "return path",
    start: str = "path, row = [], 0",
):
    return (
        "best_path",
        f"""
def best_path(parents, tokens, own):
    {start}
    while True:
        fitting = [i for i, parent in enumerate(parents) if {test}]
        if not fitting or len(path) > len(parents):
            {stop}
        path.append({take})
        {go_on}
""",
    )


def _gather(line: str):
    return ("gather", f"\ndef gather(path, length):\n    return {line}\n")


WRONG = {
    "a token stands at the position of its number, not of its depth": _positions(
        "    return [length + i for i in range(len(parents) + 1)]"
    ),
    "positions begin behind the last committed token": _positions(
        "    found = [length + 1]\n    for parent in parents:\n        found.append(found[parent + 1] + 1)\n"
        "    return found"
    ),
    "all tokens of the tree stand right behind the last committed one": _positions(
        "    return [length] + [length + 1] * len(parents)"
    ),
    "the parent's own number is taken for its row: one row off": _positions(
        "    found = [length]\n    for parent in parents:\n        found.append(found[max(parent, 0)] + 1)\n"
        "    return found"
    ),
    "the root's row is left out": _positions(
        "    found = []\n    for parent in parents:\n"
        "        found.append(found[parent] + 1 if parent >= 0 else length + 1)\n    return found"
    ),
    "siblings see each other: a row reads all rows before it": _mask("    seen = torch.ones(n, n).tril().bool()"),
    "a row reads its parent and itself, and nobody further up": _mask(
        "    seen[0, 0] = True\n    for i, parent in enumerate(parents):\n"
        "        seen[i + 1, i + 1] = seen[i + 1, parent + 1] = True"
    ),
    "a row does not read itself": _mask(
        "    for i, parent in enumerate(parents):\n        seen[i + 1] = seen[parent + 1]\n"
        "        seen[i + 1, parent + 1] = True"
    ),
    "the root is not read by the tree": _mask(
        "    seen[0, 0] = True\n    for i, parent in enumerate(parents):\n"
        "        seen[i + 1] = seen[parent + 1] if parent >= 0 else False\n        seen[i + 1, i + 1] = True"
    ),
    "rows and columns are turned round: a row reads what follows it": _mask(
        "    seen[0, 0] = True\n    for i, parent in enumerate(parents):\n"
        "        seen[i + 1] = seen[parent + 1]\n        seen[i + 1, i + 1] = True\n    seen = seen.T.clone()"
    ),
    "tokens of one depth see each other": _mask(
        "    depth = [0]\n    for parent in parents:\n        depth.append(depth[parent + 1] + 1)\n"
        "    for i in range(n):\n        for j in range(n):\n"
        "            seen[i, j] = depth[j] < depth[i] or (depth[j] == depth[i] and j <= i)"
    ),
    "the path stops after one token": _path(go_on="return path"),
    "a child is followed whatever the target chose": _path(test="parent + 1 == row"),
    "the choice is looked up in the row of the token before: one row off": _path(
        test="parent + 1 == row and tokens[i] == own[max(row - 1, 0)]"
    ),
    "the choice of the root decides everywhere": _path(test="parent + 1 == row and tokens[i] == own[0]"),
    "the target's choice is looked for everywhere in the tree, not among the children": _path(
        test="i >= row and tokens[i] == own[row]"
    ),
    "of equal children the last is taken": _path(take="fitting[-1]"),
    "rows are returned, not numbers of tokens": _path(stop="return [i + 1 for i in path]"),
    "the tokens are returned, not their numbers": _path(stop="return [tokens[i] for i in path]"),
    "the first token that fits is never left: the walk goes on from its number, not its row": _path(
        go_on="row = path[-1]"
    ),
    "the first rows of the tree are kept, as many as were accepted": _gather("list(range(length + 1 + len(path)))"),
    "the last committed token is not kept": _gather("[*range(length), *(length + 1 + i for i in path)]"),
    "one place off: token i was written to place length + 1 + i": _gather(
        "[*range(length + 1), *(length + i for i in path)]"
    ),
    "the text before is dropped": _gather("[length, *(length + 1 + i for i in path)]"),
    "the whole tree is kept up to the last accepted token": _gather("list(range(length + 2 + max(path, default=-1)))"),
    "the path is counted from the text's begin": _gather("[*range(length + 1), *path]"),
    "the path is kept in the wrong order": _gather("[*range(length + 1), *(length + 1 + i for i in reversed(path))]"),
    "a branch is at most three deep": _path(stop="return path[:3]"),
    "a branch is at most four deep": _path(stop="return path[:4]"),
    "a token has at most three children": _path(
        test="parent + 1 == row and tokens[i] == own[row] and parents[:i].count(parent) < 3"
    ),
    "the path is taken away from the caller": _gather(
        "[*range(length + 1), *(length + 1 + path.pop(0) for _ in path[:])]"
    ),
}
