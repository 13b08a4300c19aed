"""Arms: the ways to decode that the lab measures."""

from dataclasses import dataclass, field

AUTO = " auto"  # at the end of a draft's name: its length changes from round to round
LOOKUP = ", lookup"  # at the end of a draft's name: the costs are those of the rounds in which a hybrid's lookup drafts


@dataclass(frozen=True)
class Arm:
    """One way to decode. `method` is "baseline", "generate" or a draft kind."""

    method: str
    draft: str = ""  # name of the draft, as the user may type it; the baseline has none
    draft_length: int = 0  # where it is chosen in every round: the longest
    auto: bool = field(default=False, compare=False)  # whether the length is chosen in every round
    branches: bool = field(default=False, compare=False)  # whether a draft may have several tokens for one place

    @property
    def speculative(self) -> bool:
        return bool(self.draft)

    @property
    def label(self) -> str:
        return f"{self.method} k={self.draft_length}" if self.speculative and not self.auto else self.method


BASELINE, BASELINE_REPEAT, GENERATE = Arm("baseline"), Arm("baseline again"), Arm("generate")
EAGER = Arm("eager")  # the baseline's loop on the eager engine, in a run on another one
PLAIN = (BASELINE, GENERATE, EAGER)  # all plain decoding that a run may hold
INSTRUMENT = "instrument"  # method of the decodings whose phases are timed; they make no samples
BEAM = (
    "beam"  # the library's beam search: a method whose draft_length is the number of beams, and whose text is another
)
LIBRARY = ("generate", "assisted", "dynamic", "lookup", BEAM)  # methods that the library decodes
