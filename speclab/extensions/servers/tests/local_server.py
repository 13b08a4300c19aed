"""What servers around the lab's loop and simulated ones share: they listen on 127.0.0.1, and send answers in parts."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LocalServer(ThreadingHTTPServer):
    """A server of this machine alone, at a free port, for as long as a block."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: type[BaseHTTPRequestHandler]):
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *stop: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone."""


class Speaking(BaseHTTPRequestHandler):
    """Sends whole answers, and answers in events."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *words: object) -> None:
        """Write nothing."""

    def body(self, most: int = 2**20) -> dict[str, Any]:
        """Return the JSON of a request, of at most so many bytes."""
        return json.loads(self.rfile.read(min(most, int(self.headers["Content-Length"]))))

    def whole(self, status: int, data: bytes) -> None:
        """Send an answer of known length."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_events(self) -> None:
        """Send the head of an answer in events."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, what: dict[str, Any]) -> None:
        """Send an event."""
        self.part(b"data: " + json.dumps(what).encode() + b"\n\n")

    def end_events(self) -> None:
        """Say that the answer is whole."""
        self.part(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def part(self, data: bytes) -> None:
        """Send some bytes, however they are cut; none where there are none."""
        if not data:
            return
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
