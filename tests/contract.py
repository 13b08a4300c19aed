"""What must hold of every draft, on both engines, greedy and sampled: text, counts, caches and copies.

A test of a draft calls `check` with a function that makes it. Its law is enumerated elsewhere: a `Case` of
tests/test_filtered_laws.py, for `assert_lossless`.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import compare
import optimized_speculative
from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft, Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.models import prompts as lab_prompts
from speclab.models.cached import CachedModel
from speclab.records import files
from speclab.records.files import ComparisonRun
from tests.decoding import plain_text, speculative_rounds
from tests.heads import prompts
from tests.models.test_caches import worst_difference
from tests.tiny_models import CLOSE, DTYPE_ON, on_engine, tiny

ENGINES = tuple(DTYPE_ON)
SAMPLINGS = (GREEDY, Sampling(0.8, top_k=20, top_p=0.95))
WAYS = tuple(itertools.product(ENGINES, SAMPLINGS))  # the ways of decoding that every draft is tried in
N_NEW = 24


def id_of(part: str | Sampling) -> str:
    """Of a part of a way, for the id of a test."""
    return part if isinstance(part, str) else "greedy" if part.greedy else "sampled"


def ways_of(kinds: Iterable[str], eager: Collection[str]) -> list[tuple[str, str, Sampling]]:
    """Each kind in all ways; those of `eager`, which other engines run as they run another kind, on that one alone."""
    return [(kind, *way) for kind in kinds for way in WAYS if kind not in eager or way[0] == "eager"]


Make = Callable[[nn.Module, Callable[[nn.Module], CachedModel]], Drafter]
"""The target's model, and what puts a model on the engine -> the drafter. The model is a tiny llama, in float64 on the
engine eager and in float32 on c."""


def check(
    make: Make, engine: str, sampling: Sampling, k: int = 4, layers: tuple[int, ...] = (), of_text: bool = True
) -> None:
    """Decode three texts with a drafter, and two of them with a copy of it.

    The first text is one that the heads of tests/heads.py learn, the second one repeats its beginning,
    the third one single tokens: a draft has to be right somewhere and wrong somewhere.

    k: of the loop. layers: of the target, whose states the drafter reads. of_text: whether its drafts follow from the
    text alone, not from earlier rounds.
    """

    def cached(model: nn.Module) -> CachedModel:
        return CachedModel(model, fast=on_engine(engine, model))

    model = _model(DTYPE_ON[engine])
    targets = [cached(model) for _ in range(2)]
    for target in targets:
        target.hidden_layers = layers
    drafter = make(model, cached)
    twin = copy.deepcopy(drafter)
    learnt, other, stutter = prompts(2)[:1], prompts(4)[3:], prompts(21)[20:]
    again = torch.tensor([plain_text(targets[0], other, N_NEW // 2)])
    texts = [_Text(prompt, sampling, k) for prompt in (learnt, torch.cat([other, again, other], dim=1), stutter)]

    alone = [list(text.decoded(targets[0], drafter)) for text in texts]
    assert any(r.n_accepted for rounds in alone for r in rounds), "nothing was accepted"
    assert any(r.n_rejected for rounds in alone for r in rounds), "nothing was rejected"
    if sampling.greedy and of_text and engine != "eager":
        eager, as_library = CachedModel(model), make(model, CachedModel)
        eager.hidden_layers = layers
        found = [list(text.rounds(eager, as_library)) for text in texts]
        assert found == [list(text.rounds(targets[0], drafter)) for text in texts], "what is drafted is the library's"
    if sampling.greedy:
        for text, rounds in zip(texts, alone, strict=True):
            assert tokens_of(rounds) == plain_text(targets[0], text.prompt, N_NEW)
            if of_text:
                text.check_every_beginning(targets[1], drafter, rounds)

    both = itertools.zip_longest(texts[0].decoded(targets[0], drafter), texts[1].decoded(targets[1], twin))
    for rounds, found in zip(alone[:2], zip(*both, strict=True), strict=True):
        assert rounds == [r for r in found if r], "a drafter and its copy read two texts in turns, each its own"
    for one, its_copy in zip(drafter.models, twin.models, strict=True):
        assert one is not its_copy, "a copy has a cache of its own"
        assert one.model is its_copy.model, "a copy shares the weights"

    list(itertools.islice(texts[1].decoded(targets[0], drafter), 3))
    assert list(texts[0].decoded(targets[0], drafter)) == alone[0], "a new prompt drops what came before"


@functools.cache
def _model(dtype: torch.dtype) -> nn.Module:
    """One model for all drafts: it is packed once."""
    return tiny("llama", dtype=dtype)


@dataclass(frozen=True)
class _Text:
    """A prompt, and how it is continued."""

    prompt: Tensor
    sampling: Sampling
    k: int

    def rounds(self, target: CachedModel, drafter: Drafter, n_new: int = N_NEW) -> Iterator[Round]:
        """The loop's rounds, each with its drafted tokens. The drafter has learnt nothing from other texts."""
        drafter.forget()
        if drafter.needs_text:
            drafter.take_text(plain_text(target, self.prompt, n_new))
        drafted: list[list[int]] = []

        def propose(k: int, uniforms: Tensor) -> Draft:
            draft = type(drafter).propose(drafter, k, uniforms)
            drafted.append(draft.tokens[0].tolist())
            return draft

        with mock.patch.object(drafter, "propose", propose):
            k = drafter.lengths([self.k])[0]
            for round_ in speculative_rounds(target, drafter, self.prompt, k, n_new, self.sampling):
                yield round_._replace(detail=tuple(drafted))
                drafted.clear()

    def decoded(self, target: CachedModel, drafter: Drafter) -> Iterator[Round]:
        """The rounds; counts and caches are looked at after each of them."""
        ids, k = self.prompt[0].tolist(), drafter.lengths([self.k])[0]
        for n_passes, round_ in enumerate(self.rounds(target, drafter), start=1):
            left = N_NEW - (len(ids) - self.prompt.shape[1])
            assert len(round_.tokens) == round_.n_accepted + 1
            assert round_.n_accepted + round_.n_rejected <= round_.n_drafted <= k
            assert round_.n_rejected <= 1
            assert round_.n_accepted < left, "the last token of a round is the target's own"
            ids += round_.tokens
            assert target.length == len(ids) - 1, "the last committed token is never in the cache"
            assert worst_difference(target, ids[:-1]) < CLOSE[target.model.dtype]
            for part in drafter.parts:
                self.check_models(part, ids)
            assert target.n_passes == n_passes, "one pass for the prompt and one for each round"
            assert round_.finish == ("length" if len(round_.tokens) == left else None)
            yield round_
        assert len(ids) == self.prompt.shape[1] + N_NEW

    @staticmethod
    def check_models(part: Any, ids: list[int]) -> None:
        """The draft models hold a prefix of what the target holds, in their own ids."""
        for model in part.models:
            read = getattr(part, "read_as", list)(ids[:-1])
            assert model.length <= len(read)
            if not part.needs_text:  # a dial's model reads what it would have drafted itself
                assert worst_difference(model, read[: model.length]) < CLOSE[model.model.dtype]

    def check_every_beginning(self, target: CachedModel, drafter: Drafter, rounds: list[Round]) -> None:
        """A drafter that reads the text up to a round as a prompt drafts in this round what it did before."""
        ids = self.prompt[0].tolist()
        for before, round_ in itertools.pairwise(rounds):
            ids += before.tokens
            left = N_NEW - (len(ids) - self.prompt.shape[1])
            begun = _Text(torch.tensor([ids[:-1]]), self.sampling, self.k)
            _, found = itertools.islice(begun.rounds(target, drafter, left + 1), 2)
            assert found == round_, "the drafter has not read all that was committed"


def check_scripts(
    pair: Path, out: Path, draft: str, method: str, patch: Any, capsys: Any, has_costs: bool = True
) -> ComparisonRun:
    """The script writes the same text with this draft as with the pair's own, and compare.py has its rows, greedy and
    sampled, with predictions where it has costs.  -> compare.py's record

    pair: the folder of the tiny pair. out: gets the record. method: what rows call the draft.
    """
    words = ["--target", str(pair / "target"), "--threads", "1", "--engine", "eager"]
    texts = set()
    for kind in (draft, str(pair / "draft")):
        script = [*words, "--prompt", "def f(x):", "--max-new-tokens", "12", "--ignore-eos", "--draft", kind]
        assert optimized_speculative.main(script) == 0
        texts.add(capsys.readouterr().out.split("def f(x):")[-1].splitlines()[0])
    assert len(texts) == 1
    patch.setattr(lab_prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "return x")])
    given = ["--draft", draft, "-k", "2", "--limit", "1", "--max-new-tokens", "16", "--out-dir", str(out)]
    assert compare.main([*words, *given]) == 0
    assert "token for token: identical" in capsys.readouterr().out
    run = files.read(out / "results" / "local.json", ComparisonRun)
    rows = [row for row in run.rows if row.method == method and row.prompt_kind == "all"]
    assert [row.temperature for row in rows] == [0.0, 0.8]
    assert all((row.forecast is not None) == has_costs for row in rows)
    return run
