"""Publishes slices again without the delete files that another program (Trino, Flink, Athena) wrote for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline_assets.domain.causes import Cause
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.measured import slice_digests
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table
from resources.iceberg.metadata import SliceFiles
from resources.ledger.changes import Changes
from resources.publishing.promise import publisher_of
from resources.publishing.request import PublishRequest

NO_ERASURE = "a delete in a table is no way to erase: docs/operations.md"


def undo_deletes(
    runtime: Runtime,
    table: Table,
    head: int,
    live: Mapping[Slice, SliceFiles],
    recorded: Mapping[Slice, SliceRecord],
    run_id: str,
) -> int:
    """Remove delete files from slices whose data files are the recorded ones; return main's head since.

    A slice stays as it is unless its data files are there and hold the recorded rows. A held one gets its rows back too.
    Raises SliceConflictError where another writer changes one of the slices meanwhile.
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
        made = runtime.ledger.publications_of(table.key, sorted({key.project_id for key in change.slices}), days)
        last = {one.key: one for one in made if one.key in recorded and one.digest_after == recorded[one.key].digest}
        # The rows of slices stay as they are; publications tell what readers saw, and what they see again.
        changes = Changes(head=(table.key, head, head))
        for key in sorted(change.slices):
            digest, before, files = recorded[key].digest, seen.get(key, EMPTY), recorded[key].file_hash or ""
            changes.rewritten[table.key, key] = files, files
            cause = Cause.undeleted(digest.rows - before.rows)
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
