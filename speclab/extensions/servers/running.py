"""The answer from servers that run: who they are, what they write, and how fast."""

import argparse
from dataclasses import replace
from typing import Any

from speclab.extensions.servers import profile, screen
from speclab.extensions.servers.ask import inputs, texts
from speclab.extensions.servers.ask.asking import ask_all
from speclab.extensions.servers.ask.client import check_url
from speclab.extensions.servers.ask.engines import OTHER, Server, find
from speclab.extensions.servers.diagnosis import diagnose
from speclab.extensions.servers.measured import Measured, Pair, of_pairs
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import check_writable
from speclab.system.terminal import note, say


def show(args: argparse.Namespace) -> int:
    """Ask, and print the first screen.  -> exit code"""
    if args.acceptance_profile:
        check_writable(args.acceptance_profile, "--acceptance-profile")
    prompts, key, plain = inputs.prompts_of(args.texts), inputs.key(), None
    urls = [check_url(url) for url in (args.url, args.plain_url) if url]
    speculative = find(urls[0], key)
    look = speculative.look()
    if len(urls) > 1:
        plain = find(urls[1], key)
        _check_same(speculative, plain)
    say("\n".join(screen.server_lines(speculative, plain)))
    pairs = ask_all(speculative, plain, prompts, args.max_new_tokens, not args.raw, args.seconds)
    _check_roles(speculative, plain, pairs)
    verdicts = texts.judge(pairs, plain, not args.raw) if plain else []
    n_running, given = look.n_running if look else 0, args.plain_ms and args.plain_ms / 1e3
    whole = of_pairs(pairs, n_running, given)
    if whole.draft_length is None:
        whole = replace(whole, draft_length=speculative.draft_length)
    kinds = {kind: of_pairs([one for one in pairs if one.kind == kind], 0, given) for kind in _kinds(pairs)}
    say(_screen(pairs, verdicts, kinds, whole))
    if args.acceptance_profile:
        engine = f"{speculative.engine} {speculative.version}".strip()
        conditions: dict[str, Any] = {"engine": engine, "model": speculative.model}
        conditions |= {"temperature": 0, "n_prompts": len(pairs), "max_new_tokens": args.max_new_tokens}
        profile.write(args.acceptance_profile, whole, conditions)
    return int(not set(verdicts) <= {texts.SAME, texts.TIED})


def _screen(pairs: list[Pair], verdicts: list[str], kinds: dict[str, Measured], whole: Measured) -> str:
    lines = [screen.text_line(verdicts)] if verdicts else []
    if any(one.speculative.shared for one in pairs):
        lines.append(screen.labelled("note", "others asked the server meanwhile: its counters hold their tokens, too"))
    n_prompts = {kind: sum(one.kind == kind for one in pairs) for kind in kinds}
    by_position = [*screen.position_lines(whole), *screen.shape_lines(whole.counts)]
    blocks = [lines, [screen.table(kinds, whole, n_prompts)], by_position, screen.answer_lines(diagnose(whole))]
    return screen.joined(blocks)


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


def _check_roles(speculative: Server, plain: Server | None, pairs: list[Pair]) -> None:
    """One server must speculate and the other one must not, as far as their counters tell."""
    drafted = [_n_drafts(pair.speculative) for pair in pairs]
    if plain and any(_n_drafts(pair.plain) for pair in pairs):
        raise EnvironmentProblem(f"{plain.client.url} speculates; give the server without speculation with --plain-url")
    if speculative.engine != OTHER and speculative.has_page and not any(drafted) and not _gauge(pairs):
        raise EnvironmentProblem(
            f"{speculative.client.url} has drafted nothing: it does not speculate, or found nothing to draft; start it "
            "with a draft, and give the server without one with --plain-url"
        )


def _n_drafts(asked) -> int:
    counts = asked.counted.speculation if asked and asked.counted else None
    return counts.n_drafts if counts else 0


def _gauge(pairs: list[Pair]) -> bool:
    return any(one.speculative.counted and one.speculative.counted.accept_length for one in pairs)
