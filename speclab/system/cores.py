"""Are the cores free? One thread, and as many as the run will use, hash for half a second. Standard library.

A thread that only computes wants its core all the time. Where other work runs there, it gets less processor time than
clock time passes; and where threads share what looks like several cores, many do hardly more work than one. Hashing
runs outside the interpreter's lock.

Not seen: one core in use among many, since shares are means over the threads; and other work that takes memory
bandwidth. The run's own noise floor shows what came of those.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

BLOCK = bytes(2**18)  # hashed in a fifth of a millisecond or so: short beside a look
LOOKS = 2  # with one thread and with all, in turns
SECONDS = 0.125  # of each look
FREE = 0.9  # share of a core below which other work runs on it; on an idle machine threads get 0.97 and more
LEAST_GAIN = 1.25  # work of all threads over that of one, below which the others bring nothing
LEAST_EFFICIENCY = 0.4  # the same over the number of threads; two threads of one physical core reach 0.5 to 0.65


class Work(NamedTuple):
    """The work that threads did together: blocks hashed, seconds of processors that they got, and seconds of the
    clock."""

    blocks: float
    got: float
    wanted: float


class Shares(NamedTuple):
    """The result of the probe. `alone`, `together`: processor time over clock time of one thread and of all."""

    threads: int
    alone: float
    together: float
    gain: float  # work of all threads over that of one, in the same time
    load: float | None  # the system's own load average of the last minute, before the probe; None where it has none


def probe(threads: int, work: Callable[[int], Work] | None = None) -> Shares:
    """Look at the cores for half a second. `work` does the work of one look with a number of threads."""
    work, load = work or together, None
    with contextlib.suppress(AttributeError, OSError):  # no such thing on Windows
        load = os.getloadavg()[0]
    looks = [(work(1), work(threads)) for _ in range(LOOKS)] if threads > 1 else [(work(1),) * 2 for _ in range(LOOKS)]
    single, many = (Work(*map(sum, zip(*looks_alike, strict=True))) for looks_alike in zip(*looks, strict=True))
    rates = [side.blocks / side.wanted for side in (single, many)]  # of one thread on average
    return Shares(threads, single.got / single.wanted, many.got / many.wanted, threads * rates[1] / rates[0], load)


def are_free(shares: Shares) -> bool:
    """Tell whether this many threads may be timed here."""
    return shares.together >= FREE and _threads_help(shares)


ONE_THREAD = '--threads 1 (with make: ARGS="--threads 1")'


def complaint(shares: Shares) -> str | None:
    """Return one line that says what is wrong with the cores; None where nothing is."""
    if are_free(shares):
        return None
    n = shares.threads
    average = f" (load average {shares.load:.1f})" if shares.load is not None else ""
    if shares.together >= FREE:
        return f"{n} threads did only {shares.gain:.2f} times the work of one{average}"
    many = f"{n} threads got {shares.together:.0%} of the processor time that they wanted, one alone {shares.alone:.0%}"
    if n == 1:
        many = f"one thread got {shares.together:.0%} of the processor time that it wanted"
    return f"{many}{average}: other work or a limit takes the rest"


def advice(shares: Shares) -> str:
    """Return what to type where the cores are not free. A run says it once."""
    if shares.together >= FREE:
        return f"use {ONE_THREAD}"
    return (
        f"stop it, or use {ONE_THREAD}: threads wait for each other" if shares.threads > 1 else "stop it and run again"
    )


def _threads_help(shares: Shares) -> bool:
    return shares.threads == 1 or shares.gain >= max(LEAST_GAIN, LEAST_EFFICIENCY * shares.threads)


def together(threads: int) -> Work:
    """Take one look: `threads` threads hash side by side, and all begin when the last one is ready."""
    gate, done = threading.Barrier(threads), []

    def hash_blocks() -> None:
        gate.wait()
        done.append(hashed(SECONDS))

    workers = [threading.Thread(target=hash_blocks, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Work(*map(sum, zip(*done, strict=True)))


def hashed(
    seconds: float, clock: Callable[[], float] = time.perf_counter, processor: Callable[[], float] = time.thread_time
) -> Work:
    """Hash blocks until so many seconds have passed on `clock`; `processor` tells the thread's own processor time."""
    blocks, got, begin = 0, processor(), clock()
    while clock() - begin < seconds:
        hashlib.sha256(BLOCK)
        blocks += 1
    return Work(blocks, processor() - got, clock() - begin)
