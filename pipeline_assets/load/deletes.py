"""Publishes slices again without the delete files that another program (Trino, Flink, Athena) wrote for them.

Contains: which slices are published again, the proof that they then hold the recorded rows, and the record of it.
Add here: another change by other programs that metadata alone can undo.
Does not contain: slices that do not hold the recorded rows then; the load builds or reads them again (ledger_sync.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline_assets.domain.causes import Cause
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import slice_digests
from resources.iceberg.metadata import SliceFiles, slices_condition
from resources.iceberg.slice_change import SliceChange
from resources.ledger.changes import Changes
from resources.publishing.promise import publisher_of
from resources.publishing.request import PublishRequest

NO_ERASURE = "a delete in a table is no way to erase: docs/operations.md"


def undo_deletes(runtime: Runtime, table: Table, head: int, recorded: Mapping[Slice, SliceRecord], run_id: str) -> int:
    """Remove delete files from the slices whose data files are the recorded ones; return main's head since.

    A slice stays as it is unless its data files are there and hold the recorded rows. One that is held gets its rows back too.
    Raises SliceConflictError where another writer changes one of the slices meanwhile.
    """
    lakehouse = runtime.lakehouse
    live = {key: files for key, files in lakehouse.slice_files(table, head).items() if files.deletes}
    same = {key for key, files in live.items() if key in recorded and _without(files) == recorded[key].file_hash}
    change = lakehouse.changes.without_deletes(table, head, same)
    if not change.slices:
        return head
    attempt = f"{run_id.replace('-', '')}_deletes"
    branch = lakehouse.branches.create(table, attempt, head)
    try:
        staged = lakehouse.changes.commit(change, branch, run_id, branch=branch)
        whole = _digests(runtime, table, staged.snapshot_id, change)
        proven = {key for key in change.slices if whole.get(key, EMPTY) == recorded[key].digest}
        change = lakehouse.changes.without_deletes(table, head, proven)
        if not change.slices:
            return head
        before = _digests(runtime, table, head, change)
        changes = _changes(runtime, table, head, change, before, run_id)
        request = PublishRequest(run_id, attempt, [change], [(table.key, changes)], minds_holds=False)
        published = publisher_of(runtime.settings, lakehouse, runtime.ledger).publish(request)[table.key]
    finally:
        lakehouse.branches.drop(table, [branch])
    rows = sum(one.digest_after.rows - one.digest_before.rows for one in changes.publications)
    slices = few(sorted(map(str, change.slices)), 10)
    runtime.log(f"{table.key}: removed another program's delete files, {rows} rows are back in {slices}; {NO_ERASURE}")
    return published.snapshot_id


def _without(files: SliceFiles) -> str:
    return replace(files, deletes=frozenset()).file_hash


def _digests(runtime: Runtime, table: Table, snapshot_id: int, change: SliceChange) -> Mapping[Slice, Digest]:
    rows = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, change.slices))
    return slice_digests(rows, table.content_columns, table.day_column)


def _changes(
    runtime: Runtime, table: Table, head: int, change: SliceChange, before: Mapping[Slice, Digest], run_id: str
) -> Changes:
    """The rows of slices stay as they are; publications tell what readers saw, and what they see again."""
    days = {key.event_date for key in change.slices}
    records = runtime.ledger.slices(table.key, None, days)
    made = runtime.ledger.publications_of(table.key, sorted({key.project_id for key in change.slices}), days)
    last = {one.key: one for one in made if one.key in records and one.digest_after == records[one.key].digest}
    changes = Changes(head=(table.key, head, head))
    for key in sorted(change.slices):
        digest, seen, file_hash = records[key].digest, before.get(key, EMPTY), records[key].file_hash or ""
        changes.rewritten[table.key, key] = file_hash, file_hash
        cause = Cause.undeleted(digest.rows - seen.rows)
        again = PublicationRecord(table.key, key, head, head, seen, digest, cause, run_id)
        if key in last:
            built = last[key]
            again = replace(
                again,
                input_state=built.input_state,
                code_version=built.code_version,
                figures=built.figures,
                pins=built.pins,
                settings=built.settings,
            )
        changes.publications.append(again)
    return changes
