"""One decoding as a picture: every token, where it came from, and what the rule made of the drafts.

`trace` turns the stream of rounds into plain data (`Trace`); `page` and `terminal` are views of it and add nothing.
The page is one HTML file without any network; its text, numbers and times are those of the decoding it was made from.

    python optimized_speculative.py --trace trace.html
    python optimized_speculative.py --trace -           # the same in the terminal
    python compare.py --quick --trace trace.html
"""

import argparse
import base64
import copy
import hashlib
import json
import os
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from transformers import PreTrainedTokenizerBase

from speclab import options, record
from speclab.detail import Detail
from speclab.errors import EnvironmentProblem, UsageProblem
from speclab.theory import Counts

TEMPLATES = Path(__file__).parent / "templates"
# What happened to a token: its sign in the terminal, its sign on the page, its ANSI colour.
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
MEANINGS = {
    "first": "from the prompt's own pass",
    "plain": "nothing was drafted: an ordinary step of the target",
    "accepted": "drafted, and kept",
    "corrected": "the target's own, in place of a refused draft",
    "bonus": "the target's own, after all drafts were kept",
    "refused": "drafted, and refused",
    "untested": "drafted behind a refused one, never tested",
    "unsaid": "drafted behind the end of the text",
}


# --- the data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    """A token of the output, or a draft that never became one."""

    id: int
    text: str  # what it adds to the text; empty where it ends inside a character that the next one completes
    kind: str  # one of SIGNS
    words: str  # the rule's outcome
    draft_prob: float | None = None  # the rule's numbers (speclab/detail.py); None where nothing was tested
    target_prob: float | None = None
    uniform: float | None = None
    confidence: float | None = None  # the target's softmax at temperature 1


@dataclass(frozen=True)
class Event:
    """A round, or the first token (number 0). Seconds count from the moment the first token was there."""

    number: int
    drafts: list[Token]  # everything proposed, in order
    tokens: list[Token]  # everything committed, in order: the accepted drafts, then mostly one of the target's
    n_accepted: int
    seconds: dict[str, float]  # draft, verify, other
    end: float
    n_tokens: int  # of the output so far


@dataclass(frozen=True)
class Trace:
    """A decoding and the baseline's on the same prompt, in the same process."""

    settings: dict[str, Any]  # target, draft, draft_length, temperature, seed, ...
    prompt: str
    events: list[Event]
    counts: Counts
    baseline: list[tuple[str, float]]  # a token's text and the second at which it was there
    same_text: bool

    @property
    def seconds(self) -> tuple[float, float]:
        """Decoding alone, after the first token: speculative, baseline."""
        return self.events[-1].end, self.baseline[-1][1]

    def baseline_tokens(self, seconds: float) -> int:
        """Tokens the baseline has by then."""
        return bisect_right([end for _, end in self.baseline], seconds)

    def summary(self) -> str:
        """The counts of the rounds, in one line."""
        counts = self.counts
        per_round = "no round" if counts.tokens_per_round is None else f"{counts.tokens_per_round:.2f} tokens per round"
        return (
            f"{_count(counts.n_rounds, 'round')}, {counts.n_drafted} drafted, {counts.n_accepted} accepted, "
            f"{counts.n_rejected} refused, {per_round}"
        )

    def times(self) -> str:
        """How long both took, without the word speedup: one run with timers in it is no measurement."""
        mine, other = self.seconds
        n_mine, n_other = self.events[-1].n_tokens - 1, len(self.baseline) - 1
        return (
            f"After the first token: {_count(n_mine, 'token')} in {milliseconds(mine)}, the baseline's {n_other} in "
            f"{milliseconds(other)}. One run with timers in it: a picture, no measurement."
        )

    def agreement(self) -> str:
        if self.same_text:
            return "Both say the same."
        if self.settings["temperature"]:
            return "The texts may differ: both are draws from the same distribution."
        return "The texts differ. compare.py says whether rounding explains that."


class Speller:
    """Spells a text token by token. A token may end inside a character: its bytes then go to the one that ends it."""

    WINDOW = 16  # tokens of context: what a token adds depends on its neighbours
    PENDING = 3  # bytes of a character that may still lack its last one; each may stand as a replacement sign

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids = list(before[-self.WINDOW :])
        self._shown = len(self._text())

    def spell(self, token: int) -> str:
        self._ids.append(token)
        new = self._text()[self._shown :]
        pending = len(new) - len(new.rstrip("\ufffd"))
        ready = new[: len(new) - min(pending, self.PENDING)]
        self._shown += len(ready)
        if not pending and len(self._ids) > 4 * self.WINDOW:
            self._ids = self._ids[-self.WINDOW :]
            self._shown = len(self._text())
        return ready

    def rest(self) -> str:
        """What stands at the end and is no character."""
        return self._text()[self._shown :]

    def ahead(self, tokens: Sequence[int]) -> list[str]:
        """The pieces of tokens that may never be said."""
        speller = copy.copy(self)
        speller._ids = list(self._ids)
        pieces = [speller.spell(token) for token in tokens]
        return [*pieces[:-1], pieces[-1] + speller.rest()] if pieces else []

    def _text(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def trace(
    rounds: Iterable[Any],
    baseline: Iterable[tuple[int, float]],
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    prompt_ids: Sequence[int],
    settings: dict[str, Any],
) -> Trace:
    """Read a stream of rounds with phases and detail.  baseline: ids and the seconds at which they were there."""
    greedy, counts, events = settings["temperature"] == 0, Counts(), []
    speller, end, said = Speller(tokenizer, prompt_ids), 0.0, []
    for round_ in rounds:
        counts.add(round_)
        drafts = _drafts(round_, speller, greedy)
        tokens = _committed(round_, [speller.spell(token) for token in round_.tokens], drafts, greedy)
        seconds = phases(round_.seconds)
        end += 0.0 if round_.prefill else sum(seconds.values())
        said += round_.tokens
        events.append(Event(len(events), drafts, tokens, round_.n_accepted, seconds, end, len(said)))
    if speller.rest():
        events[-1].tokens[-1] = _with_text(events[-1].tokens[-1], speller.rest())
    speller, texts, baseline = Speller(tokenizer, prompt_ids), [], list(baseline)
    for token, seconds in baseline:
        texts.append((speller.spell(token), seconds))
    if speller.rest():
        texts[-1] = (texts[-1][0] + speller.rest(), texts[-1][1])
    return Trace(settings, prompt, events, counts, texts, [token for token, _ in baseline] == said)


def phases(laps: dict[str, float] | None) -> dict[str, float]:
    """A round's seconds as the pictures show them."""
    laps = laps or {}
    found = {name: laps.get(name, 0.0) for name in ("draft", "verify")}
    return {**found, "other": sum(s for name, s in laps.items() if name not in (*found, "prefill"))}


def _with_text(token: Token, more: str) -> Token:
    return replace(token, text=token.text + more)


def _drafts(round_: Any, speller: Speller, greedy: bool) -> list[Token]:
    detail: Detail | None = round_.detail
    if detail is None:
        return []
    found = []
    for i, text in enumerate(speller.ahead(detail.proposed)):
        kind = "accepted"
        if i >= round_.n_accepted:
            kind = "unsaid" if not round_.n_rejected else "refused" if i == round_.n_accepted else "untested"
        numbers = detail.draft_probs[i], detail.target_probs[i], detail.uniforms[i], detail.confidence[i]
        found.append(Token(detail.proposed[i], text, kind, _outcome(kind, detail, i, greedy), *numbers))
    return found


def _committed(round_: Any, texts: list[str], drafts: list[Token], greedy: bool) -> list[Token]:
    tokens = []
    for i, (token, text) in enumerate(zip(round_.tokens, texts, strict=True)):
        if i < round_.n_accepted and drafts:
            tokens.append(replace(drafts[i], text=text))
            continue
        kind = "bonus" if round_.n_drafted else "plain"
        kind = "first" if round_.prefill else "corrected" if round_.n_rejected else kind
        detail = round_.detail
        known = (detail.next_prob, None, detail.confidence[-1]) if detail else (None, None, None)
        tokens.append(Token(token, text, kind, _origin(kind, greedy), None, *known))
    return tokens


def _outcome(kind: str, detail: Detail, i: int, greedy: bool) -> str:
    """The rule's outcome for one draft, in words, with the numbers it rests on."""
    if kind in ("untested", "unsaid"):
        return "not tested: behind a refused draft" if kind == "untested" else "never said: behind the end of the text"
    kept, right = kind == "accepted", detail.passes(i)
    if greedy:
        reason = "the target's own choice, so p = 1" if right else "not the target's own choice, so p = 0"
    else:
        product, target = detail.uniforms[i] * detail.draft_probs[i], detail.target_probs[i]
        left, mine = apart(product, target)
        reason = f"u × q = {left} is {'' if right else 'not '}below p = {mine}"
    against = "" if kept == right else ", against the rule"
    return f"{'kept' if kept else 'refused'}{against}: {reason}"


def _origin(kind: str, greedy: bool) -> str:
    if kind == "corrected":
        where = "the target's own choice" if greedy else "drawn from what p has more than q, max(0, p − q)"
        return f"corrected: {where}"
    if kind == "bonus":
        return f"bonus: all drafts were kept, and the last row's {'choice' if greedy else 'draw'} comes on top"
    return f"{kind}: {MEANINGS[kind]}"


# --- words ------------------------------------------------------------------------------------------------------------


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}"


def apart(left: float, right: float) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see which is smaller, three at least."""
    for digits in range(3, 18):
        written = number(left, digits), number(right, digits)
        if (float(written[0]) < float(written[1])) == (left < right):
            break
    return written


def milliseconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f} ms"


def harmless(text: str) -> str:
    """Control characters as pictures: they could turn the text around, or a terminal into something else."""

    def safe(char: str) -> str:
        if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            return char
        return chr(0x2400 + ord(char)) if ord(char) < 32 else f"‹{ord(char):04X}›"

    return "".join(map(safe, text))


def visible(text: str) -> str:
    """A token for a narrow place, on one line: blanks and line ends as signs."""
    signs = str.maketrans({" ": "·", "\n": "↵", "\t": "→"})
    return harmless(text).translate(signs) or "◌"


def spoken(text: str) -> str:
    """A token for someone who hears it."""
    if not text:
        return "a part of a character"
    if not text.strip(" \n\t"):
        parts = ((" ", "blank"), ("\n", "line end"), ("\t", "tab"))
        return " and ".join(_count(text.count(sign), word) for sign, word in parts if sign in text)
    return f"“{' '.join(harmless(text).split())}”"


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
    after = f"{_count(event.n_tokens, 'token')} after {milliseconds(event.end)}, the baseline has {baseline_tokens}."
    return f"{' '.join(words).rstrip(';')}. {after}"


# --- the terminal -----------------------------------------------------------------------------------------------------


def wants_colour(out: TextIO) -> bool:
    """A terminal, and nobody has said NO_COLOR (no-color.org)."""
    return bool(getattr(out, "isatty", lambda: False)()) and not os.environ.get("NO_COLOR")


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


# --- the page ---------------------------------------------------------------------------------------------------------


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
        "words": {kind: _outcome(kind, NOTHING, 0, True) for kind in ("untested", "unsaid")},
    }


NOTHING = Detail([], [], [], [], 0.0, [])


# --- the flag ---------------------------------------------------------------------------------------------------------


def add_flags(parser: argparse.ArgumentParser) -> None:
    """--trace, and --trace-shapes (speclab/shapes.py)."""
    add_trace_flag(parser)
    parser.add_argument(
        "--trace-shapes", action="store_true", help="print the shapes of one round's tensors and decode nothing"
    )


def add_trace_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="then decode the first prompt once more for a picture (HTML); - for the terminal",
    )


def check_path(name: str | None) -> None:
    """Everything that can be wrong with --trace's file is said before anything is decoded."""
    if name is None or name == "-":
        return
    path = Path(name)
    if not name.strip() or path.is_dir():
        raise UsageProblem(f"--trace {name or repr(name)} is no file; give a file's name, for example trace.html")
    try:
        record.prepare_folder(path.parent)
    except EnvironmentProblem as problem:
        cause = str(problem).partition(";")[0]
        raise EnvironmentProblem(f"{cause}; give --trace a file in another folder") from None


def write(found: Trace, name: str) -> None:
    """To the file, whole or not at all, or to the terminal."""
    if name == "-":
        print(terminal(found, wants_colour(sys.stdout)), end="")
        return
    record.write_whole(Path(name), page(found))
    options.note(f"wrote {options.shown_path(Path(name))}; open it in a browser")
