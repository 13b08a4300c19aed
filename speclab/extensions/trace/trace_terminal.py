"""Makes lines for the terminal of a decoding, round by round; the page shows some of these lines, too."""

import json
import sys

from speclab.extensions.trace.trace import TIMED, Token, Trace
from speclab.system.terminal import harmless

MEANINGS = {  # what happened to a token
    "first": "from the prompt's own pass",
    "plain": "nothing was drafted: an ordinary step of the target",
    "accepted": "drafted, and kept",
    "corrected": "the target's own, in place of a rejected draft",
    "bonus": "the target's own, after all drafts, or a branch to its end, were kept",
    "rejected": "drafted, and rejected",
    "untested": "drafted after a rejected one or beside a kept one, never tested",
    "after_eos": "drafted after the end of the text",
}
SIGNS = {"first": "^", "plain": ".", "accepted": "+", "corrected": ">", "bonus": "*", "rejected": "x"}
SIGNS |= {"untested": "?", "after_eos": "|"}
HAD = "had/baseline: tokens of this text and of the baseline's at the end of the round"
OF_TREES = "tokens: the accepted branch, what was rejected at its end, the target's own; a page draws the tree"


def terminal(trace: Trace) -> str:
    """A line per round: its phases, the tokens that this decoding and the baseline had by then, what was kept, what was
    rejected, and what came from the target."""

    signs = [f"{SIGNS[kind]}  {meaning}" for kind, meaning in MEANINGS.items() if kind in trace.kinds]
    lines = ["", "signs   " + "\n        ".join(signs), HAD, *[OF_TREES] * trace.has_trees]
    lines += ["", "round  kept    draft   verify    other ms  had/baseline  tokens"]
    for event in trace.events:
        kept = f"{event.n_accepted}/{len(event.drafts)}" if event.drafts else "-"
        phases = "  ".join(f"{1000 * event.seconds[name]:7.2f}" for name in ("draft", "verify", "other"))
        phases = phases if event.number else " " * len(phases)
        had = f"{event.n_tokens}/{trace.baseline_tokens(event.end)}"
        rejected = [] if trace.greedy else [token for _, token in event.rejected]
        told = [t for t in event.drafts if t.against_rule or t in rejected]
        why = "".join(f"   {outcome(token, trace.greedy)}" for token in told).replace("×", "x")
        tokens = " ".join(SIGNS[token.kind] + ascii_quoted(token.text) for token in event.in_order)
        lines.append(f"{event.number:5}  {kept:>4}  {phases}     {had:>12}  {tokens}{why}")
    return "\n".join([*lines, "", summary(trace), times(trace), agreement(trace)]) + "\n"


def ascii_quoted(text: str) -> str:
    unicode = "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()
    return json.dumps(harmless(text), ensure_ascii=not unicode) if text else '"..."'


# --- lines, here and on the page --------------------------------------------------------------------------------------


def outcome(token: Token, greedy: bool) -> str:
    """The line says how the accept rule judged a drafted token, and on which numbers that rests."""
    position = token.position
    if position is None or position.uniform is None or position.draft_prob is None:
        return ""
    if greedy:
        reason = f"the target's first choice is {'the same' if position.passes else 'another'}"
    else:
        product, target = _told_apart(position.uniform * position.draft_prob, position.target_prob)
        reason = f"u × q = {product} is {'' if position.passes else 'not '}below p = {target}"
    return f"{token.kind}{', against the rule' if token.against_rule else ''}: {reason}"


def _told_apart(left: float, right: float) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see which is smaller, three at least."""
    for digits in range(3, 18):
        written = f"{left:.{digits}g}", f"{right:.{digits}g}"
        if (float(written[0]) < float(written[1])) == (left < right):
            break
    return written


def milliseconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f} ms"


def summary(trace: Trace) -> str:
    counts = trace.counts
    places = f" place{'s' * (counts.n_rejected != 1)}" * trace.has_trees
    rejected = f"{counts.n_rejected}{places}"
    per_round = "-" if counts.tokens_per_round is None else f"{counts.tokens_per_round:.2f}"
    replays = f", {counts.n_replays} replay{'s' * (counts.n_replays != 1)}" * bool(counts.n_replays)
    return (
        f"{counts.n_rounds} rounds, {counts.n_drafted} drafted, {counts.n_accepted} accepted, "
        f"{rejected} rejected, {per_round} tokens per round{replays}"
    )


def times(trace: Trace) -> str:
    """How long both took, without the word speedup: one run with timers in it is no measurement."""
    return (
        f"After the first token: {trace.events[-1].n_tokens - 1} tokens in {milliseconds(trace.events[-1].end)}, the "
        f"baseline's {len(trace.baseline) - 1} in {milliseconds(trace.baseline[-1][1])}. {TIMED}"
    )


def agreement(trace: Trace) -> str:
    if trace.same_text:
        return "Both texts are the same."
    if not trace.greedy:
        return "The texts may differ: both are draws from the same distribution."
    return "The texts differ. compare.py says whether rounding explains that."
