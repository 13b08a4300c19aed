"""Why is speculative decoding not faster on the server you already run? No model is loaded here, and no torch.

    python -m speclab.extensions.servers --url http://127.0.0.1:8000
    python -m speclab.extensions.servers --url http://127.0.0.1:8000 --plain-url http://127.0.0.1:8001
    python -m speclab.extensions.servers --url http://127.0.0.1:8000 --plain-url http://127.0.0.1:8001 --load 1,2,4,8
    python -m speclab.extensions.servers --before a.txt --after b.txt --plain-ms 21.0 --spec-ms 13.3
    python -m speclab.extensions.servers --acceptance 0.35 -k 4 --plain-ms 21.0 --spec-ms 19.5

The first form asks the server a dozen prompts, the second one asks the same server without speculation, too, in turns.
Where there is no room for both, --plain-url alone says what to give as --plain-ms later.
The others use what you have written down: two /metrics pages of vLLM or llama-server, or the rate that the server
prints. A key for the servers stands in the variable SPECLAB_API_KEY. See docs/serving.md. Exit code 1 where two servers
write different texts that no tie explains, or sampling is broken.
"""

import argparse
import contextlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if missing := [
    name for name in ("httpx2", "prometheus_client", "tabulate", "numpy") if not importlib.util.find_spec(name)
]:
    sys.stderr.write(f"error: {missing[0]} is not installed for this Python; type: pip install {' '.join(missing)}\n")
    sys.exit(3)

from speclab.cli import parsing
from speclab.extensions.servers import client, counters, diagnose, load
from speclab.extensions.servers.client import Asked, Order, Pair, Server
from speclab.extensions.servers.diagnose import Diagnosis, Interval, Measured, Shape, Texts, compact, labelled
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.terminal import note, say

MOST_USERS = 256  # at a time
MOST_POSITIONS, MOST_KINDS, MOST_REMARKS = 8, 4, 2  # that are shown
FEWEST_AGAIN = 2  # texts that were asked for again, from which on it is said that none of them came again
# A logit of 16 to 32 in bfloat16 is rounded to an eighth, and two of them may be off by one step each.
TIE = 0.25  # nats between two tokens, up to which rounding alone may decide
TOP = 5
PLACES, MOST_PAIRS = 6, 3  # where single tokens are asked for: places of a text, and texts
NEARLY_GREEDY = 0.05  # a temperature, at which a token FAR nats behind comes once in a million draws
FAR = 0.7
FEWEST_KEPT = 10  # drafted tokens of a greedy text, from which on it is no accident that none are kept
FEWEST_ALONE, FEWEST_APART = 6, 2  # single tokens that show anything; those that differ: one may be a tie
SAME, TIED, UNEXPLAINED, UNJUDGED = "same", "tie within rounding", "different", "not judged"  # verdicts


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    if args.load and not args.url:
        raise UsageProblem("--load asks a server; give --url and --load 1,2,4,8")
    if args.url:
        return show_asked(args)
    return show_plain(args) if args.plain_url else show_written(args)


def make_parser() -> argparse.ArgumentParser:
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers")
    add = parser.add_argument_group("a server that runs").add_argument
    add("--url", metavar="URL", help="the server that speculates")
    add("--plain-url", metavar="URL", help="the same model on a server that does not; alone: its time per token")
    add("--texts", type=Path, metavar="FILE", help='prompts of your own, each after a line "%%%% KIND"')
    add("--raw", action="store_true", help="continue the prompts as they are, for a model without a chat template")
    tokens = parsing.at_least(16, 4096)
    add("--max-new-tokens", type=tokens, default=96, metavar="N", help="of an answer (default: 96)")
    add("--seconds", type=_amount, default=120.0, metavar="S", help="no new prompt after them (default: 120)")
    parser.add_argument(
        "--kind", choices=diagnose.KINDS, default="", help="what drafts: leaves out causes that it cannot have"
    )
    add = parser.add_argument_group("a server under load").add_argument
    add("--load", type=_loads, metavar="N,N", help="users at a time, such as 1,2,4,8: where does it stop paying?")
    add("--load-seconds", type=_amount, default=15.0, metavar="S", help="of each window, at least (default: 15)")
    add = parser.add_argument_group("what is written down").add_argument
    add("--before", type=Path, metavar="FILE", help="a /metrics page, and")
    add("--after", type=Path, metavar="FILE", help="a later one of the same server")
    add("--acceptance", type=_share, metavar="F", help="accepted / drafted, as servers print it")
    add("-k", "--draft-length", type=parsing.at_least(1, 256), metavar="K", help="drafted tokens of a round")
    add("--spec-ms", type=_amount, metavar="MS", help="milliseconds per token with speculation")
    add("--plain-ms", type=_amount, metavar="MS", help="and without it; also with --url")
    return parser


def _between(low: float, high: float, what: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no {what}")

    return parse


_amount = _between(1e-9, 1e9, "amount, give a number above 0")
_share = _between(0, 1, "share, give a number from 0 to 1")  # one above 1 may be meant as a percentage


def _loads(text: str) -> list[int]:
    """Parse numbers of users at a time, in rising order."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not 0 < found[0] <= found[-1] <= MOST_USERS:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers from 1 to {MOST_USERS}, such as 1,2,4,8")
    return found


# --- servers that are asked -------------------------------------------------------------------------------------------


def show_asked(args: argparse.Namespace) -> int:
    """Ask the server that speculates, and the plain one in turns where there is one, and print what the answers say.

    -> exit code: 1 where a text differs, and no tie explains it, or sampling is broken. After Ctrl-C it is that of what
    was asked before.
    """
    prompts, key, chat = client.prompts_of(args.texts), client.api_key(), not args.raw
    speculative, plain = client.find(args.url, key), client.find(args.plain_url, key) if args.plain_url else None
    if plain:
        _check_same(speculative, plain)
    about = server_lines(speculative, plain)
    if args.load:
        return load.show(args, speculative, plain, prompts, about)
    pairs, again, stopped = client.ask_all(speculative, plain, prompts, args.max_new_tokens, chat, args.seconds)
    _check_roles(speculative, plain, pairs)
    plain_seconds = args.plain_ms and args.plain_ms / 1e3
    whole = diagnose.of_pairs(pairs, plain_seconds)
    by_kind = {kind: [one for one in pairs if one.kind == kind] for kind in {pair.kind: None for pair in pairs}}
    kinds = {kind: diagnose.of_pairs(some, plain_seconds) for kind, some in by_kind.items()}
    asked_still = None if stopped else plain
    verdicts = judge(pairs, asked_still, chat) if plain else []
    wrong, sampling = UNEXPLAINED in verdicts, ""
    if not stopped and not wrong:
        sampling = wrong_when_sampled(pairs, speculative, plain, args.max_new_tokens, chat)
    same = [pair.speculative.answer.text == one.answer.text for pair, one in zip(pairs, again, strict=False)]
    texts = Texts(
        compared=bool(verdicts) and set(verdicts) <= {SAME, TIED},
        wrong=wrong,
        repeats=any(same) if len(same) >= FEWEST_AGAIN else None,
        alone=agree_alone(pairs, verdicts, speculative, asked_still, chat) if wrong and asked_still else None,
    )
    seen = diagnose.shapes_of(pairs, again, whole, kinds)
    said = diagnose.diagnose(whole, seen, texts, args.kind)
    if wrong:
        then = "use it for nothing; with the same model and sampling defaults in both, report it with one prompt"
        said = said._replace(answer=f"the text is wrong, and of its speed: {said.answer}", then=then)
    elif sampling:
        then = "sample with this server in no case; report it with one prompt"
        said = said._replace(answer=f"sampling is broken, and of its speed: {said.answer}", then=then)
        about.append(labelled("sampling", sampling))
    about += remark_lines(pairs, whole, verdicts)
    table = table_of(kinds, whole, {kind: len(some) for kind, some in by_kind.items()})
    say(screen(said, about, table, whole, seen[:1]))
    return int(bool(sampling) or not set(verdicts) <= {SAME, TIED})


def show_plain(args: argparse.Namespace) -> int:
    """Ask a server that does not speculate, alone, and print what its tokens take: where one machine has no room for
    both servers, they are started one after the other.  -> exit code"""
    prompts, plain = client.prompts_of(args.texts), client.find(args.plain_url, client.api_key())
    pairs, _, _ = client.ask_all(plain, None, prompts, args.max_new_tokens, not args.raw, args.seconds)
    if any(_drafted(pair.speculative) for pair in pairs):
        raise EnvironmentProblem(f"{plain.url} speculates; give it with --url, and the plain one as --plain-url")
    found = diagnose.of_pairs(pairs)
    if found.doubt:
        raise EnvironmentProblem(f"{plain.url} says no time of a token: {found.doubt}; ask both servers in turns")
    if not found.seconds:
        raise EnvironmentProblem(f"{plain.url} sent too few tokens to time them; give --max-new-tokens 96")
    milliseconds = f"{1e3 * found.seconds:.2f}"
    then = f"start the server with its draft, and ask it with --url URL --plain-ms {milliseconds}"
    said = f"a token takes {milliseconds} ms without speculation, in {len(pairs)} prompts"
    say("\n".join([labelled("ANSWER", said), labelled("try", then), *server_lines(plain, None)]))
    return 0


def show_written(args: argparse.Namespace) -> int:
    """Print the answer from two /metrics pages, or an acceptance, and milliseconds per token.  -> exit code"""
    plain, seconds = (value and value / 1e3 for value in (args.plain_ms, args.spec_ms))
    if args.before and args.after:
        pages = (
            client.text_of(path, client.MOST_BYTES, flag)
            for flag, path in (("--before", args.before), ("--after", args.after))
        )
        before, after = map(counters.read, pages)
        between = counters.between(before, after)
        counts = between.speculation
        if counts is None:
            raise EnvironmentProblem("these pages count no speculation; take them from the server that speculates")
        if not counts.n_drafts:
            raise EnvironmentProblem("no round drafted anything between the pages; take them around some requests")
        longest = len(counts.accepted_at)
        if args.draft_length and longest and args.draft_length != longest:
            raise UsageProblem(f"-k {args.draft_length}: the pages count drafts of {longest} tokens; give -k {longest}")
        mean = counts.n_drafted / counts.n_drafts
        about = labelled("pages", f"{after.engine}: {counts.n_drafts} rounds drafted {mean:.3g} tokens each")
        found = diagnose.of_pages(between, plain, seconds, after.n_running)
    elif args.acceptance is not None and args.draft_length:
        about = labelled("written", f"acceptance {args.acceptance:g} of drafts of {args.draft_length} tokens")
        found = Measured(fraction=args.acceptance, draft_length=args.draft_length, plain_seconds=plain, seconds=seconds)
    else:
        raise UsageProblem(
            "give --url of a server, or --before and --after with /metrics pages, or --acceptance and -k"
        )
    shape = diagnose.shape_of(found.counts, found.n_rounds) if found.counts else None
    seen = [shape] if shape else []
    say(screen(diagnose.diagnose(found, seen, kind=args.kind), [about], table_of({}, found, {}), found, seen))
    return 0


def _check_same(speculative: Server, plain: Server) -> None:
    """Two servers must serve one model on one engine: else the difference is not speculation."""
    model, other = (one.root or one.model for one in (speculative, plain))
    engine, other_engine = (f"{one.engine} {one.version}".strip() for one in (speculative, plain))
    if model != other:
        raise EnvironmentProblem(f"the servers serve {model} and {other}; compare one model with itself")
    if engine != other_engine:
        note(f"  the servers are {engine} and {other_engine}: not only the draft is different")


def _check_roles(speculative: Server, plain: Server | None, pairs: Sequence[Pair]) -> None:
    if plain and any(_drafted(pair.plain) for pair in pairs):
        raise EnvironmentProblem(
            f"{plain.url} speculates; give it as --url, and the one without a draft as --plain-url"
        )
    drafted = any(_drafted(pair.speculative) for pair in pairs)
    if speculative.engine != client.OTHER and speculative.has_page and not drafted:
        why = "has drafted nothing: it has no draft, found nothing to draft, or has dropped its draft (its log tells)"
        raise EnvironmentProblem(
            f"{speculative.url} {why}; start it with a draft, and give the plain one as --plain-url"
        )


def _drafted(asked: Asked | None) -> int:
    return asked.counts.n_drafted if asked and asked.counts else 0


# --- the same text? ---------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One token of a text, and the most probable ones at its place."""

    token: str
    top: dict[str, float]  # token -> log-probability


def judge(pairs: Sequence[Pair], plain: Server | None, chat: bool) -> list[str]:
    """Return a verdict for each prompt. A text that differs is asked for again, with log-probabilities; without the
    server it is not judged."""
    found: list[str] = []
    for pair in pairs:
        assert pair.plain
        ours, other = pair.plain.answer, pair.speculative.answer
        if ours.text == other.text:
            found.append(SAME)
        else:
            steps = asked_again(plain, Order(pair.prompt, ours.n_tokens, chat)) if plain else []
            found.append(verdict(steps, ours.text, other.text))
    return found


def verdict(steps: Sequence[Step], ours: str, other: str, tie: float = 0.0) -> str:
    """Return whether the token where `other` leaves the plain text `ours` was as probable as the plain one.

    steps: those of `ours`, asked for once more; where they make another text they judge nothing. tie: nats, where more
    than TIE are one.
    """
    place = 0
    for step in steps:
        if not ours.startswith(step.token, place):
            return UNJUDGED
        if not step.token or not other.startswith(step.token, place):
            break
        place += len(step.token)
    else:
        return UNJUDGED  # asked again, the plain server writes the other text, or nothing that can be read
    ended = place >= len(other)  # it stopped there, and no text shows the token that says so
    if ended or not step.token or step.token not in step.top or "\ufffd" in step.token:
        return UNJUDGED
    rivals = [token for token in step.top if token and token != step.token and other.startswith(token, place)]
    if not rivals:
        return UNEXPLAINED
    return TIED if step.top[step.token] - step.top[max(rivals, key=len)] <= max(TIE, tie) else UNEXPLAINED


def agree_alone(
    pairs: Sequence[Pair], verdicts: Sequence[str], speculative: Server, plain: Server, chat: bool
) -> bool | None:
    """Return whether both servers say the same where each is asked for one token, which no draft makes; None where too
    few of these requests are answered.

    Both continue prompts whose texts differ, with a part of the plain text behind them, as they are: without a template
    a chat gets another text than before, and both servers the same one.
    """
    wrong = [pair for pair, one in zip(pairs, verdicts, strict=True) if one == UNEXPLAINED]
    n_asked = n_apart = 0
    for pair in wrong[:MOST_PAIRS]:
        text = pair.plain.answer.text if pair.plain else ""
        for place in range(PLACES):
            order = Order(pair.prompt + "\n" * chat + text[: len(text) * place // PLACES], 1, chat=False)
            with contextlib.suppress(EnvironmentProblem):
                one, other = (server.answer(order).text for server in (speculative, plain))
                n_asked, n_apart = n_asked + 1, n_apart + (one != other)
    return n_apart < FEWEST_APART if n_asked >= FEWEST_ALONE else None


def wrong_when_sampled(
    pairs: Sequence[Pair], speculative: Server, plain: Server | None, n_tokens: int, chat: bool
) -> str:
    """Ask the server that speculates once nearly greedily, and return what is wrong then; "" where nothing is seen. Its
    drafts must be kept about as often as greedily, and its text must be one that the probabilities allow."""
    pair = max(pairs, key=lambda one: one.speculative.counts.n_accepted if one.speculative.counts else 0)
    try:
        found = speculative.ask(Order(pair.prompt, n_tokens, chat, temperature=NEARLY_GREEDY))
    except EnvironmentProblem as problem:
        note(f"  a request at temperature {NEARLY_GREEDY} is not answered: {problem}")
        return ""
    said, now, before = list[str](), found.counts, pair.speculative.counts
    drafts = now and before and before.n_accepted >= FEWEST_KEPT and 2 * now.n_drafted >= before.n_drafted
    if now and before and drafts and not now.n_accepted:
        greedily = f"and greedily {before.n_accepted} of {before.n_drafted}"
        said.append(f"keeps none of {now.n_drafted} drafted tokens, {greedily}")
    greedy, server = (pair.plain, plain) if pair.plain and plain else (pair.speculative, speculative)
    ours, other = greedy.answer.text, found.answer.text
    steps = asked_again(server, Order(pair.prompt, greedy.answer.n_tokens, chat)) if ours != other else []
    if steps and verdict(steps, ours, other, FAR) == UNEXPLAINED:
        said.append("writes a text that the target's probabilities rule out")
    return f"at temperature {NEARLY_GREEDY} it {' and '.join(said)}" if said else ""


def asked_again(server: Server, order: Order) -> list[Step]:
    """Return the steps of a greedy answer; none where the server sends no log-probabilities."""
    wish = {"logprobs": True, "top_logprobs": TOP} if order.chat else {"logprobs": TOP}
    with contextlib.suppress(EnvironmentProblem, LookupError, TypeError, AttributeError, ValueError):
        said = server.json(order.path, server.body(order) | wish, order.seconds)["choices"][0]["logprobs"]
        if "content" in said:
            rows = [(one["token"], one["logprob"], one["top_logprobs"]) for one in said["content"]]
            tops = [{rival["token"]: rival["logprob"] for rival in top} for _, _, top in rows]
            return [_step(token, own, top) for (token, own, _), top in zip(rows, tops, strict=True)]
        chosen = zip(said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True)
        return [_step(token, own, top) for token, own, top in chosen]
    return []


def _step(token: str, own: Any, top: dict[str, Any]) -> Step:
    found = {name: float(value) for name, value in {**top, token: own}.items() if isinstance(name, str)}
    return Step(token, {name: value for name, value in found.items() if math.isfinite(value)})


# --- the screen: at most 25 lines, the answer first -------------------------------------------------------------------


def screen(said: Diagnosis, about: list[str], table: str, found: Measured, seen: Sequence[Shape]) -> str:
    """Return the answer with its numbers, the causes that are left and what to try; what was asked; and what was
    measured."""
    lines = [labelled("ANSWER", said.answer), *(labelled("", line) for line in said.numbers)]
    lines += [labelled("or" if place else "cause", one) for place, one in enumerate(said.causes)]
    lines += [labelled("tell", said.tell)] if said.tell else []
    by_position = [*position_lines(found), *(labelled("shape", one.name) for one in seen)]
    blocks = [[*lines, labelled("try", said.then)], about, [table], by_position]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def server_lines(speculative: Server, plain: Server | None) -> list[str]:
    lines, remarks = list[str](), list[str]()
    for label, one in (("server", speculative), ("plain", plain)):
        if one:
            named = " ".join(filter(None, (one.engine, one.version)))
            lines.append(labelled(label, f"{named}: {one.model} at {one.url}"))
            remarks += one.remarks
    return [*lines, *(labelled("note", remark) for remark in list(dict.fromkeys(remarks))[:MOST_REMARKS])]


def remark_lines(pairs: Sequence[Pair], whole: Measured, verdicts: Sequence[str]) -> list[str]:
    """Return whether both servers wrote the same texts, and what is to be known of the numbers."""
    lines = []
    if verdicts:
        others = [f", {verdicts.count(word)} {word}" for word in (TIED, UNEXPLAINED, UNJUDGED) if word in verdicts]
        same = f"{verdicts.count(SAME)} of {len(verdicts)} greedy texts"
        lines.append(labelled("same text", same + "".join(others)))
    if any(one.speculative.shared for one in pairs):
        said = "others asked the server meanwhile: its counters, and so tok/rnd, are of their texts, too"
        lines.append(labelled("note", said))
    if whole.doubt:  # One server alone gives no other time; two are compared by what both have in common.
        instead = "whole answers are timed, prompts' own passes included" if verdicts else "no time is given"
        lines.append(labelled("note", f"{whole.doubt}; {instead}"))
    if whole.n_disturbed:
        said = f"the times of {whole.n_disturbed} of {len(pairs)} prompts are left out: something else held them up"
        lines.append(labelled("note", said))
    return lines


def table_of(kinds: dict[str, Measured], whole: Measured, n_prompts: dict[str, int]) -> str:
    """Return one line for each kind of prompt, and one for all of them. round: its cost in plain tokens."""
    rows = [*(list(kinds.items())[:MOST_KINDS] if len(kinds) > 1 else []), ("all", whole)]
    found = [one for _, one in rows]
    columns = {
        "": [name[:12] for name, _ in rows],
        "prompts": [str(n_prompts.get(name, sum(n_prompts.values())) or "-") for name, _ in rows],
        "tok/rnd": [_shown(one.tokens_per_round) for one in found],
        "95 %": [_interval(one.tokens_interval) for one in found],
        "α": [_shown(one.counts and one.counts.acceptance_rate) for one in found],
        "f": [_shown(one.drafted_fraction) for one in found],
        "ms/tok": [_shown(one.seconds and 1e3 * one.seconds) for one in found],
        "plain": [_shown(one.plain_seconds and 1e3 * one.plain_seconds) for one in found],
        "round": [_shown(one.round_cost) for one in found],
        "speedup": ["-" if one.speedup is None else f"{one.speedup:.2f}x" for one in found],
        " 95 %": [_interval(one.speedup_interval) for one in found],
    }
    return compact({head: cells for head, cells in columns.items() if set(cells) != {"-"}}, n_words=1)


def position_lines(found: Measured) -> list[str]:
    """Return acceptance by position, in the two ways in which it is printed by others."""
    if not found.marginal:
        return []
    n, more = min(len(found.marginal), MOST_POSITIONS), " ..." * (len(found.marginal) > MOST_POSITIONS)
    return [
        f"{'position':<34}{''.join(f'{place:>6}' for place in range(1, n + 1))}{more}",
        f"{'kept of the rounds that reach it':<34}{''.join(f'{_shown(rate):>6}' for rate in found.conditional[:n])}",
        f"{'kept of all rounds that draft':<34}{''.join(f'{rate:6.2f}' for rate in found.marginal[:n])}",
    ]


def _interval(ends: Interval) -> str:
    return f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else "-"


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
