"""The command `decode`: it decodes all prompts at once, prints the texts and says how fast it was."""

import argparse
import statistics

from speclab.cli import flags, parsing
from speclab.cli.decoding import how_many, prompt_heading, with_length
from speclab.core.clock import old_objects_frozen
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings
from speclab.drafts import registry
from speclab.extensions.batch.decoding.batched_model import BatchedModel, check_batch
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.decoding.drafters import batch_drafter, check_drafter
from speclab.extensions.batch.decoding.loops import autoregressive_decode_batch, speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from speclab.models.pieces import with_text
from speclab.models.prompts import KINDS
from speclab.models.setup import Setup
from speclab.present import report
from speclab.system.terminal import harmless, note, progress

PROG = "python -m speclab.extensions.batch"
MOST_ROWS = 1024
NO_DRAFT = "none"  # of --draft
HELP = f"""Decodes all prompts at once, at most B side by side, prints the texts and says how fast it was.

    {PROG} decode                   # four prompts side by side, with the lab's draft model
    {PROG} decode -B 8 --limit 0    # all standard prompts, eight at a time
    {PROG} decode --draft none      # token by token, without a draft

The texts are those that each prompt has alone, in the prompts' order. A row whose text has ended takes the next prompt.
"""


def make_parser() -> argparse.ArgumentParser:
    parser = parsing.make_parser(HELP, f"{PROG} decode")
    flags.add_model_flags(parser)
    flags.add_text_flags(parser)
    group, rows = flags.add_decoding_flags(parser), parsing.at_least(1, MOST_ROWS)
    size = "prompts that are decoded side by side (default: %(default)s)"
    group.add_argument("-B", "--size", type=rows, default=4, metavar="B", help=size)
    kinds = f"as of optimized_speculative.py; {NO_DRAFT}: token by token (default: %(default)s)"
    flags.add_draft_flag(group, help=kinds)
    length = "tokens per draft (default: %(default)s)"
    group.add_argument("-k", "--draft-length", type=parsing.at_least(0), default=4, metavar="K", help=length)
    parser.set_defaults(device_map=None)
    return parser


def run(args: argparse.Namespace) -> int:
    if args.limit is None:  # so many of each of the standard kinds that no row stays empty
        args.limit = -(-args.size // len(KINDS))
    choice = None if args.draft == NO_DRAFT else registry.read(args.draft)
    if choice:
        choice.check_greedy(args.temperature == 0)
    setup, prompts = flags.load(args)
    check_batch(setup.target)
    drafter, about, k = None, "none: one token of each text in a pass", 0
    if choice:
        drafter = choice.make(setup, args.seed)
        check_drafter(choice.name, drafter)
        drafter, k, about = with_length(drafter, choice.name, setup, args.draft_length)
    registry.check_prompts(setup.target, [drafter] if drafter else [], prompts, args.max_new_tokens)
    note("\n".join([setup.describe(), f"draft   {about}", *flags.describe_chat(prompts, setup.tokenizer)]))
    if len(prompts) < args.size:
        note(f"{len(prompts)} prompts for {args.size} rows: the others stay empty; give more prompts, or --limit 0")
    eos = frozenset() if args.ignore_eos else setup.eos
    settings = DecodeSettings(args.max_new_tokens, setup.sampling, eos, args.seed)
    requests = [Request(prompt.ids.to(setup.device), settings) for prompt in prompts]
    decoding = decoded(setup, requests, args.size, drafter, k)
    for number, prompt in enumerate(prompts):
        text = "".join(round_.text for round_ in with_text(decoding.rounds[number], setup.pieces(prompt)))
        print(harmless(f"{prompt_heading(prompt)}\n{text}"))
    print(speed(decoding, min(args.size, len(prompts))))
    if drafter:
        print(report.counts_summary(decoding.counts, drafter.branches))
    return 0


def decoded(setup: Setup, requests: list[Request], n_rows: int, drafter: Drafter | None, k: int) -> BatchDecoding:
    """Decode all requests, `n_rows` at a time, with k drafted tokens a round; without a drafter token by token."""
    target = BatchedModel(setup.target, n_rows)
    if drafter:
        rounds = speculative_decode_batch(target, batch_drafter(drafter, n_rows), requests, k)
    else:
        rounds = autoregressive_decode_batch(target, requests, setup.chunk)
    decoding = BatchDecoding(rounds, len(requests))
    with progress(len(requests), "text", "decoding") as bar, old_objects_frozen():
        while not decoding.done:
            n_left = decoding.n_left
            decoding.advance()
            for _ in range(n_left - decoding.n_left):
                bar.update()
    return decoding


def speed(decoding: BatchDecoding, at_once: int) -> str:
    """Lines with the speed of all texts together, and of one. at_once: the most texts that were decoded side by side"""
    seconds, n_tokens = sum(made.seconds for made in decoding.passes), decoding.counts.n_emitted
    rate = f"{n_tokens / seconds:.1f} tok/s in all" if n_tokens else "no decoding to time"
    dropped, latency = decoding.counts.n_after_eos, statistics.median(decoding.latencies.values())
    more = f"; {dropped} more after an end token were dropped" * bool(dropped)
    return (
        f"\n{how_many(decoding.n_tokens, n_tokens)} in {seconds:.2f} s, {at_once} at a time: {rate}{more}\n"
        f"a text: {latency:.2f} s from its prompt to its last token (median of {len(decoding.latencies)})"
    )
