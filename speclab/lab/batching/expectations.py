"""What rounds of a batch should cost, from passes over one text and from the loops without their models."""

import copy
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from draft_models import ModelDrafter
from speclab.core.rounds import DecodeSettings, Drafter
from speclab.drafts.hybrid import forget
from speclab.drafts.select import lengths_of
from speclab.lab.batching.passes import PassTimer, Shape, loop_seconds, pass_costs
from speclab.lab.instruments import with_phases
from speclab.lab.run_config import RunConfig
from speclab.models.cached import CachedModel
from speclab.records.batches import KneeEntry, MachineEntry, PassTime
from speclab.records.runs import Facts
from speclab.theory import batching
from speclab.theory.batching import Knee, PassCosts

LONG = (1024, 3072)  # tokens of context, as far as the models have room
PROMPTS = 2  # on which a draft that is no model is timed
TARGET = "target"
ON_MACHINES = (512, 4096, 16384)  # tokens of context
MACHINE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass
class Draft:
    """What is known of a draft at one length from decoding one text at a time.

    survival: how likely the first 1, 2, ... drafted tokens are all accepted. drafted: tokens of a draft -> its share
    of the rounds.
    """

    survival: list[float]
    drafted: dict[int, float]

    def widths(self, n_texts: int) -> dict[int, float]:
        """Tokens of the longest draft of so many texts -> how likely that is."""
        below, likely = 0.0, {}
        for n in sorted(self.drafted):
            reached = below + self.drafted[n]
            likely[n] = reached**n_texts - below**n_texts
            below = reached
        return likely


def known_of(counts: list[tuple[int, int]], k: int) -> Draft:
    """From the (drafted, accepted) tokens of rounds."""
    n = len(counts)
    survival = [sum(accepted >= i for _, accepted in counts) / n for i in range(1, k + 1)]
    return Draft(survival, {drafted: times / n for drafted, times in Counter(d for d, _ in counts).items()})


@dataclass
class Expectations:
    """Seconds and rates of rounds with any number of texts, from what is measured of one."""

    context: int  # at which passes were timed
    contexts: dict[int, float]  # texts -> tokens before a pass of the longest of them, on average: all are padded to it
    known: dict[tuple[str, int], Draft]  # by draft and its length
    times: dict[str, dict[Shape, float]]  # of the passes of TARGET and of draft models
    costs: dict[str, PassCosts]
    one_draft: dict[tuple[str, int], float]  # seconds to draft for one text, of drafts that are no models
    loops: dict[tuple[int, int], float]  # (texts, draft length) -> seconds of the loop without its models

    def rate(self, draft: str, k: int, n_texts: int, lockstep: bool = False) -> float | None:
        """Tokens a second of all texts together; k = 0: of plain decoding."""
        return self._rate(self._expected, self.contexts[n_texts], draft, k, n_texts, lockstep)

    def _expected(self, model: str, n_texts: int, width: int, context: float) -> float | None:
        return self.costs[model].of(n_texts, width, context)

    def _measured(self, model: str, n_texts: int, width: int, context: float) -> float | None:
        return self.times[model].get((n_texts, width, round(context)))

    def _rate(
        self,
        seconds: Callable[[str, int, int, float], float | None],
        context: float,
        draft: str,
        k: int,
        n_texts: int,
        lockstep: bool = False,
    ) -> float | None:
        """seconds(model, texts, width, context): of a pass; None: unknown."""
        loop = self.loops[n_texts, k]
        if k == 0:
            step = seconds(TARGET, n_texts, 1, context)
            return None if step is None else n_texts / (step + loop)
        known = self.known[draft, k]
        total = loop
        for n, share in known.widths(n_texts).items():
            verify = seconds(TARGET, n_texts, n + 1, context)
            drafting = self._drafting(seconds, context, draft, n, n_texts, known.survival[-1])
            if verify is None or drafting is None:
                if share < 0.05:  # near the end of a text drafts are shorter: hardly any round of a full batch
                    continue
                return None
            total += share * (verify + drafting * (1.0 if n == k or draft in self.costs else n / k))
        tokens = batching.lockstep_tokens(known.survival, n_texts if lockstep else 1)
        return n_texts * tokens / total

    def _drafting(
        self,
        seconds: Callable[[str, int, int, float], float | None],
        context: float,
        draft: str,
        n: int,
        n_texts: int,
        full_share: float,
    ) -> float | None:
        """Seconds to draft n tokens of each text."""
        if draft not in self.costs:
            return n_texts * self.one_draft[draft, max(k for name, k in self.known if name == draft and k >= n)]
        if n == 0:
            return 0.0
        one, two = seconds(draft, n_texts, 1, context), seconds(draft, n_texts, 2, context)
        if one is None or two is None:
            return None
        two_waiting = batching.catches_up(full_share, n_texts)
        return two_waiting * two + (1 - two_waiting) * one + (n - 1) * one

    # --- what goes into the record ------------------------------------------------------------------------------------

    def passes(self) -> list[PassTime]:
        """Every pass that was timed, with what the passes over one text predict of those over several."""
        found = []
        for model, times in self.times.items():
            for (n_texts, width, context), seconds in times.items():
                predicted = None if n_texts == 1 else self.costs[model].of(n_texts, width, context)
                found.append(
                    PassTime(
                        model=model,
                        n_texts=n_texts,
                        width=width,
                        context=context,
                        seconds=seconds,
                        predicted=predicted,
                    )
                )
        return found

    def facts(self) -> Facts:
        """What the predictions are made from."""
        return {
            "passes": {model: asdict(costs) for model, costs in self.costs.items()},
            "one_draft": [{"draft": d, "draft_length": k, "seconds": s} for (d, k), s in self.one_draft.items()],
            "loops": [{"n_texts": n, "draft_length": k, "seconds": s} for (n, k), s in self.loops.items()],
            "known": [{"draft": d, "draft_length": k, "survival": one.survival} for (d, k), one in self.known.items()],
        }

    def knees(self) -> list[KneeEntry]:
        """Of every draft what is expected, and, where long contexts were timed, for each of those."""
        found = []
        batches = sorted(self.contexts)
        ways = {"predicted": self._expected, "from measured passes": self._measured}
        for draft in dict.fromkeys(name for name, _ in self.known):
            for context in sorted({self.context, *(c for _, _, c in self.times[TARGET] if c > self.context)}):
                for source, seconds in ways.items():
                    speedups = self._speedups(seconds, context, draft, batches)
                    if speedups and {n for n, _ in speedups} == set(batches):
                        found.append(knee_of(draft, context, source, speedups))
        return found

    def _speedups(
        self, seconds: Callable[[str, int, int, float], float | None], context: int, draft: str, batches: list[int]
    ) -> dict[tuple[int, int], float]:
        """(texts, k) -> speedup, where it is known."""
        found = {}
        for n in batches:
            plain = self._rate(seconds, context, "", 0, n)
            for k in (k for name, k in self.known if name == draft):
                rate = self._rate(seconds, context, draft, k, n)
                if rate and plain:
                    found[n, k] = rate / plain
        return found

    def machines(self) -> list[MachineEntry]:
        """What data sheets say of a target of 8 billion weights with a draft of one, at this run's acceptance."""
        models = [key for key in self.known if key[0] in self.costs]
        if not models:
            return []
        name, longest = max(models, key=lambda key: key[1])
        survival = self.known[name, longest].survival
        target, draft = batching.LLAMA_8B, batching.LLAMA_1B
        found = []
        for machine in (batching.A100, batching.H100):
            for context in ON_MACHINES:

                def seconds(model: batching.Model, n: int, width: int, machine=machine, context=context) -> float:
                    return batching.step_time(machine, model, n * width, n * context, n * width * context)

                speedups = {}
                for n in MACHINE_BATCHES:
                    for k in range(1, longest + 1):
                        tokens = batching.lockstep_tokens(survival[:k], 1)
                        round_ = k * seconds(draft, n, 1) + seconds(target, n, k + 1)
                        speedups[n, k] = tokens * seconds(target, n, 1) / round_
                entry = knee_of(name, context, "predicted", speedups)
                found.append(
                    MachineEntry(
                        machine=machine.name,
                        models=f"{target.name} with {draft.name}",
                        context=context,
                        batch=entry.batch,
                        below=entry.below,
                        best=entry.best,
                    )
                )
        return found


def knee_of(draft: str, context: int, source: Any, speedups: Mapping[tuple[int, int], float]) -> KneeEntry:
    """The best length of every batch, and where its speedup falls to 1. speedups: (texts, k) -> speedup"""
    best: dict[int, tuple[int, float]] = {}
    for n in sorted({n for n, _ in speedups}):
        of_batch = {k: speedup for (texts, k), speedup in speedups.items() if texts == n}
        k = batching.best_k(of_batch)
        best[n] = k, of_batch[k]
    found: Knee = batching.knee({n: speedup for n, (_, speedup) in best.items()})
    return KneeEntry(
        draft=draft,
        context=context,
        source=source,
        batch=found.batch,
        below=found.below,
        best={str(n): list(pair) for n, pair in best.items()},
    )


# --- measuring --------------------------------------------------------------------------------------------------------


def make_timer(config: RunConfig, context: int, sizes: list[int], thorough: bool) -> PassTimer:
    """Times passes over one text, and over several what is predicted from them."""
    lengths = {k for drafter in config.drafters.values() for k in lengths_of(drafter, config.draft_lengths) if k}
    models, widths = {TARGET: config.setup.target}, {TARGET: sorted({1, *(k + 1 for k in lengths)})}
    for name, drafter in config.drafters.items():
        if type(drafter) is ModelDrafter:
            models[name], widths[name] = drafter.draft, [1, 2]
    return PassTimer(models, {name: _shapes(models[name], widths[name], sizes, context, thorough) for name in models})


def expectations(
    config: RunConfig,
    contexts: dict[int, float],
    known: dict[tuple[str, int], Draft],
    times: dict[str, dict[Shape, float]],
) -> Expectations:
    """From the passes that were timed; the loops without models, and drafts that are no models, are timed here."""
    context, sizes = round(contexts[1]), sorted(contexts)
    one_draft = {(name, k): 0.0 for name, k in known if name not in times}
    for name, k in one_draft:
        one_draft[name, k] = _drafting_one(config, config.drafters[name], k)
    costs = {name: pass_costs(timed, context, _nearest_long(timed, context)) for name, timed in times.items()}
    sampling, accept = config.setup.sampling_at(config.temperatures[0]), config.learner.loop.accept
    lengths = (0, *sorted({k for _, k in known}))
    loops = {(n, k): loop_seconds(config.setup.target, accept, n, k, sampling) for n in sizes for k in lengths}
    return Expectations(context, contexts, known, times, costs, one_draft, loops)


def _shapes(model: CachedModel, widths: list[int], sizes: list[int], context: int, thorough: bool) -> set[Shape]:
    """Passes over one text, as wide as those over several, and those over several."""
    room = (model.max_length or sys.maxsize) - max(widths) * max(sizes)
    shapes = {(n, width, context) for n in sizes for width in widths}
    shapes |= {(1, n * width, context) for n in sizes for width in widths}
    long = [one for one in LONG if context < one <= room]
    if long:
        wide = max(widths)
        shapes |= {(1, width, long[0]) for width in (1, wide, wide * min(4, max(sizes)))}
        shapes |= {(1, wide * min(4, max(sizes)), context)}
    if thorough:
        shapes |= {(n, width, one) for one in long for n in sizes for width in widths}
    return shapes


def _nearest_long(times: dict[Shape, float], context: int) -> int | None:
    """The shortest of the long contexts."""
    return min((one for _, _, one in times if one > context), default=None)


def _drafting_one(config: RunConfig, drafter: Drafter, k: int) -> float:
    """Mean seconds of a round of one text that go into its draft: proposing, and following the text."""
    taken, sampling = [], config.setup.sampling_at(config.temperatures[0])
    for prompt in config.prompts[:PROMPTS]:
        own = copy.deepcopy(drafter)
        forget(own)
        settings = DecodeSettings(config.max_new_tokens, sampling, seed=config.seed)
        ids = prompt.ids.to(config.setup.device)
        for round_ in with_phases(config.learner.loop, config.setup.target.with_own_cache(), own, ids, k, settings):
            if not round_.prefill and round_.seconds:
                taken.append(round_.seconds["draft"] + round_.seconds["rollback"])
    return statistics.mean(taken)
