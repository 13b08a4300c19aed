"""A prompt and its continuation on the terminal."""

from transformers import PreTrainedTokenizerBase

from speclab.models.prompts import Prompt
from speclab.system.terminal import harmless


def rate(n_tokens: int, seconds: float) -> str:
    """Tokens per second, as text."""
    return f"{n_tokens / seconds:.1f} tok/s" if seconds > 0 and n_tokens else "no decoding to time"


class TextWriter:
    """Prints a prompt and its continuation: at the end, or piece by piece as it is committed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, stream: bool):
        self.tokenizer, self.stream = tokenizer, stream
        self.tokens: list[int] = []  # added so far
        self._shown = 0
        head = f"\n=== {prompt.kind} " + "=" * 60 + "\n"
        print(harmless(head + prompt.text), end="", flush=stream)

    def add(self, tokens: list[int]) -> None:
        """More new tokens."""
        self.tokens += tokens
        if self.stream:
            self._show(final=False)

    def close(self) -> None:
        """Print what is left, and a line end."""
        self._show(final=True)
        print(flush=True)

    def _show(self, final: bool) -> None:
        text = str(self.tokenizer.decode(self.tokens, skip_special_tokens=True))
        # A token may end inside a character: wait for the rest of it.
        if final or not text.endswith("\ufffd"):
            print(harmless(text[self._shown :]), end="", flush=self.stream)
            self._shown = len(text)
