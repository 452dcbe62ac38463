"""Items as they were on the day: reruns give what they gave, corrections recompute what used them, bad snapshots are refused."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyspark.sql.functions as F
import pytest

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import PROJECT_ROOT, MissingSnapshot
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice
from pipeline_assets.inspection.replay import derived_table, replay
from pipeline_assets.inspection.replay_result import Replay, ReplayBasis, ReplayResult
from pipeline_assets.load.build import snapshot
from pipeline_assets.operations.decisions import preview, release
from pipeline_assets.operations.rollback import RollbackRequest, roll_back
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.tables.dimension import ACTIVE_ITEM_EVENTS, ITEM
from pipeline_assets.tables.events import REFINED_EVENTS
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from tests.scenarios import shops
from tests.support.builders import PROJECT, a_pipeline
from tests.support.dimensions import (
    ACTIVE,
    SNAPSHOTS,
    VALIDITY,
    active_events,
    deliver_items,
    item_events,
    load_items,
    loaded_partitions,
    must_load_items,
    run_items,
)
from tests.support.points import once
from tests.support.shell import InOneProcess

pytestmark = pytest.mark.slow
FIRST, SECOND, LATER = date(2026, 2, 2), date(2026, 2, 3), date(2026, 3, 4)
THEN = {"1": "ACTIVE", "2": "INACTIVE", "3": "ACTIVE"}
NOW = {"1": "INACTIVE", "2": "ACTIVE", "4": "ACTIVE"}
LOADED = ("raw/regular_events", "refined/events", ACTIVE)
"""Other tests cover the other assets."""
EVENTS = {"1": 3, "2": 2, "3": 1, "unknown": 5}
ACTIVE_THEN = {(FIRST, "1"): 3, (FIRST, "3"): 1, (SECOND, "1"): 3, (SECOND, "3"): 1}


def _record(p: Any, table: str, day: date, project: str = PROJECT) -> Any:
    return p.ledger.slices(table, [project], [day]).get(Slice(day, project))


def _runs_of(p: Any, table: str, day: date) -> str:
    """Run that last computed or published each slice."""
    return repr([(r.number, r.run_id) for r in p.ledger.publications(table) if r.key.event_date == day])


def _joined_with_the_current_table(p: Any) -> dict[tuple[date, str], int]:
    """The usual mistake: events joined with today's items."""
    lake = p.lakehouse
    snapshots = p.spark.table(lake.identifier(ITEM.snapshot))
    current = snapshots.where(F.col("snapshot_date") == snapshots.agg(F.max("snapshot_date")).first()[0])
    events = p.spark.table(lake.identifier(REFINED_EVENTS)).withColumn(
        "item_id", F.get_json_object("event_properties", "$.item_id")
    )
    active = current.where("status = 'ACTIVE'").select(F.col("id").alias("item_id"))
    counted = (
        events.where(F.col("event_date") <= SECOND).join(active, "item_id").groupBy("event_date", "item_id").count()
    )
    return {(row["event_date"], row["item_id"]): row["count"] for row in counted.collect()}


def test_a_rerun_a_month_later_gives_what_it_gave(pipeline: Any, spark: Any, tmp_path: Path) -> None:
    """Scenario: a month later days are loaded again, in the same lake and in a new one; then a snapshot is corrected.
    Outcome: equal digests, unlike a join with today's items; only slices of the snapshot change; replays are equal."""
    p = pipeline()
    p.now = datetime(2026, 2, 4, tzinfo=UTC)
    for day in (FIRST, SECOND):
        deliver_items(p, day, THEN)
        p.deliver(day, item_events(day, EVENTS))
        p.mark(day)
    p.must_load(FIRST, SECOND, tables=LOADED)
    assert _record(p, ACTIVE, FIRST) is None, (
        "without any snapshot on record there is nothing to join with, and nothing waits"
    )
    assert not p.lakehouse.knows(ACTIVE_ITEM_EVENTS)
    must_load_items(p, FIRST, SECOND)
    assert active_events(p) == ACTIVE_THEN
    figures = _record(p, ACTIVE, FIRST).figures
    assert (figures["events"], figures["events_with_item"], figures["events_of_unknown_items"]) == (4, 11, 5)
    assert figures["events_of_inactive_items"] == 2
    checks = {e.check.name: e.is_passed for e in _record(p, ACTIVE, FIRST).evaluations}
    assert checks == {"items_are_known": True, "methods_agree": True, "change_is_explained": True}
    assert {(r["id"], r["status"], r["active_start_date"], r["active_end_date"]) for r in p.rows(VALIDITY)} == {
        (item, status, FIRST, SECOND) for item, status in THEN.items()
    }
    gave, history = p.digests_of(ACTIVE), p.history_of(ACTIVE)

    p.now = datetime(2026, 3, 10, tzinfo=UTC)
    deliver_items(p, LATER, NOW, as_json=True)
    p.deliver(LATER, item_events(LATER, EVENTS))
    p.mark(LATER)
    must_load_items(p, LATER)
    p.must_load(LATER, tables=LOADED)
    p.must_load(FIRST, SECOND, tables=LOADED)
    must_load_items(p, FIRST, SECOND)
    now = {key: digest for key, digest in p.digests_of(ACTIVE).items() if key.event_date <= SECOND}
    assert now == gave
    assert {key: n for key, n in active_events(p).items() if key[0] == LATER} == {(LATER, "2"): 2}
    assert p.history_of(ACTIVE) == history + 1, "the rerun of the old days published nothing"
    wrong = _joined_with_the_current_table(p)
    assert wrong == {(day, "2"): 2 for day in (FIRST, SECOND)}
    assert wrong != ACTIVE_THEN

    with a_pipeline(spark, tmp_path / "again", landing_url=str(p.landing)) as q:
        q.now = p.now
        assert load_items(q, FIRST, LATER).success is False, "days between have no snapshot, and the run says so"
        q.must_load(FIRST, SECOND, tables=LOADED)
        assert {key: d for key, d in q.digests_of(ACTIVE).items() if key.event_date <= SECOND} == now

    used = {day: _runs_of(p, ACTIVE, day) for day in (FIRST, SECOND, LATER)}
    untouched = _runs_of(p, VALIDITY, LATER.replace(day=1))
    deliver_items(p, FIRST, {**THEN, "2": "ACTIVE", "3": "INACTIVE"})
    corrected = run_items(p, FIRST, LATER)
    assert (FIRST, "2") in active_events(p)
    assert (FIRST, "3") not in active_events(p)
    assert corrected.materialized(ACTIVE) >= {str(FIRST)}
    assert {day: _runs_of(p, ACTIVE, day) == used[day] for day in used} == {FIRST: False, SECOND: True, LATER: True}
    assert _record(p, ACTIVE, FIRST).input_state.upstream != _record(p, ACTIVE, SECOND).input_state.upstream
    assert _runs_of(p, VALIDITY, LATER.replace(day=1)) == untouched
    assert ("2", "ACTIVE", FIRST, FIRST) in {
        (r["id"], r["status"], r["active_start_date"], r["active_end_date"]) for r in p.rows(VALIDITY)
    }
    was, *_ = (record for record in p.ledger.publications(ACTIVE) if record.key == Slice(FIRST, PROJECT))
    assert _replay(p, ACTIVE, was.number, ReplayBasis.AS_PUBLISHED).is_equal, "the snapshot of then is kept"
    (share,) = _replay(p, ACTIVE, was.number, ReplayBasis.CURRENT).shares
    assert (share.cause, share.keys.added, share.keys.removed) == ("dimensions/item_snapshot: other rows", 1, 1)
    months = [record.number for record in p.ledger.publications(VALIDITY) if record.key.event_date.month == FIRST.month]
    assert [_replay(p, VALIDITY, number, ReplayBasis.AS_PUBLISHED).is_equal for number in months] == [True, True]
    with pytest.raises(UsageError, match="holds what was delivered"):
        derived_table(SNAPSHOTS)


def _replay(p: Any, table: str, number: int, basis: ReplayBasis) -> Replay:
    (record,) = (record for record in p.ledger.publications(table) if record.number == number)
    return replay(p.runtime, derived_table(table), record, basis)


def _asked_for(p: Any) -> tuple[set[str], str]:
    """First days of the runs that a fresh sensor requests, and its reason to request none."""
    repository = p.definitions().get_repository_def()
    sensor = repository.get_sensor_def("dimension_snapshots_arrived")
    resources = {"landing": _landing(p), "clock": Clock(p.now)}
    with dg.build_sensor_context(instance=p.instance, repository_def=repository, resources=resources) as context:
        tick = sensor.evaluate_tick(context)
    first = "dagster/asset_partition_range_start"
    return {request.tags[first] for request in tick.run_requests or []}, tick.skip_message or ""


def _landing(p: Any) -> LandingStore:
    return LandingStore.from_settings(p.settings)


def test_bad_and_missing_snapshots(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: broken, doubled, smaller, unmarked, missing snapshots; a correction, an acceptance, a rollback.
    Outcome: each is refused in one sentence, good days load; the policy decides joins of a missing day; a hold lasts."""
    monkeypatch.setattr(snapshot, "FEW_ITEMS", 2)
    p = pipeline()
    p.now = datetime(2026, 2, 4, tzinfo=UTC)
    third, fourth = SECOND + timedelta(days=1), SECOND + timedelta(days=2)
    assert _asked_for(p) == (set(), "landing holds no snapshot of a dimension")
    for day in (FIRST, SECOND):
        deliver_items(p, day, THEN)
    deliver_items(p, third, THEN, is_marked=False)
    for day in (FIRST, SECOND, third, fourth):
        p.deliver(day, item_events(day, EVENTS))
        p.mark(day)
    assert _asked_for(p)[0] == {str(FIRST)}, "one run for both days"
    assert run_items(p, FIRST, third).success, "a day that waits for its marker before the deadline fails nothing"
    assert (_record(p, SNAPSHOTS, third, ALL_PROJECTS).verdict.value, p.count(SNAPSHOTS)) == ("waiting", 6)
    assert loaded_partitions(p.instance, SNAPSHOTS) == {str(FIRST), str(SECOND)}
    assert loaded_partitions(p.instance, VALIDITY) == {str(FIRST), str(SECOND), str(third)}
    asked, why = _asked_for(p)
    assert not asked
    assert f"{third}: dimensions/item/{third}.csv has no marker yet" in why
    rows = {day: _runs_of(p, SNAPSHOTS, day) for day in (FIRST, SECOND)}

    p.now = datetime(2026, 2, 20, tzinfo=UTC)
    key = deliver_items(p, FIRST, b"id,name,status\n1,a,ACTIVE\n2,b,ACTIVE\n1,c,ACTIVE\n")
    deliver_items(p, SECOND, {"1": "ACTIVE"})
    assert p.load(FIRST, fourth, tables=LOADED).success is False
    refused = load_items(p, FIRST, fourth)
    assert not refused.success
    said = refused.failure()
    assert f"{key}: line 4: the id '1' is already on line 2" in said
    assert "1 items, 3 in the snapshot of 2026-02-02: 66.7% fewer" in said
    assert "no snapshot of 2026-02-05 was delivered by its deadline (missing_snapshot = wait)" in said
    assert {day: _runs_of(p, SNAPSHOTS, day) for day in rows} == rows, "what was published stays"
    assert p.count(SNAPSHOTS, third) == 3, (
        "past its deadline no marker is awaited, and bad ones beside it hold nothing up"
    )
    assert (_record(p, ACTIVE, FIRST).verdict.value, _record(p, ACTIVE, third).verdict.value) == (
        "waiting",
        "published",
    )
    assert load_items(p, FIRST, fourth).success, "the same refusals fail no second run"

    for policy in (MissingSnapshot.REFUSE, MissingSnapshot.PREVIOUS):
        p.change(missing_snapshot=policy)
        assert p.load(fourth, tables=[ACTIVE]).success is (policy is MissingSnapshot.PREVIOUS)
        record = _record(p, ACTIVE, fourth)
        assert record.verdict.value == {"refuse": "refused", "previous": "published"}[policy.value], record
    assert record.figures["snapshot_age_days"] == 1
    note = next(e.reason for e in record.evaluations if e.check.name == "items_are_known")
    assert note == f"items as of {third}: {SNAPSHOTS} has no snapshot of {fourth} (missing_snapshot = previous)"

    was = p.ledger.publications(ACTIVE)[-1]
    assert (was.key.event_date, was.settings["missing_snapshot"]) == (fourth, "previous")
    p.change(missing_snapshot=MissingSnapshot.WAIT)
    now = _replay(p, ACTIVE, was.number, ReplayBasis.CURRENT)
    assert (now.result, now.settings) == (ReplayResult.IMPOSSIBLE, {"missing_snapshot": ("previous", "wait")})
    assert now.causes == (f"{SNAPSHOTS} has no snapshot of {fourth} (missing_snapshot = wait)",)
    assert now.hint.startswith("Replay it with the settings of then")
    assert _replay(p, ACTIVE, was.number, ReplayBasis.AS_PUBLISHED).is_equal, "with the policy of then"
    p.change(missing_snapshot=MissingSnapshot.PREVIOUS)

    began = datetime.now(UTC)
    deliver_items(p, third, {**THEN, "2": "ACTIVE"})
    deliver_items(p, FIRST, {**THEN, "3": "INACTIVE"})
    accept = {f"{SNAPSHOTS}:{day}": "the others were closed" for day in (SECOND, third)}
    must_load_items(p, FIRST, third, accept=accept)
    assert {k: n for k, n in active_events(p).items() if k[0] == SECOND} == {(SECOND, "1"): 3}
    assert active_events(p)[fourth, "2"] == 2, "the correction reaches the day that the snapshot stood for"
    assert p.ledger.publications(SNAPSHOTS)[-2].accepted_reason == "the others were closed"

    request = RollbackRequest((SNAPSHOTS,), (PROJECT,), third, third, began, "wrong items", str(uuid.uuid4()))
    (restore,) = roll_back(p.runtime, request)
    assert (restore.key, p.verdict(SNAPSHOTS, third, ALL_PROJECTS)) == (Slice(third, ALL_PROJECTS), "held")
    load_items(p, FIRST, third)
    assert {r["id"]: r["status"] for r in p.rows(SNAPSHOTS) if r["snapshot_date"] == third} == THEN
    assert (_record(p, ACTIVE, third).verdict.value, active_events(p)[third, "2"]) == ("waiting", 2)
    held = preview(p.ledger, p.settings, [SNAPSHOTS], [PROJECT], third, third, p.now, is_load_next=True)
    assert [(one.table, one.key) for one in held] == [(SNAPSHOTS, Slice(third, ALL_PROJECTS))]
    release(p.ledger, held, "it was right", str(uuid.uuid4()))
    deliver_items(p, fourth, {"1": "ACTIVE"})
    assert "1 items, 3 in the snapshot of 2026-02-04" in load_items(p, third, fourth, accept=accept).failure()
    assert _record(p, ACTIVE, third).verdict.value in ("published", "unchanged")

    # The day that the refused count was compared with is corrected to as many items, then to fewer.
    for items, verdict in (({**THEN, "3": "INACTIVE"}, "refused"), ({"1": "ACTIVE", "2": "ACTIVE"}, "published")):
        deliver_items(p, third, items)
        again = load_items(p, third, accept=accept)
        assert again.success, "the same refusal, of a day that nobody asked for, fails no second run"
        assert (p.verdict(SNAPSHOTS, third, ALL_PROJECTS), p.verdict(SNAPSHOTS, fourth, ALL_PROJECTS)) == (
            "published",
            verdict,
        )
    assert {k: n for k, n in active_events(p).items() if k[0] == fourth} == {(fourth, "1"): 3}, "and its events follow"

    wrong = load_items(p, FIRST, exclude={f"dimensions/item/{third}.csv": "wrong"})
    assert "is of 2026-02-04, which this run does not load" in wrong.failure()
    must_load_items(p, third, exclude={f"dimensions/item/{third}.csv": "wrong"})
    assert p.count(SNAPSHOTS, third) == 0, "its rows are withdrawn"
    assert p.ledger.publications(SNAPSHOTS)[-1].cause.text == "exclusion"
    assert {key: n for key, n in active_events(p).items() if key[0] == third} == {(third, "1"): 3}, (
        "those of the day before"
    )
    deliver_items(p, third, {"1": "ACTIVE", "2": "ACTIVE"}, is_marked=False)
    must_load_items(p, third)
    assert p.count(SNAPSHOTS, third) == 0, "the same bytes stay excluded"
    must_load_items(p, third, accept=accept, include={f"dimensions/item/{third}.csv": "it was right"})
    assert (p.count(SNAPSHOTS, third), active_events(p)[third, "2"]) == (2, 2)


def test_a_snapshot_that_is_excluded_while_it_is_loaded_is_not_published(pipeline: Any) -> None:
    """Outcome: the load lists landing again and publishes the other day alone; the excluded one says why it waits."""
    p = pipeline()
    p.now = datetime(2026, 2, 20, tzinfo=UTC)
    _, wrong = (deliver_items(p, day, THEN) for day in (FIRST, SECOND))
    with once(Failpoint.BEFORE_PUBLISH, lambda: load_items(p, SECOND, exclude={wrong: "the wrong items"})) as tries:
        load_items(p, FIRST, SECOND)
    assert len(tries) == 2
    assert (p.count(SNAPSHOTS, FIRST), p.count(SNAPSHOTS, SECOND)) == (3, 0)
    assert p.verdict(SNAPSHOTS, FIRST, ALL_PROJECTS) == "published"
    assert "is excluded: the wrong items" in _record(p, SNAPSHOTS, SECOND, ALL_PROJECTS).reason


def test_a_dimension_of_a_users_own_is_one_module(spark: Any, tmp_path: Path) -> None:
    """Scenario: a module named in a setting. Outcome: its snapshots are loaded, and intervals made of them."""
    shell = InOneProcess(tmp_path)
    shell.environment |= {"TIDEMARK_EXTRA_DIMENSIONS": "tests.scenarios.shops:SHOP", "PYTHONPATH": str(PROJECT_ROOT)}
    folder = shell.landing / "dimensions" / "shop"
    folder.mkdir(parents=True)
    (folder / f"{FIRST}.csv").write_text("id,name,status,city\n7,Corner,OPEN,Bern\n")
    (folder / f"{FIRST}_complete").touch()
    with shell.started():
        done = shell("load", "--source", "dimensions", "--from", str(FIRST), "--to", str(FIRST), "--json")
        told = {line["table"]: (line["verdict"], line["rows"]) for line in json.loads(done.stdout)}
        assert told == {"dimensions/shop_snapshot": ("published", 1), "dimensions/shop_validity": ("published", 1)}, (
            done.stderr
        )
        assert done.returncode == 0
        assert "dimensions/item_snapshot: landing holds no snapshot of the dimension at all" in shell.said
        status = shell("status", "--from", str(FIRST), "--to", str(FIRST), "--json")
        tables = {line["table"] for line in json.loads(status.stdout)}
        assert {name for name in tables if "shop" in name or "item" in name} == told.keys()
        done = shell("exclude", f"dimensions/shop/{FIRST}.csv", "--reason", "the wrong shops")
        assert (done.returncode, "the wrong shops" in shell("exclusions").stdout) == (0, True), done.stderr
        status = shell("status", "--from", str(FIRST), "--to", str(FIRST), "--json")
        assert {line["rows"] for line in json.loads(status.stdout) if "shop" in line["table"]} == {0}
    warehouse = shell.landing.parent / "warehouse"
    assert list(warehouse.rglob("*shop_validity*"))
    assert not list(warehouse.rglob("*item*"))


def test_the_page_shows_the_module_that_is_tested() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT_ROOT / "docs" / "extending.md").read_text("utf-8"), re.DOTALL)
    assert Path(shops.__file__).read_text("utf-8") in blocks
