"""Which state slices of refined and aggregates go back to, and when they must not.

Contains: the request, the state of then on record and in kept snapshots, the conditions.
Add here: another condition of a rollback.
Does not contain: holding and restoring (rollback.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import reduce

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, neighbourhood
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import DERIVED
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.cross_day_keys import key_days, torn_keys
from pipeline_assets.transforms.event_keys import KEY
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class RollbackRequest:
    """Which slices go back, and to when."""

    tables: tuple[str, ...]
    """Keys of derived tables; none = all of them."""
    projects: tuple[str, ...]
    first: date
    last: date
    to: datetime | int
    """Aware: the state that was published then; or the number of a publication: the state right after the run that made it.

    A run's publications belong together: one commit may move events from one day to another, and aggregates follow it.
    """
    reason: str
    run_id: str

    @property
    def attempt(self) -> str:
        """The run's part of branch names."""
        return self.run_id.replace("-", "")


@dataclass(frozen=True)
class SliceRestore:
    """One slice, what it is and what it is to be."""

    table: str
    key: Slice
    present: SliceRecord
    target: PublicationRecord | None
    """The change that made it what it is to be; None where nothing was published by then."""
    snapshot_id: int | None = None
    """A kept snapshot in which it is that; None where it was empty, or is that now."""

    @property
    def digest(self) -> Digest:
        """Of what it is to be."""
        return self.target.digest_after if self.target is not None else EMPTY

    @property
    def is_there(self) -> bool:
        """Whether it is that already, and is only held."""
        return self.digest == self.present.digest


def plan(runtime: Runtime, request: RollbackRequest) -> list[SliceRestore]:
    """What a rollback would change, tables in topological order; writes nothing but what settling finds.

    Raises UsageError for tables, days or a publication that cannot be served, LakehouseError where files of then are gone, or
    where events would be lost or doubled because they moved between a chosen day and one that is not.
    """
    tables = tables_of(request)
    if not request.reason.strip():
        raise UsageError("rollback", "needs a reason", "Say why; it stays on record")
    for table in tables:
        sync_ledger(runtime, table, request.run_id)
    request = after_its_run(runtime, request)
    restores = [restore for table in tables for restore in restores_of_table(runtime, table, request)]
    if not restores:
        raise UsageError(
            f"{request.first} to {request.last}",
            "no publication of these days is on record",
            "Check the days: tidemark history",
        )
    for table in tables:
        require_whole_exchanges(
            runtime, table, request, [restore for restore in restores if restore.table == table.key]
        )
    for table in tables:
        chosen = snapshots_of(restore for restore in restores if restore.table == table.key)
        runtime.lakehouse.require_files(table, chosen)
    return restores


def after_its_run(runtime: Runtime, request: RollbackRequest) -> RollbackRequest:
    """Back to the last publication of the run, or of the commit where no run is known, that made the publication named."""
    if not isinstance(request.to, int):
        return request
    publications = runtime.ledger.publications()
    named = next((record for record in publications if record.number == request.to), None)
    if named is None:
        raise UsageError(f"publication {request.to}", "is not on record", "`tidemark history` lists them")

    def belongs(record: PublicationRecord) -> bool:
        if named.run_id is not None:
            return record.run_id == named.run_id
        return (record.table, record.snapshot_id) == (named.table, named.snapshot_id)

    return replace(request, to=max(record.number for record in publications if belongs(record)))


def tables_of(request: RollbackRequest) -> list[Table]:
    """The tables that go back, in topological order; raises UsageError for one that cannot."""
    known = {table.key: table for table in DERIVED}
    for name in request.tables:
        if name not in known:
            raise UsageError(
                name,
                "cannot be rolled back",
                f"Raw keeps what was delivered: exclude bad deliveries. Others can be rolled back: {', '.join(known)}",
            )
    return [table for key, table in known.items() if not request.tables or key in request.tables]


def restores_of_table(runtime: Runtime, table: Table, request: RollbackRequest) -> list[SliceRestore]:
    """What becomes of the chosen slices of a table, after settling it; raises LakehouseError where that is not known."""
    sync_ledger(runtime, table, request.run_id)
    chosen = [
        key
        for key in runtime.ledger.slices(table.key, request.projects)
        if request.first <= key.event_date <= request.last
    ]
    return _restores_of(runtime, table, chosen, request.to)


def _restores_of(runtime: Runtime, table: Table, slices: Iterable[Slice], to: datetime | int) -> list[SliceRestore]:
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
        count = published_by(published[key], to, now)
        target = published[key][count - 1] if count else None
        later = published[key][count] if count < len(published[key]) else None
        restore = SliceRestore(table.key, key, present[key], target)
        if not restore.is_there and target is None:
            _require_empty_then(runtime, table, key, later, to, ancestry)
        if not restore.is_there and target is not None and target.digest_after != EMPTY:
            restore = replace(restore, snapshot_id=_kept_snapshot(restore, target, later, ancestry, kept))
        restores.append(restore)
    _require_rows(runtime, table, restores)
    return restores


def published_by(records: Sequence[PublicationRecord], to: datetime | int, now: datetime) -> int:
    """How many of a slice's publications, oldest first, were made by then.

    None was made later than one that followed it, and none later than now, whatever a clock that was ahead wrote.
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
    """Nothing was published before its first change on record: that has to be known, and not only not be on record."""
    if first is not None and first.digest_before == EMPTY and not first.cause.is_found:
        return
    # What was found afterwards tells nothing of what stood before it; a kept snapshot of then does.
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
    """A kept snapshot of main in which the slice was as `target` left it: its own, or the one before the next change."""
    candidates = [target.snapshot_id, later.parent_id if later is not None else None]
    # In main's history first: what is kept may be another rollback's, and go with it.
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
    """Slice to change -> the snapshot whose files it gets, None for none."""
    return {restore.key: restore.snapshot_id for restore in restores if not restore.is_there}


def _require_rows(runtime: Runtime, table: Table, restores: Sequence[SliceRestore]) -> None:
    """The files of then hold as many rows as are on record; by metadata."""
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


def require_whole_exchanges(
    runtime: Runtime, table: Table, request: RollbackRequest, restores: Sequence[SliceRestore]
) -> None:
    """Events that moved between a chosen day and another one since then would be lost or be there twice."""
    window = table.kind.exchange_days(runtime.settings)
    if not window:
        return
    chosen = {restore.key for restore in restores}
    known = runtime.ledger.slices(table.key, request.projects)
    near = {key for key in neighbourhood(chosen, window) if key in known} - chosen
    beside = [restore for restore in _restores_of(runtime, table, near, request.to) if not restore.is_there]
    changing = [restore for restore in restores if not restore.is_there]
    # A day beside that did not change since then gave and took nothing.
    if not beside or not changing:
        return
    head = runtime.lakehouse.head(table)
    torn = torn_keys(
        then_chosen=_keys(runtime, table, [(restore.key, restore.snapshot_id) for restore in changing]),
        now_chosen=_keys(runtime, table, [(restore.key, head) for restore in changing]),
        then_beside=_keys(runtime, table, [(restore.key, restore.snapshot_id) for restore in beside]),
        now_beside=_keys(runtime, table, [(restore.key, head) for restore in beside]),
        dedupe_window_days=window,
    )
    rows = torn.groupBy("event_date", "project_id").count().collect()
    if rows:
        days = ", ".join(sorted(f"{row['event_date']} {row['project_id']} ({row['count']} events)" for row in rows))
        raise LakehouseError(
            f"{table.key} {request.first} to {request.last}",
            f"events have moved between these days and {days} since then; the rollback would lose or double them",
            "Roll those days back as well",
        )


def _keys(runtime: Runtime, table: Table, slices: Iterable[tuple[Slice, int | None]]) -> DataFrame:
    """`key_days` of slices of a table that stores its keys, each as of a snapshot (None: empty)."""
    by_snapshot: dict[int, list[Slice]] = {}
    for key, snapshot_id in slices:
        if snapshot_id is not None:
            by_snapshot.setdefault(snapshot_id, []).append(key)
    ids = ("event_date", "project_id", *KEY)
    frames = [
        runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, keys)).select(*ids)
        for snapshot_id, keys in by_snapshot.items()
    ]
    live = runtime.lakehouse.read(table, runtime.lakehouse.head(table))
    nothing: Column = F.lit(False)
    head = live.where(nothing).select(*ids)
    return key_days(reduce(DataFrame.unionByName, frames, head))
