"""The dicts inside a record hold at least the entries that views read. They are checked when a record is read.

Each class names the entries of one kind of dict and their types; one with a value here may be missing. Others may
stand beside them, since a run writes down all that it was made with. In memory they stay dicts.
"""

from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from speclab.records.rows import Amount, Count, Share

Facts = dict[str, Any]  # plain JSON whose keys depend on the run


@dataclass(frozen=True)
class Entries:
    """The entries that a dict must have: those of `kind`, or those of `sampled` where its temperature is above 0."""

    kind: type
    sampled: type | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict:
        """Pydantic asks for this: the schema of the dict, or of two by temperature."""
        if self.sampled is None:
            return _schema(self.kind, handler)
        choices = {"greedy": _schema(self.kind, handler), "sampled": _schema(self.sampled, handler)}
        return {"type": "tagged-union", "discriminator": _which, "choices": choices, "strict": True}


def _which(entry: Any) -> str:
    temperature = entry.get("temperature") if isinstance(entry, dict) else None
    return "sampled" if isinstance(temperature, (int, float)) and temperature > 0 else "greedy"


def _schema(kind: type, handler: Any) -> dict:
    fields = {
        name: {
            "type": "typed-dict-field",
            "schema": handler.generate_schema(type_),
            "required": not hasattr(kind, name),
        }
        for name, type_ in get_type_hints(kind, include_extras=True).items()
    }
    rules = {"strict": True, "allow_inf_nan": False}
    return {"type": "typed-dict", "fields": fields, "extra_behavior": "allow", "config": rules}


@dataclass(frozen=True)
class Items:
    """The bounds on the number of items in a list."""

    least: int
    most: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict:
        """Pydantic asks for this: the schema of the list, with bounds on its length."""
        return handler(source) | {"min_length": self.least} | ({"max_length": self.most} if self.most else {})


class LateGraphs:
    """This says how many CUDA graphs were recorded in timed turns."""

    in_turns: Count


class CommonSettings:
    """These settings are in the record of every run of compare.py."""

    target: str
    device: str
    dtype: str
    engine: str
    seed: Count
    max_new_tokens: Count
    repeats: Count
    n_prompts: Count
    prompts_sha256: str = ""
    threads: Count = 1
    top_k: Count = 0
    top_p: Amount = 1.0
    started_here: bool = False  # whether the lab started the server
    rule: str = ""
    graphs: Annotated[Facts, Entries(LateGraphs)] = {}  # noqa: RUF012 - present or missing, never changed
    functions: str = ""  # what took part in the speculative rows besides the lab's own


class ComparisonSettings(CommonSettings):
    """These settings are in the record of a comparison."""

    draft_lengths: list[Count]


class Difference:
    """This is the place where a greedy text first differs from the baseline's."""

    prompt: Count
    position: Count
    tokens: Annotated[list[str], Items(2, 2)]  # the baseline's token, and the one in its place
    gap: Amount | None
    verdict: str


class GreedyCheck:
    """This compares the greedy texts of an arm with the baseline's."""

    arm: str
    temperature: Amount
    n_prompts: Count
    differences: list[Annotated[Facts, Entries(Difference)]]
    passed: bool


class SampledCheck:
    """This tests the sampled tokens of an arm under the target's own distributions."""

    arm: str
    temperature: Amount
    n_tokens: Count
    z_residual: float | None  # None: infinite
    z_surprise: float | None
    bound: Amount
    passed: bool
    lossy_rule: str | None = None
    total_variation: float | None = None
    z_edge: float = 0.0
    n_uncertain: Count = 0


Pair = Annotated[list[Count | Amount], Items(2, 2)]
Curve = list[Pair]  # whole numbers and seconds


class CalibratedCosts:
    """These are the costs of one drafter at one temperature, as speclab/theory/costs.py writes them."""

    step_at: Amount
    step_slope: Amount
    verify_at: Annotated[Curve, Items(1)]
    verify_slope: Amount
    draft_idle: Amount
    draft_at: Curve
    draft_catch: Amount
    draft_slope: Amount
    accept_at: Amount
    accept_each: Amount
    rollback: Amount
    host: Amount
    accept_error: Amount = 0.0
    rollback_error: Amount = 0.0
    host_error: Amount = 0.0
    replay: Amount = 0.0


class DrafterCosts:
    """This says whose costs they are."""

    drafter: str
    temperature: Amount
    costs: Annotated[Facts, Entries(CalibratedCosts)]


class Prompts:
    """This counts the prompts of a comparison."""

    n: Count
    kinds: list[str]
    n_cut: Count | None = None  # greedy texts that are cut where they begin to repeat; None: none was decoded greedily
    # In records from before texts were cut: greedy texts whose last 32 tokens have a period of at most 8.
    n_looping: Count | None = None


class Phases:
    """These are the seconds of the instrumented rounds, and the share of them that the phases cover."""

    seconds: Amount
    share: Share | None


RunSettings = Annotated[Facts, Entries(CommonSettings)]
Judged = Annotated[Facts, Entries(GreedyCheck, SampledCheck)]
Costs = Annotated[Facts, Entries(DrafterCosts)]
