"""A proxy before an S3 server that fails as networks and servers do."""

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
    SERVER_ERROR = auto()
    THROTTLED = auto()
    TOO_MANY = auto()
    """Throttled, with the server's requested pause."""
    ARCHIVED = auto()
    """Refused because of the object."""
    EXPIRED = auto()
    """Refused because of the token, as S3 does from its expiry on."""
    UNKNOWN_KEY = auto()
    SLOW = auto()
    LATE = auto()
    """Answered after the client gave up (`Faults.late_seconds`)."""
    TRICKLE = auto()
    """A few bytes at a time."""
    RESET = auto()
    """Half of the answer, then the connection is cut."""
    RESET_UPLOAD = auto()
    """Cut in the middle of the upload; the server gets none of it."""
    LOST_ANSWER = auto()
    """The server carries the request out, and the connection is cut before its answer."""


_SLOW_SECONDS = 1.5
_TRICKLED_PARTS = 16
_STATUS = {
    Fault.SERVER_ERROR: (500, "InternalError", "by the test"),
    Fault.THROTTLED: (503, "SlowDown", "Please reduce your request rate."),
    Fault.TOO_MANY: (429, "TooManyRequests", "Please reduce your request rate."),
    Fault.ARCHIVED: (403, "InvalidObjectState", "by the test"),
    Fault.EXPIRED: (400, "ExpiredToken", "The provided token has expired."),
    Fault.UNKNOWN_KEY: (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
}  # fmt: skip
"""Status, S3's code and sentence: Java's client repeats the sentence, not the code."""


@dataclass
class Faults:
    choose: Callable[[str, str, int], Fault | None] = lambda method, path, turn: None
    """(method, path, number of earlier such requests) -> fate."""
    met: Counter[Fault] = field(default_factory=Counter)
    late_seconds: float = 0.0
    _turns: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, method: str, path: str) -> Fault | None:
        with self._lock:
            turn = self._turns[f"{method} {path}"]
            self._turns[f"{method} {path}"] += 1
            fault = self.choose(method, path, turn)
            if fault is not None:
                self.met[fault] += 1
            return fault

    def end(self) -> int:
        """Ends all faults; returns how many requests failed."""
        with self._lock:
            self.choose = lambda method, path, turn: None
            count = self.met.total()
            self.met.clear()
            self._turns.clear()
            return count


@contextmanager
def a_faulty_proxy(target: str, faults: Faults) -> Iterator[str]:
    host = urllib.parse.urlsplit(target).netloc

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body go out at once; apart, each answer would wait for the client's acknowledgement.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            fault = faults.of(self.command, self.path)
            length = int(self.headers.get("Content-Length") or 0)
            if fault is Fault.RESET_UPLOAD:
                self.rfile.read(length // 2)
                self._reset()
                return
            sent = self.rfile.read(length) if length else None
            if fault in _STATUS:
                status, code, text = _STATUS[fault]
                body = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
                asked = [("Retry-After", "1")] if fault is Fault.TOO_MANY else []
                self._answer(status, [("Content-Type", "application/xml"), *asked], body)
                return
            if fault is Fault.SLOW:
                time.sleep(_SLOW_SECONDS)
            if fault is Fault.LATE:
                time.sleep(faults.late_seconds)
            connection = http.client.HTTPConnection(host, timeout=60)
            # The signed host is the proxy's.
            connection.request(self.command, self.path, sent, dict(self.headers))
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            if fault is Fault.LOST_ANSWER:
                self._reset()
                return
            self._answer(answer.status, answer.getheaders(), body, fault)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names that http.server calls

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: Fault | None = None) -> None:
            self.send_response(status)
            dropped = {"transfer-encoding", "connection", "server", "date"}
            kept = [(name, value) for name, value in headers if name.lower() not in dropped]
            for name, value in kept:
                self.send_header(name, value)
            if "content-length" not in {name.lower() for name, _ in kept}:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self._send(body, fault)
            if fault is Fault.RESET:
                self._reset()

        def _send(self, body: bytes, fault: Fault | None) -> None:
            if fault is Fault.RESET:
                self.wfile.write(body[: len(body) // 2])
                return
            if fault is not Fault.TRICKLE:
                self.wfile.write(body)
                return
            step = len(body) // _TRICKLED_PARTS + 1
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                self.wfile.flush()
                time.sleep(_SLOW_SECONDS / _TRICKLED_PARTS)

        def _reset(self) -> None:
            self.wfile.flush()
            # Closed with zero linger, a socket sends a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with served(Proxy) as url:
        yield url
