"""Makes the rows of a record from the lines of the log. This is the only place where a measurement becomes a ratio."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from speclab.core.counts import Counts
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm
from speclab.records.log import SUMS, Line, RoundCounts
from speclab.records.rows import OwnRate, Row
from speclab.theory.formulas import book_formula, ratio_interval


def rows_of(log: list[Line], common: dict[str, Any]) -> list[Row]:
    """Return all rows of a comparison, without what costs and texts would add to them: predictions, verdicts,
    agreement.

    common: target, device and dtype.
    """
    return [row for _, kind, lines in groups_of(log) for row, *_ in rows_of_group(lines, common, kind)]


class Group(NamedTuple):
    """The lines of one group of prompts at one temperature."""

    temperature: float
    kind: str  # "all" or a kind of prompts
    lines: dict[Arm, list[Line]]


def groups_of(log: list[Line]) -> Iterator[Group]:
    """Return the groups that get rows of their own: all prompts, and each kind."""
    for temperature in dict.fromkeys(line.temperature for line in log):
        for kind, members in groups(log).items():
            lines: dict[Arm, list[Line]] = {}
            for line in log:
                if line.temperature == temperature and line.prompt_index in members:
                    lines.setdefault(line.arm, []).append(line)
            yield Group(temperature, kind, lines)


def rows_of_group(
    lines: dict[Arm, list[Line]], common: dict[str, Any], kind: str
) -> Iterator[tuple[Row, Arm, list[Line]]]:
    """Return the row of every arm of a group but the baseline's second run, with the arm and its lines."""
    for arm, its_lines in lines.items():
        if arm != BASELINE_REPEAT:
            yield build_row(arm, its_lines, lines[BASELINE], common, kind), arm, its_lines


def build_row(arm: Arm, lines: list[Line], baseline: list[Line], common: dict[str, Any], kind: str) -> Row:
    """Build the row of one arm beside the baseline on the same prompts.

    lines: the lines of `arm`, all at one temperature. common: target, device and dtype. kind: the name of this group of
    prompts. A prompt that one side has not decoded does not count.
    """
    by_prompt = {line.prompt_index: line for line in lines}
    pairs = [(b, by_prompt[b.prompt_index]) for b in baseline if b.prompt_index in by_prompt]
    counts = Counts()
    for _, line in pairs:
        counts.merge(line.counts)
    # model.generate cannot be split into prefill and decoding, so it is compared end to end.
    end_to_end = arm.method == "generate"
    baseline_seconds = [b.seconds + end_to_end * sum(b.prefill_seconds) for b, _ in pairs]
    arm_seconds = [s.seconds + end_to_end * sum(s.prefill_seconds) for _, s in pairs]
    before, seconds = sum(baseline_seconds), sum(arm_seconds)
    low, high = ratio_interval(baseline_seconds, arm_seconds) or (None, None)
    baseline_prefill, prefill = (sum(sum(s.prefill_seconds) for s in side) for side in zip(*pairs, strict=True))
    acceptance_rate, fraction = counts.acceptance_rate, counts.drafted_fraction
    one_length = None if arm.auto or arm.branches else arm.draft_length  # the formula knows one length, and no branches
    distances = [s.distance for _, s in pairs if s.distance is not None]
    own = [s.own_rates for _, s in pairs if s.own_rates]
    sums = {name: sum(rates[name] for rates in own) for name in own[0]} if 0 < len(own) == len(pairs) else {}
    has_rounds = bool(arm.draft) and all(s.rounds for _, s in pairs)
    has_texts = lines[0].temperature == 0 and all(line.texts for pair in pairs for line in pair)
    return Row(
        method=arm.method,
        draft=arm.draft or None,
        draft_length=arm.draft_length,
        temperature=lines[0].temperature,
        prompt_kind=kind,
        **{name: getattr(counts, name) for name in SUMS},
        n_replays=counts.n_replays or None,
        **common,
        n_prompts=len(pairs),
        n_tokens=counts.n_emitted,
        seconds=seconds,
        prefill_seconds=prefill,
        tokens_per_second=counts.n_emitted / seconds,
        speedup=before / seconds,
        speedup_low=low,
        speedup_high=high,
        speedup_with_prefill=before / seconds if end_to_end else (before + baseline_prefill) / (seconds + prefill),
        accepted_lengths=[counts.accepted_lengths[i] for i in range(arm.draft_length + 1)] if has_rounds else None,
        n_without_drafts=counts.n_without_drafts if has_rounds else None,
        acceptance_rate=acceptance_rate,
        drafted_fraction=fraction,
        tokens_per_round=counts.tokens_per_round if arm.speculative else None,
        book_formula=book_formula(acceptance_rate, one_length) if acceptance_rate is not None and one_length else None,
        book_formula_drafted_fraction=book_formula(fraction, one_length)
        if fraction is not None and one_length
        else None,
        lossy_rule=lines[0].lossy_rule,
        total_variation=sum(distances) / counts.n_emitted if len(distances) == len(pairs) else None,
        own_rates=[OwnRate(name=name, mean=total / counts.n_emitted) for name, total in sums.items()] or None,
        same_as_baseline=all(b.texts == s.texts for b, s in pairs) if has_texts else None,
    )


def ended(log: list[Line]) -> list[Line]:
    """Return the greedy lines as they would be if every answer had stopped at its end token.

    A text that ends elsewhere than the baseline's, which a near-tie may cause, is left out, and so is an answer of one
    token, which is decoded by the pass over the prompt.
    """
    right = {line.prompt_index: line for line in log if line.arm == BASELINE and line.temperature == 0}
    found = []
    for line in log:
        baseline = right.get(line.prompt_index)
        if baseline and line.temperature == 0 and line.ends and baseline.ends:
            lengths = [end.n_tokens for end in line.ends]
            if min(lengths) > 1 and lengths == [end.n_tokens for end in baseline.ends]:
                found.append(_up_to_its_ends(line))
    return found


def _up_to_its_ends(line: Line) -> Line:
    """Return a line whose rounds, counts and seconds are those up to the end of each of its texts."""
    rounds = [_up_to(end.n_tokens, made) for end, made in zip(line.ends, line.rounds, strict=bool(line.draft))]
    rounds = rounds if line.draft else []
    made = [one for of_text in rounds for one in of_text]
    n_emitted = sum(end.n_tokens - 1 for end in line.ends)
    found = replace(line, rounds=rounds, texts=[], decode_seconds=[end.seconds for end in line.ends], n_replays=None)
    found.n_emitted = found.n_rounds = n_emitted
    if line.draft:
        n_cut = sum(_ends_inside(end.n_tokens, of_text) for end, of_text in zip(line.ends, rounds, strict=True))
        found.n_rounds = len(made)
        found.n_drafted, found.n_accepted = sum(o.n_drafted for o in made), sum(o.n_accepted for o in made)
        found.n_rejected = sum(one.n_accepted < one.n_drafted for one in made) - n_cut
    return found


def _up_to(n_tokens: int, rounds: list[RoundCounts]) -> list[RoundCounts]:
    """Return the rounds that make a text of so many tokens. In the last one, drafted tokens behind the end are not
    accepted."""
    kept, n_made = [], 1  # the pass over the prompt makes the first token
    for made in rounds:
        if n_made >= n_tokens:
            break
        kept.append(made._replace(n_accepted=min(made.n_accepted, n_tokens - n_made)))
        n_made += made.n_accepted + 1
    return kept


def _ends_inside(n_tokens: int, rounds: list[RoundCounts]) -> bool:
    """Tell whether an accepted token ends the text with drafted ones behind it, about which nothing was decided."""
    last = rounds[-1]
    n_before = 1 + sum(made.n_accepted + 1 for made in rounds[:-1])
    return n_before + last.n_accepted == n_tokens and last.n_accepted < last.n_drafted


def groups(log: list[Line]) -> dict[str, set[int]]:
    """Return the names of the groups of prompts that get rows of their own, and the indexes of their prompts."""
    kinds = {s.prompt_index: s.prompt_kind for s in log}
    members = {"all": set(kinds)}
    if len(set(kinds.values())) > 1:
        for index, kind in kinds.items():
            members.setdefault(kind, set()).add(index)
    return members


def halves(prompts: Iterable[tuple[str, int]]) -> set[int]:
    """Return the indexes of the prompts that are held out, from (kind, index) pairs: every second one of each kind."""
    by_kind: dict[str, dict[int, None]] = {}
    for kind, index in prompts:
        by_kind.setdefault(kind, {})[index] = None
    return {index for indexes in by_kind.values() for index in list(indexes)[1::2]}
