"""A lost ledger: what the tables hold is measured anew, and what persons decided is read back from beside them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.definitions import build_defs
from pipeline_assets.drill.sandbox import as_environment
from pipeline_assets.orchestration.assets import Clock
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT, Outcome, Pipeline, events_on
from tests.support.reference import require_known

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
HELD = DAY + timedelta(days=7)
"""Too far from the other for their events to meet."""
RAW, REFINED = "raw/regular_events", "refined/events"


def _hold(p: Pipeline) -> None:
    """As it is, by a rollback to now."""
    back = {"first": str(HELD), "last": str(HELD), "back_to": datetime.now(UTC).isoformat(), "reason": "test data"}
    job = build_defs(p.settings, clock=Clock(p.now)).resolve_job_def("rollback")
    assert job.execute_in_process(run_config={"ops": {"roll_back": {"config": back}}}, instance=p.instance).success


def _said(p: Pipeline, run: Outcome) -> list[str]:
    return [entry.user_message for entry in p.instance.all_logs(run.result.run_id)]


def test_exclusions_and_holds_outlive_the_ledger(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: an object is excluded and a day held; the ledger's file is lost, more is delivered and loaded. Outcome: the
    object stays out, the day stays as it is, `exclusions` lists it, and the load says that the ledger was lost."""
    p = pipeline(ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    p.deliver(DAY, events_on(DAY, 10), hour=1)
    wrong = p.deliver(DAY, events_on(DAY, 5, prefix="wrong"), hour=2)
    p.deliver(HELD, events_on(HELD, 10))
    assert p.load(DAY, exclude={wrong: "wrong project"}).success
    assert p.load(HELD).success
    _hold(p)
    right = p.digests()
    p.ledger.close()
    for lost in tmp_path.glob("ledger.db*"):
        lost.unlink()
    p.ledger = Ledger(p.settings.ledger_database_url)
    p.deliver(HELD, events_on(HELD, 5, prefix="late"), hour=11)

    run, later = p.load(DAY), p.load(HELD)

    assert run.success, run.failure()
    assert later.success, later.failure()
    assert p.count(RAW, DAY) == p.count(REFINED, DAY) == p.count(REFINED, HELD) == 10
    assert p.count(RAW, HELD) == 15
    assert p.verdict(REFINED, HELD) == "held"
    assert {name: of for name, of in p.digests().items() if name != RAW} == {
        name: of for name, of in right.items() if name != RAW
    }
    require_known(p)
    said = _said(p, run)
    assert "1 exclusions and 4 holds were read back from the warehouse: the ledger had lost them" in said
    assert any(line.startswith(f"{REFINED}: the ledger knows nothing of it, though it holds 2 slices") for line in said)
    listed = CliRunner().invoke(app, ["exclusions", "--json"], env=as_environment(p.settings))
    assert f'"{wrong}"' in listed.stdout, listed.stderr
    assert not [line for line in _said(p, later) if "read back" in line or "knows nothing" in line]
    assert [one.reason for one in p.ledger.interventions.all_holds([PROJECT])] == ["test data"] * 4
