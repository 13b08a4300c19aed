"""Wrong answers to exercise 7 that are easy to give. Every one must fail a check."""

WRONG = {
    "the oldest match wins": (
        "lookup",
        """
        def lookup(tokens, k, longest=4, shortest=2):
            for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
                for after in range(n, len(tokens)):
                    if tokens[after - n : after] == tokens[-n:]:
                        return tokens[after : after + k]
            return []
        """,
    ),
    "the shortest match wins": (
        "lookup",
        """
        def lookup(tokens, k, longest=4, shortest=2):
            for n in range(shortest, min(longest, len(tokens) - 1) + 1):
                for after in range(len(tokens) - 1, n - 1, -1):
                    if tokens[after - n : after] == tokens[-n:]:
                        return tokens[after : after + k]
            return []
        """,
    ),
    "only matches of two ids": (
        "lookup",
        """
        def lookup(tokens, k, longest=4, shortest=2):
            for after in range(len(tokens) - 1, 1, -1):
                if tokens[after - 2 : after] == tokens[-2:]:
                    return tokens[after : after + k]
            return []
        """,
    ),
    "the end of the text finds itself": (
        "lookup",
        """
        def lookup(tokens, k, longest=4, shortest=2):
            for n in range(min(longest, len(tokens)), shortest - 1, -1):
                for after in range(len(tokens), n - 1, -1):
                    if tokens[after - n : after] == tokens[-n:]:
                        return tokens[after : after + k]
            return []
        """,
    ),
    "a match must not overlap the end": (
        "lookup",
        """
        def lookup(tokens, k, longest=4, shortest=2):
            for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
                for after in range(len(tokens) - n, n - 1, -1):
                    if tokens[after - n : after] == tokens[-n:]:
                        return tokens[after : after + k]
            return []
        """,
    ),
    "proposes the match, not what followed": (
        "lookup",
        """
        def lookup(tokens, k, longest=4, shortest=2):
            for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
                for after in range(len(tokens) - 1, n - 1, -1):
                    if tokens[after - n : after] == tokens[-n:]:
                        return tokens[after - n : after - n + k]
            return []
        """,
    ),
    "a text that is a list in a list": (
        "MyDrafter",  # prefill alone would be looked for in CachedModel first, which has one too
        """
        class MyDrafter(MyDrafter):
            def prefill(self, target, prompt, sampling):
                self._text, self._device = prompt.tolist(), prompt.device
        """,
    ),
    "an empty proposal of floats": (
        "propose",
        """
        def propose(self, k, uniforms):
            tokens = torch.tensor([lookup(self._text, k)], device=self._device)
            return Draft(tokens, torch.tensor([tokens.shape[1]], device=self._device))
        """,
    ),
    "filled up to k": (
        "propose",
        """
        def propose(self, k, uniforms):
            found = lookup(self._text, k)
            found = found + [0] * (k - len(found))
            tokens = torch.tensor([found], dtype=torch.long, device=self._device)
            return Draft(tokens, torch.tensor([k], device=self._device))
        """,
    ),
    "proposals are text at once": (
        "propose",
        """
        def propose(self, k, uniforms):
            found = lookup(self._text, k)
            self._text.extend(found)
            tokens = torch.tensor([found], dtype=torch.long, device=self._device)
            return Draft(tokens, torch.tensor([len(found)], device=self._device))
        """,
    ),
    "tensors stay on the CPU": (
        "propose",
        """
        def propose(self, k, uniforms):
            found = lookup(self._text, k)
            return Draft(torch.tensor([found], dtype=torch.long), torch.tensor([len(found)]))
        """,
    ),
    "accepted proposals are noted twice": (
        "observe",
        """
        def observe(self, n_accepted, committed):
            self._text.extend([*committed[:n_accepted], *committed])
        """,
    ),
    "accepted proposals are left out": (
        "observe",
        """
        def observe(self, n_accepted, committed):
            self._text.extend(committed[n_accepted:])
        """,
    ),
    "only the prompt is searched": (
        "observe",
        """
        def observe(self, n_accepted, committed):
            pass
        """,
    ),
}
