"""Maintenance: remove dead branches, old snapshots, orphan files and old quarantine, and join small files of cold days."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial

from pipeline_assets.domain import errors
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.retention import YOUNGEST, expirable, is_bulk, is_living_fork, least_age, outlived_metadata
from pipeline_assets.domain.slices import EMPTY, ROW_HASH_VERSION, Digest, Slice, days_by_project
from pipeline_assets.load import file_tasks
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import QUARANTINE
from pipeline_assets.tables.registry import EVERY_TABLE, OPTIONAL_TABLES, SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import slice_digests
from pipeline_assets.transforms.row_sums import LINEAGE
from resources.iceberg.catalog_at_rest import base_name, first_use, is_metadata, predecessor
from resources.iceberg.errors import FAILURES, lakehouse_failures
from resources.iceberg.lake_identity import Purpose, catalog_place, unknown_lake
from resources.iceberg.lake_objects import LakeObjects, require_true_clock
from resources.iceberg.lakehouse import Staged
from resources.iceberg.metadata import SliceFiles, slices_condition
from resources.iceberg.upkeep import Below, Upkeep, is_written
from resources.ledger.changes import Changes
from resources.publishing import PublishRequest, publisher_of

_COLD_AFTER = timedelta(days=7)
JOINED_FROM = 4
_SLICES_AT_ONCE = 200
_SMALL_BYTES = 8 * 1024**2
"""A larger data file is left as it is: reading a day costs little more for a few of these."""
_ALL = "true"
_SHOWN = 20


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite."""

    files_before: int = 0
    files_after: int = 0
    rows_removed: int = 0
    is_left_alone: bool = False


def compact(runtime: Runtime, table: Table, cold: Sequence[Slice], run_id: str) -> Rewritten:
    """Join the small files of these slices, also of held ones; raises LakehouseError, with no change, where rows would differ."""
    return _rewritten(runtime, table, cold, run_id, None)


def _rewritten(runtime: Runtime, table: Table, slices: Sequence[Slice], run_id: str, keeps: str | None) -> Rewritten:
    """`keeps`: SQL condition of the rows that stay; None: all stay, and small files are joined."""
    done = []
    for number, start in enumerate(range(0, len(slices), _SLICES_AT_ONCE)):
        attempt = f"{run_id.replace('-', '')}_rewrite{number}"
        done.append(_rewrite(runtime, table, slices[start : start + _SLICES_AT_ONCE], run_id, attempt, keeps))
    before, after = sum(one.files_before for one in done), sum(one.files_after for one in done)
    is_left_alone = any(one.is_left_alone for one in done)
    return Rewritten(before, after, sum(one.rows_removed for one in done), is_left_alone)


def _rewrite(
    runtime: Runtime, table: Table, slices: Collection[Slice], run_id: str, attempt: str, keeps: str | None
) -> Rewritten:
    lakehouse = runtime.lakehouse
    base_id = lakehouse.head(table) if table is QUARANTINE else sync_ledger(runtime, table, run_id)
    before = {key: files for key, files in lakehouse.slice_files(table, base_id, slices).items() if files.paths}
    if not before:
        return Rewritten()

    def write(target: str) -> None:
        if keeps is None:
            lakehouse.join_files(table, target, before, _SMALL_BYTES)
        else:
            lakehouse.keep_rows(table, target, before, keeps)

    files = sum(len(of.paths) for of in before.values())
    staged = lakehouse.stage(table, base_id, attempt, write)
    try:
        _require_same(runtime, table, staged, before, keeps)
        change = lakehouse.changes.of(table, staged.base_id, staged.snapshot_id, before, [staged.branch])
        after = change.files_by_slice
        changes = Changes(head=(table.key, staged.base_id, staged.base_id))
        changes.rewritten = {(table.key, one): (before[one].file_hash, after[one].file_hash) for one in before}
        steps = [] if table is QUARANTINE else [(table.key, changes)]
        publisher = publisher_of(runtime.settings, lakehouse, runtime.ledger)
        publisher.publish(PublishRequest(run_id, attempt, [change], steps, minds_holds=False))
    except BaseException as error:
        with suppress(*FAILURES):
            lakehouse.drop(staged)
        if not isinstance(error, errors.PublishConflictError):
            raise
        runtime.log(f"{error.subject}: {error.reason}; its files stay as they are")
        return Rewritten(files, files, is_left_alone=True)
    removed = sum(of.rows for of in before.values()) - sum(of.rows for of in after.values())
    return Rewritten(files, sum(len(of.paths) for of in after.values()), removed)


def _require_same(
    runtime: Runtime, table: Table, staged: Staged, before: Mapping[Slice, SliceFiles], keeps: str | None
) -> None:
    """Raise LakehouseError unless the staged slices hold the recorded rows, and raw rows their object and line."""

    def quarantined(snapshot_id: int, condition: str) -> dict[Slice, Digest]:
        rows = runtime.lakehouse.read(QUARANTINE, snapshot_id).where(slices_condition(QUARANTINE, before))
        return slice_digests(rows.where(condition), QUARANTINE.content_columns, QUARANTINE.day_column)

    if table is QUARANTINE:
        # The ledger has no record of quarantine, so compare it with its own snapshot before.
        expected, found = quarantined(staged.base_id, keeps or _ALL), quarantined(staged.snapshot_id, _ALL)
    else:
        expected = _on_record(runtime, table, before)
        if table.key in SOURCE_OF_TABLE:
            parts = file_tasks.arrival_days(runtime, table, staged.snapshot_id, before)
            _require_same_batches(runtime, table, parts)
            found = {key: sum((part.digest for part in of.values()), EMPTY) for key, of in parts.items()}
        else:
            found = file_tasks.slice_digests(runtime, table, staged.snapshot_id, before)
    for key in sorted(before):
        if expected.get(key, EMPTY) != found.get(key, EMPTY):
            raise _is_other(table, key, f"{found.get(key, EMPTY).rows} rows for {expected.get(key, EMPTY).rows}")


def _require_same_batches(
    runtime: Runtime, table: Table, parts: Mapping[Slice, Mapping[date | None, BatchDay]]
) -> None:
    for project_id, days in days_by_project(parts).items():
        known = runtime.ledger.batch_days_of(SOURCE_OF_TABLE[table.key], project_id, sorted(days))
        for day, batch, part in ((day, *one) for day, of_day in known.items() for one in of_day.items()):
            is_known = (part.lineage or "").startswith(f"{LINEAGE}:")
            is_comparable = is_known and part.digest.rows and part.digest.version == ROW_HASH_VERSION
            if is_comparable and parts[Slice(day, project_id)].get(batch.arrival_date) != part:
                raise _is_other(table, Slice(day, project_id), f"rows of {batch} lie elsewhere")


def _is_other(table: Table, key: Slice, what: str) -> errors.LakehouseError:
    reason = f"its files, written again, would hold other rows than before ({what})"
    return errors.LakehouseError(f"{table.key} {key}", reason, "This is a defect: report it; nothing was published")


def _on_record(runtime: Runtime, table: Table, slices: Mapping[Slice, SliceFiles]) -> dict[Slice, Digest]:
    records = runtime.ledger.slices(table.key, None, {key.event_date for key in slices})
    moved = {
        (table.key, key)
        for key, files in slices.items()
        if key not in records or records[key].file_hash != files.file_hash
    }
    if moved:
        first = min(key for _, key in moved)
        reason = "another run recorded other files of it meanwhile"
        raise errors.SliceConflictError(f"{table.key} {first}", reason, "The next maintenance looks again", moved)
    return {key: records[key].digest for key in slices}


@dataclass(frozen=True, kw_only=True)
class TableUpkeep(Rewritten):
    """The work done on one table, or planned in a dry run; nothing is removed where there is a failure."""

    table: str
    branches: tuple[str, ...] = ()
    compacted: tuple[Slice, ...] = ()
    """Cold slices whose files were compacted; in a dry run there are as many files after as before."""
    snapshots: int = 0
    files_deleted: int = 0
    """Number of files that only expired snapshots needed; 0 in a dry run, where it is unknown."""
    quarantined: int = 0
    orphans: tuple[str, ...] = ()
    """Paths of files that neither a snapshot nor history needs."""
    metadata: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Paths of unknown files whose names neither Tidemark nor Iceberg gives: they stay."""
    note: str = ""
    failure: errors.TidemarkError | None = None


def _leftovers(
    upkeep: Upkeep, table: Table, name: str, now: datetime, span: timedelta, youngest: timedelta, max_share: float
) -> TableUpkeep:
    """The removable files; `span`: how long history is kept; `youngest`, at most `span`: the least age of such a file."""
    below, note = upkeep.below(table), ""
    place, clock = below.location, min(now, datetime.now(UTC))
    before = clock - youngest
    foreign = [file for file in below.unknown if file.commits and file.table_uuid != below.table_uuid]
    if foreign:
        where = f"{place}/{foreign[0].name}"
        reason = f"its folder also holds the files of another table of this name ({where}); no orphan was removed"
        hint = (
            "Find the catalog of that table; move its files away, or attach them to an empty catalog: tidemark attach"
        )
        return TableUpkeep(table=table.key, failure=errors.LakehouseError(name, reason, hint))
    if _is_forked(below, clock):
        reason = f"another catalog commits to it: {place} holds commits of the last day that this one does not know"
        hint = "Stop what uses the other catalog. If this one was restored from a backup, run maintenance again after a day"
        return TableUpkeep(
            table=table.key, failure=errors.LakehouseError(name, f"{reason}, and nothing was touched", hint)
        )
    if any(file.commits and file.updated_at >= clock - span for file in below.unknown):
        # A failed commit leaves the same files as a commit that a restored catalog forgot, so both stay as long as snapshots.
        before = clock - span
        note = f"its folder holds metadata that the catalog does not know, so orphans are kept for {span.days} days"
    files = {base_name(file.name): file for file in below.files if is_metadata(file.name)}
    data = [file for file in below.files if not is_metadata(file.name)]
    unknown = [file.name for file in data if file.modified_at < before and base_name(file.name) not in below.needed]
    written = [(name, file.modified_at) for name, file in files.items()]
    unknown += [files[name].name for name in outlived_metadata(written, below.log, clock, span)]
    owned = {name for name in unknown if is_written(name, below.table_uuid)}
    others = tuple(f"{place}/{name}" for name in unknown if name not in owned)
    metadata = tuple(f"{place}/{name}" for name in unknown if name in owned and is_metadata(name))
    orphans = tuple(f"{place}/{name}" for name in unknown if name in owned and not is_metadata(name))
    if is_bulk(len(orphans), len(data), max_share):
        reason = f"no snapshot knows {len(orphans)} of the {len(data)} files below {place}; none was removed"
        hint = (
            "List them (tidemark maintenance --dry-run); if none is needed, raise TIDEMARK_MAX_ORPHAN_SHARE for one run"
        )
        failure = errors.LakehouseError(name, reason, hint)
        return TableUpkeep(table=table.key, orphans=orphans, others=others, failure=failure)
    return TableUpkeep(table=table.key, orphans=orphans, metadata=metadata, others=others, note=note)


def _is_forked(below: Below, now: datetime) -> bool:
    """Whether unknown commits follow each other: a commit that failed or was killed has no successor."""
    young = [file for file in below.unknown if file.commits and abs(file.updated_at - now) <= YOUNGEST]
    objects, unknown = LakeObjects(below.location), {base_name(file.name) for file in below.unknown}
    return is_living_fork(len(young)) and any(predecessor(objects, file.name) in unknown for file in young)


def maintain(
    runtime: Runtime, run_id: str, now: datetime, is_live: Callable[[str], bool | None], *, is_dry_run: bool
) -> Iterator[TableUpkeep]:
    """Maintain every table that the catalog knows, safely beside loads; yields a report per table as soon as it is done.

    A table's failure goes into its report. `is_live`: whether the attempt that a branch is named after runs; None = unknown.
    Raises LakehouseError, before any change, if the catalog knows no table or lacks one whose files are in the warehouse.
    """
    with lakehouse_failures("tables"):
        tables = _known_tables(runtime, is_dry_run=is_dry_run)
    if not is_dry_run:
        require_true_clock(LakeObjects.of(runtime.settings))
    youngest = least_age(runtime.ledger.processes.live_ages())
    if youngest > YOUNGEST:
        runtime.log(f"a run has worked for {youngest // timedelta(hours=1)} hours: nothing younger is removed")
    upkeep = Upkeep(runtime.spark, runtime.lakehouse.catalog_name)
    for table in tables:
        try:
            with lakehouse_failures(table.key):
                report = _maintain(runtime, upkeep, table, run_id, now, youngest, is_live, is_dry_run=is_dry_run)
        except errors.TidemarkError as error:
            report = TableUpkeep(table=table.key, failure=error)
        runtime.log(f"{table.key}: {summary(report, is_dry_run=is_dry_run)}")
        for path in _listing((*report.orphans, *report.metadata)) if is_dry_run else ():
            runtime.log(f"  {path}")
        for path in _listing(report.others):
            runtime.log(f"  stays: {path}")
        yield report


def require_done(reports: Sequence[TableUpkeep]) -> None:
    """Raise the failures of the reports; one that needs an operator before one that passes by itself."""
    failures = [report.failure for report in reports if report.failure is not None]
    lasting = [failure for failure in failures if not isinstance(failure, errors.TransientError)]
    if len(lasting) > 1:
        reasons = "; ".join(f"{failure.subject}: {failure.reason}" for failure in lasting)
        raise errors.LakehouseError(f"{len(lasting)} tables", reasons, lasting[0].hint)
    for failure in lasting or failures:
        raise failure


def _listing(paths: Sequence[str]) -> list[str]:
    more = len(paths) - _SHOWN
    return [*paths[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _known_tables(runtime: Runtime, *, is_dry_run: bool) -> list[Table]:
    purpose = Purpose.LOOK if is_dry_run else Purpose.KEEP
    runtime.lakehouse.require_own(runtime.settings, EVERY_TABLE, purpose, runtime.ledger.lake)
    known = [table for table in EVERY_TABLE if runtime.lakehouse.knows(table)]
    if not known:
        hint = "Load days first, or check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME"
        reason = "knows none of our tables, and nothing was touched"
        raise errors.LakehouseError(catalog_place(runtime.settings), reason, hint)
    for table in (table for table in EVERY_TABLE if table not in known):
        place = runtime.lakehouse.place(table)
        if (used := first_use(LakeObjects(place))) is not None:
            raise unknown_lake(runtime.settings, f"{place}/{used}")
        if table not in OPTIONAL_TABLES:
            runtime.log(f"{table.key}: is not there yet")
    return known


def summary(report: TableUpkeep, *, is_dry_run: bool) -> str:
    """The report as one line for the log."""
    joined = f"compacted from {report.files_before} to {report.files_after} files"
    parts = [
        (len(report.branches), "branches dropped"),
        (len(report.compacted), f"slices {f'of {report.files_before} files compacted' if is_dry_run else joined}"),
        (report.snapshots, f"snapshots expired with {report.files_deleted} files"),
        (0 if report.failure is not None else len(report.orphans), "orphan files removed"),
        (len(report.metadata), "old metadata files removed"),
        (report.quarantined, "quarantined rows removed"),
    ]
    text = ", ".join(f"{count} {what}" for count, what in parts if count) or "nothing to do"
    text += f"; {len(report.others)} files of others stay" if report.others else ""
    text += "; a load won over the compaction" if report.is_left_alone else ""
    text += f"; {report.note}" if report.note else ""
    text += f"; NOT DONE: {report.failure.reason}" if report.failure is not None else ""
    return f"would do: {text}" if is_dry_run else text


def _maintain(
    runtime: Runtime,
    upkeep: Upkeep,
    table: Table,
    run_id: str,
    now: datetime,
    youngest: timedelta,
    is_live: Callable[[str], bool | None],
    *,
    is_dry_run: bool,
) -> TableUpkeep:
    branches = tuple(runtime.lakehouse.branches.dead(table, is_live))
    history = max(timedelta(days=runtime.settings.rollback_days), youngest)
    # Files that another catalog's table may need must not be compacted away or expired.
    name, max_share = runtime.lakehouse.identifier(table), runtime.settings.max_orphan_share
    find = partial(_leftovers, upkeep, table, name, now, history, youngest, max_share)
    left = find()
    if left.failure is not None:
        return left
    if not is_dry_run:
        runtime.lakehouse.branches.sweep([table], is_live)
        upkeep.keep_properties(table)
        if table is not QUARANTINE:
            # The sync needs the snapshots since the last one.
            sync_ledger(runtime, table, run_id)
    cold, files = _cold(runtime, table, now)
    compacted = Rewritten(files, files) if is_dry_run else compact(runtime, table, cold, run_id)
    quarantined = _old_quarantine(runtime, now, run_id, is_dry_run=is_dry_run) if table is QUARANTINE else 0
    old, deleted = expirable(*upkeep.snapshots(table), now, history), 0
    if not is_dry_run:
        deleted = upkeep.expire(table, old)
        left = find()
        if left.failure is None:
            upkeep.remove(table, (*left.orphans, *left.metadata))
    left = replace(left, branches=branches, compacted=tuple(cold), **vars(compacted))
    return replace(left, snapshots=len(old), files_deleted=deleted, quarantined=quarantined)


def _cold(runtime: Runtime, table: Table, now: datetime) -> tuple[list[Slice], int]:
    coldest = now.date() - _COLD_AFTER
    live = runtime.lakehouse.slice_files(table, runtime.lakehouse.head(table))
    file_counts = {
        key: len(files.paths)
        for key, files in live.items()
        if key.event_date < coldest and sum(size < _SMALL_BYTES for size in files.sizes.values()) >= JOINED_FROM
    }
    return sorted(file_counts), sum(file_counts.values())


def _old_quarantine(runtime: Runtime, now: datetime, run_id: str, *, is_dry_run: bool) -> int:
    condition = f"arrival_date < DATE '{now.date() - timedelta(days=runtime.settings.quarantine_days)}'"
    old = runtime.lakehouse.read(QUARANTINE, runtime.lakehouse.head(QUARANTINE)).where(condition)
    counts = old.groupBy(*QUARANTINE.partition_columns).count().collect()
    if is_dry_run:
        return sum(row["count"] for row in counts)
    slices = [Slice(row[QUARANTINE.day_column], row["project_id"]) for row in counts]
    return _rewritten(runtime, QUARANTINE, sorted(slices), run_id, f"NOT coalesce({condition}, false)").rows_removed
