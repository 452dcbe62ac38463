"""Throw away what nobody needs any more: dead branches, small files of cold days, old snapshots, orphan files, old quarantine.

Lives here: the order of upkeep of one table, beside loads that may run. Put here: another kind of leftover. Keep out: how old
is old (domain/retention.py) and the procedures (resources/upkeep.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from resources.lakehouse_errors import lakehouse_failures
from resources.upkeep import Compacted, Upkeep

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.retention import YOUNGEST, expirable
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.load_path.request import Workbench
from pipeline_assets.load_path.settle import settle
from pipeline_assets.tables.quarantine import QUARANTINE
from pipeline_assets.tables.registry import ALL_TABLES, SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table


@dataclass(frozen=True)
class TableUpkeep:
    """What was done to one table, or would be."""

    table: str
    branches: tuple[str, ...]
    """Dropped: left by runs that died."""
    compacted: tuple[Slice, ...]
    """Cold slices whose files were joined."""
    files_before: int
    files_after: int
    """Of those slices; in a dry run as many as before."""
    is_left_alone: bool
    """A load published one of the cold slices meanwhile, so the next maintenance joins their files."""
    snapshots: int
    """Expired."""
    files_deleted: int
    """That only expired snapshots needed; unknown, so 0, in a dry run."""
    orphans: tuple[str, ...]
    """Files that no snapshot knows of."""
    quarantined: int
    """Rows of quarantine past their source's retention."""


def maintain(
    bench: Workbench, run_id: str, now: datetime, is_live: Callable[[str], bool | None], *, is_dry_run: bool
) -> Iterator[TableUpkeep]:
    """Look after every table; yields a report per table as soon as it is done.

    `is_live` tells whether the attempt a branch is named for still runs. Safe beside loads: nothing younger than a day is
    removed, and a load that publishes a slice whose files are being joined wins.
    """
    upkeep = Upkeep(bench.spark, bench.lakehouse.catalog_name)
    for table in ALL_TABLES:
        with lakehouse_failures(table.key):
            report = _maintain(bench, upkeep, table, run_id, now, is_live, is_dry_run=is_dry_run)
        bench.say(f"{table.key}: {summary(report, is_dry_run=is_dry_run)}")
        yield report


def summary(report: TableUpkeep, *, is_dry_run: bool) -> str:
    """One line for people."""
    parts = [
        (len(report.branches), "branches dropped"),
        (len(report.compacted), f"slices compacted from {report.files_before} to {report.files_after} files"),
        (report.snapshots, f"snapshots expired with {report.files_deleted} files"),
        (len(report.orphans), "orphan files removed"),
        (report.quarantined, "quarantined rows removed"),
    ]
    said = ", ".join(f"{count} {what}" for count, what in parts if count) or "nothing to do"
    said += "; a load won over the compaction" if report.is_left_alone else ""
    return f"would do: {said}" if is_dry_run else said


def _maintain(
    bench: Workbench,
    upkeep: Upkeep,
    table: Table,
    run_id: str,
    now: datetime,
    is_live: Callable[[str], bool | None],
    *,
    is_dry_run: bool,
) -> TableUpkeep:
    bench.lakehouse.ensure(table)
    branches = tuple(bench.lakehouse.dead_branches(table, is_live))
    if not is_dry_run:
        bench.lakehouse.sweep([table], is_live)
    if table is not QUARANTINE and not is_dry_run:
        # While the snapshots are there that tell what happened since.
        settle(bench, table, run_id)
    cold, files = _cold(bench, table, now)
    compacted = Compacted(files, files)
    if cold and not is_dry_run:
        compacted = _compact(bench, upkeep, table, cold, files, run_id)
    quarantined = _old_quarantine(bench, upkeep, now, is_dry_run=is_dry_run) if table is QUARANTINE else 0
    snapshots, named = upkeep.snapshots(table)
    old = expirable(snapshots, named, now, timedelta(days=_history_days(bench, table)))
    deleted = 0 if is_dry_run else upkeep.expire(table, old)
    # Files carry the time of the store's own clock.
    before = min(now, datetime.now(UTC)) - YOUNGEST
    orphans = tuple(upkeep.orphans(table, before, is_dry_run=is_dry_run))
    return TableUpkeep(
        table.key, branches, tuple(cold), compacted.files_before, compacted.files_after, compacted.is_left_alone,
        len(old), deleted, orphans, quarantined,
    )  # fmt: skip


def _history_days(bench: Workbench, table: Table) -> int:
    settings = bench.settings
    by_source = {Source.REGULAR: settings.regular_history_days, Source.BACKFILL: settings.backfill_history_days}
    source = SOURCE_OF_TABLE.get(table.key)
    return settings.rollback_days if source is None else by_source[source]


def _cold(bench: Workbench, table: Table, now: datetime) -> tuple[list[Slice], int]:
    """Slices that hardly anything changes any more and that lie in many files, and how many files that are."""
    coldest = now.date() - timedelta(days=bench.settings.compact_after_days)
    live = bench.lakehouse.slice_files(table, bench.lakehouse.head(table))
    found = {
        key: len(files.paths)
        for key, files in live.items()
        if key.event_date < coldest and len(files.paths) >= bench.settings.compact_min_files
    }
    return sorted(found), sum(found.values())


def _compact(bench: Workbench, upkeep: Upkeep, table: Table, cold: list[Slice], files: int, run_id: str) -> Compacted:
    known = len(bench.ledger.publications(table.key))
    before = _digests(bench, table)
    compacted = upkeep.compact(table, cold, files)
    if table is not QUARANTINE:
        # The ledger's row counts only while it names the live files; settling reads them, and so proves the compaction.
        settle(bench, table, run_id)
        after = _digests(bench, table)
        theirs = {record.key for record in bench.ledger.publications(table.key)[known:]}
        changed = [key for key in cold if before.get(key) != after.get(key) and key not in theirs]
        if changed:
            reason = "holds other rows after a compaction than before"
            raise LakehouseError(f"{table.key} {changed[0]}", reason, "This is a defect: report it; load the day again")
    return compacted


def _digests(bench: Workbench, table: Table) -> dict[Slice, str]:
    return {key: str(record.digest) for key, record in bench.ledger.slices(table.key, None).items()}


def _old_quarantine(bench: Workbench, upkeep: Upkeep, now: datetime, *, is_dry_run: bool) -> int:
    """Rows that arrived before their source's retention begins."""
    settings = bench.settings
    kept = {Source.REGULAR: settings.regular_quarantine_days, Source.BACKFILL: settings.backfill_quarantine_days}
    condition = " OR ".join(
        f"(source = '{source.value}' AND arrival_date < DATE '{now.date() - timedelta(days=days)}')"
        for source, days in kept.items()
    )
    head = bench.lakehouse.head(QUARANTINE)
    found = bench.lakehouse.read(QUARANTINE, head).where(condition).count()
    if found and not is_dry_run and not upkeep.delete(QUARANTINE, condition):
        return 0
    return found
