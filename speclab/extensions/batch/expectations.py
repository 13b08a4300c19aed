"""The expected cost of rounds of a batch, from passes over one text and from the loops without their models."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

from speclab.extensions.batch import pass_costs
from speclab.extensions.batch.batch_record import MachineEntry, PassTime
from speclab.extensions.batch.decoding.drafters import shared_model
from speclab.extensions.batch.decoding.row_buffers import Programs
from speclab.extensions.batch.pass_costs import PassCosts, on_machines
from speclab.extensions.batch.passes import LoopKey, PassTimer, Shape, fitted_costs
from speclab.lab.run_config import RunConfig
from speclab.models.cached import CachedModel
from speclab.records.facts import Facts
from speclab.records.knees import KneeEntry
from speclab.theory.knees import knee_of

LONG = (1024, 3072)  # tokens of context, as far as the models have room
TARGET = "target"


@dataclass
class Draft:
    """The facts about a draft at one length that decoding one text at a time gives.

    survival: how likely the first 1, 2, ... drafted tokens are all accepted. drafted: tokens of a draft -> its share
    of the rounds.
    """

    survival: list[float]
    drafted: dict[int, float]

    def widths(self, n_texts: int) -> dict[int, float]:
        """The probability of each length of the longest draft of so many texts, by that length."""
        below, likely = 0.0, {}
        for n in sorted(self.drafted):
            reached = below + self.drafted[n]
            likely[n] = reached**n_texts - below**n_texts
            below = reached
        return likely


def known_of(counts: list[tuple[int, int]], k: int) -> Draft:
    """The facts about a draft from the (drafted, accepted) tokens of rounds."""
    n = len(counts)
    survival = [sum(accepted >= i for _, accepted in counts) / n for i in range(1, k + 1)]
    return Draft(survival, {drafted: times / n for drafted, times in Counter(d for d, _ in counts).items()})


@dataclass
class Expectations:
    """Seconds and rates of rounds with any number of texts, from measurements of one text."""

    context: int  # at which passes were timed
    contexts: dict[int, float]  # texts -> tokens before a pass of the longest of them, on average: all are padded to it
    known: dict[tuple[str, int], Draft]  # by draft and its length
    times: dict[str, dict[Shape, float]]  # of the passes of TARGET and of draft models
    costs: dict[str, PassCosts]
    one_draft: dict[tuple[str, int], float]  # seconds of a round to draft for one text, of drafts that are no models
    loops: dict[LoopKey, float]  # seconds of a round without its models

    def rate(self, draft: str, k: int, n_texts: int, lockstep: bool = False) -> float | None:
        """The tokens a second of all texts together; with k = 0, those of plain decoding."""
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
        """The same with a function of the seconds: seconds(model, texts, width, context) of a pass; None where they are
        unknown."""
        loop = self.loops.get((draft, k, n_texts))
        if loop is None:
            return None
        if k == 0:
            step = seconds(TARGET, n_texts, 1, context)
            return None if step is None else n_texts / (step + loop)
        known = self.known[draft, k]
        whole = known.survival[-1]  # how likely a text's whole draft is accepted
        two_waiting = whole**n_texts if lockstep else pass_costs.catches_up(whole, n_texts)
        models, priced = 0.0, 0.0
        for n, share in known.widths(n_texts).items():
            verify = seconds(TARGET, n_texts, n + 1, context)
            drafting = self._drafting(seconds, context, draft, n, n_texts, two_waiting)
            if verify is None or drafting is None:
                if share < 0.05:  # near the end of a text drafts are shorter: hardly any round of a full batch
                    continue
                return None
            models, priced = models + share * (verify + drafting), priced + share
        tokens = pass_costs.lockstep_tokens(known.survival, n_texts if lockstep else 1, 1 - known.drafted.get(0, 0.0))
        return n_texts * tokens / (loop + n_texts * self.one_draft.get((draft, k), 0.0) + models / priced)

    def _drafting(
        self,
        seconds: Callable[[str, int, int, float], float | None],
        context: float,
        draft: str,
        n: int,
        n_texts: int,
        two_waiting: float,
    ) -> float | None:
        """The seconds of a draft model's passes for n tokens of each text.

        two_waiting: how likely the first pass has to read two tokens of some text.
        """
        if n == 0 or draft not in self.costs:
            return 0.0
        one, two = seconds(draft, n_texts, 1, context), seconds(draft, n_texts, 2, context)
        if one is None or two is None:
            return None
        return two_waiting * two + (1 - two_waiting) * one + (n - 1) * one

    # --- what goes into the record ------------------------------------------------------------------------------------

    def passes(self) -> list[PassTime]:
        """Every pass that was timed, with what the passes over one text predict of those over several."""
        passes = []
        for model, times in self.times.items():
            for (n_texts, width, context), seconds in times.items():
                predicted = None if n_texts == 1 else self.costs[model].of(n_texts, width, context)
                passes.append(
                    PassTime(
                        model=model,
                        n_texts=n_texts,
                        width=width,
                        context=context,
                        seconds=seconds,
                        predicted=predicted,
                    )
                )
        return passes

    def facts(self) -> Facts:
        """The numbers that the predictions are made from."""
        return {
            "passes": {model: asdict(costs) for model, costs in self.costs.items()},
            "one_draft": [{"draft": d, "draft_length": k, "seconds": s} for (d, k), s in self.one_draft.items()],
            "loops": [
                {"draft": d, "draft_length": k, "n_texts": n, "seconds": s} for (d, k, n), s in self.loops.items()
            ],
            "known": [{"draft": d, "draft_length": k, "survival": one.survival} for (d, k), one in self.known.items()],
        }

    def knees(self) -> list[KneeEntry]:
        """The expected knee of every draft, at the context of the run and at each long context that was timed."""
        knees = []
        batches = sorted(self.contexts)
        ways = {"predicted": self._expected, "from measured passes": self._measured}
        for draft in dict.fromkeys(name for name, _ in self.known):
            for context in sorted({self.context, *(c for _, _, c in self.times[TARGET] if c > self.context)}):
                for source, seconds in ways.items():
                    speedups = self._speedups(seconds, context, draft, batches)
                    if speedups and {n for n, _ in speedups} == set(batches):
                        knees.append(knee_of(draft, context, source, speedups))
        return knees

    def _speedups(
        self, seconds: Callable[[str, int, int, float], float | None], context: int, draft: str, batches: list[int]
    ) -> dict[tuple[int, int], float]:
        """The speedups by (texts, k), where they are known."""
        speedups = {}
        for n in batches:
            plain = self._rate(seconds, context, "", 0, n)
            for k in (k for name, k in self.known if name == draft):
                rate = self._rate(seconds, context, draft, k, n)
                if rate and plain:
                    speedups[n, k] = rate / plain
        return speedups

    def machines(self) -> list[MachineEntry]:
        """The predictions from data sheets, at the acceptance of the longest draft of a model; none where there is no
        model."""
        models = [key for key in self.known if key[0] in self.costs]
        longest = max(models, key=lambda key: key[1], default=None)
        return on_machines(longest[0], self.known[longest].survival) if longest else []


# --- measuring --------------------------------------------------------------------------------------------------------


def make_timer(
    config: RunConfig, context: int, sizes: list[int], thorough: bool, programs: Programs | None = None
) -> PassTimer:
    """A timer for passes over one text, and for passes over several, which are predicted from them.

    programs: those of them that are compiled.
    """
    lengths = {k for drafter in config.drafters.values() for k in drafter.lengths(config.draft_lengths) if k}
    models, widths = {TARGET: config.setup.target}, {TARGET: sorted({1, *(k + 1 for k in lengths)})}
    for name, drafter in config.drafters.items():
        if model := shared_model(drafter):
            models[name], widths[name] = model, [1, 2]
    shapes = {name: _shapes(models[name], widths[name], sizes, context, thorough) for name in models}
    return PassTimer(models, shapes, programs)


def expectations(
    contexts: dict[int, float],
    known: dict[tuple[str, int], Draft],
    timer: PassTimer,
    one_draft: dict[tuple[str, int], float],
) -> Expectations:
    """The expectations from everything that was timed. one_draft: the seconds of a round that go into drafting for one
    text, for every draft at every length; they are used for drafts that are no models."""
    context, times = round(contexts[1]), timer.times
    costs = {
        name: fitted_costs(timed, context, _nearest_long(timed, context)) for name, timed in times.items() if timed
    }
    others = {key: seconds for key, seconds in one_draft.items() if key[0] not in costs}
    return Expectations(context, contexts, known, times, costs, others, timer.loops)


def _shapes(model: CachedModel, widths: list[int], sizes: list[int], context: int, thorough: bool) -> set[Shape]:
    """The shapes of passes over one text, as wide as those over several, and of passes over several."""
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
    """The shortest of the long contexts that were timed."""
    return min((one for _, _, one in times if one > context), default=None)
