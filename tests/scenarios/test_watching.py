"""Runs that are watched from outside: the file of figures tells what the ledger does, and a load goes on without it."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.tables.registry import DERIVED
from tests.support.builders import PROJECT, events_on
from tests.unit.inspection.test_metrics import figures_in

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
RED = DAY + timedelta(days=1)
TABLES = ["raw/regular_events", *(table.key for table in DERIVED)]


def test_figures_tell_of_the_load_and_a_load_goes_on_without_them(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a load of a good and a truncated day with a file of figures, then one whose file cannot be written.
    Outcome: figures and tables agree; a load whose figures cannot be written publishes all the same."""
    figures_file = tmp_path / "tidemark.prom"
    p = pipeline(metrics_file=figures_file)
    p.deliver(DAY, events_on(DAY, 40))
    p.deliver(RED, events_on(RED, 40), truncated=True)
    assert not p.run(DAY, RED).success

    figures = figures_in(figures_file.read_text())
    assert figures["tidemark_refused_days", ("raw/regular_events", PROJECT)] == 1
    assert figures["tidemark_rows", (PROJECT,)] == p.count("refined/events") == 40
    assert figures["tidemark_runs_total", ("regular", "incomplete")] == 1
    assert figures["tidemark_dagster_runs", ("working",)] == 1
    assert {
        table for name, (table, *_) in ((n, (*ls, "")) for n, ls in figures) if name == "tidemark_table_seconds"
    } == set(TABLES)

    p.change(metrics_file=tmp_path / "none" / "a.prom")
    p.deliver(RED, events_on(RED, 40))
    again = p.run(RED)
    assert again.success, again.failure()
    assert p.verdict("refined/events", RED) == "published"
    said = [entry.user_message for entry in p.instance.all_logs(again.run_id)]
    assert any(message.startswith("metrics: ") for message in said)
