"""vLLM as a referee of the lab's loop: for each prompt, does it write the same text in the same rounds?

    python -m speclab.extensions.servers.referee --url http://127.0.0.1:8001 --draft model -k 4
    python -m speclab.extensions.servers.referee --url http://127.0.0.1:8001 --draft ngram -k 4 --limit 2

The server serves the target of --target with that draft; docs/serving.md says how it is started. Each prompt goes to
it as token ids, greedily, and its counters before and after are held against the rounds of the lab's own loop. What
comes out is one line for each prompt. Exit code 1 where a text differs, or counts do in more than the last round.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys

from tabulate import tabulate

from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.drafts.registry import check_prompts
from speclab.extensions.servers.ask import engines, inputs
from speclab.extensions.servers.ask.client import Order, check_url
from speclab.extensions.servers.referee.own import judged, own_rounds
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.terminal import progress, say

HEADS = ("prompt", "rounds", "drafted", "accepted", "the lab's rounds")


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Ask, decode, compare, print.  -> exit code"""
    args = make_parser().parse_args(argv)
    server = engines.find(check_url(args.url), inputs.key())
    setup, prompts = flags.load(args, temperature=0.0)
    rows = compared(server, setup, prompts, args.draft, args.draft_length, args.max_new_tokens, args.seed)
    n_equal = sum(not row[-1].startswith("different") for row in rows)
    say(f"{server.engine} {server.version} with {args.draft}, k = {args.draft_length}")
    say(f"same text and rounds in {n_equal} of {len(rows)} prompts\n")
    say(tabulate(rows, HEADS, disable_numparse=True))
    return int(n_equal < len(rows))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags."""
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.referee")
    flags.add_model_flags(parser)
    flags.add_text_flags(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--url", required=True, metavar="URL", help="of vLLM with this target and draft")
    group.add_argument("--draft", default="model", metavar="KIND", help="what the server drafts with (default: model)")
    group.add_argument("-k", "--draft-length", type=parsing.at_least(1, 256), default=4, metavar="K", help="default: 4")
    parser.set_defaults(max_new_tokens=64, limit=5, engine="eager", device_map=None)
    return parser


def compared(
    server: engines.Server, setup: Setup, prompts: list[Prompt], draft: str, k: int, n_tokens: int, seed: int
) -> list[list[str]]:
    """Return a row for each prompt, of n_tokens each. draft: its name, with k tokens a round. Raises EnvironmentProblem
    where the server sends no ids or counts no rounds."""
    rows = list[list[str]]()
    drafter = None if draft == "ngram" else registry.make(draft, setup, seed)
    check_prompts(setup.target, [drafter] if drafter else [], prompts, n_tokens + 2 * k)
    with progress(len(prompts), "prompt", "the referee") as bar:
        for prompt in prompts:
            asked = server.ask(Order(prompt.id_list, n_tokens, chat=False, ids=True))
            counts = asked.counted.speculation if asked.counted else None
            if len(asked.answer.ids) != n_tokens or counts is None or asked.shared:
                raise EnvironmentProblem(
                    f"{server.client.url} sent {len(asked.answer.ids)} token ids of {n_tokens} and "
                    f"{'no ' if counts is None else ''}counts of rounds; ask vLLM, with speculation, and nobody beside"
                )
            if len(counts.accepted_at) != k:
                n = len(counts.accepted_at)
                raise UsageProblem(f"the server drafts {n} tokens, as its counters show, and not {k}; give -k {n}")
            own = own_rounds(setup, drafter, prompt, k, n_tokens)
            verdict, reason = judged(k, counts, own, asked.answer.ids)
            said = f"{verdict}: {reason}" if reason else verdict
            rows.append([prompt.kind, *map(str, (counts.n_drafts, counts.n_drafted, counts.n_accepted)), said])
            bar.update()
    return rows


if __name__ == "__main__":
    sys.exit(main())
