"""Runs that are watched from outside: the file of figures, JSON lines and a trace of the same load tell the same.

Contains: what one load with a red day tells all three, and what listeners that are away do to a load: nothing.
Add here: another listener.
Does not contain: figures one by one (unit/inspection/test_metrics.py), spans and lines (unit/resources/).
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.load.timeline import STEP_ENDED_BY
from pipeline_assets.tables.registry import DERIVED
from tests.support.builders import PROJECT, events_on
from tests.support.collector import a_collector
from tests.unit.inspection.test_metrics import figures_in

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
RED = DAY + timedelta(days=1)
TABLES = ["raw/regular_events", *(table.key for table in DERIVED)]


def test_figures_lines_and_trace_tell_of_the_same_load(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a load of a good and a truncated day with all listeners, then the same with none of them within reach.
    Outcome: they agree with each other and with the ledger; a load that nobody can be told of publishes all the same."""
    figures_file, lines_file = tmp_path / "tidemark.prom", tmp_path / "runs.jsonl"
    with a_collector() as collector:
        p = pipeline(metrics_file=figures_file, json_log=lines_file, trace_url=collector.url)
        p.deliver(DAY, events_on(DAY, 40))
        p.deliver(RED, events_on(RED, 40), truncated=True)
        red = p.load(DAY, RED)
        assert not red.success
        spans = collector.take()
    run_id = red.result.run_id
    lines = [json.loads(line) for line in lines_file.read_text().splitlines()]
    assert {line["run_id"] for line in lines} == {run_id}
    assert [lines[0]["event"], lines[-1]["event"]] == ["run_begun", "run_ended"]
    told = {(line["table"], line["slice"]): line["verdict"] for line in lines if line["event"] == "slice"}
    assert {told[table, f"{DAY}/{PROJECT}"] for table in TABLES} == {"published"}
    assert told["raw/regular_events", f"{RED}/{PROJECT}"] == "refused"
    refused = [line for line in lines if line["event"] == "slice" and line["verdict"] == "refused"]
    assert {line["level"] for line in refused} == {"warning"}
    assert "truncated_gzip" in refused[0]["reason"]
    assert any("refined/events" in line["message"] for line in lines if line["event"] == "log")

    (root,) = [span for span in spans if not span.parent]
    assert (root.name, root.is_error, root.attributes["tidemark.run_id"]) == ("load", False, run_id)
    tables = {span.attributes["tidemark.table"]: span for span in spans if span.name.startswith("table ")}
    assert {span.parent for span in tables.values()} == {root.number}
    published = {span.name: span for span in spans if span.name in ("apply", "publish")}
    assert {span.parent for span in published.values()} == {root.number}
    assert published.keys() == {"apply", "publish"}
    assert [
        span.attributes["tidemark.table"] for span in sorted(tables.values(), key=lambda span: span.began)
    ] == TABLES
    verdicts = {table: Counter(verdict for (of, _), verdict in told.items() if of == table) for table in TABLES}
    for table, span in tables.items():
        counted = {verdict: span.attributes[f"tidemark.slices.{verdict}"] for verdict in verdicts[table]}
        assert counted == verdicts[table]
        steps = sorted((one for one in spans if one.parent == span.number), key=lambda one: one.began)
        assert {step.name for step in steps} <= set(STEP_ENDED_BY.values())
        assert {"stage", "audit", "record"} <= {step.name for step in steps}, table
        assert span.began <= steps[0].began
        assert steps[-1].ended <= span.ended <= root.ended
        seconds = [line["seconds"] for line in lines if line["event"] == "step" and line["table"] == table]
        of_table = [one for one in spans if one.attributes.get("tidemark.table") == table]
        assert len(seconds) == len(of_table) - 1

    figures = figures_in(figures_file.read_text())
    assert figures["tidemark_refused_days", ("raw/regular_events", PROJECT)] == 1
    assert figures["tidemark_rows", (PROJECT,)] == p.count("refined/events") == 40
    assert figures["tidemark_runs_total", ("regular", "incomplete")] == 1
    assert figures["tidemark_dagster_runs", ("working",)] == 1
    assert {
        table for name, (table, *_) in ((n, (*ls, "")) for n, ls in figures) if name == "tidemark_table_seconds"
    } == set(TABLES)

    nowhere = tmp_path / "none"
    p.change(metrics_file=nowhere / "a.prom", json_log=nowhere / "a.jsonl", trace_url="http://127.0.0.1:9")
    p.deliver(RED, events_on(RED, 40))
    again = p.load(RED)
    assert again.success, again.failure()
    assert p.verdict("refined/events", RED) == "published"
    said = [entry.user_message for entry in p.instance.all_logs(again.result.run_id)]
    for beginning in ("metrics: ", "json_log ", "traces: http://127.0.0.1:9"):
        assert any(message.startswith(beginning) for message in said), beginning
    assert len(lines_file.read_text().splitlines()) == len(lines)
