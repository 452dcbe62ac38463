"""Syncs the ledger with the live table before anything is decided from it (law 10)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import date

import pyspark.sql.functions as F

from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.records import UNREAD, BatchDay, DeliveryRecord, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Slice, Verdict, days_by_project
from pipeline_assets.load.carry_over import carry_over
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.unrecorded_runs import UnrecordedRuns
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import measured_parts
from resources.iceberg.metadata import NO_FILES, in_batches, slices_condition
from resources.ledger.changes import Changes


def sync_ledger(runtime: Runtime, table: Table, run_id: str) -> int:
    """Make the ledger agree with the head of main; return that snapshot id.

    Reads nothing if the ledger already knows the snapshot. A slice with other files but the same digest was compacted. A slice
    with another digest was published by another writer, or, if the ledger is not in the catalog's database, by a run that
    died before it recorded its commit. Such slices are recorded as publications without known inputs, so that the load
    rebuilds them. Raises PublishConflictError if other runs keep syncing the same table.
    """
    for _ in range(runtime.settings.publish_attempts):
        head = runtime.lakehouse.head(table)
        carry_over(runtime, table, head)
        known = runtime.ledger.head(table.key)
        if known == Head(head) or runtime.ledger.record_found(
            _found(runtime, table, head, known), run_id, known_head=known
        ):
            return head
    raise PublishConflictError(table.key, "other runs keep recording what they find in it", "Load the days again later")


def _found(runtime: Runtime, table: Table, head: int, known: Head | None) -> Changes:
    """The differences between the table at `head` and the ledger, as changes of the ledger."""
    live = runtime.lakehouse.slice_files(table, head)
    recorded = runtime.ledger.slices(table.key, None)
    differing = [
        key
        for key in live.keys() | recorded.keys()
        if live.get(key, NO_FILES).file_hash != _file_hash(recorded.get(key))
    ]
    changes = Changes(head=(table.key, head, None))
    if not differing:
        return changes
    runtime.log(f"{table.key}: {len(differing)} slices differ from the ledger; reading them")
    runs = UnrecordedRuns.read(runtime, table, known)
    measured = _measure(runtime, table, head, differing)
    for key in sorted(differing):
        before = recorded.get(key) or SliceRecord(table.key, key, Verdict.PUBLISHED)
        after = sum((part.digest for part in measured.get(key, {}).values()), EMPTY)
        file_hash = live.get(key, NO_FILES).file_hash
        if after == before.digest:
            changes.slices.append(replace(before, file_hash=file_hash))
            continue
        changes.slices.append(
            replace(
                before,
                digest=after,
                file_hash=file_hash,
                input_state=None,
                figures={"rows": after.rows},
                rejection=None,
                refused_evaluations=(),
            )
        )
        made = runs.last_that_changed(key)
        changes.publications.append(
            PublicationRecord(
                table.key,
                key,
                made.snapshot_id if made else head,
                (made and made.parent_id) or (known.snapshot_id if known else head),
                before.digest,
                after,
                Cause.unrecorded_run(made.run_id) if made else Cause.of(CauseKind.FOREIGN),
                made.run_id if made else None,
                # Readers have seen it since its commit, whenever it is found.
                published_at=made.committed_at if made else "",
            )
        )
    if table.key in SOURCE_OF_TABLE:
        _settle_batches(runtime, table, head, differing, measured, changes)
    return changes


def _file_hash(record: SliceRecord | None) -> str:
    return (record.file_hash if record else None) or NO_FILES.file_hash


def _measure(
    runtime: Runtime, table: Table, snapshot_id: int, slices: Collection[Slice]
) -> dict[Slice, dict[date | None, BatchDay]]:
    """Slice -> arrival day (None for tables without one) -> measurements of its rows."""
    rows = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, slices))
    by_arrival = table.key in SOURCE_OF_TABLE
    measured = measured_parts(rows, table.content_columns, table.day_column, by_arrival=by_arrival)
    return {key: {day: BatchDay(*part) for day, part in parts.items()} for key, parts in measured.items()}


def _settle_batches(
    runtime: Runtime,
    table: Table,
    head: int,
    slices: Collection[Slice],
    measured: dict[Slice, dict[date | None, BatchDay]],
    changes: Changes,
) -> None:
    """Update the batch days of these event days, and the objects of batches that differ."""
    source = SOURCE_OF_TABLE[table.key]
    different: set[BatchKey] = set()
    for project_id, days in days_by_project(slices).items():
        recorded = runtime.ledger.batch_days_of(source, project_id, sorted(days))
        present = {
            day: {
                BatchKey(source, project_id, arrival): part
                for arrival, part in measured.get(Slice(day, project_id), {}).items()
                if arrival is not None
            }
            for day in days
        }
        differing = {
            batch
            for day in days
            for batch in recorded[day].keys() | present[day].keys()
            if recorded[day].get(batch, BatchDay()) != present[day].get(batch, BatchDay())
        }
        for batch in differing:
            arrival = batch.arrival_date
            kept = runtime.ledger.batch_days(source, [project_id], arrival, arrival).get(batch, {})
            whole = {day: part for day, part in kept.items() if day not in days}
            # An emptied day stays on record as a day that the batch touched, so that derived slices are rebuilt.
            whole |= {
                day: present[day].get(batch, BatchDay()) for day in days if batch in {**present[day], **recorded[day]}
            }
            changes.batch_days[batch] = whole
        different |= differing
    _settle_objects(runtime, table, head, different, changes)


def _settle_objects(runtime: Runtime, table: Table, head: int, batches: Collection[BatchKey], changes: Changes) -> None:
    """Record the rows that raw holds of each object of these batches, marked as unread so that a load reads them again."""
    if not batches:
        return
    for batch in batches:
        known = runtime.ledger.deliveries(batch.source, [batch.project_id], batch.arrival_date, batch.arrival_date)
        changes.forgotten_deliveries.extend((batch, object_key) for object_key in known)
    rows = runtime.lakehouse.read(table, head).where(in_batches(sorted(batches), None, "_arrival_date"))
    objects = rows.groupBy("project_id", "_arrival_date", "_object_key")
    for row in objects.agg(F.count(F.lit(1)).alias("count"), F.max("_object_etag").alias("etag")).collect():
        batch = BatchKey(SOURCE_OF_TABLE[table.key], row["project_id"], row["_arrival_date"])
        changes.deliveries.append(
            DeliveryRecord(
                batch=batch,
                object_key=row["_object_key"],
                etag=f"{UNREAD}{row['etag']}",
                size_bytes=0,
                sha256=None,
                lines=row["count"],
                rows=row["count"],
                quarantined=0,
                blank=0,
                error=None,
                is_accepted=True,
            )
        )
