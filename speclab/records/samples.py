"""The lab measures arms, which are ways to decode."""

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
        """True where a draft is used."""
        return bool(self.draft)

    @property
    def label(self) -> str:
        """The name by which tables and checks call it."""
        return f"{self.method} k={self.draft_length}" if self.speculative and not self.auto else self.method


BASELINE, BASELINE_REPEAT, GENERATE = Arm("baseline"), Arm("baseline again"), Arm("generate")
EAGER = Arm("eager")  # the baseline's loop on the eager engine, in a run on another one
PLAIN = (BASELINE, GENERATE, EAGER)  # all plain decoding that a run may hold
INSTRUMENT = "instrument"  # method of the decodings whose phases are timed; they make no samples
BEAM = (
    "beam"  # the library's beam search: a method whose draft_length is the number of beams, and whose text is another
)
LIBRARY = ("generate", "assisted", "dynamic", "lookup", BEAM)  # methods that the library decodes


class Made(NamedTuple):
    """The counts of one round. looked_up: whether the lookup of a hybrid drafted, not its model."""

    n_drafted: int
    n_accepted: int
    looked_up: bool = False


@dataclass
class Sample:
    """Everything one arm did with one prompt at one temperature, one entry for each repeat."""

    arm: Arm
    temperature: float
    prompt_index: int
    prompt_kind: str
    n_prompt: int  # tokens of the prompt
    prefill: list[float] = field(default_factory=list)  # seconds
    decode: list[float] = field(default_factory=list)  # seconds
    texts: list[list[int]] = field(default_factory=list)  # new tokens
    rounds: list[list[Made]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)  # of all repeats
    lossy_rule: str | None = None  # that judged its drafted tokens; None: a lossless one did, or there were none
    distance: float | None = None  # with a lossy rule, the sum of speclab/lab/output_checks.py; None: not measured
    own_rates: dict[str, float] | None = None  # the sums of `note_own_rates`, speclab/lab/acceptance_probs.py

    def add(
        self,
        prefill: float,
        decode: float,
        tokens: list[int],
        counts: Counts | None = None,
        rounds: Sequence[Made] = (),
    ) -> None:
        """Book one more decoding; without `counts` it made one pass for every token."""
        self.prefill.append(prefill)
        self.decode.append(decode)
        self.texts.append(tokens)
        self.rounds.append(list(rounds))
        self.counts.merge(counts or Counts(n_rounds=len(tokens) - 1, n_emitted=len(tokens) - 1))

    @property
    def prefill_seconds(self) -> float:
        """The seconds of all repeats' prefills together."""
        return sum(self.prefill)

    @property
    def decode_seconds(self) -> float:
        """The decoding seconds of all repeats together."""
        return sum(self.decode)
