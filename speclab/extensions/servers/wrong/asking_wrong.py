"""Asks one server that is wrong on purpose, as the command does, and takes down what its screen says."""

import contextlib
import itertools
import textwrap
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from speclab.extensions.servers import running, screen
from speclab.extensions.servers.ask import engines, texts
from speclab.extensions.servers.ask.asking import Asking, Prompt
from speclab.extensions.servers.ask.client import Order
from speclab.extensions.servers.diagnosis import TEXT_WRONG
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.extensions.servers.load import load_screen
from speclab.extensions.servers.load.work import measure
from speclab.extensions.servers.wrong.cases import DROPPED, Wrong
from speclab.extensions.servers.wrong.makers import Found, InVllm, Llama, Place, lab_draft, lookup
from speclab.extensions.servers.wrong.vllm_set import for_few, with_weights
from speclab.extensions.servers.wrong.wrong_record import LoadTry, WrongServer
from speclab.models.loading import LAB_PAIR
from speclab.system.errors import EnvironmentProblem

SHORT_CHARACTERS, SECONDS = 80, 25.0
USERS, SLOTS = [1, 2, 4, 8], 8
LOADS = {
    "users of the lab's pair": Llama(lab_draft, slots=SLOTS),
    "users of SmolLM2": Llama(lookup, slots=SLOTS, smollm2=True, writes=False),
    "users of vLLM": with_weights(LAB_PAIR / "draft"),
    "users of vLLM with drafts for two": InVllm(for_few, weights=LAB_PAIR / "draft"),
}


def asked(case: Wrong, half: str, place: Place, n_tokens: int) -> WrongServer:
    """Start the servers of one case, ask them, and end them. half: its set. EnvironmentProblem where they do not start,
    or cannot be measured, which is the answer only where the case expects it."""
    servers, chat = case.servers, case.servers.smollm2
    prompts = short_and_long(servers.prompts(place)) if case.lengths else servers.prompts(place)
    with servers.started(place) as both:
        facts: dict[str, Any] = {
            **{name: getattr(case, name) for name in ("name", "fault", "cause", "expected_changed")},
            "half": half,
            "model": servers.model,
            "flags": both.flags,
            "expected": case.answer,
            "engine": f"{both.speculative.engine} {both.speculative.version}".strip(),
        }
        with others(both.speculative, case.others, prompts, chat, n_tokens):
            how = Asking(n_tokens, chat, SECONDS)
            try:
                found = running.find_out(how, both.speculative, both.plain, prompts)
            except EnvironmentProblem as problem:
                if case.answer != DROPPED:  # a server that died or was too slow says nothing of the answers
                    raise
                return refused(case, facts, *as_shown([str(problem)], both))
            if found.stop:  # a part of its prompts is no answer for a record
                raise found.stop
        equal = referee(case, place, both.speculative, n_tokens)
    lines = [*screen.server_lines(both.speculative, both.plain), *running.first_screen(found).split("\n")]
    counts = found.whole.counts or EngineCounts(n_drafts=0, n_drafted=0, n_accepted=0, accepted_at=[])
    said, causes = running.answer_of(found).answer, list(found.diagnosis.causes)
    right = is_right(case.answer, found.diagnosis.answer, said)
    return WrongServer(
        **facts,
        answer=said,
        right=right,
        named=is_named(case.cause, causes, right),
        causes=causes,
        shapes=[shape.name for shape in found.shapes],
        advice=found.diagnosis.then,
        n_same=found.verdicts.count(texts.SAME),
        n_tied=found.verdicts.count(texts.TIED),
        n_texts=len(found.verdicts),
        tokens_per_round=found.whole.tokens_per_round,
        round_cost=found.whole.round_cost,
        speedup=found.whole.speedup,
        n_drafts=counts.n_drafts,
        n_drafted=counts.n_drafted,
        n_accepted=counts.n_accepted,
        by_kind={kind: one.counts for kind, one in found.kinds.items() if one.counts},
        equal_rounds=equal,
        screen=as_shown(lines, both),
    )


def as_shown(lines: Sequence[str], both: Found) -> list[str]:
    """Return lines of the screen with the ports that the docs have, and not those that were free here."""
    one, other = (server.client.url.rpartition(":")[2] for server in (both.speculative, both.plain))
    return [line.replace(f":{one}", ":8000").replace(f":{other}", ":8001") for line in lines]


def is_right(expected: str, of_speed: str, shown: str) -> bool:
    """Return whether an answer is the expected one. of_speed: the one of the four. shown: as it stands on the screen,
    which begins with TEXT_WRONG where a text is wrong: that is expected where no speed is worth anything."""
    return shown.startswith(TEXT_WRONG) if expected == TEXT_WRONG else of_speed == expected


def is_named(cause: str, causes: Sequence[str], right: bool) -> bool:
    """Return whether the true cause is among those that are shown. Where nothing is wrong, the answer must say so, and
    no cause may be shown."""
    return cause in causes if cause else right and not causes


def refused(case: Wrong, facts: dict[str, Any], said: str) -> WrongServer:
    """Return the entry of a server that the command could not measure: its one line is the answer."""
    right = case.answer in said
    return WrongServer(
        **facts,
        answer=case.answer if right else said,
        right=right,
        named=case.cause in said if case.cause else right,
        screen=textwrap.wrap(f"error: {said}", screen.WIDTH),
    )


def short_and_long(prompts: list[Prompt]) -> list[Prompt]:
    """Return the ends of the prompts, and in turns with them two prompts as one."""
    pairs = zip(prompts, prompts[1:] + prompts[:1], strict=True)
    long = [Prompt(one.kind, f"{other.text}\n\n{one.text}") for one, other in pairs]
    short = [Prompt(one.kind, one.text[-SHORT_CHARACTERS:]) for one in prompts]
    return [one for both in zip(short, long, strict=True) for one in both]


@contextlib.contextmanager
def others(server: engines.Server, n_users: int, prompts: list[Prompt], chat: bool, n_tokens: int) -> Iterator[None]:
    """Let so many users ask the server for as long as the block."""
    over = threading.Event()

    def ask(start: int) -> None:
        client = engines.find(server.client.url, None).client
        for number in itertools.count(start):
            if over.is_set():
                return
            with contextlib.suppress(EnvironmentProblem):
                client.ask(Order(f"{number}. {prompts[number % len(prompts)].text}", n_tokens, chat))

    threads = [threading.Thread(target=ask, args=(1000 * user,), daemon=True) for user in range(n_users)]
    for thread in threads:
        thread.start()
    if threads:
        over.wait(2.0)  # until all of them are being answered
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def referee(case: Wrong, place: Place, server: engines.Server, n_tokens: int) -> str:
    """Hold the server's counts against the lab's own rounds, prompt by prompt, and say how many are equal; nothing
    where no draft of the lab makes such rounds."""
    if not case.servers.referee:
        return ""
    verdicts = case.servers.verdicts(place, server, n_tokens)
    n_equal, n_last = (sum(verdict.startswith(word) for verdict in verdicts) for word in ("equal", "last round"))
    said = f"{n_equal} of {len(verdicts)} prompts are equal in text, rounds, drafted and accepted tokens by position"
    return said + f", and {n_last} but for the last round" * bool(n_last)


def under_load(name: str, place: Place, n_tokens: int, seconds: float) -> tuple[LoadTry, BaseException | None]:
    """Ask two servers with more and more users. Also returned: what ended it before the last load."""
    servers = LOADS[name]
    with servers.started(place) as both:
        orders, chat = servers.orders(place, n_tokens), servers.smollm2
        levels, stop = measure(both.speculative, both.plain, USERS, seconds, orders, chat)
    found = LoadTry(
        name=name,
        engine=f"{both.speculative.engine} {both.speculative.version}".strip(),
        model=servers.model,
        flags=both.flags,
        window_seconds=seconds,
        checks=sorted({one.name for level in levels for one in level.checks if not one.good}),
        screen=screen.joined(load_screen.lines(levels)).split("\n"),
        ended_early=stop is not None,
    )
    return found, stop
