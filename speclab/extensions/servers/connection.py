"""One HTTP request to a server that nobody vouches for: what comes back is bounded in size and in time.

Whatever goes wrong on the way is a ConnectionProblem. Standard library only.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from speclab.system.errors import EnvironmentProblem, UsageProblem

SILENT_SECONDS = 120.0  # without a byte from the server, after which it counts as hanging
PART_BYTES = 2**16  # taken from an answer at once
LINE_BYTES = 2**20  # of one line of an answer
PAGE_BYTES = 2**24  # of a page that is read as a whole


class ConnectionProblem(EnvironmentProblem):
    """The server cannot be reached, or has gone in the middle of an answer."""


class Connections:
    """The open requests to one server, so that another thread can end them all."""

    def __init__(self, url: str):
        self.url = url
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def abort(self) -> None:
        """Shut every open request: whoever waits for its answer gets a ConnectionProblem."""
        with self._lock:
            for place in self._open:
                _shut(place)

    @contextlib.contextmanager
    def request(
        self, method: str, path: str, body: str | None = None, seconds: float = SILENT_SECONDS
    ) -> Iterator["Response"]:
        """An answer, whose connection is closed at the end. `seconds`: for all of it, however slowly it comes."""
        place = urlsplit(self.url)
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        connection = kind(place.hostname or "", place.port, timeout=min(seconds, SILENT_SECONDS))
        late = threading.Event()
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            try:
                connection.connect()
                with self._lock:
                    self._open.add(opened := connection.sock)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise ConnectionProblem(f"{self.url} does not answer: {_why(error)}") from None

            def end() -> None:
                late.set()
                _shut(opened)

            watch = threading.Timer(seconds, end)
            watch.daemon = True
            watch.start()
            try:
                yield self._sent(connection, method, place.path.rstrip("/") + path, body, headers)
                if late.is_set():  # what was cut off may look whole
                    raise TimeoutError
            except (EnvironmentProblem, TimeoutError) as problem:
                # The watch has ended it, or the socket's own limit.
                if late.is_set() or isinstance(problem.__context__, TimeoutError):
                    raise ConnectionProblem(f"{self.url} did not end its answer within {seconds:g} s") from None
                raise
            finally:
                watch.cancel()
                with self._lock:
                    self._open.discard(opened)
        finally:
            connection.close()

    def _sent(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
    ) -> "Response":
        try:
            connection.request(method, path, body, headers)
            return Response(self.url, connection.getresponse())
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ) as error:  # ValueError: odd bytes in a head or an address
            raise ConnectionProblem(f"{self.url} does not answer: {_why(error)}") from None


class Response:
    """An answer as it comes."""

    def __init__(self, url: str, response: http.client.HTTPResponse):
        self.url, self.status, self._response = url, response.status, response

    def lines(self) -> Iterator[bytes]:
        """Line by line, to its end."""
        rest = b""
        while part := self._part():
            *lines, rest = (rest + part).split(b"\n")
            if max(map(len, (*lines, rest))) > LINE_BYTES:
                raise ConnectionProblem(f"{self.url} sends a line of more than {LINE_BYTES} bytes")
            yield from lines
        if rest:
            yield rest

    def read(self) -> bytes:
        """All of it."""
        page = bytearray()
        while part := self._part():
            page += part
            if len(page) > PAGE_BYTES:
                raise ConnectionProblem(f"{self.url} sends a page of more than {PAGE_BYTES} bytes")
        return bytes(page)

    def _part(self) -> bytes:
        """What has come since the last part; empty at the end. ConnectionProblem where the answer is cut off: its
        readline() would take a cut for an end."""
        try:
            part = self._response.read1(PART_BYTES)
        except (OSError, http.client.HTTPException, ValueError, AttributeError, OverflowError) as error:
            # AttributeError: http.client reads on from a connection that it has closed; OverflowError: a chunk's size
            raise ConnectionProblem(f"{self.url} went away in the middle of an answer: {_why(error)}") from None
        if not part and self._response.length:
            raise ConnectionProblem(f"{self.url} went away before the end of its answer")
        return part

    def json(self) -> Any:
        """All of it as JSON."""
        return parsed(self.read(), self.url)


def parsed(data: bytes, url: str) -> Any:
    """What a server sends as JSON. EnvironmentProblem where it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise EnvironmentProblem(f"{url} sends what is no JSON: {data[:60]!r}") from None


def message(data: bytes) -> str:
    """What a server's error says."""
    try:
        error = json.loads(data)
        error = error.get("error", error)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        text = data.decode(errors="replace")
    return " ".join(text[:2000].split())[:200] or "no reason given"


def check_url(url: str) -> str:
    """The address without what follows the port and path. UsageProblem where it is none."""
    try:
        place = urlsplit(url)
        (place.hostname or "").encode("idna").decode()
        place.path.encode("ascii")
        good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
        good = good and place.username is None and not set(url) & set(" \t\r\n\x00?#")
    except ValueError:
        good = False
    if not good:
        raise UsageProblem(f"--url {url} is no address; give one such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _shut(place: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may have ended by itself
        place.shutdown(socket.SHUT_RDWR)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)[:200] or type(error).__name__
