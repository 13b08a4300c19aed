"""The two decoding scripts share this code around their loops: flags, loading, printing, and the speed. The loops are
arguments: this module imports none.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from speclab.cli import flags, parsing, streaming
from speclab.cli.output import LOSSY, describe_chat, how_many, prompt_heading
from speclab.core.clock import old_objects_frozen
from speclab.core.counts import Counts
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round
from speclab.core.rules import rule_of
from speclab.drafts import registry
from speclab.drafts.lengths import LONGEST, AutoLength
from speclab.drafts.oracle import reference_text
from speclab.drafts.registry import check_prompts
from speclab.lab import free_cores
from speclab.lab.instruments import Loop, LoopFunctions
from speclab.lab.round_costs import measure_costs
from speclab.models import memory
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present import report
from speclab.system.errors import reports_problems
from speclab.system.terminal import harmless, note

DRAFT_LENGTH = 4


@reports_problems
def run(
    docstring: str,
    argv: list[str] | None,
    functions: LoopFunctions | None,
    baseline: Loop,
    speculative: Loop | None = None,
) -> int:
    """Run either script; without `speculative` it is the baseline.  -> exit code"""
    args = parse(docstring, argv, speculative is not None)
    functions = functions or LoopFunctions(speculative or baseline)
    if args.choice:
        flags.check_rule(args, [args.temperature], [args.choice])
        args.choice.check_greedy(args.temperature == 0)
        if args.draft_length == parsing.AUTO:
            args.choice.check_auto()
        functions = functions.judged_by(rule_of(args.rule))
    setup, prompts = flags.load(args)
    eos = frozenset() if args.ignore_eos else setup.eos
    settings = DecodeSettings(args.max_new_tokens, setup.sampling, eos, args.seed)
    drafter, k = _begin(args, setup, prompts, settings, functions)
    decoded, n_wrong = _Decoded(setup, args), 0
    for prompt in prompts:
        ids = prompt.ids.to(setup.device)
        if drafter:
            rounds = _speculative(drafter, setup, ids, k, settings, functions)
        else:
            rounds = baseline(setup.target, ids, settings, setup.chunk)
        tokens = decoded.show(prompt, rounds)
        n_wrong += not functions.is_right(setup, prompt, settings, tokens)
    print(decoded.speed())
    _end(args, setup, decoded, drafter, k)
    return int(n_wrong > 0)


def parse(docstring: str, argv: list[str] | None, speculative: bool) -> argparse.Namespace:
    """Return the flags of either script. Raises UsageProblem for words that it does not know."""
    args = _make_parser(docstring, speculative).parse_args(argv)
    args.choice = None
    if speculative:
        args.typed_length = args.draft_length  # None where -k is left out
        args.draft_length = DRAFT_LENGTH if args.draft_length is None else args.draft_length
        args.choice = registry.read(args.draft)
    args.limit = 1 if args.limit is None else args.limit
    return args


def _make_parser(docstring: str, speculative: bool) -> argparse.ArgumentParser:
    parser = parsing.make_parser(docstring)
    flags.add_shared_flags(parser)
    group = flags.add_decoding_flags(parser)
    group.add_argument("--stream", action="store_true", help="print the text as it is committed")
    read = "print what a step and a round read and cost, and the peak of memory"
    group.add_argument("--verbose", action="store_true", help=read)
    if speculative:
        group = parser.add_argument_group("draft")
        flags.add_draft_flag(group)
        lengths = f"tokens per draft, or auto: chosen in every round (default: {DRAFT_LENGTH})"
        group.add_argument("-k", "--draft-length", type=parsing.length_or_auto, metavar="K", help=lengths)
        flags.add_rule_flag(group)
    return parser


@dataclass
class _Decoded:
    """The tokens decoded for all prompts so far; `seconds` and `counts` leave the prompts' own passes out."""

    setup: Setup
    args: argparse.Namespace
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    n_prompts: int = 0
    n_tokens: int = 0  # those of the prompts' own passes included

    @old_objects_frozen()
    def show(self, prompt: Prompt, rounds: Iterator[Round]) -> list[int]:
        """Print a prompt and its text.  -> new tokens"""
        tokens, text = [], streaming.Text(self.setup.pieces(prompt), self.args.stream)
        print(harmless(prompt_heading(prompt)), flush=self.args.stream)
        try:
            for round_ in self._timed(rounds):
                tokens += round_.tokens
                text.add(round_)
        finally:  # also before an error is printed
            text.end()
        return tokens

    def _timed(self, rounds: Iterator[Round]) -> Iterator[Round]:
        """Yield the rounds. Making them is timed; what is done with them is not."""
        start = time.perf_counter()
        for round_ in rounds:  # a round ends with its tokens on the host, so the device has nothing left to do
            self.n_prompts, self.n_tokens = self.n_prompts + round_.prefill, self.n_tokens + len(round_.tokens)
            if not round_.prefill:
                self.seconds += time.perf_counter() - start
            self.counts.add(round_)
            yield round_
            start = time.perf_counter()

    def speed(self) -> str:
        n_tokens = self.counts.n_emitted
        speed = f"{n_tokens / self.seconds:.1f} tok/s" if self.seconds and n_tokens else "no decoding to time"
        dropped = f"; {self.counts.n_after_eos} more after an end token were dropped" * bool(self.counts.n_after_eos)
        made = how_many(self.n_tokens, n_tokens, self.n_prompts)
        return f"\n{made} in {self.seconds:.2f} s: {speed}{dropped}"


def _begin(
    args: argparse.Namespace,
    setup: Setup,
    prompts: list[Prompt],
    settings: DecodeSettings,
    functions: LoopFunctions,
) -> tuple[Drafter | None, int]:
    """Make the draft, say what runs, and measure the costs that the draft chooses by.  -> the draft, its length"""
    drafter = args.choice.make(setup, args.seed) if args.choice else None
    check_prompts(setup.target, [drafter] if drafter else [], prompts, args.max_new_tokens)
    free_cores.look(setup)
    k, draft, notes = 0, [], []
    if drafter:
        typed = [] if args.typed_length in (None, parsing.AUTO) else [args.typed_length]
        notes = drafter.length_notes(args.choice.name, typed)
        drafter, k, about = with_length(drafter, args.choice.name, setup, args.draft_length)
        draft = [f"draft   {about}"]
    note("\n".join([setup.describe(), *draft, *describe_chat(prompts, setup.tokenizer), *functions.head(), *notes]))
    if drafter and drafter.costs is not None:
        measure_costs(functions, setup.target, drafter, [prompts[0].ids.to(setup.device)], settings)
    if drafter and args.stream and (legend := streaming.legend()):
        print(legend)
    return drafter, k


def _speculative(
    drafter: Drafter, setup: Setup, ids: Tensor, k: int, settings: DecodeSettings, functions: LoopFunctions
) -> Iterator[Round]:
    """Return the rounds of one prompt. ids: (1, prompt length)"""
    if drafter.needs_text:
        drafter.take_text(reference_text(functions.decode, setup.target, ids, k, settings))
    drafter.forget()  # all prompts have the same random numbers: what one of them taught must not decide in another
    return functions.rounds(setup.target, functions.adapt(drafter, k), ids, k, settings)


def _end(args: argparse.Namespace, setup: Setup, decoded: _Decoded, drafter: Drafter | None, k: int) -> None:
    """Say how the rounds went, and what they read."""
    if drafter:
        print(report.counts_summary(decoded.counts, args.choice.branches))
        if rule_of(args.rule).law:
            print(LOSSY.format(rule=args.rule, temperature=args.temperature))
    if args.verbose:
        draft = drafter.models[-1].model if drafter and drafter.models else None
        print(memory.describe(setup.target.model, draft, k, setup.target.length))
    if drafter:
        print("\n" + streaming.passes_line(decoded.n_tokens, decoded.counts))


def with_length(drafter: Drafter, name: str, setup: Setup, asked: int | str) -> tuple[Drafter, int, str]:
    """Return the drafter as it drafts at this length, the length that it has, and what the head of a run says of both.

    asked: a number of tokens, or auto: then it chooses in every round. name: the draft's, as it was typed.
    """
    about, auto = drafter.describe(name, setup.engine) or name, asked == parsing.AUTO
    drafter = drafter.with_draft(AutoLength) if auto else drafter
    [length] = drafter.lengths([LONGEST if auto else int(asked)])
    return drafter, length, about + (f"; chosen in the run, at most {length} tokens" if auto else f"; k = {length}")
