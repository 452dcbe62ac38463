"""A lost ledger: every run is refused until an operator attaches an empty one; tables and warehouse keep the rest."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.orchestration.assets import Clock
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT, Outcome, Pipeline, events_on
from tests.support.reference import require_known
from tests.support.shell import OfPipeline

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
HELD = DAY + timedelta(days=7)
"""Too far from the other day for their events to meet."""
RAW, REFINED = "raw/regular_events", "refined/events"


def _hold(p: Pipeline) -> None:
    """Hold the present state, by a rollback to now."""
    back = {"from": str(HELD), "to": str(HELD), "back_to": datetime.now(UTC).isoformat(), "reason": "test data"}
    job = build_defs(p.settings, clock=Clock(p.now)).resolve_job_def("rollback")
    assert job.execute_in_process(run_config={"ops": {"roll_back": {"config": back}}}, instance=p.instance).success


def _said(p: Pipeline, run: Outcome) -> list[str]:
    return [entry.user_message for entry in p.instance.all_logs(run.run_id)]


def test_another_ledger_is_refused_and_a_lost_one_is_replaced_by_an_operator(
    pipeline: Any, tmp_path: Path, capfd: Any
) -> None:
    """Scenario: an exclusion, a hold and a delivery with a third of the rows; then the ledger's file is lost.
    Outcome: refused until attached, with a list of what is unknown; the excluded object stays out, the held day stays."""
    p = pipeline(ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    p.deliver(DAY, events_on(DAY, 300), hour=1)
    wrong = p.deliver(DAY, events_on(DAY, 5, prefix="wrong"), hour=2)
    p.deliver(HELD, events_on(HELD, 10))
    assert p.run(DAY, exclude={wrong: "wrong project"}).success
    assert p.run(HELD).success
    _hold(p)
    right = p.digests()
    p.deliver(DAY, events_on(DAY, 100), hour=1)
    assert not p.run(DAY).success
    assert p.count(REFINED, DAY) == 300
    p.ledger.close()
    for lost in tmp_path.glob("ledger.db*"):
        lost.unlink()
    p.ledger = Ledger(p.settings.ledger_database_url)
    p.deliver(HELD, events_on(HELD, 5, prefix="late"), hour=11)

    for run in (p.run(DAY), p.run(HELD)):
        assert not run.success
        assert "ledger.db: is not the ledger of this lake" in run.failure()
        assert "tidemark attach --ledger" in run.failure()
    assert p.count(REFINED, DAY) == 300
    assert not p.ledger.slices(REFINED, None)
    shell = OfPipeline(p)
    assert "is not the ledger of this lake" in shell("exclusions").stderr

    # An operator corrects this first: without its record the day is no longer final, and shrinks.
    p.deliver(DAY, events_on(DAY, 300), hour=1)
    done = shell("attach", "--ledger", "--take", p.settings.catalog_name)
    assert done.returncode == 0, done.stderr
    progress = capfd.readouterr().err
    assert "1 exclusions and 4 holds were read back from the warehouse: the ledger had lost them" in progress
    assert f"{REFINED}: 2 slices differ from the ledger; reading them" in progress
    assert "It does not know:\n  - which days were final" in done.stdout
    run, later = p.run(DAY), p.run(HELD)

    assert run.success, run.failure()
    assert later.success, later.failure()
    assert (p.count(REFINED, DAY), p.count(RAW, DAY), p.count(REFINED, HELD), p.count(RAW, HELD)) == (300, 300, 10, 15)
    assert p.verdict(REFINED, HELD) == "held"
    assert {name: of for name, of in p.digests().items() if name != RAW} == {
        name: of for name, of in right.items() if name != RAW
    }
    require_known(p)
    listed = shell("exclusions", "--json")
    assert f'"{wrong}"' in listed.stdout, listed.stderr
    assert not [line for line in _said(p, later) if "read back" in line]
    assert [one.reason for one in p.ledger.interventions.all_holds([PROJECT])] == ["test data"] * 4
