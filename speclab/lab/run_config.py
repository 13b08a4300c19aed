"""The settings of a run: a target, its drafts and prompts, what to try, and how much of each."""

from dataclasses import dataclass, replace
from typing import Any

from speclab.core.drafter import Drafter
from speclab.core.rules import TOKEN
from speclab.drafts.lengths import LONGEST
from speclab.lab import free_cores
from speclab.lab.bench import SPECULATIVE, Bench
from speclab.lab.harness import Measurement
from speclab.lab.instruments import LoopFunctions
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import files, runs
from speclab.records.arms import AUTO, BASELINE, EAGER, GENERATE, Arm


@dataclass
class RunConfig:
    """Everything that a run needs."""

    setup: Setup
    drafters: dict[str, Drafter]  # by the name that tables and records give them
    prompts: list[Prompt]
    draft_lengths: list[int]
    temperatures: list[float]
    max_new_tokens: int
    repeats: int
    seed: int
    functions: LoopFunctions = SPECULATIVE
    probe: runs.CoreProbe | None = None  # of the cores, before the run

    @property
    def common(self) -> dict:
        """Return the fields that all rows share."""
        return {name: self.setup.recorded[name] for name in ("target", "device", "dtype")}

    def bench(self, max_new_tokens: int | None = None) -> Bench:
        """Return the harness of this run."""
        return Bench(self.setup, self.drafters, max_new_tokens or self.max_new_tokens, self.seed, self.functions)

    def arms(self) -> list[Arm]:
        """Return the arms: the baseline, then every draft at every length."""
        arms = [BASELINE]
        for name, drafter in self.drafters.items():
            auto = drafter.chooses_length
            lengths = drafter.lengths([LONGEST] if auto else self.draft_lengths)
            arms += [Arm(self.method(name), name, k, auto, drafter.branches) for k in lengths]
        return arms

    def with_plain(self) -> list[Arm]:
        """Return the arms and the other plain decoding, which is compared greedily: the library's, and the eager
        engine's where that may be the fastest."""
        if 0 not in self.temperatures:
            return self.arms()
        return [*self.arms(), GENERATE, *([EAGER] if self.setup.target.graphed else [])]

    def instruments(self, arms: list[Arm]) -> dict[str, list[int]]:
        """Return for every draft the lengths that its instrumented decoding tries: all of them, those in use three
        times. A draft on auto chooses its own."""
        used = {name: [arm.draft_length for arm in arms if arm.draft == name] for name in self.drafters}
        return {
            name: lengths if self.drafters[name].chooses_length else [*range(max(lengths) + 1), *lengths, *lengths]
            for name, lengths in used.items()
            if lengths
        }

    def method(self, name: str) -> str:
        """Return the name of a draft's rows; where only one draft is a model, it is called just that."""
        models = [name for name, drafter in self.drafters.items() if drafter.is_model]
        auto = AUTO * name.endswith(AUTO)
        return f"model{auto}" if [name.removesuffix(AUTO)] == models else name

    def cached_models(self) -> list[CachedModel]:
        """Return the target, and every draft model."""
        return [self.setup.target, *(model for drafter in self.drafters.values() for model in drafter.models)]

    @property
    def rule(self) -> str:
        """Return the rule by which drafted tokens are judged, by its name."""
        return self.functions.rule.name

    def rule_lines(self) -> list[str]:
        """Return lines about the rule for the head of the run; none for the token rule."""
        if self.rule == TOKEN.name:
            return []
        if self.functions.rule.law:
            why = "LOSSY: the texts do not follow the target's distribution; no row has a forecast"
        else:
            why = f"{self.functions.rule.line}; sampled rows of models have no forecast"
        return [f"rule    {self.rule}: {why}"]

    def models(self) -> dict[str, str]:
        """Return a line about each model."""
        lines = {"target": loading.describe_model(self.setup.target_name, self.setup.target.model)}
        for name, drafter in self.drafters.items():
            if line := drafter.describe(name, self.setup.engine):
                lines[name] = line
        return lines

    def look_at_cores(self) -> None:
        """Look whether other work uses the cores, for the record, and say so."""
        self.probe = free_cores.look(self.setup)

    def head(self, measured: Measurement) -> dict[str, Any]:
        """Return the fields of runs.LabRun: what ran, where and how."""
        made = files.when_and_where(self.setup.device)
        return {
            "schema_version": runs.SCHEMA_VERSION,
            **made,
            "interrupted": measured.interrupted,
            "unchecked": measured.unchecked or None,
            "machine": replace(made["machine"], probe=self.probe),
            "settings": {
                **self.setup.recorded,
                "draft_lengths": self.draft_lengths,
                "temperatures": self.temperatures,
                "max_new_tokens": self.max_new_tokens,
                "repeats": self.repeats,
                **files.prompt_settings([prompt.text for prompt in self.prompts]),
                "seed": self.seed,
                "top_k": self.setup.sampling.top_k,
                "top_p": self.setup.sampling.top_p,
                "reasons": self.setup.reasons,
                "unapplied_generation_settings": self.setup.unapplied,
                **({"graphs": vars(measured.graphs)} if any(vars(measured.graphs).values()) else {}),
                **({"rule": self.rule} if self.rule != TOKEN.name else {}),
                **({"functions": self.functions.about} if self.functions.about else {}),
                **({"chat": True} if any(prompt.chat for prompt in self.prompts) else {}),
            },
            "models": self.models(),
        }
