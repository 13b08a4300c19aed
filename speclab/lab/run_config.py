"""The settings of a run: a target, its drafts and prompts, what to try, and how much of each."""

from dataclasses import dataclass
from typing import Any

from speclab.core.drafter import Drafter
from speclab.core.rules import TOKEN
from speclab.drafts.lengths import LONGEST
from speclab.lab.bench import SPECULATIVE, Bench
from speclab.lab.harness import Measurement
from speclab.lab.instruments import LoopFunctions
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import files
from speclab.records.rows import AUTO, BASELINE, Arm


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

    def bench(self) -> Bench:
        return Bench(self.setup, self.drafters, self.max_new_tokens, self.seed, self.functions)

    def arms(self) -> list[Arm]:
        arms = [BASELINE]
        for name, drafter in self.drafters.items():
            auto = drafter.chooses_length
            lengths = drafter.lengths([LONGEST] if auto else self.draft_lengths)
            arms += [Arm(self.method(name), name, k, auto, drafter.branches) for k in lengths]
        return arms

    def instruments(self, arms: list[Arm]) -> dict[str, list[int]]:
        """Return for every draft the lengths that its instrumented decoding tries: all of them, those in use three
        times. A draft on auto chooses its own. One that runs a part of the target's pass itself has no such decoding:
        its passes cost something else than those of all others."""
        found = {}
        for name, drafter in self.drafters.items():
            if lengths := [arm.draft_length for arm in arms if arm.draft == name]:
                every = [] if drafter.chooses_length else [*range(max(lengths) + 1), *lengths]
                found[name] = [] if drafter.runs_target else [*every, *lengths]
        return found

    def method(self, name: str) -> str:
        """Return the name of a draft's rows; where only one draft is a model, it is called just that."""
        models = [name for name, drafter in self.drafters.items() if drafter.is_model]
        auto = AUTO * name.endswith(AUTO)
        return f"model{auto}" if [name.removesuffix(AUTO)] == models else name

    def models(self) -> dict[str, str]:
        lines = {"target": loading.describe_model(self.setup.target_name, self.setup.target.model)}
        said = {name: drafter.describe(name, self.setup.engine) for name, drafter in self.drafters.items()}
        return lines | {name: line for name, line in said.items() if line}

    def head(self, measured: Measurement) -> dict[str, Any]:
        """Return the fields of files.LabRun: what ran, where and how."""
        return {
            "schema_version": files.SCHEMA_VERSION,
            **files.when_and_where(self.setup.device),
            "interrupted": measured.interrupted,
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
                "why_engine": self.setup.why_engine,
                "unapplied_generation_settings": self.setup.unapplied,
                "rule": self.functions.rule.name if self.functions.rule.name != TOKEN.name else None,
                "functions": self.functions.about,
                "chat": any(prompt.chat for prompt in self.prompts),
            },
            "models": self.models(),
        }
