#!/usr/bin/env python3
"""Speculative decoding: a cheap draft proposes k tokens, one pass of the target checks them all.

What comes out: the same text as baseline_autoregressive.py (same distribution, when sampling), the tokens per second,
and how the rounds went: drafted, accepted, tokens per round, and a histogram of accepted lengths.

    python optimized_speculative.py
    python optimized_speculative.py -k 6 --prompt "def read_config(path):" --stream
    python optimized_speculative.py --draft ngram --temperature 0.8 --seed 1
    python optimized_speculative.py --trace trace.html        # look at every round in a browser; - for the terminal

`diff baseline_autoregressive.py optimized_speculative.py` is the lesson; what is new carries `# NEW`.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from draft_models import Drafter, ModelDrafter, OracleDraft, add_draft_flag, check_prompts, make_drafter  # NEW
from speclab.cli import options, trace_output
from speclab.core.clock import Stopwatch
from speclab.core.sampling import (  # NEW: also Draft, AcceptResult
    AcceptResult,
    Draft,
    Sampling,
    draw_next,
    to_host,
    uniforms,
    verify,
)
from speclab.lab.detail import Detail
from speclab.learner import functions  # NEW
from speclab.models import memory
from speclab.models.cached import CachedModel, check_prompt, tokens_to_keep  # NEW: tokens_to_keep
from speclab.present import report  # NEW
from speclab.system.errors import reports_problems
from speclab.theory.formulas import Counts  # NEW


class Round(NamedTuple):  # NEW
    """What one round did. Counts only: every ratio is computed from them in speclab/theory/formulas.py."""

    tokens: list[int]  # committed now, in order
    n_drafted: int = 0
    n_accepted: int = 0  # drafted tokens among `tokens`
    n_rejected: int = 0  # 1 if the target refused one, else 0
    prefill: bool = False  # the first token: it comes from the prompt's own pass
    finish: str | None = None  # "eos" or "length" in the last round
    seconds: dict[str, float] | None = None  # by phase, when asked for
    detail: Detail | None = None  # every number the rule used, for pictures (speclab/lab/detail.py)


class Rules(NamedTuple):  # NEW
    """The two decisions of a round, as functions. A reader's own can take their place (exercises/)."""

    verify: Callable[[Draft, Tensor, Sampling, Tensor], AcceptResult] = verify
    tokens_to_keep: Callable[[int, int], int] = tokens_to_keep


def speculative_decode(
    target: CachedModel,
    drafter: Drafter,  # NEW
    prompt: Tensor,
    draft_length: int,  # NEW
    max_new_tokens: int,
    sampling: Sampling = Sampling(),
    generator: torch.Generator | None = None,
    eos: frozenset[int] = frozenset(),
    time_phases: bool = False,
    rules: Rules = Rules(),  # NEW
) -> Iterator[Round]:
    """Yield rounds that continue `prompt` (1, prompt length) by up to `max_new_tokens` ids in all.

    No `generator` means one with seed 0.
    `draft_length` 0 is plain decoding. Stops after an id in `eos`, also inside a block. `time_phases` waits for the
    device after every phase, so a run with it is slower than one without.
    """
    check_prompt(target, prompt, max_new_tokens)
    if max_new_tokens == 0:
        return
    generator = generator or torch.Generator(target.device).manual_seed(0)

    watch = Stopwatch(target.device, running=time_phases)
    logits = target.prefill(prompt, rolls_back=True)  # prefill: (1, 1, vocab)
    token = draw_next(logits[:, -1], sampling, uniforms((1,), generator, target.device))  # (1,)
    committed = to_host(token)
    drafter.prefill(target, prompt, sampling)  # NEW
    drafter.observe(0, committed)  # NEW
    n_prompt, n_committed = prompt.shape[1], 1
    watch.lap("prefill")
    finish = "eos" if committed[0] in eos else "length" if max_new_tokens == 1 else None
    yield Round(committed, prefill=True, finish=finish, seconds=watch.laps or None)

    while finish is None:
        watch = Stopwatch(target.device, running=time_phases)
        # 1. Draft. A round commits one token more than it accepts, so never draft more than what is left but one. # NEW
        k = min(draft_length, max_new_tokens - n_committed - 1)
        chances = uniforms((1, 2 * k + 1), generator, target.device)
        watch.lap("host")
        draft = drafter.propose(k, chances[:, :k])
        n_drafted = draft.tokens.shape[1]  # an n-gram drafter may propose fewer than k
        watch.lap("draft")

        # 2. Verify: one target pass over the last committed token and the drafted ones. # NEW
        last = torch.tensor([committed[-1:]], device=target.device)
        logits = target.forward(torch.cat([last, draft.tokens], dim=1))  # (1, n_drafted + 1, vocab)
        watch.lap("verify")

        # 3. Accept or reject, and fetch what was decided: the one host synchronisation of the round. # NEW
        verdict = rules.verify(draft, logits, sampling, chances[:, k : k + n_drafted + 1])
        *drafted, next_token, n_accepted = to_host(torch.cat([draft.tokens[0], verdict.next_token, verdict.n_accepted]))
        committed = [*drafted[:n_accepted], next_token]
        n_committed += len(committed)
        watch.lap("accept")

        # 4. Roll back both caches to all but the last committed token. # NEW
        target.crop(rules.tokens_to_keep(target.length, n_prompt + n_committed))
        drafter.observe(n_accepted, committed)
        watch.lap("rollback")

        n_rejected = int(n_accepted < n_drafted)
        finish = "length" if n_committed == max_new_tokens else None
        for i, token_id in enumerate(committed):
            if token_id in eos:  # what stands behind it was never said, and a verdict on it does not count
                committed, finish = committed[: i + 1], "eos"
                if i < n_accepted:
                    n_accepted, n_rejected = i + 1, 0
                break
        watch.lap("host")
        yield Round(committed, n_drafted, n_accepted, n_rejected, finish=finish, seconds=watch.laps or None)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = options.make_parser(__doc__)
    options.add_shared_flags(parser)
    options.add_decoding_flags(parser)
    add_draft_flag(parser)  # NEW
    parser.add_argument(
        "-k", "--draft-length", type=options.at_least(0), default=4, help="tokens per draft (default: 4)"
    )
    options.add_impl_flag(parser)
    trace_output.add_flags(parser)  # NEW
    args = parser.parse_args(argv)
    trace_output.check_path(args.trace)  # NEW
    theirs = functions.load(args.impl, functions.of_decoding(args))  # NEW: your functions, where --impl asks for them

    setup = options.load(args)
    drafter = make_drafter(args.draft, setup, args.seed)  # NEW
    prompts = options.read_prompts(args, setup.tokenizer)
    check_prompts(setup.target, [drafter], prompts, args.max_new_tokens)  # NEW
    eos = frozenset() if args.ignore_eos else setup.eos
    if args.trace or args.trace_shapes:  # NEW
        from speclab.lab import tracing  # here, because it runs this loop too
    if args.trace_shapes:  # NEW
        return tracing.print_shapes(args, setup, drafter, prompts[0], theirs)
    counts, seconds, n_wrong = Counts(), 0.0, 0
    options.note("\n".join([setup.describe(), *theirs.describe()]))
    decode = theirs.decoder(speculative_decode, Rules)  # NEW
    for prompt in prompts:
        if isinstance(drafter, OracleDraft):  # NEW: the instrument needs to know the right answer
            ids = prompt.ids.to(setup.device)
            drafter.replay(list(autoregressive_decode(setup.target, ids, args.max_new_tokens, eos=eos)))
        generator = torch.Generator(setup.device).manual_seed(args.seed)
        watch = Stopwatch(setup.device)
        text = options.TextWriter(setup.tokenizer, prompt, stream=args.stream)
        for round_ in decode(
            setup.target,
            theirs.drafter(drafter, args.draft_length),
            prompt.ids.to(setup.device),
            args.draft_length,
            args.max_new_tokens,
            setup.sampling,
            generator,
            eos,
        ):
            watch.lap("prefill" if round_.prefill else "decode")
            counts.add(round_)
            text.add(round_.tokens)
            watch.lap("print")
        watch.lap("decode")
        text.close()
        seconds += watch.laps.get("decode", 0.0)
        if theirs:  # NEW: your functions may pass their checks and still make a wrong text
            n_wrong += not theirs.same_text(setup, prompt, autoregressive_decode, text.tokens, args, eos)

    speed = options.rate(counts.n_emitted, seconds)
    print(f"\n{counts.n_emitted} tokens decoded in {seconds:.2f} s: {speed} (prefill apart)")
    print(report.counts_summary(counts))  # NEW
    if args.verbose:
        draft = drafter.draft.model if isinstance(drafter, ModelDrafter) else None  # NEW
        print(memory.describe(setup.target.model, draft, args.draft_length, setup.target.length))
    if args.trace:  # NEW: the first prompt once more, looked at and drawn
        tracing.draw(args, setup, drafter, prompts[0], eos, theirs)
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
