"""The vendor's Export API on this machine, with faults on request."""

from __future__ import annotations

import base64
import io
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pipeline_assets.domain.days import Hour
from tests.support.s3 import served

KEY, SECRET = "key-of-the-project-0815", "secret/of+the:project=4711"


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """The connection ends after so many bytes, although more are announced."""
    is_announced: bool = True
    """Whether the body's length is announced; else the connection's end ends the body."""
    silence_seconds: float = 0.0
    trickle_seconds: float = 0.0
    """Pause before each byte of the body."""


@dataclass(frozen=True)
class Asked:
    path: str
    project_id: str
    hours: tuple[Hour, ...]
    at: float
    """By a monotonic clock."""

    def __str__(self) -> str:
        return f"{self.hours[0]}+{len(self.hours)}"


def zipped(members: Sequence[tuple[str, bytes]], **options: Any) -> bytes:
    """A zip archive; names may repeat."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", **options) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=options.get("compression"))
    return body.getvalue()


@dataclass
class Vendor:
    url: str = ""
    objects: dict[str, dict[Hour, dict[int, bytes]]] = field(default_factory=dict)
    """Project -> hour -> shard -> gzip file."""
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Project -> API key and secret key."""
    most_hours: int = 24 * 365
    """More are "too large" (400)."""
    is_another_server: bool = False
    """No vendor at all: it knows nothing and requires no keys."""
    delayed_from: Hour | None = None
    """Nothing is exported from this hour on."""
    faults: list[Callable[[Asked], Answer | None]] = field(default_factory=list)
    """Asked in order; the first that answers, answers."""
    asked: list[Asked] = field(default_factory=list)

    def add(self, project_id: str, hour: Hour, body: bytes, shard: int = 0) -> None:
        self.objects.setdefault(project_id, {}).setdefault(hour, {})[shard] = body

    def fail(self, *answers: Answer, when: Callable[[Asked], bool] = lambda _: True) -> None:
        """Give these answers, one after the other, to the next matching questions."""
        left = list(answers)
        self.faults.append(lambda asked: left.pop(0) if left and when(asked) else None)

    def always(self, answer: Answer, when: Callable[[Asked], bool] = lambda _: True) -> None:
        """Give this answer to every matching question."""
        self.faults.append(lambda asked: answer if when(asked) else None)

    def environment(self) -> dict[str, str]:
        names = {"TIDEMARK_EXPORT_API_URL": self.url}
        for project, (key, secret) in self.keys.items():
            names |= {f"TIDEMARK_EXPORT_KEY_{project}": key, f"TIDEMARK_EXPORT_SECRET_{project}": secret}
        return names

    def members(self, project_id: str, hours: Sequence[Hour]) -> list[tuple[str, bytes]]:
        return [
            (f"{project_id}/{project_id}_{hour.day}_{hour.hour}#{shard}.json.gz", body)
            for hour in hours
            if self.delayed_from is None or hour < self.delayed_from
            for shard, body in sorted(self.objects.get(project_id, {}).get(hour, {}).items())
        ]

    def answer(self, path: str, authorization: str | None) -> Answer:
        """As documented: keys, then size, then data."""
        parts = urlsplit(path)
        if parts.path != "/api/2/export":
            return Answer(404, b"<html><body>no such page</body></html>", {"Content-Type": "text/html"})
        if self.is_another_server:
            return Answer(404, b"404 page not found", {"Content-Type": "text/plain"})
        if authorization is None:
            return Answer(401, b"Invalid API key or secret key")
        project = next((name for name, pair in self.keys.items() if authorization == _basic(*pair)), None)
        asked = Asked(path, project or "", tuple(_hours(parse_qs(parts.query))), time.monotonic())
        self.asked.append(asked)
        for fault in self.faults:
            given = fault(asked)
            if given is not None:
                return given
        if project is None:
            return Answer(403, b"Invalid API key or secret key")
        if len(asked.hours) > self.most_hours:
            return Answer(400, b"The file size of the exported data is too large.")
        members = self.members(project, asked.hours)
        if not members:
            return Answer(404, b"Raw data files were not found.")
        return Answer(200, zipped(members), {"Content-Type": "application/zip"})


def _basic(key: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{key}:{secret}'.encode()).decode()}"


def _hours(query: Mapping[str, Sequence[str]]) -> Iterator[Hour]:
    first, last = (datetime.strptime(query[name][0], "%Y%m%dT%H") for name in ("start", "end"))
    while first <= last:
        yield Hour(date(first.year, first.month, first.day), first.hour)
        first += timedelta(hours=1)


@contextmanager
def a_vendor_with_keys(monkeypatch: pytest.MonkeyPatch, *projects: str) -> Iterator[Vendor]:
    """A vendor whose keys are in the environment, its address is not."""
    with a_vendor(*projects) as vendor:
        for name, value in vendor.environment().items():
            if name != "TIDEMARK_EXPORT_API_URL":
                monkeypatch.setenv(name, value)
        yield vendor


@contextmanager
def a_vendor(*projects: str) -> Iterator[Vendor]:
    """A vendor on this machine, with keys for these projects and no data."""
    vendor = Vendor(keys={project: (f"{KEY}-{project}", f"{SECRET}-{project}") for project in projects})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = vendor.answer(self.path, self.headers.get("Authorization"))
            time.sleep(given.silence_seconds)
            self.send_response_only(given.status)
            for name, value in {"Date": self.date_time_string(), **given.headers}.items():
                self.send_header(name, value)
            if given.is_announced:
                self.send_header("Content-Length", str(len(given.body)))
            self.end_headers()
            self.close_connection = True
            # A client that waited too long is gone.
            with suppress(ConnectionError):
                if not given.trickle_seconds:
                    self.wfile.write(given.body[: given.cut_after])
                    return
                for byte in given.body[: given.cut_after]:
                    time.sleep(given.trickle_seconds)
                    self.wfile.write(bytes([byte]))

        def log_message(self, *_: object) -> None: ...

    with served(Handler) as url:
        vendor.url = url
        yield vendor
