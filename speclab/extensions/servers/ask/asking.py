"""Asks one server, or two in turns, the same prompts, one request at a time."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from speclab.extensions.servers.ask.client import Order
from speclab.extensions.servers.ask.engines import Asked, Server
from speclab.extensions.servers.measured import Pair
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note, progress

WARM_UP_TOKENS = 8
WARM_UP_HEAD = "First of all:"  # before a prompt: no prompt's first answer finds it in a cache
LEAST = 3  # prompts that are asked however long they take: an interval needs as many
AGAIN = 3  # prompts that the server that speculates is asked a second time, when its cache knows them


class Prompt(NamedTuple):
    """A text to ask about, and what kind of text it is."""

    kind: str
    text: str


class Answers(NamedTuple):
    """These are the answers. pairs: to every prompt, of both servers. again: of the one that speculates, to the first
    prompts once more. stop: what ended the list before its end, where the user did."""

    pairs: list[Pair]
    again: list[Asked]
    stop: KeyboardInterrupt | None = None


class Asking(NamedTuple):
    """How servers are asked. n_tokens: of an answer, at most. chat: as messages of a user. seconds: no new prompt after
    them. plain_seconds: of a plain token, where somebody knows them."""

    n_tokens: int
    chat: bool
    seconds: float
    plain_seconds: float | None = None


def ask_all(speculative: Server, plain: Server | None, prompts: Sequence[Prompt], how: Asking) -> Answers:
    """Ask both servers every prompt, in an order that changes from prompt to prompt, and the server that speculates the
    first AGAIN prompts once more.

    What fails after LEAST prompts ends the list and is noted, and so does a stop: what was measured before it stays.
    Nothing is asked again where the list has ended early.
    """
    servers = [server for server in (speculative, plain) if server]
    for server in servers:
        server.ask(Order(f"{WARM_UP_HEAD} {prompts[0].text}", WARM_UP_TOKENS, how.chat))
    end, pairs, stop = time.monotonic() + how.seconds, list[Pair](), None
    with progress(len(prompts), "prompt", "asking") as bar:
        for number, prompt in enumerate(prompts):
            if number >= LEAST and time.monotonic() > end:
                note(f"  the time of --seconds is over after {number} of {len(prompts)} prompts")
                break
            order = Order(prompt.text, how.n_tokens, how.chat)
            try:
                found = {id(one): one.ask(order) for one in (servers if number % 2 else servers[::-1])}
            except (EnvironmentProblem, KeyboardInterrupt) as problem:
                if len(pairs) < LEAST:
                    raise
                why = str(problem) or "stopped"
                note(f"  only the first {len(pairs)} of {len(prompts)} prompts are counted: {why}")
                stop = problem if isinstance(problem, KeyboardInterrupt) else None
                break
            if plain and found[id(plain)].n_drafts:
                raise EnvironmentProblem(
                    f"{plain.client.url} speculates; give it as --url, and the server without a draft as --plain-url"
                )
            pairs.append(Pair(prompt.kind, prompt.text, found[id(speculative)], _of(found, plain)))
            bar.update()
    asked = prompts[:AGAIN] if len(pairs) == len(prompts) else []
    try:
        orders = [Order(one.text, how.n_tokens, how.chat) for one in asked]
        return Answers(pairs, [speculative.ask(order) for order in orders if time.monotonic() < end], stop)
    except (EnvironmentProblem, KeyboardInterrupt) as problem:
        note(f"  a prompt that was asked before is not answered again: {str(problem) or 'stopped'}")
        return Answers(pairs, [], problem if isinstance(problem, KeyboardInterrupt) else None)


def _of(found: dict[int, Asked], plain: Server | None) -> Asked | None:
    return found[id(plain)] if plain else None
