"""Everything that proposes tokens. A drafter may be as wrong as it likes: the accept rule keeps the output exact.

    model      a smaller causal language model with the target's tokenizer
    ngram      prompt lookup: continue as the longest matching piece of the text so far was continued
    dial:A     an instrument, not a method: it replays the baseline's output, right with probability A, while paying
               for a real draft model's passes; it turns acceptance from 0 to 1 at a fixed drafting cost
    dial:A:free  the same without a draft model: drafting costs nothing

A new kind implements `Drafter`; the loop in optimized_speculative.py does not change.
"""

import argparse
import difflib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from speclab.cli import options
from speclab.core.sampling import Draft, Sampling, draw
from speclab.models import loading
from speclab.models.backends.cuda_graphs import Forward
from speclab.models.cached import CachedModel, check_prompt, tokens_to_keep
from speclab.models.prompts import Prompt
from speclab.system.errors import EnvironmentProblem, UsageProblem

NEEDS_GREEDY = "the dial replays greedy output; use --temperature 0"


class Drafter(Protocol):
    """Proposes tokens for one row of text. Its state is its own; the loop tells it what was committed."""

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        """Forget everything and take in a prompt, (1, prompt length) ids. The target has just been prefilled."""

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens after everything committed; `uniforms` (1, k) is the randomness to use."""

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """`n_accepted` proposals were kept; `committed` are the ids now final: those, then one from the target."""


@dataclass(frozen=True)
class DraftSteps:
    """The steps of a draft as one program (see cuda_graphs.py): each feeds what the step before it chose."""

    sampling: Sampling

    def widths(self, not_fed: Tensor, uniforms: Tensor) -> tuple[int, ...]:
        return (not_fed.shape[1], *[1] * (uniforms.shape[1] - 1))

    def capture_inputs(self, not_fed: Tensor, uniforms: Tensor) -> list[tuple[Tensor, ...]]:
        """A round catches up with one token or, after a fully accepted one, with two."""
        return [(not_fed[:, :1].expand(1, n), uniforms) for n in (1, 2)]

    def __call__(self, forward: Forward, not_fed: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        """(1, m) ids, (1, k) uniforms -> proposed ids (1, k); unless greedy also what they came from, (1, k, vocab)"""
        ids, tokens, probs = not_fed, [], []
        for i in range(uniforms.shape[1]):
            token, token_probs = self.choose(forward(ids)[:, -1], uniforms[:, i])
            tokens.append(token)
            probs.append(token_probs)
            ids = token[:, None]
        proposed = torch.stack(tokens, dim=1)
        return (proposed,) if self.sampling.greedy else (proposed, torch.stack(probs, dim=1))

    def choose(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor | None]:
        """(1, vocab) logits -> the proposed id (1,) and what it was drawn from, (1, vocab), or None = one-hot"""
        if self.sampling.greedy:  # what `draw` would return, without building the one-hot
            return logits.argmax(-1), None
        probs = self.sampling.probs(logits)
        # A NOT_FINITE cannot be fed; the accept rule meets the same probabilities and reports them.
        return draw(probs, uniform).clamp(min=0), probs


class ModelDrafter:
    """Drafts with a causal language model, one cached pass per token.

    Between rounds its cache holds a prefix of the committed tokens, never a rejected one. What is missing (the last
    committed token, and after a fully accepted round also the last drafted one, which was never fed) goes in with the
    first pass of the next round.

    The draft may know fewer ids and positions than the target: ids that it lacks have probability 0 in its proposals,
    and where its context ends it drafts fewer tokens, then none.
    """

    def __init__(self, draft: CachedModel):
        self.draft = draft
        self._sampling, self._vocab_size = Sampling(), 0  # the target's
        self._not_fed: list[int] = []  # committed, not in the draft's cache yet
        self._n_committed = 0

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._sampling, self._vocab_size = sampling, target.vocab_size
        self._not_fed, self._n_committed = [], prompt.shape[1]
        if not self.draft.prefill(self.draft.known(prompt), rolls_back=True).amax().isfinite():
            raise EnvironmentProblem("the draft model returned logits that are not finite; try --dtype float32")

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        k = min(k, draft_room(self.draft, self._n_committed))
        if k == 0:
            empty = torch.empty((1, 0), dtype=torch.long, device=self.draft.device)
            return Draft(empty, torch.zeros(1, dtype=torch.long, device=self.draft.device))
        not_fed = torch.tensor([self._not_fed], device=self.draft.device)  # (1, 1 or 2): catch-up
        tokens, *probs = self._run(self.draft.known(not_fed), uniforms[:, :k])
        n_lacking = self._vocab_size - self.draft.vocab_size
        probs = [nn.functional.pad(q, (0, n_lacking)) if n_lacking else q for q in probs]  # (1, k, target's vocab)
        return Draft(tokens, torch.full((1,), k, device=self.draft.device), *probs)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._n_committed += len(committed)
        kept = tokens_to_keep(self.draft.length, self._n_committed)
        self.draft.crop(kept)
        self._not_fed = (self._not_fed + committed)[-(self._n_committed - kept) :]

    def _run(self, not_fed: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        return self.draft.run(DraftSteps(self._sampling), not_fed, uniforms)


def draft_room(draft: CachedModel, n_committed: int) -> int:
    """How many tokens this model can draft after `n_committed`: its context must hold all it is fed, which is those and
    all drafted ones but the last."""
    return sys.maxsize if draft.max_length is None else max(0, draft.max_length - n_committed + 1)


class NgramDrafter:
    """Prompt lookup: find the last n tokens earlier in the text, propose what followed. No model, no cost, one-hot.

    The longest match wins (n from `longest` down to `shortest`), among equals the most recent. Proposes fewer than k
    tokens where the match is close to the end, none where there is no match.
    """

    def __init__(self, longest: int = 4, shortest: int = 2):
        if not 1 <= shortest <= longest:
            raise ValueError(f"need 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest, self.shortest = longest, shortest
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token that last followed it
        self._device = torch.device("cpu")

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._tokens, self._after, self._device = [], {}, prompt.device
        self._append(prompt[0].tolist())

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        tokens = torch.tensor([self.lookup(k)], dtype=torch.long, device=self._device)  # (1, n)
        return Draft(tokens, torch.full((1,), tokens.shape[1], device=self._device))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._append(committed)

    def lookup(self, k: int) -> list[int]:
        """At most k ids that followed the longest, then most recent, earlier occurrence of the text's end."""
        for n in range(min(self.longest, len(self._tokens)), self.shortest - 1, -1):
            start = self._after.get(tuple(self._tokens[-n:]))
            if start is not None:
                return self._tokens[start : start + k]
        return []

    def _append(self, tokens: list[int]) -> None:
        for token in tokens:
            # The n-grams that end just before this token now have a follower.
            end = len(self._tokens)
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(self._tokens[end - n : end])] = end
            self._tokens.append(token)


class OracleDraft:
    """An instrument, not a method: it replays the baseline's output, each token right with probability `accuracy`.

    So it turns acceptance from 0 to 1 while everything else stays what it is. Greedy decoding only.
    """

    def __init__(self, accuracy: float, seed: int = 0):
        if not 0 <= accuracy <= 1:
            raise ValueError(f"dial accuracy must lie in 0 … 1, got {accuracy}")
        self.accuracy, self.seed = accuracy, seed
        self._reference: list[int] = []

    def replay(self, reference: list[int]) -> None:
        """Set the baseline's output for the prompt that comes next."""
        self._reference = list(reference)

    def _follow(self, position: int, committed: list[int]) -> None:
        """Text that leaves the reference (a near-tie in a low precision) cannot be replayed from there on."""
        if committed != self._reference[position : position + len(committed)]:
            self._reference = []

    def _begin(self, prompt: Tensor, sampling: Sampling) -> None:
        if not sampling.greedy:
            raise UsageProblem(NEEDS_GREEDY)
        # Other dice for every prompt, or all prompts would be right and wrong at the same places.
        self._dice = torch.Generator().manual_seed(self.seed * 1_000_003 + int(prompt.sum()))

    def _replayed(self, position: int, vocab_size: int) -> int | None:
        """A right or a wrong token for this place of the output; None behind its end."""
        if position >= len(self._reference):
            return None
        hit = torch.rand((), generator=self._dice).item() < self.accuracy
        return self._reference[position] if hit else (self._reference[position] + 1) % vocab_size


class OracleModelDrafter(OracleDraft, ModelDrafter):
    """The dial at a real draft model's price: the model makes all its passes over the proposed tokens."""

    def __init__(self, draft: CachedModel, accuracy: float, seed: int = 0):
        OracleDraft.__init__(self, accuracy, seed)
        ModelDrafter.__init__(self, draft)

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._begin(prompt, sampling)
        super().prefill(target, prompt, sampling)
        self._n_prompt = prompt.shape[1]
        self._position = 0

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        self._position = self._n_committed - self._n_prompt
        return super().propose(k, uniforms)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._follow(self._n_committed - self._n_prompt, committed)
        super().observe(n_accepted, committed)

    def _run(self, not_fed: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        """The real draft's work, paid for and thrown away; so it does not matter that it reads its own proposals."""
        own, *probs = super()._run(not_fed, uniforms)
        replayed = [self._replayed(self._position + i, self.draft.vocab_size) for i in range(own.shape[1])]
        chosen = [own[0, i] if token is None else own.new_tensor(token) for i, token in enumerate(replayed)]
        return torch.stack(chosen)[None], *probs


class FreeOracleDrafter(OracleDraft):
    """The dial at no price: what a draft would be worth if drafting cost nothing."""

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._begin(prompt, sampling)
        self._position, self._vocab_size, self._device = 0, target.vocab_size, prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        replayed = [self._replayed(self._position + i, self._vocab_size) for i in range(k)]
        tokens = torch.tensor([[t for t in replayed if t is not None]], dtype=torch.long, device=self._device)  # (1, n)
        return Draft(tokens, torch.full((1,), tokens.shape[1], device=self._device))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._follow(self._position, committed)
        self._position += len(committed)


def check_prompts(target: CachedModel, drafters: Iterable[Drafter], prompts: list[Prompt], max_new_tokens: int) -> None:
    """Before decoding: every prompt and its new tokens fit the target's context, and every prompt fits each draft's.

    UsageProblem where they do not. Text beyond a draft's context is only noted: rounds there draft fewer tokens.
    """
    for prompt in prompts:
        check_prompt(target, prompt.ids, max_new_tokens)
    longest = max(prompt.ids.shape[1] for prompt in prompts)
    for draft in (d.draft for d in drafters if isinstance(d, ModelDrafter)):
        room = sys.maxsize if draft.max_length is None else draft.max_length
        if longest > room:
            raise UsageProblem(
                f"a prompt has {longest} tokens and the draft model's context only {room}; shorten the prompt or use "
                "--draft ngram"
            )
        if longest + max_new_tokens > room + 1:
            options.note(f"the draft model's context is {room} tokens: near and beyond it rounds draft fewer, or none")


def add_draft_flag(parser: argparse.ArgumentParser, default: str | None = "model") -> None:
    """--draft, in the words `make_drafter` understands."""
    parser.add_argument(
        "--draft",
        default=default,
        metavar="KIND",
        help="model (the lab's own), lab:SIZE, a folder or hub name, ngram, dial:A, dial:A:MODEL or dial:A:free"
        + (" (default: %(default)s)" if default else "; several with commas (default: model,ngram)"),
    )


def make_drafter(kind: str, setup: options.Setup, seed: int = 0) -> Drafter:
    """The drafter that `--draft KIND` means, for this target."""
    word, _, rest = kind.partition(":")
    if kind == "ngram":
        return NgramDrafter()
    if word == "dial":
        number, _, name = rest.partition(":")
        accuracy = _accuracy(kind, number)
        if not setup.sampling.greedy:
            raise UsageProblem(NEEDS_GREEDY)
        if name == "free":
            return FreeOracleDrafter(accuracy, seed)
        return OracleModelDrafter(options.load_draft(name or loading.LAB_DRAFT, setup), accuracy, seed)
    likely = difflib.get_close_matches(kind, ("model", "ngram", "dial:0.8"), 1, 0.7)
    if "," in kind:
        raise UsageProblem(f"--draft {kind}: this takes one draft; compare.py takes several")
    if not kind.strip() or (likely and kind not in likely and not loading.exists(kind)):
        raise UsageProblem(f"unknown draft kind {kind!r}; use model, ngram, dial:0.8, lab:SIZE, a folder or a hub name")
    return ModelDrafter(options.load_draft(loading.LAB_DRAFT if kind == "model" else kind, setup))


def _accuracy(kind: str, number: str) -> float:
    """The number of dial:NUMBER, said to be wrong before a model is loaded."""
    try:
        return OracleDraft(float(number)).accuracy
    except ValueError:
        raise UsageProblem(f"--draft {kind}: give the dial a number from 0 to 1, for example dial:0.8") from None
