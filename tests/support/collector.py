"""A collector of OpenTelemetry on this machine: it keeps the spans that it is sent.

Contains: the server and its spans.
Add here: another way of failing.
Does not contain: what is sent to it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.s3 import served


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    number: str
    parent: str
    began: int
    ended: int
    attributes: dict[str, Any]
    is_error: bool


@dataclass
class Collector:
    """What was sent."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each request, by name in lower case."""
    moved_to: str = ""
    """Where it leads whoever sends it anything; empty where it takes it."""

    def below(self, span: Received) -> list[Received]:
        """Its children, in the order in which they began."""
        return sorted((one for one in self.spans if one.parent == span.number), key=lambda one: one.began)

    def take(self) -> list[Received]:
        """All of them, and forget them."""
        taken, self.spans = self.spans, []
        return taken


@contextmanager
def a_collector() -> Iterator[Collector]:
    """Takes OTLP over HTTP."""
    collector = Collector()

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            if collector.moved_to:
                self.send_response(307)
                self.send_header("Location", collector.moved_to)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if self.path == "/v1/traces":
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with served(Take) as url:
        collector.url = url
        yield collector


def _spans(request: ExportTraceServiceRequest) -> list[Received]:
    return [
        Received(
            span.name, span.span_id.hex(), span.parent_span_id.hex(), span.start_time_unix_nano, span.end_time_unix_nano,
            {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes},
            span.status.code == 2,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]  # fmt: skip
