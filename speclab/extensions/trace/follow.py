"""Decodes a prompt with both loops, and keeps every round with its phases and the accept rule's numbers."""

import collections
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from speclab.core.clock import old_objects_frozen
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, DecodeSettings, Draft, Round, tokens_of
from speclab.core.sampling import Sampling
from speclab.extensions.trace.branches import positions_of_tree
from speclab.extensions.trace.decoding import Loaded
from speclab.extensions.trace.trace import Candidate, Position, Trace, trace
from speclab.lab.instruments import Loop, LoopFunctions, with_phases
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup

WARM = 12  # tokens of each loop before the clocks start: shapes that are new to the backend are slow
CANDIDATES = 8  # tokens that a picture of a sampled place shows


def decoded(found: Loaded, longest: int | None = None) -> Trace:
    """The decoding that flags ask for. longest: as `follow` takes it."""
    loops = (autoregressive_decode, found.functions)
    given = (found.setup, found.drafter, found.name, found.prompt, found.draft_length, found.settings)
    return follow(*given, *loops, longest=longest)


def follow(
    setup: Setup,
    drafter: Drafter,
    draft_name: str,
    prompt: Prompt,
    draft_length: int,
    settings: DecodeSettings,
    baseline: Loop,
    functions: LoopFunctions,
    longest: int | None = None,
) -> Trace:
    """The prompt decoded by both loops in turns, with times and details of every round.

    longest: how far `functions` may let the drafter draft, where they choose the length.
    """
    ids = prompt.ids.to(setup.device)
    target = setup.target.with_own_cache()  # both decode side by side

    def plain(settings: DecodeSettings) -> Iterator[Round]:
        return baseline(target, ids, settings, setup.chunk)

    def rounds(settings: DecodeSettings) -> Iterator[Round]:
        return detailed(functions, setup.target, functions.adapt(drafter, longest), ids, draft_length, settings)

    if drafter.needs_text:
        drafter.take_text(tokens_of(plain(settings)))
    warm = replace(settings, max_new_tokens=min(WARM, settings.max_new_tokens))
    for stream in (plain(warm), rounds(warm)):
        collections.deque(stream, maxlen=0)
    seen, plain_seen = in_turns(rounds(settings), plain(settings))
    described = {
        **setup.recorded,
        "draft": loading.short_name(loading.LAB_DRAFT) if draft_name == "model" else draft_name,
        "draft_length": draft_length,
        **vars(settings.sampling),
        "seed": settings.seed,
    }
    steps = [(token, seconds) for round_, seconds in plain_seen for token in round_.tokens]
    before = setup.ids_before(prompt)
    return trace([round_ for round_, _ in seen], steps, setup.tokenizer, prompt.text, before, described)


@old_objects_frozen()
def in_turns(*streams: Iterator[Round]) -> list[list[tuple[Round, float]]]:
    """Run all to their ends; the one that has used less time goes next, so that all meet the same state of the machine.

    A round takes the seconds of its phases, or what it took to come where it has none: what is looked up for the trace
    beside the phases does not count.

    -> of each stream its rounds, and the seconds after its first one at which they were there
    """
    seen: list[list[tuple[Round, float]]] = [[] for _ in streams]
    used, running = [0.0] * len(streams), set(range(len(streams)))
    while running:
        i = min(running, key=used.__getitem__)
        start = time.perf_counter()
        round_ = next(streams[i])
        elapsed = time.perf_counter() - start
        if not round_.prefill:
            used[i] += elapsed if round_.seconds is None else sum(round_.seconds.values())
        seen[i].append((round_, used[i]))
        if round_.finish is not None:
            running.remove(i)
    return seen


def detailed(functions: LoopFunctions, *args) -> Iterator[Round]:
    """Rounds with their phases and with every number that the accept rule used; `args` as `with_phases` takes them."""
    used: list = []

    def accept(*inputs) -> AcceptResult:
        used[:] = *inputs, functions.accept(*inputs)
        return used[-1]

    for round_ in with_phases(replace(functions, accept=accept), *args):  # no clock runs between two rounds
        yield round_ if round_.prefill else round_._replace(detail=positions_of(*used))


def positions_of(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, result: AcceptResult
) -> list[Position]:
    """Every drafted token of one row, then the next token. logits (1, n + 1, vocab) and uniforms are the rule's own."""
    if draft.parents is not None:
        return positions_of_tree(draft, logits, sampling, uniforms, result)
    n = draft.tokens.shape[1]
    ids = torch.cat([draft.tokens[0], result.next_token])  # (n + 1,)
    rows = torch.cat([torch.arange(n, device=ids.device), result.n_accepted])  # of the logits that judge each token
    target_probs = sampling.probs(logits)[0, rows, ids].tolist()
    top = logits[0, rows].argmax(-1).tolist()
    draft_probs = [1.0] * n if draft.probs is None else draft.probs[0, rows[:n], ids[:n]].tolist()
    columns = (ids.tolist(), target_probs, top, [*draft_probs, None], [*uniforms[0, :n].tolist(), None])
    found = [Position(*numbers) for numbers in zip(*columns, strict=True)]
    if sampling.greedy:
        return found
    likely = [candidates_of(draft, sampling.probs(logits)[0, row], i) for i, row in enumerate(rows.tolist())]
    return [place._replace(candidates=one) for place, one in zip(found, likely, strict=True)]


def candidates_of(draft: Draft, target_probs: Tensor, place: int) -> tuple[Candidate, ...]:
    """The tokens that the target or the draft finds most probable at this place of a chain, and the drafted one.

    target_probs: (vocab,). place: of a drafted token, or the number of drafted tokens.  -> at most CANDIDATES, by the
    larger of both probabilities
    """
    is_drafted = place < draft.tokens.shape[1]
    draft_probs = torch.zeros_like(target_probs)
    if is_drafted and draft.probs is not None:
        draft_probs = draft.probs[0, place].to(target_probs)
    elif is_drafted:
        draft_probs[draft.tokens[0, place]] = 1.0
    larger = torch.maximum(target_probs, draft_probs)
    ids = larger.topk(min(CANDIDATES, len(larger))).indices.tolist()
    drafted = draft.tokens[0, place : place + 1].tolist()
    ids = [*ids[: CANDIDATES - 1], *drafted] if set(drafted) - set(ids) else ids
    return tuple(
        Candidate(id_, target_probs[id_].item(), draft_probs[id_].item() if is_drafted else None)
        for id_ in ids
        if larger[id_] > 0
    )
