"""A webhook on this machine: it accepts signed notices, and fails on request."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.s3 import served

SECRET = "a secret of the test"
HANG = 0
"""In place of a status: no answer until the test ends."""


@dataclass
class Webhook:
    """Received notices and the next answers; without any it accepts everything."""

    url: str = ""
    taken: list[dict[str, Any]] = field(default_factory=list)
    requests: int = 0
    answers: deque[tuple[int, Mapping[str, str]]] = field(default_factory=deque)
    secret: str | None = SECRET
    ended: threading.Event = field(default_factory=threading.Event)

    def answer_next(self, status: int, times: int = 1, **headers: str) -> None:
        """Answer the next requests like this; header names have `_` for `-`."""
        self.answers.extend([(status, {name.replace("_", "-"): value for name, value in headers.items()})] * times)

    @property
    def notices(self) -> list[dict[str, Any]]:
        return [notice for body in self.taken for notice in body["notices"]]


def is_signed(header: str | None, body: bytes, secret: str) -> bool:
    """The documented check for receivers, without the age."""
    parts = dict(part.split("=", 1) for part in (header or "").split(",") if "=" in part)
    signed = parts.get("t", "").encode() + b"." + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, parts.get("v1", ""))


@contextmanager
def a_webhook(port: int = 0) -> Iterator[Webhook]:
    webhook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            webhook.requests += 1
            status, headers = webhook.answers.popleft() if webhook.answers else (200, {})
            if status == HANG:
                webhook.ended.wait()
                return
            if webhook.secret and not is_signed(self.headers["Tidemark-Signature"], body, webhook.secret):
                status = 401
            if status == 200:
                webhook.taken.append(json.loads(body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with served(Handler, port) as server:
        webhook.url = f"{server}/services/T0001/of-this-test"
        try:
            yield webhook
        finally:
            webhook.ended.set()
