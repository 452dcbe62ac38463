"""The earlier state that a slice is restored to: on record, and in a kept snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table


@dataclass(frozen=True)
class SliceRestore:
    """One slice with its present and its target state."""

    table: str
    key: Slice
    present: SliceRecord
    target: PublicationRecord | None
    """The publication that made the target state; None where nothing was published by then."""
    snapshot_id: int | None = None
    """A kept snapshot that holds the target state; None where that state is empty, or is the present one."""

    @property
    def digest(self) -> Digest:
        """The digest of the target state."""
        return self.target.digest_after if self.target is not None else EMPTY

    @property
    def is_there(self) -> bool:
        """Whether the slice already has the target state, so that it is only held."""
        return self.digest == self.present.digest


def restores_of(
    runtime: Runtime,
    table: Table,
    slices: Iterable[Slice],
    to: datetime | int,
    own: Mapping[Slice, int] | None = None,
) -> list[SliceRestore]:
    """The restores of these slices of a table; `to` and `own` (for single slices) as in RollbackRequest.

    Raises LakehouseError where a target state is unknown.
    """
    wanted = set(slices)
    published: dict[Slice, list[PublicationRecord]] = {key: [] for key in wanted}
    for record in runtime.ledger.publications(table.key):
        if record.key in wanted:
            published[record.key].append(record)
    present = runtime.ledger.slices(table.key, None, {key.event_date for key in wanted})
    ancestry = runtime.lakehouse.ancestry(table)
    kept = runtime.lakehouse.branches.kept(table)
    now = datetime.now(UTC)
    restores = []
    for key in sorted(wanted):
        then = to if own is None else own.get(key, to)
        count = published_by(published[key], then, now)
        target = published[key][count - 1] if count else None
        later = published[key][count] if count < len(published[key]) else None
        restore = SliceRestore(table.key, key, present[key], target)
        if not restore.is_there and target is None:
            _require_empty_then(runtime, table, key, later, then, ancestry)
        if not restore.is_there and target is not None and target.digest_after != EMPTY:
            restore = replace(restore, snapshot_id=_kept_snapshot(restore, target, later, ancestry, kept))
        restores.append(restore)
    _require_rows(runtime, table, restores)
    return restores


def published_by(records: Sequence[PublicationRecord], to: datetime | int, now: datetime) -> int:
    """How many of a slice's publications (oldest first) existed at that time.

    No publication counts as later than one that followed it, or as later than now, even if its clock was ahead.
    """
    if isinstance(to, int):
        return max((place for place, record in enumerate(records, 1) if record.number <= to), default=0)
    if to >= now:
        return len(records)
    return max(
        (place for place, record in enumerate(records, 1) if datetime.fromisoformat(record.published_at) <= to),
        default=0,
    )


def _require_empty_then(
    runtime: Runtime,
    table: Table,
    key: Slice,
    first: PublicationRecord | None,
    to: datetime | int,
    ancestry: Mapping[int, datetime],
) -> None:
    """Raise LakehouseError unless the slice is known to have been empty; a missing record alone does not prove that."""
    if first is not None and first.digest_before == EMPTY and not first.cause.is_found:
        return
    # A change found afterwards does not show the state before it; a kept snapshot from that time does.
    if isinstance(to, datetime):
        then = next((snapshot_id for snapshot_id, at in ancestry.items() if at <= to), None)
    else:
        then = first.parent_id if first is not None and first.parent_id in ancestry else None
    if then is not None and key not in runtime.lakehouse.slice_files(table, then, [key]):
        return
    raise LakehouseError(
        f"{table.key} {key}",
        "what it held then is not on record",
        "Choose a later time, or a publication that `tidemark history` shows",
    )


def _kept_snapshot(
    restore: SliceRestore,
    target: PublicationRecord,
    later: PublicationRecord | None,
    ancestry: Collection[int],
    kept: Collection[int],
) -> int:
    """A kept snapshot with the slice as `target` left it: its own, or the one before the next change."""
    candidates = [target.snapshot_id, later.parent_id if later is not None else None]
    # Main's history first: other kept snapshots may belong to another rollback and vanish with it.
    for there in (ancestry, kept):
        for snapshot_id in candidates:
            if snapshot_id is not None and snapshot_id in there:
                return snapshot_id
    raise LakehouseError(
        f"{restore.table} {restore.key}",
        f"the snapshot published at {target.published_at[:19]} has expired",
        "Choose a later state, within rollback_days; or exclude the bad deliveries and load the day again",
    )


def snapshots_of(restores: Iterable[SliceRestore]) -> dict[Slice, int | None]:
    """Slice to change -> the snapshot whose files it gets; None for no files."""
    return {restore.key: restore.snapshot_id for restore in restores if not restore.is_there}


def _require_rows(runtime: Runtime, table: Table, restores: Sequence[SliceRestore]) -> None:
    """Raise LakehouseError unless the earlier files hold the recorded number of rows, by metadata."""
    by_snapshot: dict[int, list[SliceRestore]] = {}
    for restore in restores:
        if restore.snapshot_id is not None:
            by_snapshot.setdefault(restore.snapshot_id, []).append(restore)
    for snapshot_id, of_snapshot in by_snapshot.items():
        files = runtime.lakehouse.slice_files(table, snapshot_id, {restore.key for restore in of_snapshot})
        for restore in of_snapshot:
            rows = files[restore.key].rows if restore.key in files else 0
            if rows != restore.digest.rows:
                raise LakehouseError(
                    f"{table.key} {restore.key}",
                    f"held {rows} rows then, but {restore.digest.rows} are on record",
                    "Choose another state, and report it",
                )
