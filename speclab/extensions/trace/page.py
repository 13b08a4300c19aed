"""Makes the page with dials: one HTML file that needs no network, with its data, style and scripts inside; and the data
of a page of one decoding: its rounds on one clock."""

import base64
import hashlib
from pathlib import Path
from typing import Any

from speclab.extensions.trace.trace import TIMED, Event, Token, Trace, visible
from speclab.extensions.trace.trace_terminal import agreement, summary, times
from speclab.system.terminal import harmless

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("replay.js", "draw.js", "page.js")
KINDS = {"first": "f", "plain": "p", "accepted": "a", "corrected": "c", "bonus": "b", "rejected": "r", "untested": "u"}
KINDS |= {"after_eos": "e"}  # the letters of draw.js
PROMPT_CHARACTERS = 240  # of a prompt's end, which a page shows


def render(data: dict[str, Any]) -> str:
    """Return one HTML file. data: plain JSON for the scripts, as of_decoding and build.py make it. Every text in it is
    escaped."""
    import jinja2  # here: decoding needs no templates
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(harmless=harmless)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    script = "\n".join((TEMPLATES / name).read_text("utf-8") for name in SCRIPTS)
    return environment.get_template("page.html").render(
        data=harmless_data(data),
        lines=data.get("lines", []),
        style=markupsafe.Markup((TEMPLATES / "page.css").read_text("utf-8")),
        script=markupsafe.Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def harmless_data(data: Any) -> Any:
    """Return plain JSON in which every text has pictures of its control characters."""
    if isinstance(data, dict):
        return {harmless(key): harmless_data(value) for key, value in data.items()}
    if isinstance(data, list):
        return [harmless_data(value) for value in data]
    return harmless(data) if isinstance(data, str) else data


def shown_prompt(prompt: str) -> str:
    end = prompt[-PROMPT_CHARACTERS:]
    return end if end == prompt else f"... {end}"


def settings_line(trace: Trace) -> str:
    s = trace.settings
    how = f"at temperature {s['temperature']}" if s["temperature"] else "greedy"
    filters = f", top-k {s['top_k']}" * bool(s["top_k"]) + f", top-p {s['top_p']}" * (s["top_p"] < 1)
    return (
        f"{s['target']} checks what {s['draft']} drafts, up to {s['draft_length']} tokens a round, {how}{filters}, "
        f"seed {s['seed']}; {s['device']}, {s['dtype']}, {s['engine']} engine."
    )


def laid(prompt: str, traces: dict[str, Trace], about: str, kind: str = "this text") -> dict[str, Any]:
    """Return lanes on one clock: the baseline's of the first trace, and the rounds of each, by name."""
    first = next(iter(traces.values()))
    return {
        "kind": kind,
        "prompt": shown_prompt(prompt),
        "about": about,
        "baseline": [_rounded(seconds) for _, seconds in first.baseline],
        "lanes": [{"name": name, "rounds": list(map(round_data, trace.events))} for name, trace in traces.items()],
    }


def sampled(trace: Trace) -> dict[str, Any]:
    """Return a decoding above temperature 0, with what the rule knew of each tested token, and without times."""
    rounds = []
    for event in trace.events:
        data = round_data(event, numbers=True)
        texts = [token.text for token in event.tokens]
        rounds.append({"drafts": data["drafts"], "own": data["own"], "texts": texts})
    return {"about": settings_line(trace), "prompt": shown_prompt(trace.prompt), "rounds": rounds}


def round_data(event: Event, numbers: bool = False) -> dict[str, Any]:
    """Return a round: pictures and kinds of its drafted tokens and of the target's own, its phases, when it ended.

    numbers: for each tested token, and for the target's own one, also p, q and u, and its candidates: picture, p, q.
    """

    def entry(token: Token) -> list[Any]:
        position, shown = token.position, [visible(token.text), KINDS[token.kind]]
        if not numbers or position is None or token.kind in ("untested", "after_eos"):
            return shown
        used = [position.target_prob, position.draft_prob, position.uniform]
        pairs = zip(token.candidates, position.candidates, strict=True)
        bars = [[visible(text), _rounded(one.target_prob, 3), _rounded(one.draft_prob, 3)] for text, one in pairs]
        return [*shown, [_rounded(number) for number in used], bars]

    return {
        "drafts": list(map(entry, event.drafts)),
        "own": [entry(token) for token in event.tokens[event.n_accepted :]],
        "phases": [_rounded(event.seconds[name], 4) for name in ("draft", "verify", "other")],
        "end": _rounded(event.end),
    } | ({"parents": event.parents} if event.parents else {})


def _rounded(number: float | None, digits: int = 6) -> float | None:
    return None if number is None else float(f"{number:.{digits}g}")


def of_trace(trace: Trace) -> dict[str, Any]:
    """Return the data of a page of one decoding, which has no dials."""
    wrong = sum(token.against_rule for event in trace.events for token in event.drafts)
    against = f"Against the rule {wrong} drafted token{'s were' if wrong != 1 else ' was'} accepted or rejected."
    return {
        "own": True,
        "title": f"A decoding, round by round: {trace.settings['target']}",
        "lines": [settings_line(trace), summary(trace), f"{times(trace)} {agreement(trace)}", *[against] * bool(wrong)],
        "targets": [],
        "presets": [],
        "lanes": [laid(trace.prompt, {trace.settings["draft"]: trace}, TIMED)],
        "sampled": [] if trace.greedy or trace.has_trees else [sampled(trace)],
    }
