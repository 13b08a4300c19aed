"""The answer from servers that run: who they are, what they write, and how fast."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from speclab.extensions.servers import counters, screen
from speclab.extensions.servers.ask import inputs, texts
from speclab.extensions.servers.ask.asking import Asking, Prompt, ask_all
from speclab.extensions.servers.ask.client import check_url
from speclab.extensions.servers.ask.engines import OTHER, Asked, Server, find
from speclab.extensions.servers.causes import Texts
from speclab.extensions.servers.diagnosis import SAMPLING_WRONG, TEXT_WRONG, Diagnosis, diagnose
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.extensions.servers.load import showing as load
from speclab.extensions.servers.measured import Measured, Pair, of_pairs
from speclab.extensions.servers.shapes import (
    FORGETS,
    Shape,
    shape_of,
    shape_of_lengths,
    shape_of_two,
)
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note, say

MEND_TEXT = "use it for nothing; with the same model and sampling defaults in both, report it with one prompt"
MEND_SAMPLING = "sample with this server in no case; report it with one prompt"
TWICE = 2  # times as long as short texts are long ones
FEWEST_AGAIN = 2  # texts that were asked for again, from which on it is said that none of them came again


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was asked and found. again: some prompts a second time, beside their first."""

    pairs: list[Pair]
    again: list[Asked]
    verdicts: list[str]
    kinds: dict[str, Measured]
    whole: Measured
    shapes: list[Shape]
    texts: Texts
    diagnosis: Diagnosis
    sampling: str = ""  # what is wrong where the server samples
    stop: KeyboardInterrupt | None = None  # what ended the questions early, where the user did

    @property
    def code(self) -> int:
        """Return the exit code: 1 where a text differs, and no tie explains it, or sampling is broken. After Ctrl-C it
        is that of what was asked before."""
        return int(bool(self.sampling) or not set(self.verdicts) <= {texts.SAME, texts.TIED})


def show(args: argparse.Namespace) -> int:
    """Ask, and print the first screen.  -> exit code"""
    prompts, key, plain = inputs.prompts_of(args.texts), inputs.key(), None
    urls = [check_url(url) for url in (args.url, args.plain_url) if url]
    speculative = find(urls[0], key)
    speculative.kind = args.kind or speculative.kind
    if len(urls) > 1:
        plain = find(urls[1], key)
        _check_same(speculative, plain)
    say("\n".join(screen.server_lines(speculative, plain)))
    if args.load:
        return load.show(args, speculative, plain, prompts)
    found = find_out(_asking(args), speculative, plain, prompts)
    say(first_screen(found))
    return found.code


def show_plain(args: argparse.Namespace) -> int:
    """Ask a server that does not speculate, alone, and print what its tokens take: where one machine has no room for
    both servers, they are started one after the other.  -> exit code"""
    prompts, key = inputs.prompts_of(args.texts), inputs.key()
    plain = find(check_url(args.plain_url), key)
    say("\n".join(screen.server_lines(plain, None)))
    pairs, _, _ = ask_all(plain, None, prompts, _asking(args))
    if any(pair.speculative.n_drafts for pair in pairs):
        raise EnvironmentProblem(f"{plain.client.url} speculates; give it with --url, and the plain one as --plain-url")
    found = of_pairs(pairs)
    if found.doubt:
        raise EnvironmentProblem(
            f"{plain.client.url} says no time of a token: {found.doubt}; ask both servers in turns"
        )
    if not found.seconds:
        raise EnvironmentProblem(f"{plain.client.url} sent too few tokens to time them; give --max-new-tokens 96")
    milliseconds = f"{1e3 * found.seconds:.2f}"
    then = f"start the server with its draft, and ask it with --url URL --plain-ms {milliseconds}"
    said = f"a token takes {milliseconds} ms without speculation, in {len(pairs)} prompts"
    say("\n".join([screen.labelled("ANSWER", said), screen.labelled("try", then)]))
    return 0


def _asking(args: argparse.Namespace) -> Asking:
    return Asking(args.max_new_tokens, not args.raw, args.seconds, args.plain_ms and args.plain_ms / 1e3)


def find_out(how: Asking, speculative: Server, plain: Server | None, prompts: Sequence[Prompt]) -> Findings:
    """Ask, and return what the answers say."""
    pairs, again, stop = ask_all(speculative, plain, prompts, how)
    _check_roles(speculative, pairs)
    whole = of_pairs(pairs, how.plain_seconds)
    kinds = {kind: of_pairs([one for one in pairs if one.kind == kind], how.plain_seconds) for kind in _kinds(pairs)}
    verdicts = texts.judge(pairs, None if stop else plain, how.chat) if plain else []
    seen = _shapes(pairs, again, whole, kinds)
    sampling = ""
    if not stop and texts.UNEXPLAINED not in verdicts:
        sampling = texts.wrong_when_sampled(pairs, speculative, plain, how.n_tokens, how.chat)
    written = _texts(pairs, again, verdicts, speculative, None if stop else plain, how.chat)
    return Findings(
        pairs=pairs,
        again=again,
        verdicts=verdicts,
        kinds=kinds,
        whole=whole,
        shapes=seen,
        texts=written,
        diagnosis=diagnose(whole, seen, written, speculative.kind),
        sampling=sampling,
        stop=stop,
    )


def _texts(
    pairs: list[Pair],
    again: list[Asked],
    verdicts: Sequence[str],
    speculative: Server,
    plain: Server | None,
    chat: bool,
) -> Texts:
    """Return what the texts say. Only where one is wrong are both servers asked for single tokens."""
    same = [pair.speculative.answer.text == one.answer.text for pair, one in zip(pairs, again, strict=False)]
    wrong = texts.UNEXPLAINED in verdicts
    return Texts(
        compared=bool(verdicts) and set(verdicts) <= {texts.SAME, texts.TIED},
        wrong=wrong,
        repeats=any(same) if len(same) >= FEWEST_AGAIN else None,
        alone=texts.agree_alone(pairs, verdicts, speculative, plain, chat) if wrong and plain else None,
    )


def _shapes(pairs: list[Pair], again: list[Asked], whole: Measured, kinds: dict[str, Measured]) -> list[Shape]:
    """Return the shapes of the curve: of two curves where there are two, and of the one otherwise."""
    counts = whole.counts
    first, second = (_counts([pair.speculative for pair in pairs[: len(again)]]), _counts(again))
    found = [shape_of_two(first, second, FORGETS) if first and second else None]
    found.append(shape_of_lengths(_lengths(pairs)))
    named = [shape for shape in found if shape]
    by_kind = [one.counts for one in kinds.values() if one.counts]
    single = shape_of(counts, whole.n_rounds, by_kind) if counts and not named else None
    return named or ([single] if single else [])


def _lengths(pairs: Sequence[Pair]) -> list[tuple[EngineCounts, EngineCounts]]:
    """Return of each kind the counts in its short texts, and in its long ones, where both are known."""
    found = []
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        short, long = by_length([pair for pair in pairs if pair.kind == kind])
        both = [_counts([pair.speculative for pair in part]) for part in (short, long)]
        found += [(both[0], both[1])] if both[0] and both[1] else []
    return found


def by_length(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the third of the prompts with the shortest texts, and that with the longest; none where these are not
    TWICE as long. A text is the prompt, as the server counts it, and its answer."""

    def length(pair: Pair) -> int:
        return pair.speculative.answer.n_prompt + pair.speculative.answer.n_tokens

    ordered, n = sorted(pairs, key=length), len(pairs) // 3
    short, long = ordered[:n], ordered[len(ordered) - n :]
    apart = n and short[0].speculative.answer.n_prompt and length(long[0]) >= TWICE * length(short[-1])
    return (short, long) if apart else ([], [])


def _counts(asked: Sequence[Asked]) -> EngineCounts | None:
    """Return the counts of some answers together; None where one of them has none, or others asked meanwhile."""
    found = [one.counted.speculation for one in asked if one.counted and one.counted.speculation and not one.shared]
    return counters.total(found) if found and len(found) == len(asked) else None


def first_screen(found: Findings) -> str:
    """Return what stands below the names of the servers."""
    lines = [screen.text_line(found.verdicts)] if found.verdicts else []
    if any(one.speculative.shared for one in found.pairs):
        said = "others asked the server meanwhile: its counters, and so tok/rnd, are of their texts, too"
        lines.append(screen.labelled("note", said))
    if found.whole.doubt:
        # One server alone gives no other time; two are compared by what both have in common.
        instead = "whole answers are timed, prompts' own passes included" if found.verdicts else "no time is given"
        lines.append(screen.labelled("note", f"{found.whole.doubt}; {instead}"))
    if found.sampling:
        lines.append(screen.labelled("sampling", found.sampling))
    if found.whole.n_disturbed:
        said = f"the times of {found.whole.n_disturbed} of {len(found.pairs)} prompts are left out: something else held"
        lines.append(screen.labelled("note", f"{said} them up"))
    n_prompts = {kind: sum(one.kind == kind for one in found.pairs) for kind in found.kinds}
    by_position = [*screen.position_lines(found.whole), *screen.shape_lines(found.shapes[:1])]
    table = [*[""] * (not lines), screen.table(found.kinds, found.whole, n_prompts)]
    return screen.joined([lines, table, by_position, screen.answer_lines(answer_of(found))])


def answer_of(found: Findings) -> Diagnosis:
    """Return the answer as it is shown: that a text is wrong comes first, because no speed is worth it."""
    if texts.UNEXPLAINED in found.verdicts:
        wrong, then = TEXT_WRONG, MEND_TEXT
    elif found.sampling:
        wrong, then = SAMPLING_WRONG, MEND_SAMPLING
    else:
        return found.diagnosis
    return found.diagnosis._replace(answer=f"{wrong}, and of its speed: {found.diagnosis.answer}", then=then)


def _kinds(pairs: list[Pair]) -> list[str]:
    return list(dict.fromkeys(one.kind for one in pairs))


def _check_same(speculative: Server, plain: Server) -> None:
    """Two servers must serve one model on one engine: else the difference is not speculation."""
    said = [(one.root or one.model, one.engine, one.version) for one in (speculative, plain)]
    (model, *engine), (other_model, *other_engine) = said
    if model != other_model:
        raise EnvironmentProblem(f"the servers serve {model} and {other_model}; compare one model with itself")
    if engine != other_engine:
        note(f"  the servers are {' '.join(engine)} and {' '.join(other_engine)}: not only the draft is different")


def _check_roles(speculative: Server, pairs: list[Pair]) -> None:
    """The server that is to speculate must do so, as far as its counters tell."""
    drafted = any(pair.speculative.n_drafts for pair in pairs)
    if speculative.engine != OTHER and speculative.has_page and not drafted:
        raise EnvironmentProblem(
            f"{speculative.client.url} has drafted nothing: it does not speculate, found nothing to draft, or has "
            "dropped its draft (of another vocabulary, say; its log tells); start it with a draft, and give the server "
            "without one with --plain-url"
        )
