"""Asks one server that is wrong on purpose, as the command does, and takes down what its screen says."""

import argparse
import contextlib
import itertools
import textwrap
import threading
from collections.abc import Iterator, Sequence

from speclab.extensions.servers import running, screen
from speclab.extensions.servers.__main__ import make_parser
from speclab.extensions.servers.ask import engines, texts
from speclab.extensions.servers.ask.asking import Prompt
from speclab.extensions.servers.ask.client import Order
from speclab.extensions.servers.ask.inputs import prompts_of
from speclab.extensions.servers.diagnosis import TEXT_WRONG
from speclab.extensions.servers.load import load_screen
from speclab.extensions.servers.load.work import measure, work
from speclab.extensions.servers.referee.__main__ import compared
from speclab.extensions.servers.referee.own import ended_rounds
from speclab.extensions.servers.vllm.server_record import EngineCounts
from speclab.extensions.servers.wrong.cases import LAB_PAIR_NAME, SMOLLM2, Place, Wrong, lab_draft, llama, lookup
from speclab.extensions.servers.wrong.wrong_record import LoadTry, WrongServer
from speclab.system.errors import EnvironmentProblem

SHORT_CHARACTERS, SECONDS = 80, 25.0
USERS, SLOTS = [1, 2, 4, 8], 8
LOADS = {  # each with its prompts, and what starts the servers
    "users of the lab's pair": (LAB_PAIR_NAME, llama(lab_draft, 4, SLOTS)),
    "users of SmolLM2": (SMOLLM2, llama(lookup, 4, SLOTS, smollm2=True)),
}


def asked(case: Wrong, place: Place, n_tokens: int) -> WrongServer:
    """Start the servers of one case, ask them, and end them."""
    chat = case.model != LAB_PAIR_NAME
    prompts = prompts_of(None) if chat else [Prompt(one.kind, one.text) for one in place.lab.prompts]
    if case.lengths:
        prompts = short_and_long(prompts)
    words = ["--url", "http://127.0.0.1:1", "--max-new-tokens", str(n_tokens), "--seconds", str(SECONDS)]
    args = make_parser().parse_args([*words, *([] if chat else ["--raw"])])
    with case.start(place) as urls:
        speculative, plain = engines.find(urls.url, None), engines.find(urls.plain, None)
        if urls.engine:
            speculative.engine, speculative.version = plain.engine, plain.version = urls.engine, ""
        engine = f"{speculative.engine} {speculative.version}".strip()
        with others(speculative, case.others, prompts, chat, n_tokens):
            look = speculative.look()
            try:
                found = running.find_out(args, speculative, plain, prompts, look.n_running if look else 0)
            except EnvironmentProblem as problem:
                said = str(problem).replace(urls.url, "http://127.0.0.1:8000")
                return refused(case, engine, urls.flags, said)
        equal = referee(case, place, speculative, n_tokens) if case.referee else ""
        lines = "\n".join([*screen.server_lines(speculative, plain), running.first_screen(found)]).split("\n")
    counts = found.whole.counts or EngineCounts(n_drafts=0, n_drafted=0, n_accepted=0, accepted_at=[])
    said = running.answer_of(found).answer
    causes = list(found.diagnosis.causes)
    right = is_right(case.answer, found.diagnosis.answer, said)
    return WrongServer(
        name=case.name,
        half=case.half,
        engine=engine,
        model=case.model,
        fault=case.fault,
        flags=urls.flags,
        expected=case.answer,
        answer=said,
        right=right,
        cause=case.cause,
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
        equal_rounds=equal,
        screen=[
            line.replace(f":{urls.url.rpartition(':')[2]}", ":8000").replace(
                f":{urls.plain.rpartition(':')[2]}", ":8001"
            )
            for line in lines
        ],
        expected_changed=case.expected_changed,
    )


def is_right(expected: str, of_speed: str, shown: str) -> bool:
    """Return whether an answer is the expected one. of_speed: the one of the four. shown: as it stands on the screen,
    which begins with TEXT_WRONG where a text is wrong: that is expected where no speed is worth anything."""
    return shown.startswith(TEXT_WRONG) if expected == TEXT_WRONG else of_speed == expected


def is_named(cause: str, causes: Sequence[str], right: bool) -> bool:
    """Return whether the true cause is among those that are shown. Where nothing is wrong, the answer must say so, and
    no cause may be shown."""
    return cause in causes if cause else right and not causes


def refused(case: Wrong, engine: str, flags: str, said: str) -> WrongServer:
    """Return the entry of a server that the command could not measure: its one line is the answer."""
    return WrongServer(
        name=case.name,
        half=case.half,
        engine=engine,
        model=case.model,
        fault=case.fault,
        flags=flags,
        expected=case.answer,
        answer=case.answer if case.answer in said else said,
        right=case.answer in said,
        cause=case.cause,
        named=case.cause in said if case.cause else case.answer in said,
        shapes=[],
        advice="",
        n_same=0,
        n_tied=0,
        n_texts=0,
        tokens_per_round=None,
        round_cost=None,
        speedup=None,
        n_drafts=0,
        n_drafted=0,
        n_accepted=0,
        equal_rounds="",
        screen=textwrap.wrap(f"error: {said}", screen.WIDTH),
        expected_changed=case.expected_changed,
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
    """Hold the server's counts against the lab's own rounds, prompt by prompt, and say how many are equal.

    vLLM drafts k tokens in the last round, too, and so does the lab beside it; llama-server drafts no more than the
    text has room for.
    """
    lab, verdicts = place.lab, list[str]()
    if server.engine == engines.VLLM:
        given = argparse.Namespace(draft=case.referee, draft_length=case.k, max_new_tokens=n_tokens, seed=lab.seed)
        verdicts = [row[-1] for row in compared(server, lab.setup, list(lab.prompts), given)]
    else:
        for prompt in lab.prompts:
            found = server.ask(Order(prompt.text, n_tokens, chat=False))
            own = ended_rounds(lab.setup, lab.draft(case.referee), prompt, case.k, n_tokens)
            same = found.answer.text == lab.setup.tokenizer.decode(own.tokens)
            equal = same and found.counted is not None and found.counted.speculation == own.counts
            verdicts.append("equal" if equal else "different")
    n_equal, n_last = (sum(verdict.startswith(word) for verdict in verdicts) for word in ("equal", "last round"))
    said = f"{n_equal} of {len(verdicts)} prompts are equal in text, rounds, drafted and accepted tokens by position"
    return said + f", and {n_last} but for the last round" * bool(n_last)


def under_load(name: str, place: Place, n_tokens: int, seconds: float) -> LoadTry:
    """Ask two servers with more and more users."""
    model, start = LOADS[name]
    chat = model != LAB_PAIR_NAME
    prompts = prompts_of(None) if chat else [Prompt(one.kind, one.text) for one in place.lab.prompts]
    with start(place) as urls:
        speculative, plain = engines.find(urls.url, None), engines.find(urls.plain, None)
        levels = measure(
            speculative,
            plain,
            USERS,
            seconds,
            lambda first: work(prompts, n_tokens, itertools.count(first), alter=True),
            chat,
        )
    lines = screen.joined(load_screen.lines(levels)).split("\n")
    failed = sorted({one.name for level in levels for one in level.checks if not one.good})
    engine = f"{speculative.engine} {speculative.version}".strip()
    return LoadTry(
        name=name,
        engine=engine,
        model=model,
        flags=urls.flags,
        window_seconds=seconds,
        checks=failed,
        screen=lines,
        ended_early=len(levels) < len(USERS),
    )
