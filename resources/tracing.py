"""Traces of loads for OpenTelemetry, where a deployment names a collector; without one, nothing of it is imported.

Contains: spans of one load, and sending them.
Add here: another thing that a span tells.
Does not contain: which steps there are (pipeline_assets/load/timeline.py), when they are told
(pipeline_assets/load/observed.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import httpx

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.masking import collector_headers, scrubbed
from resources.guarded_http import guarded_client

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from pipeline_assets.domain.steps import Step

_SERVICE = "tidemark"
_SECONDS = 5.0
"""The longest that a collector which is away holds up the end of a load."""
Attributes = Mapping[str, str | int | float]


class LoadTrace:
    """The span of one load, with one below it for each table and each step; sent when the load ends."""

    def __init__(self, url: str, name: str, attributes: Attributes, began: int) -> None:
        """Begin at a time in nanoseconds since 1970. Raises SettingsError where OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans  # noqa: PLC0415 - optional
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - optional
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415 - optional
            from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - optional
        except ImportError as error:
            raise SettingsError(
                "trace_url",
                f"needs a library that is not installed ({error.name})",
                "Install tidemark-pipeline[tracing], or unset TIDEMARK_TRACE_URL",
            ) from None
        # Kept until the end, so that no span of a load waits for the network.
        self._kept = InMemorySpanExporter()
        self._provider = TracerProvider(resource=Resource.create({"service.name": _SERVICE}), shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self._tracer = self._provider.get_tracer(_SERVICE)
        self._encode, self._below, self._url = encode_spans, set_span_in_context, url
        self._root = self._tracer.start_span(name, attributes=dict(attributes), start_time=began)

    def table(self, table: str, began: int, ended: int, attributes: Attributes, steps: Sequence[Step]) -> None:
        """One table, and its steps."""
        context = self._below(self._root)
        span = self._tracer.start_span(f"table {table}", context, attributes=dict(attributes), start_time=began)
        self._steps(self._below(span), steps)
        span.end(ended)

    def end(self, ended: int, steps: Sequence[Step] = (), error: BaseException | None = None) -> str | None:
        """End the load's span and send all; returns why they could not be sent, None where they were."""
        self._steps(self._below(self._root), steps)
        if error is not None:
            self._fail(self._root, error)
        self._root.end(ended)
        try:
            refusal = self._refusal(self._encode(self._kept.get_finished_spans()).SerializeToString())
        except Exception as failure:
            return f"{self._url}: {failure}"
        finally:
            self._provider.shutdown()
        return None if refusal is None else f"{self._url}: {refusal}"

    def _refusal(self, spans: bytes) -> str | None:
        """Send them; why the collector did not take them, None where it did."""
        url, keys = f"{self._url.rstrip('/')}/v1/traces", collector_headers()
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": "tidemark", **keys}
        with (
            guarded_client(url, httpx.Timeout(_SECONDS), is_secret=bool(keys)) as client,
            client.stream("POST", url, content=spans, headers=headers) as response,
        ):
            return None if response.is_success else f"the collector answered {response.status_code}"

    def _steps(self, context: Context, steps: Sequence[Step]) -> None:
        for step in steps:
            told = {"tidemark.table": step.table, "tidemark.step": step.name}
            self._tracer.start_span(step.name, context, attributes=told, start_time=step.began).end(step.ended)

    def _fail(self, span: Span, error: BaseException) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - optional

        # Neither trace nor locals: a stack may hold what no log repeats.
        span.set_status(Status(StatusCode.ERROR, scrubbed(f"{type(error).__name__}: {error}")))
