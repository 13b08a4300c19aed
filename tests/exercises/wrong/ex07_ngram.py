"""Wrong answers to exercise 7 that are easy to give. Every one must fail a check."""


def _lookup(
    sizes: str = "range(min(longest, len(tokens) - 1), shortest - 1, -1)",
    places: str = "range(len(tokens) - 1, n - 1, -1)",
    found: str = "tokens[after : after + k]",
) -> tuple[str, str]:
    """The right search with one part of it replaced."""
    return (
        "lookup",
        f"""
def lookup(tokens, k, longest=4, shortest=2):
    for n in {sizes}:
        for after in {places}:
            if tokens[after - n : after] == tokens[-n:]:
                return {found}
    return []
""",
    )


def _propose(
    found: str = "lookup(self._text, k)",
    tokens: str = "torch.tensor([found], dtype=torch.long, device=self._device)",
    size: str = "torch.tensor([len(found)], device=self._device)",
    before: str = "pass",
) -> tuple[str, str]:
    """The right proposal with one part of it replaced."""
    return (
        "propose",
        f"""
def propose(self, k, uniforms):
    found = {found}
    {before}
    return Draft({tokens}, {size})
""",
    )


def _observe(line: str) -> tuple[str, str]:
    return "observe", f"def observe(self, n_accepted, committed):\n    {line}"


WRONG = {
    "the oldest match wins": _lookup(places="range(n, len(tokens))"),
    "the shortest match wins": _lookup(sizes="range(shortest, min(longest, len(tokens) - 1) + 1)"),
    "only matches of two ids": _lookup(sizes="(2,)"),
    "the end of the text finds itself": _lookup(
        sizes="range(min(longest, len(tokens)), shortest - 1, -1)", places="range(len(tokens), n - 1, -1)"
    ),
    "a match must not overlap the end": _lookup(places="range(len(tokens) - n, n - 1, -1)"),
    "proposes the match, not what followed": _lookup(found="tokens[after - n : after - n + k]"),
    "a text that is a list in a list": (
        "MyDrafter",  # prefill alone would be looked for in CachedModel first, which has one too
        """
        class MyDrafter(MyDrafter):
            def prefill(self, target, prompt, sampling):
                self._text, self._device = prompt.tolist(), prompt.device
        """,
    ),
    "an empty proposal of floats": _propose(tokens="torch.tensor([found], device=self._device)"),
    "filled up to k": _propose(before="found = found + [0] * (k - len(found))"),
    "proposals are text at once": _propose(before="self._text.extend(found)"),
    "tensors stay on the CPU": _propose(
        tokens="torch.tensor([found], dtype=torch.long)", size="torch.tensor([len(found)])"
    ),
    "accepted proposals are noted twice": _observe("self._text.extend([*committed[:n_accepted], *committed])"),
    "accepted proposals are left out": _observe("self._text.extend(committed[n_accepted:])"),
    "only the prompt is searched": _observe("pass"),
}
