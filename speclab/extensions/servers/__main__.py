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
write different texts that no tie explains, and where a different text could not be judged.
"""

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

if missing := [name for name in ("httpx2", "prometheus_client", "tabulate", "numpy", "tqdm") if not find_spec(name)]:
    sys.stderr.write(f"error: {missing[0]} is not installed for this Python; type: pip install {' '.join(missing)}\n")
    sys.exit(3)

from speclab.cli import parsing
from speclab.extensions.servers import client, counters, diagnose, load
from speclab.extensions.servers.client import Answer, Order, Pair, Server
from speclab.extensions.servers.counters import EngineCounts
from speclab.extensions.servers.diagnose import ENDS, Diagnosis, Measured, Shape, labelled
from speclab.present.tables import interval, speedup, table
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.terminal import note, say

MOST_POSITIONS, MOST_KINDS, MOST_REMARKS = 8, 4, 2  # that are shown
# A logit of 16 to 32 in bfloat16 is rounded to an eighth, and two of them may be off by one step each.
TIE = 0.25  # nats between two tokens, up to which rounding alone may decide
TOP = 5
SAME, TIED, UNEXPLAINED, UNJUDGED = "same", "tie within rounding", "different", "not judged"  # verdicts
LEAST, MOST = 0.6, 100.0  # plain steps of a round's cost; beyond them it is a mistake, as seconds for milliseconds
WRITTEN_ROUNDS = 10**6  # of an acceptance that is typed: as many as keep its digits


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    args.load = parsing.numbers(args.load, int, 1, "--load") if args.load else []
    if args.load and not args.url:
        raise UsageProblem("--load asks a server; give --url and --load 1,2,4,8")
    if args.acceptance is not None and not 0 <= args.acceptance <= 1:
        raise UsageProblem(f"--acceptance {args.acceptance:g}: give a share, from 0 to 1")
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
    add("--seconds", type=parsing.positive, default=120.0, metavar="S", help="no new prompt after them (default: 120)")
    add = parser.add_argument_group("a server under load").add_argument
    add("--load", metavar="N,N", help="users at a time, such as 1,2,4,8: where does it stop paying?")
    add("--load-seconds", type=parsing.positive, default=15.0, metavar="S", help="of each window (default: 15)")
    add = parser.add_argument_group("what is written down").add_argument
    add("--before", type=Path, metavar="FILE", help="a /metrics page, and")
    add("--after", type=Path, metavar="FILE", help="a later one of the same server")
    add("--acceptance", type=float, metavar="F", help="accepted / drafted, as servers print it")
    add("-k", "--draft-length", type=parsing.at_least(1, 256), metavar="K", help="drafted tokens of a round")
    add("--spec-ms", type=parsing.positive, metavar="MS", help="milliseconds per token with speculation")
    add("--plain-ms", type=parsing.positive, metavar="MS", help="and without it; also with --url")
    return parser


# --- servers that are asked -------------------------------------------------------------------------------------------


def show_asked(args: argparse.Namespace) -> int:
    """Ask the server that speculates, and the plain one in turns where there is one, and print what the answers say.

    -> exit code: 1 where a text differs, and no tie explains it
    """
    prompts, key, chat = client.prompts_of(args.texts), client.api_key(), not args.raw
    speculative, plain = client.find(args.url, key), client.find(args.plain_url, key) if args.plain_url else None
    if plain:
        _check_same(speculative, plain)
    about = server_lines(speculative, plain)
    if args.load:
        return load.show(args, speculative, plain, prompts, about)
    pairs = client.ask_all(speculative, plain, prompts, args.max_new_tokens, chat, args.seconds)
    _check_roles(speculative, plain, pairs)
    plain_seconds = args.plain_ms and args.plain_ms / 1e3
    whole = diagnose.of_pairs(pairs, plain_seconds)
    kinds = {
        kind: diagnose.of_pairs([pair for pair in pairs if pair.kind == kind], plain_seconds)
        for kind in dict.fromkeys(pair.kind for pair in pairs)
    }
    verdicts = judge(pairs, plain, chat) if plain else []
    wrong, same = UNEXPLAINED in verdicts, set(verdicts) <= {SAME, TIED}
    shape = diagnose.shape_of_two(whole.parts[0], whole.parts[-1], ENDS) if whole.parts else None
    shape = shape or diagnose.shape_of(whole.counts, whole.n_rounds, [kind.counts for kind in kinds.values()])
    said = diagnose.diagnose(whole, shape, False if wrong else (same and bool(verdicts)) or None)
    if wrong:
        then = "use it for nothing; with the same model and sampling defaults in both, report it with one prompt"
        said = said._replace(answer=f"the text is wrong, and of its speed: {said.answer}", then=then)
    say(screen(said, about + remark_lines(pairs, verdicts), kinds, whole, shape))
    return int(not same)


def show_plain(args: argparse.Namespace) -> int:
    """Ask a server that does not speculate, alone, and print what its tokens take: where one machine has no room for
    both servers, they are started one after the other.  -> exit code"""
    prompts, plain = client.prompts_of(args.texts), client.find(args.plain_url, client.api_key())
    pairs = client.ask_all(plain, None, prompts, args.max_new_tokens, not args.raw, args.seconds)
    if any(_drafted(pair.speculative) for pair in pairs):
        raise EnvironmentProblem(f"{plain.url} speculates; give it with --url, and the plain one as --plain-url")
    found = diagnose.of_pairs(pairs)
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
        flags = (("--before", args.before), ("--after", args.after))
        before, after = (counters.read(client.text_of(path, client.MOST_BYTES, flag)) for flag, path in flags)
        between = counters.between(before, after)
        counts = between.speculation
        if counts is None or not counts.n_drafts:
            raise EnvironmentProblem(
                "no drafts in these pages; take them from the server that speculates, around requests"
            )
        longest = len(counts.accepted_at)
        if args.draft_length and longest and args.draft_length != longest:
            raise UsageProblem(f"-k {args.draft_length}: the pages count drafts of {longest} tokens; give -k {longest}")
        mean = counts.n_drafted / counts.n_drafts
        about = labelled("pages", f"{after.engine}: {counts.n_drafts} rounds drafted {mean:.3g} tokens each")
    elif args.acceptance is not None and args.draft_length:
        about = labelled("written", f"acceptance {args.acceptance:g} of drafts of {args.draft_length} tokens")
        n_drafted = WRITTEN_ROUNDS * args.draft_length
        n_kept = round(args.acceptance * n_drafted)
        counts = EngineCounts(n_drafts=WRITTEN_ROUNDS, n_drafted=n_drafted, n_accepted=n_kept, accepted_at=[])
        between, after = counters.Counted(0, counts), None
    else:
        raise UsageProblem("give --url of a server, or two /metrics pages (--before, --after), or --acceptance and -k")
    found = diagnose.of_pages(between, plain, seconds, after.n_running if after else 0)
    if args.spec_ms and found.round_cost is not None and not LEAST <= found.round_cost <= MOST:
        cost = (
            f"by --plain-ms and --spec-ms a round takes {found.round_cost:.2f} plain steps, where its pass is about one"
        )
        raise UsageProblem(f"{cost}; give both in milliseconds per token, of one request")
    shape = diagnose.shape_of(counts, found.n_rounds)
    say(screen(diagnose.diagnose(found, shape), [about], {}, found, shape))
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
        why = "speculates; give it as --url, and the one without a draft as --plain-url"
        raise EnvironmentProblem(f"{plain.url} {why}")
    if speculative.has_page and not any(_drafted(pair.speculative) for pair in pairs):
        why = "has drafted nothing: it has no draft, found nothing to draft, or has dropped its draft (its log tells)"
        then = "start it with a draft, and give the plain one as --plain-url"
        raise EnvironmentProblem(f"{speculative.url} {why}; {then}")
    for one, other in ((one.speculative, one.plain) for one in pairs if one.plain):
        if one.text == other.text and abs(one.n_tokens - other.n_tokens) > 1:  # an end token is not always counted
            counts = f"equal texts have {one.n_tokens} and {other.n_tokens} tokens"
            raise EnvironmentProblem(f"{counts}: one server counts wrongly; give the addresses of the engines")


def _drafted(asked: Answer | None) -> int:
    return asked.counts.n_drafted if asked and asked.counts else 0


# --- the same text? ---------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One token of a text, and the most probable ones at its place."""

    token: str
    top: dict[str, float]  # token -> log-probability


def judge(pairs: Sequence[Pair], plain: Server, chat: bool) -> list[str]:
    """Return a verdict for each prompt. A text that differs is asked again, with log-probabilities, until Ctrl-C."""
    found = [SAME if pair.plain and pair.plain.text == pair.speculative.text else UNJUDGED for pair in pairs]
    try:
        for place, pair in enumerate(pairs):
            if found[place] != SAME and pair.plain:
                steps = asked_again(plain, Order(pair.prompt, pair.plain.n_tokens, chat))
                found[place] = verdict(steps, pair.plain.text, pair.speculative.text)
    except KeyboardInterrupt:
        note("  the other texts that differ are not judged: stopped")
    return found


def verdict(steps: Sequence[Step], ours: str, other: str) -> str:
    """Return whether the token where `other` leaves the plain text `ours` was as probable as the plain one.

    steps: those of `ours`, asked for once more; where they make another text they judge nothing.
    """
    place = 0
    for step in steps:
        if not ours.startswith(step.token, place):
            return UNJUDGED
        own, rivals = step.top.get(step.token, math.inf), [one for one in step.top if one and one != step.token]
        near = [one for one in rivals if other.startswith(one, place) and own - step.top[one] <= TIE]
        if not step.token or not other.startswith(step.token, place):
            break
        if not all(ours.startswith(one, place) for one in near):
            return TIED  # the plain token only begins like the other one
        place += len(step.token)
    else:
        return UNJUDGED  # asked again, the plain server writes the other text, or nothing that can be read
    ended = place >= len(other)  # it stopped there, and no text shows the token that says so
    if ended or not step.token or step.token not in step.top or "\ufffd" in step.token:
        return UNJUDGED
    return TIED if near else UNEXPLAINED


def asked_again(server: Server, order: Order) -> list[Step]:
    """Return the steps of a greedy answer; none where the server sends no log-probabilities."""
    wish = {"logprobs": True, "top_logprobs": TOP} if order.chat else {"logprobs": TOP}
    with contextlib.suppress(EnvironmentProblem, LookupError, TypeError, AttributeError, ValueError):
        said = server.json(order.path, server.body(order) | wish, order.seconds)["choices"][0]["logprobs"]
        if "content" in said:
            rows = [(one["token"], one["logprob"], one["top_logprobs"]) for one in said["content"]]
            rows = [(token, own, {rival["token"]: rival["logprob"] for rival in top}) for token, own, top in rows]
        else:
            rows = list(zip(said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True))
        tops = [{name: float(value) for name, value in {**top, token: own}.items()} for token, own, top in rows]
        tops = [{name: value for name, value in top.items() if math.isfinite(value)} for top in tops]
        return [Step(token, top) for (token, _, _), top in zip(rows, tops, strict=True)]
    return []


# --- the screen: at most 25 lines, the answer first -------------------------------------------------------------------


def screen(said: Diagnosis, about: list[str], kinds: dict[str, Measured], found: Measured, shape: Shape | None) -> str:
    """Return the answer with its numbers, the causes that are left and what to try; what was asked; and what was
    measured."""
    lines = [labelled("ANSWER", said.answer), *(labelled("", line) for line in said.numbers)]
    lines += [labelled("or" if place else "cause", one) for place, one in enumerate(said.causes)]
    lines += [labelled("tell", said.tell)] if said.tell else []
    by_position = [*position_lines(found), *([labelled("shape", shape.name)] if shape else [])]
    blocks = [[*lines, labelled("try", said.then)], about, [table_of(kinds, found)], by_position]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def server_lines(speculative: Server, plain: Server | None) -> list[str]:
    lines, remarks = list[str](), list[str]()
    for label, one in (("server", speculative), ("plain", plain)):
        if one:
            lines.append(labelled(label, f"{one.engine} {one.version}".strip() + f": {one.model} at {one.url}"))
            remarks += one.remarks
    return [*lines, *(labelled("note", remark) for remark in list(dict.fromkeys(remarks))[:MOST_REMARKS])]


def remark_lines(pairs: Sequence[Pair], verdicts: Sequence[str]) -> list[str]:
    lines = []
    if verdicts:
        others = [f", {verdicts.count(word)} {word}" for word in (TIED, UNEXPLAINED, UNJUDGED) if word in verdicts]
        same = f"{verdicts.count(SAME)} of {len(verdicts)} greedy texts"
        lines.append(labelled("same text", same + "".join(others)))
    if any(one.speculative.shared for one in pairs):
        said = "others asked the server meanwhile: its counters, and so tok/rnd, are of their texts, too"
        then = "vLLM counts each request with --per-request-spec-decode-metrics detailed"
        lines.append(labelled("note", f"{said}; {then}"))
    return lines


def table_of(kinds: dict[str, Measured], whole: Measured) -> str:
    """Return one line for each kind of prompt, and one for all of them. round: its cost in plain tokens."""
    rows = [*(list(kinds.items())[:MOST_KINDS] if len(kinds) > 1 else []), ("all", whole)]
    cells: dict[str, Callable[[Measured], str]] = {
        "prompts": lambda one: str(one.n_prompts or "-"),
        "tok/rnd": lambda one: _shown(one.tokens_per_round),
        "95 %": lambda one: interval(*one.tokens_interval or (None, None)),
        "α": lambda one: _shown(one.counts.acceptance_rate),
        "f": lambda one: _shown(one.counts.drafted_fraction),
        "ms/tok": lambda one: _shown(one.seconds and 1e3 * one.seconds),
        "plain": lambda one: _shown(one.plain_seconds and 1e3 * one.plain_seconds),
        "round": lambda one: _shown(one.round_cost),
        "speedup": lambda one: speedup(one.speedup),
        " 95 %": lambda one: interval(*one.speedup_interval or (None, None)),
    }
    known = {head: cell for head, cell in cells.items() if any(cell(one) != "-" for _, one in rows)}
    return table([[name[:12], *(cell(one) for cell in known.values())] for name, one in rows], ["", *known])


def position_lines(found: Measured) -> list[str]:
    """Return acceptance by position, in the two ways in which it is printed by others, and along the texts where the
    server tells its rounds."""
    marginal, conditional = found.counts.marginal, found.counts.conditional
    if not marginal:
        return []
    n, more = min(len(marginal), MOST_POSITIONS), " ..." * (len(marginal) > MOST_POSITIONS)
    thirds = [_shown(part.acceptance_rate) for part in found.parts]
    return [
        f"{'position':<34}{''.join(f'{place:>6}' for place in range(1, n + 1))}{more}",
        f"{'kept of the rounds that reach it':<34}{''.join(f'{_shown(rate):>6}' for rate in conditional[:n])}",
        f"{'kept of all rounds that draft':<34}{''.join(f'{rate:6.2f}' for rate in marginal[:n])}",
        *([f"{'α in each third of the answers':<34}{''.join(f'{rate:>6}' for rate in thirds)}"] if thirds else []),
    ]


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
