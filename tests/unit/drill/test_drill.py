"""A drill's judgement of survival, and its list of points."""

from __future__ import annotations

import re
import subprocess
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.drill import sandbox
from pipeline_assets.drill.sandbox import Scratch, as_environment
from pipeline_assets.drill.scenarios import Change, Disturbance, DrillState, faults, planned, recovery_faults
from pipeline_assets.inspection.scratch import ledger_url
from pipeline_assets.tables.events import REGULAR_EVENTS
from resources.failpoints import Failpoint
from resources.publishing import Promise
from sample_export.spec import ExportSpec
from tests.support.points import OF_MOVES, OF_ROLLBACKS, OF_TABLE_BY_TABLE
from tests.support.victim import drills_in_copies

DAY = date(2026, 2, 2)
KEY = Slice(DAY, "10001")
TABLE = "refined/events"
CALM = {TABLE: {KEY: "3:a"}}
WHOLE = DrillState(
    {TABLE: {KEY: "3:a"}}, [Change(TABLE, KEY, str(EMPTY), "2:b"), Change(TABLE, KEY, "2:b", "3:a")], [], {TABLE: {DAY}}
)


def test_what_is_whole_has_no_fault() -> None:
    assert list(faults(WHOLE, CALM, [DAY])) == []
    swap, undo = Change(TABLE, KEY, "3:a", str(EMPTY)), Change(TABLE, KEY, str(EMPTY), "3:a")
    assert list(faults(WHOLE._replace(changes=[*WHOLE.changes, *(swap, undo) * 2]), CALM, [DAY])) == []


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (WHOLE._replace(digests={TABLE: {KEY: "6:c"}}), "6:c instead of 3:a"),
        (WHOLE._replace(digests={}), f"{EMPTY} instead of 3:a"),
        (WHOLE._replace(digests={TABLE: {KEY: "3:a", Slice(DAY, "2"): "1:x"}}), f"1:x instead of {EMPTY}"),
        (WHOLE._replace(changes=[*WHOLE.changes, WHOLE.changes[-1]]), "the same change is on record twice"),
        (WHOLE._replace(changes=WHOLE.changes[1:]), "a change is missing on record"),
        (WHOLE._replace(changes=WHOLE.changes[:1]), "the last change on record is not what the table holds"),
        (WHOLE._replace(branches=["refined/events run_0"]), "a staged branch is left"),
        (WHOLE._replace(shown={TABLE: frozenset()}), "Dagster shows no materialization"),
    ],
)
def test_each_loss_is_a_fault(look: DrillState, said: str) -> None:
    assert any(said in fault for fault in faults(look, CALM, [DAY]))


def test_quarantined_lines_survive_as_well() -> None:
    """They have no publications and no asset, only rows."""
    calm = {**CALM, "raw/quarantine": {KEY: "1:q"}}
    once = WHOLE._replace(digests={**WHOLE.digests, "raw/quarantine": {KEY: "1:q"}})
    twice = WHOLE._replace(digests={**WHOLE.digests, "raw/quarantine": {KEY: "2:qq"}})
    assert list(faults(once, calm, [DAY])) == []
    assert list(faults(twice, calm, [DAY])) == [f"raw/quarantine {KEY}: 2:qq instead of 1:q"]


_ONE = {Failpoint.AFTER_APPLY, Failpoint.BEFORE_PUBLISH, Failpoint.IN_TRANSACTION, Failpoint.AFTER_PUBLISH}
"""Points of a publish of all tables at once."""


@pytest.mark.parametrize(
    ("promise", "absent", "kinds"),
    [
        (Promise.ONE_TRANSACTION, OF_TABLE_BY_TABLE, 2 * (4 + 3 + 2 + 2 + 3 * 6)),
        (Promise.TABLE_BY_TABLE, _ONE, 2 * (4 + 2 + 3 + 3 * 8)),
    ],
)
def test_a_drill_leaves_no_point_out(promise: Promise, absent: set[Failpoint], kinds: int) -> None:
    """The drill covers every failpoint of the load path, in every way when all are requested."""
    once, full = planned("10001", promise, is_full=False), planned("10001", promise, is_full=True)
    points = set(Failpoint) - OF_MOVES - OF_ROLLBACKS - absent
    assert {trial.point for trial in once} == {trial.point for trial in full} == points
    others = (Disturbance.MET, Disturbance.RECOVERED, Disturbance.REBUILT)
    kills = [trial for trial in full if trial.event not in others]
    assert len(kills) == len(set(kills)) == kinds
    assert {trial.event for trial in once} == set(Disturbance)


def test_a_process_gets_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    maps: dict[str, Any] = {
        "spark_config": {"spark.a": "b,c"},
        "change_bounds": {"refined/events:rows": {"shrink": 0.5}},
    }
    plain: dict[str, Any] = {
        "load_open_days": False,
        "max_quarantined_share": 0.25,
        "ledger_url": "sqlite:////tmp/x.db",
    }
    settings = Settings(projects=("1", "2"), **maps, **plain)
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings
    assert REGULAR_EVENTS.code_version(Settings()) == REGULAR_EVENTS.code_version(settings)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////lake/catalog.db", "sqlite:////lake/drill_1.db"),
        ("postgresql://me:pw@host/db", "postgresql://me:pw@host/db?options=-csearch_path%3Ddrill_1"),
    ],
)
def test_a_drill_has_a_ledger_of_its_own(url: str, expected: str) -> None:
    assert ledger_url(Settings(catalog_url=url), "drill_1") == expected


def test_a_drilled_recovery_is_survived_and_what_is_lost_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: two days' recoveries are killed; a third one's restart recovers nothing and overwrites an object.
    Outcome: the first two are good; the third day's missing objects and the overwritten one are named."""
    (tmp_path / "landing").mkdir()
    places = {"landing_url": f"{tmp_path}/landing", "warehouse_url": f"{tmp_path}/warehouse"}
    settings = Settings(**places, catalog_url=f"sqlite:///{tmp_path}/c.db", projects=("10001",))
    place = Scratch(settings, settings, tmp_path, LocalStore(prefix=tmp_path))
    sample = ExportSpec(projects=("10001",), events_per_day=20, hours=(1, 9), has_markers=False)
    with drills_in_copies():
        assert recovery_faults(place, sample, "10001", DAY, "after_object") == []
        assert recovery_faults(place, sample, "10001", DAY - timedelta(days=2), "before_marker") == []
    ours = "10001-backfill/10001-backfill"

    def recovers_nothing(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / f"landing/{ours}_{DAY}_9_complete").write_bytes(b"another's")
        return subprocess.CompletedProcess(words, 1, "", "it did not start")

    monkeypatch.setattr(sandbox.subprocess, "run", recovers_nothing)
    told = recovery_faults(place, sample, "10001", DAY - timedelta(days=1), "after_object")
    assert told[0] == "the recovery that came after it failed: it did not start"
    assert f"{ours}_2026-02-01_1#4.json.gz is not there" in told
    others = [one for one in told[1:] if not re.fullmatch(rf"{ours}_2026-02-01_\S+ is not there", one)]
    assert others == [f"{ours}_{DAY}_9_complete holds other bytes than were exported"]
