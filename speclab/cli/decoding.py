"""The two decoding scripts share this code around their loops, which are arguments: flags, loading, printing, speed."""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from speclab.cli import flags, parsing
from speclab.core.clock import old_objects_frozen
from speclab.core.counts import Counts
from speclab.core.rounds import DecodeSettings, Round
from speclab.drafts import registry
from speclab.drafts.lengths import LONGEST, AutoLength
from speclab.drafts.registry import check_prompts
from speclab.lab.instruments import Loop, LoopFunctions, reference_text
from speclab.lab.round_costs import measure_costs
from speclab.models.pieces import with_text
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present import report
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import harmless, note

NEW_TEXT = f"--- new text {'-' * 54}"  # the line between a prompt and what the target makes of it


@dataclass
class Loaded:
    """Decodings, ready to begin."""

    setup: Setup
    prompts: list[Prompt]
    drafter: Any  # a Drafter; None: of the baseline
    draft: str  # its name in tables and records
    draft_length: int  # with -k auto the longest
    settings: DecodeSettings
    functions: LoopFunctions


@reports_problems
def run(
    docstring: str, argv: list[str] | None, functions: LoopFunctions | None, baseline: Loop, speculative: Any = None
) -> int:
    """Run either script; without `speculative` it is the baseline.  -> exit code"""
    args = parse(docstring, argv, speculative is not None)
    found = load(args, functions or LoopFunctions(speculative or baseline))
    setup, drafter, k, functions = found.setup, found.drafter, found.draft_length, found.functions
    decoded, n_wrong = _Decoded(setup, args), 0
    for prompt in found.prompts:
        ids = prompt.ids.to(setup.device)
        if drafter:
            if drafter.needs_text:
                drafter.take_text(reference_text(functions.decode, setup.target, ids, k, found.settings))
            drafter.forget()  # all prompts have the same random numbers: what one taught must not decide in another
            rounds = functions.rounds(setup.target, functions.adapt(drafter, k), ids, k, found.settings)
        else:
            rounds = baseline(setup.target, ids, found.settings, setup.chunk)
        tokens = decoded.show(prompt, rounds)
        n_wrong += not functions.is_right(setup, prompt, found.settings, tokens)
    print(decoded.speed())
    if drafter:
        print(report.counts_summary(decoded.counts, drafter.branches))
        if functions.rule.law:
            how_far = f"python compare.py --rule {args.rule.name} --temperature {args.temperature:g}"
            print(f"LOSSY: the texts leave the target's distribution; {how_far} says by how much")
        n_passes, n = decoded.counts.n_rounds + decoded.counts.n_replays, decoded.counts.n_emitted
        print(f"\n{n} tokens were decoded in {n_passes} passes of the target; one by one it takes {n}")
    return int(n_wrong > 0)


def parse(docstring: str, argv: list[str] | None, speculative: bool) -> argparse.Namespace:
    """Return the flags of either script. Raises UsageProblem for words that it does not know."""
    parser = parsing.make_parser(docstring)
    flags.add_shared_flags(parser)
    group = flags.add_decoding_flags(parser)
    group.add_argument("--stream", action="store_true", help="print the text as it is committed")
    if speculative:
        group = parser.add_argument_group("draft")
        flags.add_draft_flag(group)
        lengths = "tokens per draft, or auto: chosen in every round (default: %(default)s)"
        group.add_argument("-k", "--draft-length", type=parsing.length_or_auto, default=4, metavar="K", help=lengths)
        flags.add_rule_flag(group)
    parser.set_defaults(limit=1)
    return parser.parse_args(argv)


def load(args: argparse.Namespace, functions: LoopFunctions) -> Loaded:
    """Load what the flags of a decoding ask for, check it, say what runs, and measure costs that a draft chooses by."""
    choice = registry.read(args.draft) if "draft" in args else None
    if choice:
        flags.check_rule(args.rule, [args.temperature], [choice])
        if choice.only_greedy and args.temperature:
            raise UsageProblem(choice.only_greedy)
        if args.draft_length == parsing.AUTO:
            choice.check_auto()
        functions = functions.judged_by(args.rule)
    setup, prompts = flags.load(args)
    eos = frozenset() if args.ignore_eos else setup.eos
    settings = DecodeSettings(args.max_new_tokens, setup.sampling, eos, args.seed)
    drafter, name, k, said = None, "", 0, []
    if choice:
        name, drafter, auto = choice.name, choice.make(setup, args.seed), args.draft_length == parsing.AUTO
        about = drafter.describe(name, setup.engine) or name
        drafter = drafter.with_draft(AutoLength) if auto else drafter
        [k] = drafter.lengths([LONGEST if auto else args.draft_length])
        said = [f"draft   {about}; " + (f"chosen in the run, at most {k} tokens" if auto else f"k = {k}")]
    check_prompts(setup.target, [drafter] if drafter else [], prompts, args.max_new_tokens)
    chat = flags.describe_chat(prompts, setup.tokenizer)
    note("\n".join([setup.describe(), *said, *chat, *functions.head()]))
    if drafter and drafter.costs is not None:
        measure_costs(functions, setup.target, drafter, [prompts[0].ids.to(setup.device)], settings)
    return Loaded(setup, prompts, drafter, name, k, settings, functions)


@dataclass
class _Decoded:
    """The tokens decoded for all prompts so far; `seconds` and `counts` leave the prompts' own passes out."""

    setup: Setup
    args: argparse.Namespace
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    n_tokens: int = 0  # those of the prompts' own passes included

    @old_objects_frozen()
    def show(self, prompt: Prompt, rounds: Iterator[Round]) -> list[int]:
        """Print a prompt and its text, with --stream round by round.  -> new tokens"""
        tokens, line_end = list[int](), "" if prompt.text.endswith("\n") else "\n"
        print(harmless(f"\n=== {prompt.kind} {'=' * 60}\n{prompt.text}{line_end}{NEW_TEXT}"), flush=True)
        try:
            for round_ in with_text(self._timed(rounds), self.setup.pieces(prompt)):
                tokens += round_.tokens
                print(harmless(round_.text), end="", flush=self.args.stream)
        finally:  # also before an error is printed
            print(flush=True)
        return tokens

    def _timed(self, rounds: Iterator[Round]) -> Iterator[Round]:
        start = time.perf_counter()
        for round_ in rounds:  # a round ends with its tokens on the host, so the device has nothing left to do
            self.n_tokens += len(round_.tokens)
            if not round_.prefill:
                self.seconds += time.perf_counter() - start
            self.counts.add(round_)
            yield round_
            start = time.perf_counter()

    def speed(self) -> str:
        n_tokens = self.counts.n_emitted
        speed = f"{n_tokens / self.seconds:.1f} tok/s" if self.seconds and n_tokens else "no decoding to time"
        dropped = f"; {self.counts.n_after_eos} more after an end token were dropped" * bool(self.counts.n_after_eos)
        counted = f"{self.n_tokens} tokens, {n_tokens} of them decoded after the prompts' own passes"
        return f"\n{counted} in {self.seconds:.2f} s, from a cold start: {speed}{dropped}"
