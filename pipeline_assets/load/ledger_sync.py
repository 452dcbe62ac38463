"""Syncs the ledger with the live table before any decision (law 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError, PublishConflictError, SliceConflictError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import (
    DAMAGED,
    UNREAD,
    BatchDay,
    DeliveryRecord,
    Head,
    PublicationRecord,
    SliceRecord,
)
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict, days_by_project
from pipeline_assets.load.file_tasks import arrival_days, objects_of_batches, slice_digests
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import QUARANTINE
from pipeline_assets.tables.registry import EVERY_TABLE, SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose, read_mark
from resources.iceberg.metadata import NO_FILES, Commit, SliceFiles
from resources.ledger.changes import Changes
from resources.ledger.decisions import ActKind
from resources.ledger.store import Ledger
from resources.publishing import PublishRequest, publisher_of

_WORDS = dict(zip(ActKind, ("exclusions", "lifts", "holds", "releases"), strict=True))


def read_back(ledger: Ledger, log: Callable[[str], None]) -> None:
    """Copy decisions between ledger and warehouse. Raises LakehouseError, or LakehouseUnavailableError."""
    counts = ledger.interventions.read_back()
    parts = [f"{counts[kind]} {_WORDS[kind]}" for kind in ActKind if counts[kind]]
    if parts:
        log(f"{' and '.join(parts)} were read back from the warehouse: the ledger had lost them")


def _unrecorded_runs(runtime: Runtime, table: Table, known: Head | None) -> dict[Slice, Commit]:
    """Slice -> the last load's commit since `known` (None: all) that this ledger lacks, since a crash or as newly attached."""
    commits = runtime.lakehouse.commits(table, None if known is None else known.snapshot_id)
    made: dict[Slice, Commit] = {}
    for commit in (commit for commit in commits if commit.run_id is not None):
        for key in commit.slices:
            made.setdefault(key, commit)
    recorded = runtime.ledger.recorded_snapshots(table.key, sorted({one.snapshot_id for one in made.values()}))
    # A recorded commit explains nothing: main was rolled back since, or another writer changed the slice later.
    return {key: one for key, one in made.items() if (key, one.snapshot_id) not in recorded}


NO_ERASURE = "a delete in a table is no way to erase: docs/operations.md"


def undo_deletes(
    runtime: Runtime,
    table: Table,
    head: int,
    live: Mapping[Slice, SliceFiles],
    recorded: Mapping[Slice, SliceRecord],
    run_id: str,
) -> int:
    """Remove delete files from slices whose data files hold the recorded rows, held slices included; return main's new head.

    Raises SliceConflictError if another writer changes one of the slices meanwhile.
    """
    lakehouse = runtime.lakehouse

    def digests(snapshot_id: int) -> dict[Slice, Digest]:
        return slice_digests(runtime, table, snapshot_id, change.slices)

    same = {
        key
        for key, files in live.items()
        if files.deletes
        and key in recorded
        and replace(files, deletes=frozenset()).file_hash == recorded[key].file_hash
    }
    change = lakehouse.changes.without_deletes(table, head, same)
    attempt = f"{run_id.replace('-', '')}_deletes"
    branch = lakehouse.branches.create(table, attempt, head)
    try:
        whole = digests(lakehouse.changes.commit(change, branch, run_id, branch=branch).snapshot_id)
        proven = {key for key in change.slices if whole.get(key, EMPTY) == recorded[key].digest}
        change = lakehouse.changes.without_deletes(table, head, proven)
        if not change.slices:
            return head
        seen, days = digests(head), {key.event_date for key in change.slices}
        made = runtime.ledger.publications(table.key, sorted({key.project_id for key in change.slices}), days)
        last = {one.key: one for one in made if one.key in recorded and one.digest_after == recorded[one.key].digest}
        changes = Changes(head=(table.key, head, head))
        for key in sorted(change.slices):
            digest, before, files = recorded[key].digest, seen.get(key, EMPTY), recorded[key].file_hash or ""
            changes.rewritten[table.key, key] = files, files
            cause = Cause.of(CauseKind.UNDELETED, digest.rows - before.rows)
            again = last.get(key, PublicationRecord(table.key, key, head, head, before, digest, cause, run_id))
            again = replace(again, digest_before=before, cause=cause, run_id=run_id, accepted_reason=None, seconds=0.0)
            changes.publications.append(replace(again, published_at=""))
        request = PublishRequest(run_id, attempt, [change], [(table.key, changes)], minds_holds=False)
        published = publisher_of(runtime.settings, lakehouse, runtime.ledger).publish(request)[table.key]
    finally:
        lakehouse.branches.drop(table, [branch])
    rows = sum(one.digest_after.rows - one.digest_before.rows for one in changes.publications)
    slices = few(sorted(map(str, change.slices)), 10)
    runtime.log(f"{table.key}: removed another program's delete files, {rows} rows are back in {slices}; {NO_ERASURE}")
    return published.snapshot_id


def sync_ledger(runtime: Runtime, table: Table, run_id: str, *, may_publish: bool = True) -> int:
    """Make the ledger agree with the head of main; return that snapshot id.

    Other files with the same digest were compacted. Another digest becomes a publication without known inputs, to be rebuilt.
    Slices with added delete files are published again without these. Raises PublishConflictError if other runs keep syncing the
    table, LakehouseError for delete files unless `may_publish`.
    """
    for _ in range(runtime.settings.publish_attempts):
        head = runtime.lakehouse.head(table)
        known = runtime.ledger.head(table.key)
        if known == Head(head):
            return head
        live, recorded = runtime.lakehouse.slice_files(table, head), runtime.ledger.slices(table.key, None)
        if any(files.deletes for files in live.values()):
            if not may_publish:
                reason = "another program's delete files hide rows of it"
                raise LakehouseError(table.key, reason, "Load a day first, which brings the rows back")
            try:
                after = undo_deletes(runtime, table, head, live, recorded, run_id)
            except SliceConflictError:
                continue
            if after != head:
                head, known = after, runtime.ledger.head(table.key)
                live, recorded = runtime.lakehouse.slice_files(table, head), runtime.ledger.slices(table.key, None)
        found = _found(runtime, table, head, known, live, recorded)
        if runtime.ledger.record_found(found, run_id, known_head=known):
            return head
    raise PublishConflictError(table.key, "other runs keep recording what they find in it", "Load the days again later")


def _found(
    runtime: Runtime,
    table: Table,
    head: int,
    known: Head | None,
    live: Mapping[Slice, SliceFiles],
    recorded: Mapping[Slice, SliceRecord],
) -> Changes:
    hashes = {key: (record.file_hash or NO_FILES.file_hash) for key, record in recorded.items()}
    keys = live.keys() | recorded.keys()
    differing = [key for key in keys if live.get(key, NO_FILES).file_hash != hashes.get(key, NO_FILES.file_hash)]
    changes = Changes(head=(table.key, head, None))
    if not differing:
        return changes
    runtime.log(f"{table.key}: {len(differing)} slices differ from the ledger; reading them")
    runs, is_raw = _unrecorded_runs(runtime, table, known), table.key in SOURCE_OF_TABLE
    arrivals: dict[Slice, dict[date | None, BatchDay]] = {}
    if is_raw:
        arrivals = arrival_days(runtime, table, head, differing)
        digests = {key: sum((part.digest for part in parts.values()), EMPTY) for key, parts in arrivals.items()}
    else:
        digests = slice_digests(runtime, table, head, differing)
    for key in sorted(differing):
        before, files = recorded.get(key) or SliceRecord(table.key, key, Verdict.PUBLISHED), live.get(key, NO_FILES)
        after = digests.get(key, EMPTY)
        record = replace(before, file_hash=files.file_hash)
        if after == before.digest:
            changes.slices.append(record)
            continue
        unknown: dict[str, Any] = {"input_state": None, "rejection": None, "refused_evaluations": ()}
        changes.slices.append(replace(record, digest=after, figures={"rows": after.rows}, **unknown))
        if files.deletes:
            lost, source = before.digest.rows - after.rows, "landing" if is_raw else "its inputs"
            what = f"another program's delete files hide {lost} rows, which the load brings back from {source}"
            runtime.log(f"{table.key} {key}: {what}; {NO_ERASURE}")
        made = runs.get(key)
        changes.publications.append(
            PublicationRecord(
                table.key,
                key,
                made.snapshot_id if made else head,
                (made and made.parent_id) or (known.snapshot_id if known else head),
                before.digest,
                after,
                Cause.of(CauseKind.UNRECORDED_RUN, made.run_id) if made else Cause.of(CauseKind.FOREIGN),
                made.run_id if made else None,
                published_at=made.committed_at if made else "",
            )
        )
    if is_raw:
        _settle_batches(runtime, table, head, differing, arrivals, changes)
    return changes


def _settle_batches(
    runtime: Runtime,
    table: Table,
    head: int,
    slices: Collection[Slice],
    measured: Mapping[Slice, Mapping[date | None, BatchDay]],
    changes: Changes,
) -> None:
    source = SOURCE_OF_TABLE[table.key]
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
            # An emptied day stays on record as touched, so that derived slices are rebuilt.
            touched = [day for day in days if batch in present[day] or batch in recorded[day]]
            whole = {day: part for day, part in kept.items() if day not in days}
            changes.batch_days[batch] = whole | {day: present[day].get(batch, BatchDay()) for day in touched}
    if changes.batch_days:
        _settle_objects(runtime, table, head, changes)


def _settle_objects(runtime: Runtime, table: Table, head: int, changes: Changes) -> None:
    """Mark all objects of differing batches as unread, or as damaged if rows are missing, so that a load reads them again."""
    known: dict[str, DeliveryRecord] = {}
    for batch in changes.batch_days:
        known |= runtime.ledger.deliveries(batch.source, [batch.project_id], batch.arrival_date, batch.arrival_date)
    is_foreign = any(one.cause.kind is CauseKind.FOREIGN for one in changes.publications)
    found: dict[str, DeliveryRecord] = {}
    for batch, objects in objects_of_batches(runtime, table, head, list(changes.batch_days)).items():
        for object_key, held in objects.items():
            if object_key:
                found[object_key] = DeliveryRecord(
                    batch=batch, object_key=object_key, etag=f"{UNREAD}{held.etag}", size_bytes=0, sha256=None,
                    lines=held.rows, rows=held.rows, quarantined=0, blank=0, error=None, is_accepted=True,
                )  # fmt: skip
    for object_key, record in known.items():
        present = found.get(object_key)
        if record.is_damaged or (is_foreign and record.rows > (present.rows if present else 0)):
            found[object_key] = replace(record, etag=f"{DAMAGED}{record.etag.removeprefix(DAMAGED)}", sha256=None)
        elif present is None:
            changes.forgotten_deliveries.append((record.batch, object_key))
    changes.deliveries.extend(found.values())


UNKNOWN = (
    "which days were final, since when, and from which rows on growth is bounded: until a load has judged them again, changes of"
    " any size are published",
    "accepted changes and accepted missing deliveries, each with its reason",
    "publications whose snapshots have expired, and of all of them the inputs, settings and checks: days are built again, and a"
    " rollback reaches back to what is measured here",
    "refused deliveries, the bytes' digest of all others, hours and markers: what landing still holds is read again",
    "golden totals, how late rows arrived, objects outside of the loaded days",
    "hours that a recovery claimed, open rebuilds, notices and which receiver got them, cuts of all tables, runs and processes",
)


def attach_ledger(runtime: Runtime, run_id: str) -> None:
    """Rebuild this ledger from tables and warehouse, then make it the lake's; repeatable after a failure.

    Raises LakehouseError if catalog and warehouse are no lake, LedgerError for the ledger of another lake.
    """
    ledger, settings = runtime.ledger.lake, runtime.settings
    with lakehouse_failures("tables"):
        runtime.lakehouse.require_own(settings, EVERY_TABLE, Purpose.KEEP, None)
        mark = read_mark(settings)
        if mark is None:
            raise LakehouseError(
                settings.warehouse_url, "holds no lake", "Load days: the first load takes the ledger that is set"
            )
        ledger.require(mark.lake)
        read_back(runtime.ledger, runtime.log)
        for table in EVERY_TABLE:
            if table is not QUARANTINE and runtime.lakehouse.knows(table):
                sync_ledger(runtime, table, run_id)
    ledger.bind(mark.lake)
    now = read_mark(settings)
    if now is None or now.id != mark.id:
        reason = "was attached to another catalog while its tables were measured"
        raise LakehouseError(settings.warehouse_url, reason, "Look with tidemark attach, then do the same again")
    # Last, and in one step: until then the lake's former ledger may still write.
    now.of_ledger(ledger.identity(), ledger.url).write(settings)
