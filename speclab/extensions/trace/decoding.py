"""What the commands of this folder load for one decoding: models, a prompt, a draft."""

import argparse
from dataclasses import dataclass

from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.cli.decoding import with_length
from speclab.cli.output import describe_chat
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings
from speclab.drafts import registry
from speclab.drafts.choice import Choice
from speclab.drafts.registry import check_prompts
from speclab.lab import free_cores
from speclab.lab.instruments import LoopFunctions
from speclab.lab.round_costs import measure_costs
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.terminal import note


@dataclass
class Loaded:
    """One decoding, ready to begin."""

    setup: Setup
    drafter: Drafter
    choice: Choice  # the draft
    prompt: Prompt
    draft_length: int  # with -k auto the longest
    settings: DecodeSettings
    functions: LoopFunctions
    head: list[str]  # lines that say what runs, and on what

    @property
    def name(self) -> str:
        """The draft's name, as tables and records have it."""
        return self.choice.name


def load(args: argparse.Namespace, functions: LoopFunctions | None = None) -> Loaded:
    """Load what the flags ask for, and check it. The first of the given prompts is decoded.

    functions: the parts of the loop; None: the lab's own.
    """
    choice = registry.read(args.draft)
    functions = functions or LoopFunctions(speculative_decode)
    choice.check_greedy(args.temperature == 0)
    if args.draft_length == parsing.AUTO:
        choice.check_auto()
    typed_limit, args.limit = args.limit, 1
    setup, prompts = flags.load(args)
    drafter = choice.make(setup, args.seed)
    check_prompts(setup.target, [drafter], prompts[:1], args.max_new_tokens)
    if len(prompts) > 1 and (args.prompt or args.prompts or typed_limit):
        note("the first prompt is decoded")
    free_cores.look(setup)
    eos = frozenset() if args.ignore_eos else setup.eos
    settings = DecodeSettings(args.max_new_tokens, setup.sampling, eos, args.seed)
    drafter, length, about = with_length(drafter, choice.name, setup, args.draft_length)
    head = [setup.describe(), f"draft   {about}", *describe_chat(prompts[:1], setup.tokenizer), *functions.head()]
    if drafter.costs is not None:
        measure_costs(functions, setup.target, drafter, [prompts[0].ids.to(setup.device)], settings)
        drafter.forget()
    return Loaded(setup, drafter, choice, prompts[0], length, settings, functions, head)
