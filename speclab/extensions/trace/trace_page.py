"""Makes one HTML page of a decoding, round by round. The page needs no network."""

import base64
import hashlib
from pathlib import Path
from typing import Any

from speclab.extensions.trace.trace import Event, Token, Trace
from speclab.extensions.trace.trace_terminal import agreement, meanings, milliseconds, outcome, summary, times
from speclab.present.run_lines import REJECTED_PLACES
from speclab.system.terminal import harmless

TEMPLATES = Path(__file__).parent / "templates"
SIGNS = {"first": "▪", "plain": "·", "accepted": "✓", "corrected": "▸", "bonus": "★", "rejected": "✗"}
SIGNS |= {"untested": "?", "after_eos": "|"}


def page(trace: Trace) -> str:
    """One HTML file: no network, no script but its own."""
    return render("trace.html", trace)


def render(template: str, trace: Trace | None, **more: Any) -> str:
    """A page with this trace, or with none; `more` is what the template shows beside it. Every text is escaped."""
    import jinja2  # here: decoding needs no templates
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(visible=visible, harmless=harmless, ms=lambda s: f"{1000 * s:.2f}")
    style, script = ((TEMPLATES / f"trace.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return environment.get_template(template).render(
        trace=trace,
        rejected_places=REJECTED_PLACES,
        style=markupsafe.Markup(style),
        script=markupsafe.Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        signs=SIGNS,
        **({} if trace is None else _shown(trace)),
        **more,
    )


def _shown(trace: Trace) -> dict[str, Any]:
    """What the template shows of a trace."""
    head, tail = split_prompt(trace.prompt)
    return {
        "settings": trace.settings,
        "lines": [summary(trace), f"{times(trace)} {agreement(trace)}"],
        "head": head,
        "tail": tail,
        "data": _page_data(trace),
        "meanings": meanings(trace),
    }


def visible(text: str) -> str:
    """A token for a narrow place, on one line: blanks and line ends as signs."""
    signs = str.maketrans({" ": "·", "\n": "↵", "\t": "→"})
    return harmless(text).translate(signs) or "◌"


def split_prompt(prompt: str, n_lines: int = 4, n_chars: int = 320) -> tuple[str, str]:
    """A long prompt's head, which the page folds away, and the end that stays in view."""
    lines = prompt.split("\n")
    tail = "\n".join(lines[-n_lines:])[-n_chars:]
    return (prompt[: -len(tail)], tail) if len(prompt) > len(tail) > 0 else ("", prompt)


def _page_data(trace: Trace) -> dict[str, Any]:
    """The page's script draws this: rounds, then the baseline's clock. Texts are one-line pictures of tokens."""

    def row(token: Token) -> list[Any]:
        """Text, kind, outcome; then what the rule used: greedy the target's first choice, otherwise p, q and u."""
        tested = token.kind in ("accepted", "rejected")
        used: list[Any] = [visible(token.top)] if tested else []
        if not trace.greedy:
            position = token.position
            used = [position.target_prob, position.draft_prob, position.uniform] if position else [None] * 3
            used = list(map(_rounded, used))
        return [visible(token.text), token.kind, outcome(token, trace.greedy) if tested else "", *used]

    rounds = []
    for event in trace.events:
        own = event.tokens[event.n_accepted :]
        rounds.append(
            {
                "drafts": [row(token) for token in event.drafts],
                "children": event.children,
                "own": row(own[0]) if own else None,
                "phases": [_rounded(event.seconds[name]) for name in ("draft", "verify", "other")],
                "end": _rounded(event.end),
                "tokens": event.n_tokens,
                "line": round_line(event, trace.baseline_tokens(event.end)),
            }
        )
    clock = [_rounded(seconds) for _, seconds in trace.baseline]
    return {"rounds": rounds, "baseline": clock, "greedy": trace.greedy, "signs": SIGNS, "meanings": meanings(trace)}


def _rounded(number: float | None) -> float | None:
    """To as many digits as a picture can show."""
    return None if number is None else float(f"{number:.9g}")


def round_line(event: Event, baseline_tokens: int) -> str:
    """A line that a screen reader reads aloud says what a round did."""
    if event.number == 0:
        return "The first token comes from the prompt's own pass. Both clocks start here."
    return (
        f"Round {event.number}: drafted {len(event.drafts)}, kept {event.n_accepted}; {event.n_tokens} tokens after "
        f"{milliseconds(event.end)}, the baseline has {baseline_tokens}."
    )
