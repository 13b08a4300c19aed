"""Decodes the same prompts with drafts that are wrong on purpose, and counts their rounds. No clock."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptRule, DecodeSettings, Round
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.drafter import HeadDrafter
from speclab.drafts.heads.files import read_head
from speclab.extensions.servers.counters import total
from speclab.extensions.servers.curves import faults
from speclab.extensions.servers.curves.curve_record import CurveEntry
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.extensions.servers.referee.own import counted
from speclab.lab.noisy import noisy
from speclab.models import loading, prompts
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import files
from speclab.system.terminal import progress

WHOLE = 10**9  # more tokens than any text has
THRESHOLD = 0.3  # probability below which the draft with a threshold stops
LONG_TEXT = 160  # new tokens where a curve is cut by its place in the text
LOOPS = (
    "3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3,",
    "9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9, 8, 7, 6, 5, 4,",
    "    0x00, 0x00, 0x00, 0x00, 0x00, 0x00,",
)
WORDS = "apple river stone cloud engine paper candle window garden silver bridge winter hammer forest button mirror"
LISTS = tuple(" ".join(random.Random(seed).choices(WORDS.split(), k=40)) for seed in range(12))


@dataclass(frozen=True)
class Case:
    """One curve, or several of the same draft on parts of its texts."""

    name: str
    fault: str
    draft: str
    k: int
    make: Callable[["Lab"], Drafter]
    temperature: float = 0.0
    rule: AcceptRule = accept_from_logits
    texts: tuple[str, ...] = ()  # instead of the lab's own prompts
    cut: int = 0  # a place in the text: rounds before it, and rounds behind it
    twice: bool = False  # every prompt a second time


class Lab:
    """The lab's pair and its heads, each loaded once."""

    def __init__(self, setup: Setup, found: Sequence[Prompt], n_tokens: int, seed: int):
        self.setup, self.prompts, self.n_tokens, self.seed = setup, found, n_tokens, seed
        self._made: dict[str, Drafter] = {}

    def facts(self, **more: Any) -> dict[str, Any]:
        """Return what a record of its texts begins with: when, where and with what it was made. more: settings."""
        settings = {
            "target": self.setup.target_name,
            "device": self.setup.device.type,
            "dtype": self.setup.dtype_name,
            "engine": self.setup.engine,
            "seed": self.seed,
            "max_new_tokens": self.n_tokens,
            "repeats": 1,
            "n_prompts": len(self.prompts),
            "prompts_sha256": files.fingerprint([prompt.text for prompt in self.prompts]),
            "threads": torch.get_num_threads(),
        }
        machine = files.machine(self.setup.device)
        return {"created": files.today(), "machine": machine, "versions": files.versions(), "settings": settings | more}

    def draft(self, name: str) -> Drafter:
        """Return one of the lab's drafts."""
        if name not in self._made:
            self._made[name] = registry.make(name, self.setup, self.seed)
        return self._made[name]

    def head(self, kind: type[HeadDrafter], overwritten: bool = False) -> Drafter:
        """Return the lab's feature head as a draft of this class.

        overwritten: with random numbers in its output layer, as where a checkpoint's own were not found.
        """
        head, ids = read_head(str(loading.LAB_PAIR / "feature"), self.setup.target.model)
        if overwritten:
            faults.overwrite(head.get_parameter("lm_head.weight"), self.seed)
        target = self.setup.target  # it keeps the states of these layers from now on
        target.hidden_layers = tuple(sorted({*target.hidden_layers, *head.config.layers, *faults.LOW_LAYERS}))
        return kind(head, ids)

    def model(self, kind: type[ModelDrafter] = ModelDrafter, noise: float = 0.0, threshold: float = 0.0) -> Drafter:
        """Return the draft model: another class of it, with noise in its weights, or with a stop threshold."""
        [draft] = self.draft("model").models
        model = noisy(draft.model, noise, self.seed) if noise else draft.model
        drafter = kind(self.setup.cached(model, draft.vocab_size))
        drafter.keep_drafting = (lambda share: share > threshold) if threshold else None
        return drafter

    def target_as_draft(self) -> Drafter:
        """Return a draft that is the target itself."""
        return ModelDrafter(self.setup.cached(self.setup.target.model, self.setup.target.vocab_size))


CASES = (
    Case("feature", "", "feature", 4, lambda lab: lab.draft("feature")),
    Case("block", "", "block", 7, lambda lab: lab.draft("block")),
    Case("model", "", "model", 4, lambda lab: lab.model()),
    Case("other layers", "the states after layers 0, 1 and 2 in the place of 3, 7 and 10", "feature", 4,
         lambda lab: lab.head(faults.WrongLayers)),
    Case("order of layers", "the states of the right layers in another order", "feature", 4,
         lambda lab: lab.head(faults.Rotated)),
    Case("one off", "every state with the token at its own place, not the one after it", "feature", 4,
         lambda lab: lab.head(faults.OneOff)),
    Case("not loaded", "random numbers in the head's output layer", "feature", 4,
         lambda lab: lab.head(FeatureDrafter, overwritten=True)),
    Case("stale token", "every pass but the first reads the token before the right one", "feature", 4,
         lambda lab: lab.head(faults.StaleToken)),
    Case("row off, feature", "the target's rows behind the first are one off", "feature", 4,
         lambda lab: lab.draft("feature"), rule=faults.one_row_off),
    Case("row off, model", "the target's rows behind the first are one off", "model", 4,
         lambda lab: lab.model(), rule=faults.one_row_off),
    Case("independent", "no place of the block knows the token before it", "block", 7,
         lambda lab: faults.without_markov(lab.draft("block"))),
    Case("k = 16", "k is too long", "model", 16, lambda lab: lab.model()),
    Case("target", "the draft is the target itself", "model", 4, lambda lab: lab.target_as_draft()),
    Case("unverified", "every drafted token is kept", "model", 4, lambda lab: lab.model(),
         rule=faults.keeps_everything),
    Case("loop", "prompts whose continuation is a loop", "model", 4, lambda lab: lab.model(), texts=LOOPS),
    Case("noise 0.2", "noise of a fifth of their spread in the draft's weights", "model", 4,
         lambda lab: lab.model(noise=0.2)),
    Case("noise 0.4", "noise of two fifths of their spread in the draft's weights", "model", 4,
         lambda lab: lab.model(noise=0.4)),
    Case("T = 1", "sampled, T = 1", "model", 4, lambda lab: lab.model(), temperature=1.0),
    Case("T = 1, certain", "sampled, T = 1, and the draft proposes its most probable tokens", "model", 4,
         lambda lab: lab.model(faults.Certain), temperature=1.0),
    Case("threshold", f"drafts end below a probability of {THRESHOLD}", "model", 8,
         lambda lab: lab.model(threshold=THRESHOLD)),
    Case("no threshold", "the same without that threshold", "model", 8, lambda lab: lab.model()),
    Case("word lists", "prompts of words in no order: another kind of text than the draft has seen", "model", 4,
         lambda lab: lab.model(), texts=LISTS),
    Case("buffer", f"behind position {faults.WINDOW} the states of the text's beginning are read again", "feature", 4,
         lambda lab: lab.head(faults.Window), cut=faults.WINDOW),
    Case("cached", "the states of a prompt that was asked before are missing", "feature", 4,
         lambda lab: lab.head(faults.ForgetsCached), twice=True),
)  # fmt: skip


def measure(lab: Lab, cases: Sequence[Case] = CASES) -> Iterator[CurveEntry]:
    """Yield the curves of every case."""
    with progress(len(cases), "curve", "decoding") as bar:
        for case in cases:
            yield from curves_of(lab, case)
            bar.update()


def curves_of(lab: Lab, case: Case) -> Iterator[CurveEntry]:
    """Yield one curve, or two where the case has parts."""
    drafter = case.make(lab)
    texts = prompts.encode([("text", text) for text in case.texts], lab.setup.tokenizer) if case.texts else lab.prompts
    places = [rounds_of(lab, case, drafter, prompt) for prompt in texts]
    if case.twice:
        again = [rounds_of(lab, case, drafter, prompt) for prompt in texts]
        parts = {f"{case.name}: first": places, f"{case.name}: second": again}
    elif case.cut:
        before = [[one for one in rounds if one[0] < case.cut] for rounds in places]
        behind = [[one for one in rounds if one[0] >= case.cut] for rounds in places]
        parts = {f"{case.name}: before": before, f"{case.name}: behind": behind}
    else:
        parts = {case.name: places}
    for name, found in parts.items():
        halves = [counts_of(found[start::2], case.k) for start in range(2)]
        yield CurveEntry(
            name=name,
            fault=case.fault,
            draft=case.draft,
            draft_length=case.k,
            temperature=case.temperature,
            n_prompts=len(texts),
            halves=halves,
        )


def rounds_of(lab: Lab, case: Case, drafter: Drafter, prompt: Prompt) -> list[tuple[int, Round]]:
    """Return the rounds of a text that begin before its end, each with the number of tokens before it.

    It is decoded past the end, so that no draft is shorter than it would be elsewhere.
    """
    n_tokens = LONG_TEXT if case.cut else lab.n_tokens
    settings = DecodeSettings(n_tokens + 2 * case.k, Sampling(case.temperature), frozenset(), lab.seed)
    target, n_prompt = lab.setup.target.with_own_cache(), prompt.ids.shape[1]
    found, n_new = list[tuple[int, Round]](), 0
    for round_ in speculative_decode(target, drafter, prompt.ids.to(lab.setup.device), case.k, settings, case.rule):
        if n_new >= n_tokens:
            break
        if not round_.prefill:
            found.append((n_prompt + n_new, round_))
        n_new += len(round_.tokens)
    return found


def counts_of(texts: Sequence[Sequence[tuple[int, Round]]], k: int) -> EngineCounts:
    """Return the counts of the rounds of some texts."""
    rounds = [[round_ for _, round_ in text] for text in texts]
    return total([counted(one, WHOLE, k).counts for one in rounds if one])
