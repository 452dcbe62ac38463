"""Maintenance removes unneeded files, and never those of a rollback, a refused branch or a running load."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.records import Head
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.load.staleness.scan import scan_stale_days
from pipeline_assets.operations import maintenance
from pipeline_assets.operations.maintenance import Rewritten, TableUpkeep, compact, summary
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.metadata import JavaTables, slices_condition
from resources.iceberg.upkeep import Upkeep
from resources.ledger.schema import PROCESSES
from resources.publishing import TableByTable
from tests.support.builders import PROJECT, Pipeline, an_orphan_below, events_on
from tests.support.points import killed_at, once
from tests.support.prepared import Again, a_prepared_pipeline
from tests.support.reference import require_known
from tests.support.upkeep import LONG, data_files, grow_old, maintained
from tests.support.victim import a_victim

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
RAW, REFINED = "raw/regular_events", REFINED_EVENTS.key
BACKFILL = "raw/backfill_events"
TWO = (RAW, REFINED)
"""Tables that these loads build; maintenance treats each by itself."""


def _live_files(p: Pipeline) -> set[str]:
    found: set[str] = set()
    for table in p.tables:
        rows = p.spark.table(f"{p.lakehouse.identifier(table)}.files").select("file_path").collect()
        found |= {row["file_path"].removeprefix("file:") for row in rows}
    return found


def _stale(p: Pipeline) -> set[str]:
    found = scan_stale_days(p.ledger, p.settings, p.now)
    return {stale.table for day in found.values() for stale in day} & set(p.only)


def _orphan(p: Pipeline) -> Path:
    path = an_orphan_below(Path(p.settings.warehouse_url) / REFINED)
    path.write_bytes(b"half a file")
    return path


def _files_of_others(p: Pipeline) -> set[Path]:
    """Other programs' files in a table's folder: some resemble our names, or have Iceberg's and lie elsewhere."""
    place = Path(p.settings.warehouse_url) / REFINED
    day, iceberg = f"data/event_date={DAY}/project_id={PROJECT}", f"00000-1-{uuid.uuid4()}-0-00001.parquet"
    theirs = (f"{day}/{uuid.uuid4().hex}.parquet", f"{day}/{uuid.uuid4()}-{uuid.uuid4().hex}.parquet")
    elsewhere = (f"copy/{day}/{iceberg}", f"data/{iceberg}", "data/customers.parquet")
    names = ("README.md", "figures.csv", "metadata/00001-mine.metadata.json", *theirs, *elsewhere)
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not Tidemark's")
    return {place / name for name in names}


def _three_hours(p: Pipeline) -> None:
    for hour in (1, 2, 3):
        p.deliver(DAY, events_on(DAY, 10, prefix=f"h{hour}"), hour=hour)
        p.must_load(DAY)


@pytest.fixture(scope="module")
def three_hours_again(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Again[None]]:
    with a_prepared_pipeline(spark, tmp_path_factory.mktemp("three_hours"), _three_hours, only=TWO) as again:
        yield again


@pytest.fixture
def three_hours(three_hours_again: Again[None]) -> Iterator[Pipeline]:
    """A pipeline with a day that came hour by hour, in three files."""
    with three_hours_again() as (p, _):
        yield p


def test_a_rollback_behind_our_back_loses_no_live_file(three_hours: Pipeline) -> None:
    """Scenario: Iceberg's procedure sets main back, a load publishes on top. Outcome: all live files and digests stay."""
    p = three_hours
    first = p.lakehouse.commits(REFINED_EVENTS, None)[-2].snapshot_id
    p.spark.sql(
        f"CALL {p.settings.catalog_name}.system.rollback_to_snapshot(table => 'refined.events', snapshot_id => {first})"
    )
    assert p.count(REFINED) == 10
    grow_old(p)
    maintained(p)
    assert p.count(REFINED) == 10
    p.must_load(DAY)
    assert p.count(REFINED) == 30
    assert p.ledger.publications(REFINED)[-2].cause.text == "foreign"
    before = p.digests()
    grow_old(p)
    assert maintained(p)[REFINED].snapshots > 0
    assert _live_files(p) <= data_files(p)
    assert p.count(REFINED) == p.count(RAW) == 30
    assert p.digests() == before
    p.must_load(DAY)


def test_only_the_named_snapshots_expire(three_hours: Pipeline) -> None:
    """Scenario: snapshots are old after a millisecond; one is expired by number. Outcome: it alone goes."""
    name = three_hours.lakehouse.identifier(REFINED_EVENTS)
    three_hours.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms'='1')")
    upkeep = Upkeep(three_hours.spark, three_hours.settings.catalog_name)
    known = {snapshot.snapshot_id for snapshot in upkeep.snapshots(REFINED_EVENTS)[0]}
    oldest = three_hours.lakehouse.commits(REFINED_EVENTS, None)[-1].snapshot_id
    upkeep.expire(REFINED_EVENTS, [oldest])
    assert {snapshot.snapshot_id for snapshot in upkeep.snapshots(REFINED_EVENTS)[0]} == known - {oldest}


def test_a_kept_snapshot_keeps_the_delete_files_of_another_program(three_hours: Pipeline) -> None:
    """Scenario: position deletes by another program. Outcome: maintenance restores rows; the old snapshot is readable."""
    p, name = three_hours, three_hours.lakehouse.identifier(REFINED_EVENTS)
    p.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    p.spark.sql(f"DELETE FROM {name} WHERE device_id = 'd3'")
    theirs, hidden = p.lakehouse.head(REFINED_EVENTS), p.spark.table(f"{name}.delete_files").collect()
    assert (p.count(REFINED), len(hidden)) == (27, 3)
    grow_old(p)
    maintained(p, datetime.now(UTC))
    assert p.count(REFINED) == 30
    assert p.lakehouse.read(REFINED_EVENTS, theirs).count() == 27
    assert all(Path(one["file_path"].removeprefix("file:")).is_file() for one in hidden)


def test_leftovers_go_and_what_rollback_needs_stays(pipeline: Any) -> None:
    """Outcome: a dead run's branch, a staged snapshot and an old orphan go; foreign and young files are named and stay."""
    p = pipeline(only=TWO)
    p.deliver(DAY, events_on(DAY, 300))
    p.must_load(DAY)
    p.deliver(DAY, events_on(DAY, 150))
    assert not p.load(DAY).success
    assert p.verdict(REFINED, DAY) == "refused"
    lakehouse = p.lakehouse
    lakehouse.stage(REFINED_EVENTS, lakehouse.head(REFINED_EVENTS), "deadrun_0", lambda _: None)
    grow_old(p)
    orphan, young, others = _orphan(p), _orphan(p), _files_of_others(p)
    grow_old(p)
    os.utime(young)
    live = _live_files(p)

    reports = maintained(p)

    assert reports[REFINED].branches == ("tidemark_deadrun_0",)
    assert [Path(path).name for path in reports[REFINED].orphans] == [orphan.name]
    assert not orphan.exists()
    assert young.exists()
    assert {Path(path.removeprefix("file:")) for path in reports[REFINED].others} == others
    assert all(path.exists() for path in others)
    assert f"{len(others)} files of others stay" in summary(reports[REFINED], is_dry_run=False)
    assert live <= data_files(p)
    assert p.count(REFINED) == 300
    snapshots = p.spark.table(f"{lakehouse.identifier(REFINED_EVENTS)}.snapshots").collect()
    assert {row["snapshot_id"] for row in snapshots} == {lakehouse.head(REFINED_EVENTS)}


def test_files_that_a_dead_load_wrote_are_removed_by_maintenance_alone(pipeline: Any) -> None:
    """Scenario: loads die after tasks wrote files. Outcome: only maintenance removes these files, days later."""
    p = pipeline(only=TWO)
    p.deliver(DAY, events_on(DAY, 20))
    left: set[str] = set()
    for table in (RAW, REFINED):
        with killed_at(Failpoint.AFTER_FILES, table):
            p.load(DAY)
        left |= data_files(p)
    p.must_load(DAY)
    orphans = data_files(p) - _live_files(p)
    assert len(left) == 3
    assert orphans == left
    assert not maintained(p, datetime.now(UTC))[REFINED].orphans
    grow_old(p)

    reports = maintained(p)

    # The second load's staged files of raw go with their snapshot.
    unnamed = {path.removeprefix("file:") for key in (RAW, REFINED) for path in reports[key].orphans}
    assert unnamed < orphans
    assert len(unnamed) == 2
    assert data_files(p) == _live_files(p)
    assert p.count(RAW) == p.count(REFINED) == 20


def test_a_dry_run_tells_and_touches_nothing(three_hours: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: a dry run names everything due and changes nothing; the real run then does it."""
    p = three_hours
    monkeypatch.setattr(maintenance, "JOINED_FROM", 2)
    lakehouse = p.lakehouse
    lakehouse.stage(REFINED_EVENTS, lakehouse.head(REFINED_EVENTS), "deadrun_0", lambda _: None)
    _orphan(p)
    grow_old(p)
    files, snapshots = data_files(p), p.snapshots()

    told = maintained(p, is_dry_run=True)

    assert (data_files(p), p.snapshots()) == (files, snapshots)
    done = maintained(p)
    assert done[REFINED].branches == told[REFINED].branches == ("tidemark_deadrun_0",)
    assert done[REFINED].orphans == told[REFINED].orphans
    assert done[RAW].compacted == told[RAW].compacted
    assert len(told[RAW].compacted) == 1
    assert told[REFINED].snapshots > 0
    assert done[RAW].files_after < told[RAW].files_after == told[RAW].files_before


def test_compaction_changes_no_digest_and_makes_nothing_stale(three_hours: Pipeline) -> None:
    """Outcome: fewer files, equal digests, nothing stale; a hot day stays; a compacted object can be replaced."""
    p = three_hours
    for hour in (4, 5):
        p.deliver(DAY, events_on(DAY, 10, prefix=f"h{hour}"), hour=hour)
        p.must_load(DAY)
    before = p.digests()
    assert len(p.files(RAW, DAY)) == 5

    reports = maintained(p)

    assert (reports[RAW].files_before, reports[RAW].files_after) == (5, 1)
    assert len(p.files(RAW, DAY)) == 1
    assert p.digests() == before
    assert not _stale(p)
    history = p.history()
    p.must_load(DAY)
    assert p.history() == history
    assert [record.cause.text for record in p.ledger.publications(RAW)].count("foreign") == 0
    p.deliver(DAY, events_on(DAY, 7, prefix="h3"), hour=3)
    p.must_load(DAY)
    assert p.count(RAW) == p.count(REFINED) == 47


def test_late_files_are_joined_beside_the_large_one_and_again_when_they_gather(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a cold day of one large file gets late rows load after load.
    Outcome: maintenance joins the small files, again when they gather, and leaves the large one; no row changes."""
    monkeypatch.setattr(maintenance, "JOINED_FROM", 2)
    p = pipeline(only=TWO)
    p.deliver(DAY, [event | {"city": uuid.uuid4().hex * 9} for event in events_on(DAY, 300)], hour=1)
    p.reports(DAY)
    large = {table: p.files(table, DAY) for table in (RAW, REFINED)}
    monkeypatch.setattr(maintenance, "_SMALL_BYTES", 30_000)
    small = 0
    for hours in ((2, 3), (4,)):
        for hour in hours:
            before = p.files(REFINED, DAY)
            p.deliver(DAY, events_on(DAY, 3, prefix=f"h{hour}"), hour=hour)
            p.reports(DAY)
            assert len(p.files(REFINED, DAY) - before) == 1
            assert before < p.files(REFINED, DAY)
        digests, rows = p.digests(), sorted(map(str, p.rows(REFINED)))

        reports = maintained(p)

        for table in (RAW, REFINED):
            assert large[table] < p.files(table, DAY)
            assert len(p.files(table, DAY)) == 2
            assert (reports[table].files_before, reports[table].files_after) == (len(hours) + 1 + small, 2)
        small = 1
        assert (p.digests(), sorted(map(str, p.rows(REFINED)))) == (digests, rows)
        assert not _stale(p)
    require_known(p)


def _joining_wrongly(spoil: Callable[[DataFrame], DataFrame]) -> Any:
    join = Lakehouse.join_files

    def join_wrongly(self: Lakehouse, table: Table, target: str, slices: Any, small_bytes: int) -> None:
        if table.key != RAW:
            return join(self, table, target, slices, small_bytes)
        where = slices_condition(table, slices)
        return spoil(self.spark.read.table(target).where(where)).writeTo(target).overwrite(where)

    return join_wrongly


def test_files_are_joined_only_where_rows_stay_and_a_load_wins(
    three_hours: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: wrong rewrites, a load between, a hold. Outcome: nothing wrong is visible; the load wins."""
    p = three_hours
    runtime, raw, cold = p.runtime, RAW_TABLES[Source.REGULAR], [Slice(DAY, PROJECT)]
    seen, files = p.history(), p.files(RAW, DAY)
    spoils = (
        lambda rows: rows.limit(29),
        lambda rows: rows.withColumn("_line_number", F.col("_line_number") + F.lit(1)),
    )
    for spoil in spoils:
        with monkeypatch.context() as broken:
            broken.setattr(Lakehouse, "join_files", _joining_wrongly(spoil))
            with pytest.raises(LakehouseError, match="would hold other rows than before") as refusal:
                compact(runtime, raw, cold, str(uuid.uuid4()))
        assert f"{RAW} {DAY}" in refusal.value.subject
        assert (p.history(), p.files(RAW, DAY)) == (seen, files)
        assert p.lakehouse.branches.dead(raw, lambda _: False) == []
    require_known(p)

    p.ledger.interventions.hold({REFINED: cold}, "looked at", "by hand")

    def load_meanwhile() -> None:
        p.deliver(DAY, events_on(DAY, 10, prefix="h4"), hour=4)
        p.deliver(NEXT, events_on(NEXT, 5))
        p.load(DAY, NEXT)

    with once(Failpoint.AFTER_STAGE, load_meanwhile, RAW):
        assert compact(runtime, raw, cold, str(uuid.uuid4())) == Rewritten(3, 3, 0, is_left_alone=True)
    assert len(p.files(RAW, DAY)) == 4
    assert (p.count(RAW, DAY), p.count(REFINED, DAY), p.verdict(REFINED, DAY)) == (40, 30, "held")

    before = p.digests()
    monkeypatch.setattr(maintenance, "_SLICES_AT_ONCE", 1)
    assert compact(runtime, raw, [*cold, Slice(NEXT, PROJECT)], str(uuid.uuid4())) == Rewritten(5, 2, 0)
    monkeypatch.setattr(maintenance, "publisher_of", lambda _, lakehouse, ledger: TableByTable(lakehouse, ledger))
    assert compact(runtime, REFINED_EVENTS, cold, str(uuid.uuid4())).files_after == 1
    assert len(p.files(RAW, DAY)) == len(p.files(REFINED, DAY)) == 1
    assert (p.digests(), p.verdict(REFINED, DAY)) == (before, "held")
    require_known(p)
    assert {table.key: p.ledger.head(table.key) for table in (raw, REFINED_EVENTS)} == {
        table.key: Head(p.lakehouse.head(table)) for table in (raw, REFINED_EVENTS)
    }


@pytest.mark.parametrize(
    ("point", "table"),
    [(Failpoint.AFTER_STAGE, REFINED), (Failpoint.AFTER_AUDIT, RAW), (Failpoint.AFTER_APPLY, RAW)],
)
def test_a_load_under_way_keeps_what_it_staged(
    three_hours: Pipeline, point: Failpoint, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: maintenance joins and removes files in the midst of a load. Outcome: the load goes on with every row once."""
    p = three_hours
    monkeypatch.setattr(maintenance, "JOINED_FROM", 2)
    p.deliver(DAY, events_on(DAY, 10, prefix="h4"), hour=4)
    p.deliver(NEXT, events_on(NEXT, 5))
    reports: dict[str, TableUpkeep] = {}

    def maintain_beside() -> None:
        grow_old(p)
        reports.update(maintained(p, datetime.now(UTC), is_live=lambda _: True))

    with once(point, maintain_beside, table):
        p.must_load(DAY, NEXT)
    assert not reports[REFINED].branches
    assert reports[RAW].compacted
    assert p.count(RAW) == p.count(REFINED) == 45
    assert _live_files(p) <= data_files(p)
    history = p.history()
    p.must_load(DAY, NEXT)
    assert p.history() == history
    require_known(p)


def test_a_step_of_days_keeps_the_files_it_wrote(three_hours: Pipeline) -> None:
    """Scenario: a step runs for 40 days. Outcome: maintenance keeps its unnamed files until the load publishes or dies."""
    p = three_hours
    for hour in (4, 5):
        before = data_files(p)
        p.deliver(DAY, events_on(DAY, 10, prefix=f"h{hour}"), hour=hour)
        with a_victim(p, DAY, DAY, f"{Failpoint.AFTER_FILES}:{RAW}") as victim:
            victim.wait_until_paused()
            with p.ledger.engine.begin() as connection:
                long_ago = (datetime.now(UTC) - timedelta(days=41)).isoformat()
                connection.execute(PROCESSES.update().where(PROCESSES.c.ended_at.is_(None)).values(begun_at=long_ago))
            grow_old(p)
            written = data_files(p) - before
            assert written
            maintained(p, datetime.now(UTC))
            assert written <= data_files(p)
            if hour == 4:
                victim.go_on()
                assert victim.wait_until_it_ends() == 0
            else:
                victim.kill()
    assert p.count(RAW) == p.count(REFINED) == 40
    maintained(p, datetime.now(UTC))
    assert not written & data_files(p)
    assert _live_files(p) <= data_files(p)
    require_known(p)


def test_refused_lines_and_history_are_kept_for_times_of_their_own(pipeline: Any) -> None:
    """Scenario: lines and history have different retentions. Outcome: each expires by its own; the raw rows stay."""
    p = pipeline(only=(*TWO, BACKFILL), quarantine_days=10_000)
    for source in Source:
        for count in (20, 21):
            p.deliver(DAY, [*events_on(DAY, count, prefix=source.value), b"{"], source=source)
            p.must_load(DAY, source=source)

    reports = maintained(p)

    assert {row["source"] for row in p.rows("raw/quarantine")} == {"regular", "backfill"}
    assert min(reports[RAW].snapshots, reports[BACKFILL].snapshots) > 0

    raw = RAW_TABLES[Source.REGULAR]
    earlier = p.lakehouse.head(raw)
    p.change(quarantine_days=90, rollback_days=10_000)
    p.deliver(DAY, events_on(DAY, 22, prefix=Source.REGULAR.value))
    p.must_load(DAY)
    reports = maintained(p)

    assert reports["raw/quarantine"].quarantined == 1
    assert p.count("raw/quarantine") == 0
    assert earlier in {
        row["snapshot_id"] for row in p.spark.table(f"{p.lakehouse.identifier(raw)}.snapshots").collect()
    }
    assert (p.count(RAW), p.count(BACKFILL)) == (22, 21)


def test_the_job_says_what_it_did(pipeline: Any) -> None:
    """Scenario: dry and real, beside branches of an ended run and of another ledger. Outcome: the other's stays."""
    p = pipeline(only=TWO)
    p.deliver(DAY, events_on(DAY, 10))
    ended = p.must_run(DAY)
    for attempt in (f"{ended.run_id.replace('-', '')}_0", "elsewhere_0"):
        p.lakehouse.stage(REFINED_EVENTS, p.lakehouse.head(REFINED_EVENTS), attempt, lambda _: None)
    p.now = datetime.now(UTC) + LONG
    done = [p.run_job("maintenance", "maintain", {"dry_run": is_dry_run}) for is_dry_run in (True, False)]
    said = [str(run.output["what was done"]) for run in done]
    assert "| refined/events | would do: 1 branches dropped" in said[0]
    assert "| refined/events | 1 branches dropped" in said[1]
    assert p.lakehouse.branches.dead(REFINED_EVENTS, lambda _: False) == ["tidemark_elsewhere_0"]
    assert p.lakehouse.branches.dead(REFINED_EVENTS, lambda _: None) == []
    # Both are at a snapshot of main: only earlier metadata shows since when.
    between = datetime.now(UTC)
    p.lakehouse.stage(REFINED_EVENTS, p.lakehouse.head(REFINED_EVENTS), "later_0", lambda _: None)
    # More commits than one version of the metadata names.
    for _ in range(25):
        p.lakehouse.stage(REFINED_EVENTS, p.lakehouse.head(REFINED_EVENTS), "later_0", lambda _: None)
    java, was_there = JavaTables(p.spark, p.settings.catalog_name).load(REFINED_EVENTS), p.lakehouse.branches.was_there
    assert was_there(java, "tidemark_elsewhere_0", between)
    assert not was_there(java, "tidemark_later_0", between)
    assert not was_there(java, "tidemark_elsewhere_0", between - timedelta(hours=1))
