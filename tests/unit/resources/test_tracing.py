"""Traces reach a collector that is there, and are nothing where nobody asks for them.

Contains: spans over a real collector on this machine, without a load.
Add here: another thing that a span tells.
Does not contain: a load's own spans (scenarios/test_watching.py).
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.masking import scrubbed
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.steps import Step
from resources import tracing
from resources.guarded_http import guarded_client
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
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.common.trace_encoder", None)
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


KEY = "k3y-of-the-collector"


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
def test_a_collector_is_told_its_key_and_nobody_else_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a collector takes a trace, then leads elsewhere. Outcome: it is sent the key, the other place nothing."""
    monkeypatch.setenv(name, f"authorization=Bearer%20{KEY}, x-tenant=events")
    with a_collector() as collector, a_collector() as other:
        assert LoadTrace(collector.url, "load", {}, 1_000).end(2_000) is None
        assert collector.headers[0]["authorization"] == f"Bearer {KEY}"
        assert collector.headers[0]["x-tenant"] == "events"
        collector.moved_to = f"{other.url}/v1/traces"
        said = LoadTrace(collector.url, "load", {}, 1_000).end(2_000)
        assert said == f"{collector.url}: the collector answered 307"
        assert other.headers == []


@pytest.mark.parametrize(
    "headers",
    [f"api-key={KEY}", f"authorization=Bearer%20{KEY}", f"authorization=Bearer {KEY}", f"a=b,api-key={KEY}", KEY],
)
def test_what_a_collector_is_told_is_never_shown(headers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    for text in (f"refused {KEY}!", headers):
        assert KEY not in scrubbed(text)


def test_a_key_goes_to_no_other_machine_in_the_clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidemark.toml").write_text("")
    monkeypatch.setenv("TIDEMARK_TRACE_URL", "http://collector.internal:4318")
    load_settings()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={KEY}")
    with pytest.raises(SettingsError, match=r"TIDEMARK_TRACE_URL: .* in the clear") as refused:
        load_settings()
    assert KEY not in str(refused.value)
    for url in ("https://collector.internal:4318", "http://127.0.0.1:4318"):
        monkeypatch.setenv("TIDEMARK_TRACE_URL", url)
        load_settings()


@pytest.mark.parametrize("host", ["169.254.169.254", "metadata.google.internal", "0xa9fea9fe", "2852039166"])
def test_a_collector_is_not_where_a_machine_serves_its_keys(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is written, and by what a name leads to."""
    with pytest.raises(ValueError, match="names a host that"):
        Settings(trace_url=f"http://{host}:4318")
    monkeypatch.setattr(tracing, "guarded_client", partial(guarded_client, resolve=lambda *_: ["169.254.169.254"]))
    assert "serves its own keys" in str(LoadTrace("http://collector.internal", "load", {}, 1_000).end(2_000))
