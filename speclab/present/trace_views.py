"""The pictures of a decoding (speclab/lab/trace.py): one HTML page without any network, and lines for the terminal.

python optimized_speculative.py --trace trace.html
python optimized_speculative.py --trace -           # the same in the terminal
python compare.py --quick --trace trace.html
"""

import argparse
import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from speclab.cli import parsing
from speclab.lab.detail import Detail
from speclab.lab.trace import MEANINGS, Event, Token, Trace, outcome
from speclab.present.trace_words import counted, milliseconds, spoken, visible
from speclab.system.files import check_writable, shown, write_whole
from speclab.system.terminal import harmless, note, wants_colour

TEMPLATES = Path(__file__).parent / "templates"
# Of what happened to a token: its sign in the terminal, its sign on the page, its ANSI colour.
SIGNS = {
    "first": ("^", "▪", "2"),
    "plain": (".", "·", "2"),
    "accepted": ("+", "✓", "32"),
    "corrected": (">", "▸", "35"),
    "bonus": ("*", "★", "36"),
    "refused": ("x", "✗", "31"),
    "untested": ("?", "?", "2"),
    "unsaid": ("|", "|", "2"),
}


def terminal(found: Trace, colour: bool = False) -> str:
    """A line per round: its phases, the tokens that this decoding and the baseline had by then, what was kept, what was
    refused, and what came from the target. The numbers behind accepted drafts are on the page alone.
    """

    def painted(token: Token) -> str:
        sign, _, ansi = SIGNS[token.kind]
        word = f"{sign}{ascii_quoted(token.text)}"
        return f"\x1b[{ansi}m{word}\x1b[0m" if colour else word

    used = {t.kind for e in found.events for t in (*e.drafts, *e.tokens)}
    lines = ["", "signs   " + "\n        ".join(f"{SIGNS[k][0]}  {m}" for k, m in MEANINGS.items() if k in used)]
    lines += ["", "round  kept    draft   verify    other ms  had/baseline  tokens"]
    for event in found.events:
        kept = f"{event.n_accepted}/{len(event.drafts)}" if event.drafts else "-"
        phases = "  ".join(f"{1000 * event.seconds[name]:7.2f}" for name in ("draft", "verify", "other"))
        if event.number == 0:
            phases = " " * len(phases)
        had = f"{event.n_tokens}/{found.baseline_tokens(event.end)}"
        # In the order of the text: what was kept, what was refused and never tested, what stands in its place.
        rest = [t for t in event.drafts if t.kind != "accepted"]
        shown = [t for t in event.tokens if t.kind == "accepted"] + rest
        shown += [t for t in event.tokens if t.kind != "accepted"]
        why = next((f"   {t.words}" for t in rest if t.kind == "refused" and t.uniform is not None), "")
        why = "" if found.settings["temperature"] == 0 and "against" not in why else why.replace("×", "x")
        lines.append(f"{event.number:5}  {kept:>4}  {phases}     {had:>12}  {' '.join(map(painted, shown))}{why}")
    lines += ["", found.summary(), found.times(), found.agreement()]
    return "\n".join(lines) + "\n"


def ascii_quoted(text: str) -> str:
    """In quotes, on one line, with escapes for whatever does not print."""
    return json.dumps(harmless(text), ensure_ascii=not _prints_unicode()) if text else '"..."'


def _prints_unicode() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "").lower()


def page(found: Trace) -> str:
    """One HTML file: no network, no script but its own."""
    import jinja2  # here: decoding needs no templates
    import markupsafe

    def spelled(text: str, breaks: bool = True) -> markupsafe.Markup:
        """A token inside the text: its line ends can be seen, and break the line where `breaks` says so."""
        if not text:
            return markupsafe.Markup('<i class="part"></i>')
        mark = markupsafe.Markup('<i class="end"></i>' + "\n" * breaks)
        return mark.join(map(markupsafe.escape, harmless(text).split("\n")))

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        spelled=spelled, visible=visible, harmless=harmless, ms=lambda seconds: f"{1000 * seconds:.2f}"
    )
    style, script = ((TEMPLATES / f"trace.{kind}").read_text("utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head, tail = split_prompt(found.prompt)
    return environment.get_template("trace.html").render(
        trace=found,
        settings={k: harmless(v) if isinstance(v, str) else v for k, v in found.settings.items()},
        head=head,
        tail=tail,
        style=markupsafe.Markup(style),
        script=markupsafe.Markup(script),
        script_hash=digest,
        data=_page_data(found),
        signs={kind: signs[1] for kind, signs in SIGNS.items()},
        meanings=MEANINGS,
        used={t.kind for e in found.events for t in (*e.drafts, *e.tokens)},
        sentence=lambda event: sentence(event, found.baseline_tokens(event.end)),
    )


def split_prompt(prompt: str, n_lines: int = 4, n_chars: int = 320) -> tuple[str, str]:
    """A long prompt's head, which the page folds away, and the end that stays in view."""
    lines = prompt.split("\n")
    tail = "\n".join(lines[-n_lines:])[-n_chars:]
    return (prompt[: -len(tail)], tail) if len(prompt) > len(tail) > 0 else ("", prompt)


def _page_data(found: Trace) -> dict[str, Any]:
    """What the page's script draws: rounds, then the baseline's clock. Texts are one-line pictures of tokens."""

    def row(token: Token) -> list[Any]:
        numbers = token.draft_prob, token.target_prob, token.uniform, token.confidence
        return [visible(token.text), token.kind, *(None if n is None else float(f"{n:.7g}") for n in numbers)]

    rounds = []
    for event in found.events:
        own = next((t for t in event.tokens if t.kind != "accepted"), None)
        rounds.append(
            {
                "drafts": [[*row(t), t.words if t.kind in ("accepted", "refused") else ""] for t in event.drafts],
                "own": own and [*row(own), own.words],
                "phases": [float(f"{event.seconds[name]:.7g}") for name in ("draft", "verify", "other")],
                "end": float(f"{event.end:.9g}"),
                "tokens": event.n_tokens,
                "said": sentence(event, found.baseline_tokens(event.end)),
            }
        )
    return {
        "rounds": rounds,
        "baseline": [float(f"{seconds:.9g}") for _, seconds in found.baseline],
        "greedy": found.settings["temperature"] == 0,
        "signs": {kind: signs[1] for kind, signs in SIGNS.items()},
        "words": {kind: outcome(kind, NOTHING, 0, True) for kind in ("untested", "unsaid")},
    }


NOTHING = Detail([], [], [], [], 0.0, [])


def sentence(event: Event, baseline_tokens: int) -> str:
    """What a round did, for the line that is read aloud."""
    if event.number == 0:
        start = f"Start: {spoken(event.tokens[0].text)} comes from the prompt's own pass."
        return f"{start} Both clocks start here."
    words = [f"Round {event.number}:"]
    if event.drafts:
        kept = [spoken(t.text) for t in event.tokens if t.kind == "accepted"]
        words.append(f"drafted {len(event.drafts)}, kept {len(kept)}" + (f", {', '.join(kept)};" if kept else ";"))
        words += [f"refused {spoken(t.text)};" for t in event.drafts if t.kind == "refused"]
    words += [f"{t.kind} {spoken(t.text)};" for t in event.tokens if t.kind != "accepted"]
    after = f"{counted(event.n_tokens, 'token')} after {milliseconds(event.end)}, the baseline has {baseline_tokens}."
    return f"{' '.join(words).rstrip(';')}. {after}"


# --- the flag ---------------------------------------------------------------------------------------------------------


def add_flags(parser: argparse.ArgumentParser) -> None:
    """--trace, and --trace-shapes (speclab/lab/shapes.py)."""
    add_trace_flag(parser)
    parser.add_argument(
        "--trace-shapes", action="store_true", help="print the shapes of one round's tensors and decode nothing"
    )


def add_trace_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trace",
        type=parsing.some_path,
        metavar="FILE",
        help="then decode the first prompt once more for a picture (HTML); - for the terminal",
    )


def check_path(path: Path | None) -> None:
    """Everything that can be wrong with --trace's file is said before anything is decoded."""
    if path not in (None, parsing.DASH):
        check_writable(path, "--trace")


def write(found: Trace, path: Path) -> None:
    """To the file, whole or not at all, or to the terminal."""
    if path == parsing.DASH:
        print(terminal(found, wants_colour(sys.stdout)), end="")
        return
    write_whole(path, page(found))
    note(f"wrote {shown(path)}; open it in a browser")
