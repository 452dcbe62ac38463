"""Traces reach a collector that is there, and are nothing where nobody asks for them.

Contains: spans over a real collector on this machine, without a load.
Add here: another thing that a span tells.
Does not contain: a load's own spans (scenarios/test_watching.py).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.steps import Step
from resources.tracing import LoadTrace
from tests.support.collector import a_collector


def test_spans_keep_their_times_and_their_order() -> None:
    with a_collector() as collector:
        trace = LoadTrace(collector.url + "/", "load", {"tidemark.run_id": "r1"}, 1_000)
        trace.table(
            "refined/events", 2_000, 5_000, {"tidemark.slices": 3}, [Step("refined/events", "stage", 2_500, 4_000)]
        )
        assert (
            trace.end(9_000, [Step("raw/x", "record", 6_000, 7_000)], ValueError("postgresql://u:secret@h/db")) is None
        )
    by_name = {span.name: span for span in collector.spans}
    load, table = by_name["load"], by_name["table refined/events"]
    assert (load.began, load.ended, load.parent, load.is_error) == (1_000, 9_000, "", True)
    assert (table.began, table.ended, table.parent) == (2_000, 5_000, load.number)
    assert table.attributes == {"tidemark.slices": 3}
    stage, record = by_name["stage"], by_name["record"]
    assert (stage.parent, stage.began, stage.ended) == (table.number, 2_500, 4_000)
    assert (record.parent, record.attributes["tidemark.table"]) == (load.number, "raw/x")


def test_a_collector_that_is_away_is_told_of() -> None:
    trace = LoadTrace("http://127.0.0.1:9", "load", {}, 1_000)
    assert "http://127.0.0.1:9: " in (trace.end(2_000) or "")


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match=r"not installed \(opentelemetry"):
        LoadTrace("http://127.0.0.1:9", "load", {}, 1_000)


def test_nothing_of_it_is_imported_where_nobody_asks() -> None:
    code = (
        "import sys, pipeline_assets.definitions, pipeline_assets.cli.app, pipeline_assets.load.observed\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in ('opentelemetry', 'prometheus_client')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("url", ["http://user:key@collector:4318", "collector:4318", "http://collector:4318?key=1"])
def test_a_collector_with_a_key_in_its_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        Settings(trace_url=url)
    assert "key@" not in str(refused.value)
