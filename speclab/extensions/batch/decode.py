"""`--batch B` of the two decoding scripts: all prompts at once, at most B side by side."""

import argparse

from speclab.batch.loops import autoregressive_decode_batch, speculative_decode_batch
from speclab.batch.rows import Request
from speclab.batch.select import batch_drafter, check_drafter, check_kind
from speclab.cli.output import LOSSY, how_many, prompt_heading
from speclab.cli.parsing import AUTO, at_least, first_given
from speclab.core.accept import rule_of
from speclab.core.clock import old_objects_frozen
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings
from speclab.drafts.kinds import is_tree
from speclab.lab.batching.decodings import BatchDecoding
from speclab.models.batched import BatchedModel, check_batch
from speclab.models.pieces import with_text
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present import report
from speclab.system.errors import UsageProblem
from speclab.system.terminal import harmless, note, progress

MOST_ROWS = 1024


def add_flag(parser: argparse.ArgumentParser) -> None:
    """--batch."""
    parser.add_argument(
        "-B",
        "--batch",
        type=at_least(1, MOST_ROWS),
        metavar="B",
        help="decode B prompts side by side; a row whose text has ended takes the next prompt",
    )


def check_flags(args: argparse.Namespace, *others: str) -> None:
    """Raise UsageProblem where --batch comes with a flag that looks at one text."""
    if args.batch is None:
        return
    if flag := first_given(args, "stream", "impl", "verbose", *others):
        raise UsageProblem(f"{flag} looks at one text, and --batch decodes several; leave one of the two out")
    if getattr(args, "draft_length", 0) == AUTO:
        raise UsageProblem("-k auto chooses by the costs of one text, and a batch has other costs; give -k a number")
    if hasattr(args, "draft"):
        check_kind(args.draft)


def run(
    args: argparse.Namespace,
    setup: Setup,
    prompts: list[Prompt],
    settings: DecodeSettings,
    drafter: Drafter | None = None,
    draft_length: int = 0,
) -> None:
    """Decode all prompts, print their texts in order, and how fast it was. Without a drafter: token by token."""
    check_batch(setup.target)
    if drafter:
        check_drafter(drafter)
    if len(prompts) < args.batch:
        note(f"{len(prompts)} prompts for {args.batch} rows: the others stay empty; give more prompts, or --limit 0")
    target = BatchedModel(setup.target, args.batch)
    requests = [Request(prompt.ids.to(setup.device), settings) for prompt in prompts]
    if drafter:
        accept, own = rule_of(args.rule).accept, batch_drafter(drafter, args.batch)
        rounds = speculative_decode_batch(target, own, requests, draft_length, accept)
    else:
        rounds = autoregressive_decode_batch(target, requests, setup.chunk)
    decoding = BatchDecoding(rounds, len(requests))
    with progress(len(requests), "text", "decoding") as bar, old_objects_frozen():
        while not decoding.done:
            n_left = decoding.n_left
            decoding.advance()
            for _ in range(n_left - decoding.n_left):
                bar.update()
    for number, prompt in enumerate(prompts):
        text = "".join(round_.text for round_ in with_text(decoding.rounds[number], setup.pieces(prompt)))
        print(harmless(f"{prompt_heading(prompt)}\n{text}"))
    print(speed(decoding, min(args.batch, len(prompts))))
    if drafter:
        print(report.counts_summary(decoding.counts, is_tree(args.draft)))
        if rule_of(args.rule).law:
            print(LOSSY.format(rule=args.rule, temperature=args.temperature))


def speed(decoding: BatchDecoding, at_once: int) -> str:
    """How fast, for all together and for one text. at_once: texts that were decoded side by side at most"""
    seconds, n_tokens = sum(made.seconds for made in decoding.passes), decoding.counts.n_emitted
    rate = f"{n_tokens / seconds:.1f} tok/s" if n_tokens else "no decoding to time"
    waits = decoding.between_tokens
    between = "" if waits is None else f", {1e3 * waits:.2f} ms between tokens"
    dropped = decoding.counts.n_after_eos
    return "\n".join(
        [
            f"\n{how_many(decoding.n_tokens, n_tokens, decoding.n_requests)} in {seconds:.2f} s, {at_once} at a time: "
            + f"{rate} in all"
            + f"; {dropped} more after an end token were dropped" * bool(dropped),
            f"a text: {decoding.latency:.2f} s from its prompt to its last token{between} (medians of "
            f"{len(decoding.texts)} texts)",
        ]
    )
