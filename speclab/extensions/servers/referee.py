"""vLLM as a referee of the lab's loop: for each prompt, does it write the same text in the same rounds?

    python -m speclab.extensions.servers.referee --url http://127.0.0.1:8001 --draft model -k 4
    python -m speclab.extensions.servers.referee --url http://127.0.0.1:8001 --draft ngram -k 4 --limit 2

The server serves the target of --target with that draft; docs/serving.md says how it is started. Each prompt goes to
it as token ids, greedily, and its counters before and after are held against the rounds of the lab's own loop. What
comes out is one line for each prompt. Exit code 1 where a text differs, or counts do in more than the last round.

The engine does not know in its last round that the text is about to end: it drafts k tokens there as everywhere, and
counts what it kept of them, also behind the end. So the lab decodes past the end here, and counts the rounds that begin
before it.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import copy
import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple

from draft_models import NgramDrafter
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.drafts import registry
from speclab.drafts.registry import check_prompts
from speclab.extensions.servers.client import Order, Server, api_key, find
from speclab.extensions.servers.counters import EngineCounts, Rounds, of_rounds
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import table
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.terminal import progress, say

HEADS = ["prompt", "rounds", "drafted", "accepted", "the lab's rounds"]


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    server = find(args.url, api_key())
    setup, prompts = flags.load(args, temperature=0.0)
    rows = compared(server, setup, prompts, args.draft, args.draft_length, args.max_new_tokens, args.seed)
    n_equal = sum(not row[-1].startswith("different") for row in rows)
    say(f"same text and rounds in {n_equal} of {len(rows)} prompts")
    say(f"{server.engine} {server.version} with {args.draft}, k = {args.draft_length}\n")
    say(table(rows, HEADS, n_words=len(HEADS)))
    return int(n_equal < len(rows))


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.referee")
    flags.add_shared_flags(parser, spread=False)
    group = parser.add_argument_group("server")
    group.add_argument("--url", required=True, metavar="URL", help="of vLLM with this target and draft")
    group.add_argument("--draft", default="model", metavar="KIND", help="what the server drafts with (default: model)")
    group.add_argument("-k", "--draft-length", type=parsing.at_least(1, 256), default=4, metavar="K", help="default: 4")
    parser.set_defaults(max_new_tokens=64, limit=5, engine="eager")
    return parser


def compared(
    server: Server, setup: Setup, prompts: list[Prompt], draft: str, k: int, n_tokens: int, seed: int
) -> list[list[str]]:
    """Return a row for each prompt, of n_tokens each. draft: its name, with k tokens a round. Raises EnvironmentProblem
    where the server sends no ids or counts no rounds."""
    rows = list[list[str]]()
    drafter = None if draft == "ngram" else registry.make(draft, setup, seed)
    check_prompts(setup.target, [drafter] if drafter else [], prompts, n_tokens + 2 * k)
    with progress(len(prompts), "prompt", "the referee") as bar:
        for prompt in prompts:
            asked = server.ask(Order(prompt.id_list, n_tokens, chat=False, ids=True))
            counts, ids = asked.counts, asked.ids
            if len(ids) != n_tokens or counts is None:
                found = f"sent {len(ids)} token ids of {n_tokens} and {'no ' if counts is None else ''}counts of rounds"
                raise EnvironmentProblem(f"{server.url} {found}; ask vLLM, with speculation")
            if asked.shared:
                then = "ask alone, or start it with --per-request-spec-decode-metrics detailed"
                raise EnvironmentProblem(f"{server.url} counts rounds of others who asked it meanwhile; {then}")
            if (n := len(counts.accepted_at)) != k:
                raise UsageProblem(f"the server drafts {n} tokens, as its counters show, and not {k}; give -k {n}")
            # Anew for every prompt: what a draft has learned from others is not asked of the engine either.
            own = rounds_of(setup, copy.deepcopy(drafter) if drafter else FirstMatch(), prompt, k, n_tokens)
            verdict, reason = judged(k, counts, own_rounds(own, n_tokens), ids)
            said = f"{verdict}: {reason}" if reason else verdict
            rows.append([prompt.kind, *map(str, (counts.n_drafts, counts.n_drafted, counts.n_accepted)), said])
            bar.update()
    return rows


class FirstMatch(NgramDrafter):
    """Prompt lookup as vLLM does it: among matches of equal length the first one, not the most recent."""

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        for token in committed:
            end = len(self._tokens)
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._after.setdefault(tuple(self._tokens[end - n : end]), end)
            self._tokens.append(token)


class OwnRounds(NamedTuple):
    """The lab's rounds of one text that begin before its end, with their drafted and accepted tokens."""

    tokens: list[int]
    rounds: Rounds


def rounds_of(setup: Setup, drafter: Drafter, prompt: Prompt, draft_length: int, n_tokens: int) -> list[Round]:
    """Decode a prompt greedily past n_tokens.  -> the rounds that begin before, the prompt's own pass first"""
    settings, rounds, n_new = DecodeSettings(n_tokens + 2 * draft_length), list[Round](), 0
    target, ids = setup.target.with_own_cache(), prompt.ids.to(setup.device)
    for round_ in speculative_decode(target, drafter, ids, draft_length, settings):
        if n_new >= n_tokens:
            break
        n_new += len(round_.tokens)
        rounds.append(round_)
    return rounds


def own_rounds(rounds: Sequence[Round], n_tokens: int) -> OwnRounds:
    counted = [(one.n_drafted, one.n_accepted) for one in rounds if not one.prefill]
    return OwnRounds(tokens_of(list(rounds))[:n_tokens], counted)


def judged(
    draft_length: int, engine: EngineCounts, own: OwnRounds, tokens: list[int]
) -> tuple[Literal["equal", "last round", "different"], str]:
    """Return the verdict on an engine's counts of a greedy text, and what is different. Why is not measured. Only the
    very last round may have drafted or kept another number of tokens, and only where it drafted something."""
    if tokens != own.tokens:
        place = next(i for i, pair in enumerate(zip(tokens, own.tokens, strict=True)) if pair[0] != pair[1])
        return "different", f"another text from token {place} on"
    counts = of_rounds(own.rounds, draft_length)
    if engine == counts:
        return "equal", ""
    *before, (last_drafted, _) = own.rounds or [(0, 0)]
    lasts = [(drafted, kept) for drafted in range(1, draft_length + 1) for kept in range(drafted + 1)]
    if last_drafted and any(engine == of_rounds([*before, last], draft_length) for last in lasts):
        return "last round", "the last round keeps or drafts another number of tokens behind the end"
    if engine.n_drafts != counts.n_drafts:
        return "different", "the same text in another number of rounds that draft"
    if engine.n_drafted != counts.n_drafted:
        return "different", "as many rounds, but another number of drafted tokens"
    return "different", "as many rounds and drafted tokens, but others are accepted"


if __name__ == "__main__":
    sys.exit(main())
