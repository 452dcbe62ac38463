"""Delete files of another program (Trino, Flink, Athena): the recorded files are published again."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_assets.doctor.examine import table_heads
from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source
from pipeline_assets.operations.rollback import RollbackRequest, plan
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import table_by_key
from resources.ledger.schema import SLICES
from tests.support.builders import PROJECT, RAW_AND_REFINED, events_on

pytestmark = pytest.mark.slow
DAY, NEXT, OTHER = date(2026, 2, 2), date(2026, 2, 3), "10002"
RAW, REFINED = "raw/regular_events", "refined/events"


def _name(p: Any, key: str) -> str:
    return str(p.lakehouse.identifier(table_by_key(key)))


def _delete(p: Any, key: str, where: str) -> None:
    """Delete rows by a position file, in a table set to merge-on-read."""
    name = _name(p, key)
    p.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    p.spark.sql(f"DELETE FROM {name} WHERE {where}")
    assert p.spark.table(f"{name}.delete_files").count() > 0


def _delete_everywhere(p: Any, folder: Path, device_id: str) -> None:
    """Delete a device's rows of all days and projects of refined, by one equality file without a partition."""
    jvm, java = p.spark._jvm, p.lakehouse.tables.load(REFINED_EVENTS)
    field = java.schema().findField("device_id")
    column = pa.field("device_id", pa.string(), metadata={"PARQUET:field_id": str(field.fieldId())})
    path = folder / f"{uuid.uuid4()}.parquet"
    pq.write_table(pa.table({"device_id": [device_id]}, schema=pa.schema([column])), path)
    # Only a table whose layout was changed to none and back has such a specification.
    fields = [str(one.name()) for one in java.spec().fields()]
    update = java.updateSpec()
    for name in fields:
        update.removeField(name)
    update.commit()
    unpartitioned = p.lakehouse.tables.load(REFINED_EVENTS).spec()
    update = p.lakehouse.tables.load(REFINED_EVENTS).updateSpec()
    for name in fields:
        update.addField(name)
    update.commit()
    java = p.lakehouse.tables.load(REFINED_EVENTS)
    ids = p.spark.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = field.fieldId()
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(unpartitioned).ofEqualityDeletes(ids)
    builder = builder.withPath(str(path)).withFormat("parquet").withFileSizeInBytes(path.stat().st_size)
    java.newRowDelta().addDeletes(builder.withRecordCount(1).build()).commit()


def _delete_files(p: Any, key: str) -> int:
    return int(p.spark.table(f"{_name(p, key)}.delete_files").count())


def _two_projects(pipeline: Any) -> Any:
    p = pipeline(projects=(PROJECT, OTHER), only=RAW_AND_REFINED)
    for project in (PROJECT, OTHER):
        for day in (DAY, NEXT):
            p.deliver(day, events_on(day, 30, app=int(project)), project=project)
    p.must_load(DAY, NEXT)
    return p


def test_deleted_rows_come_back_from_the_recorded_files_and_are_counted(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: another program deletes rows by positions and by an equality file; then another day is loaded. Outcome:
    all tables are as recorded, in the same data files; publications and notices count the rows; nothing is built."""
    p = _two_projects(pipeline)
    before, files = p.digests(), p.files(REFINED, DAY)
    _delete(p, REFINED, f"event_date = DATE '{DAY}' AND project_id = '{PROJECT}' AND device_id IN ('d3', 'd4')")
    _delete(p, RAW, f"event_date = DATE '{DAY}' AND project_id = '{PROJECT}' AND device_id = 'd5'")
    _delete_everywhere(p, tmp_path, "d7")
    assert (p.count(REFINED), p.count(RAW)) == (120 - 2 - 4, 120 - 1)
    hidden = {one.table: one.deletes for one in table_heads(p.ledger, p.settings) if one.deletes}
    assert hidden.keys() == {REFINED, RAW}
    undo = RollbackRequest((REFINED,), (PROJECT,), DAY, DAY, 1, "a look", "preview")
    with pytest.raises(LakehouseError, match="delete files hide rows of it"):
        plan(p.runtime, undo, is_preview=True)
    assert p.count(REFINED) == 120 - 2 - 4

    p.must_load(NEXT)
    assert (p.count(REFINED), p.count(RAW)) == (120, 120)
    assert p.digests() == before
    assert p.files(REFINED, DAY) == files
    assert _delete_files(p, REFINED) == _delete_files(p, RAW) == 0
    found = {
        (one.table, one.key): one.digest_after.rows - one.digest_before.rows
        for one in p.ledger.publications()
        if one.cause.kind is CauseKind.UNDELETED
    }
    everywhere = {(REFINED, Slice(day, project)): 1 for day in (DAY, NEXT) for project in (PROJECT, OTHER)}
    assert found == everywhere | {(REFINED, Slice(DAY, PROJECT)): 3, (RAW, Slice(DAY, PROJECT)): 1}
    texts = [notice.text for notice in p.ledger.outbox.recorded_since(datetime.min.replace(tzinfo=UTC))]
    assert any("no way to erase; rows that came back: 3" in text for text in texts), texts


def test_other_files_are_replaced_from_inputs_and_landing_and_a_day_that_landing_lost_is_refused(pipeline: Any) -> None:
    """Scenario: another program rewrites slices with fewer rows and deletes rows by positions; landing lost one object;
    a record is wrong. Outcome: refined is built anew, raw read again; the lost day is refused by name and stays."""
    p = _two_projects(pipeline)
    lost_key = p.grammar.format_delivery(BatchKey(Source.REGULAR, OTHER, NEXT), 10, 1)
    before = p.digests()
    changed = [(REFINED, PROJECT, DAY), (RAW, OTHER, DAY), (RAW, OTHER, NEXT)]
    of = {one: f"event_date = DATE '{one[2]}' AND project_id = '{one[1]}'" for one in changed}
    for one in changed:
        p.spark.sql(f"DELETE FROM {_name(p, one[0])} WHERE {of[one]} AND device_id IN ('d1', 'd2', 'd4')")
    for one in changed:
        _delete(p, one[0], f"{of[one]} AND device_id = 'd3'")
    p.remove(lost_key)
    doubted = Slice(NEXT, PROJECT)
    _delete(p, REFINED, f"event_date = DATE '{NEXT}' AND project_id = '{PROJECT}' AND device_id = 'd6'")
    of_doubted = (SLICES.c.table_name == REFINED, SLICES.c.event_date == NEXT, SLICES.c.project_id == PROJECT)
    with p.ledger.engine.begin() as connection:
        other = str(replace(Digest.parse(before[REFINED][doubted]), sum_a=1))
        assert connection.execute(SLICES.update().where(*of_doubted).values(digest=other)).rowcount == 1

    run = p.load(DAY, NEXT)

    lost = Slice(NEXT, OTHER)
    assert not [one for one in p.ledger.publications() if one.cause.kind is CauseKind.UNDELETED and one.key == doubted]
    assert not run.success
    after = p.digests()
    for key in before:
        assert {one: d for one, d in after[key].items() if one != lost} == {
            one: d for one, d in before[key].items() if one != lost
        }
    assert (p.count(RAW, DAY), p.count(RAW, NEXT)) == (60, 30 + 26)
    assert p.count(REFINED, NEXT) == 60
    (batch,) = [one for key, one in p.ledger.batches([OTHER], NEXT, NEXT).items() if key.source is Source.REGULAR]
    assert batch.verdict is BatchVerdict.REFUSED
    assert "deliveries missing from landing: 1" in (batch.reason or "")

    p.deliver(NEXT, events_on(NEXT, 30, app=int(OTHER)), project=OTHER)
    p.must_load(NEXT)
    assert p.digests() == before
