"""Signals that arrive while stages run: each is kept for later, and interrupts no writing."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

SAME_REQUEST_SECONDS = 1.0  # a second signal within them is the same request: some programs send it twice


class Stopped(KeyboardInterrupt):
    """The user pressed Ctrl-C, or a signal asked for the same."""

    def __init__(self, number: int):
        super().__init__()
        self.exit_code = 128 + number


@contextlib.contextmanager
def on_signals(act: Callable[[Stopped], object]) -> Iterator[None]:
    """Let SIGINT, SIGTERM and, where the system has it, SIGHUP call `act`; an ignored one stays ignored."""
    last = -SAME_REQUEST_SECONDS

    def receive(number: int, _frame: object) -> None:
        nonlocal last
        if time.monotonic() - last >= SAME_REQUEST_SECONDS:
            last = time.monotonic()
            act(Stopped(number))

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
