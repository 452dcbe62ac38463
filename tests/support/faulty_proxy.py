"""An HTTP proxy before an S3 server that fails as networks and servers do: errors, throttling, delays, cut answers.

Contains: the faults.
Add here: another one.
Does not contain: what a load makes of them.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum, auto
from http.server import BaseHTTPRequestHandler

from tests.support.s3 import served


class Fault(StrEnum):
    """What becomes of a request."""

    SERVER_ERROR = auto()
    THROTTLED = auto()
    ARCHIVED = auto()
    """Refused for the object's own sake."""
    SLOW = auto()
    RESET = auto()
    """Half of the answer, then the connection is cut."""


_SLOW_SECONDS = 1.5
_STATUS = {
    Fault.SERVER_ERROR: (500, "InternalError"),
    Fault.THROTTLED: (503, "SlowDown"),
    Fault.ARCHIVED: (403, "InvalidObjectState"),
}


@dataclass
class Faults:
    """Which requests fail, and how many did."""

    choose: Callable[[str, str, int], Fault | None] = lambda method, path, turn: None
    """(method, path, how often this request was made before) -> what becomes of it."""
    met: Counter[Fault] = field(default_factory=Counter)
    _turns: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, method: str, path: str) -> Fault | None:
        """The fate of this request."""
        with self._lock:
            turn = self._turns[f"{method} {path}"]
            self._turns[f"{method} {path}"] += 1
            fault = self.choose(method, path, turn)
            if fault is not None:
                self.met[fault] += 1
            return fault


@contextmanager
def a_faulty_proxy(target: str, faults: Faults) -> Iterator[str]:
    """URL of a proxy before the server `target`."""
    host = urllib.parse.urlsplit(target).netloc

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fault = faults.of(self.command, self.path)
            if fault in _STATUS:
                status, code = _STATUS[fault]
                body = f"<Error><Code>{code}</Code><Message>by the test</Message></Error>".encode()
                self._answer(status, [("Content-Type", "application/xml")], body)
                return
            if fault is Fault.SLOW:
                time.sleep(_SLOW_SECONDS)
            length = int(self.headers.get("Content-Length") or 0)
            connection = http.client.HTTPConnection(host, timeout=60)
            # The host that was signed is the proxy's.
            connection.request(self.command, self.path, self.rfile.read(length) if length else None, dict(self.headers))
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            self._answer(answer.status, answer.getheaders(), body, is_cut=fault is Fault.RESET)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names that http.server calls

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, is_cut: bool = False) -> None:
            self.send_response(status)
            dropped = {"transfer-encoding", "connection", "server", "date"}
            kept = [(name, value) for name, value in headers if name.lower() not in dropped]
            for name, value in kept:
                self.send_header(name, value)
            if "content-length" not in {name.lower() for name, _ in kept}:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if is_cut else body)
            if is_cut:
                self.wfile.flush()
                # Closed with zero linger, a socket sends a reset.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with served(Proxy) as url:
        yield url
