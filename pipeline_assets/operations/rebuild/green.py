"""Compute the slices of a rebuild into green branches, chunk by chunk; the same again builds only what is not current."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline_assets.domain.days import chunks, days_between
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.rebuild import write_build
from pipeline_assets.load.build.step import StagedSlices, TablePlan
from pipeline_assets.load.build.verdicts import judge
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rebuild.choose import Chosen, GreenSlices, accepted, choose
from pipeline_assets.operations.rebuild.neighbours import digests_beside, refused_beside
from pipeline_assets.operations.rebuild.report import differences
from pipeline_assets.operations.rebuild.together import keep_together
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.metadata import NO_FILES


def build(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> RebuildRecord:
    """Build what is not there or not current; then the report is made.

    What a killed process left is gone on with. Raises PublishConflictError where another run took the rebuild over.
    """
    # Nobody swaps on an older report while this one is made, also where this process dies over it.
    rebuild = runtime.ledger.rebuilds.change(rebuild, state=RebuildState.BUILDING)
    # A column that the present code has and the table lacks is there before rows with it are.
    for table in map(table_by_key, rebuild.tables):
        with lakehouse_failures(table.key):
            # Only a load creates tables.
            if runtime.lakehouse.knows(table):
                runtime.lakehouse.ensure(table)
    catch_up(runtime, rebuild, now)
    keep_together(runtime, rebuild, now)
    failpoint(Failpoint.BEFORE_REPORT)
    return runtime.ledger.rebuilds.report(rebuild, RebuildState.READY)


@dataclass(frozen=True)
class MainAsRead:
    """Main from before a look at a rebuild: what was built and judged rests on it."""

    heads: Mapping[str, int] = field(default_factory=dict)
    """Table -> snapshot."""
    beside: Mapping[tuple[str, Slice], Digest] = field(default_factory=dict)
    """(table, slice) -> digest, of slices that may give rows to those of the rebuild."""


def catch_up(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> MainAsRead:
    """Build what is not current, until a look finds nothing or main has moved often enough.

    Returns main from before the last look.
    """
    main = MainAsRead()
    tables = [table_by_key(name) for name in rebuild.tables]
    for _ in range(runtime.settings.publish_attempts):
        heads = {table.key: sync_ledger(runtime, table, rebuild.run_id or "") for table in tables}
        beside = {place: one for table in tables for place, one in digests_beside(runtime, rebuild, table).items()}
        main = MainAsRead(heads, beside)
        if not _look(runtime, rebuild, now):
            break
    return main


def _look(runtime: Runtime, rebuild: RebuildRecord, now: datetime) -> int:
    """One look at every slice, chunk by chunk; returns how many were built."""
    count = 0
    days = days_between(rebuild.first, rebuild.last)
    for chunk in chunks(days, runtime.settings.days_per_run):
        slices = {key for key in rebuild.slices if key.event_date in set(chunk)}
        built = 0
        try:
            for name in rebuild.tables:
                with lakehouse_failures(name):
                    built += _build_table(runtime, rebuild, table_by_key(name), slices, now)
        finally:
            runtime.folds.release()
        runtime.log(f"rebuild {rebuild.number}: {chunk[0]} to {chunk[-1]}: {built} slices built beside main")
        count += built
        failpoint(Failpoint.AFTER_CHUNK)
    return count


def _build_table(
    runtime: Runtime, rebuild: RebuildRecord, table: Table, slices: Collection[Slice], now: datetime
) -> int:
    green = runtime.ledger.rebuilds.slices(rebuild)
    chosen = choose(runtime, rebuild, table, slices, green, now)
    changed = [one for key, one in sorted(chosen.left_out.items()) if not _is_known(green, table, key, one)]
    for one in changed:
        runtime.log(f"rebuild {rebuild.number}: {table.key} {one.key} is left out: {one.why_not}")
    if changed:
        runtime.ledger.rebuilds.record(rebuild, changed)
    if chosen.to_build:
        _build_slices(runtime, rebuild, table, chosen, now)
    return len(chosen.to_build)


def _is_known(green: GreenSlices, table: Table, key: Slice, one: RebuiltSlice) -> bool:
    known = green[table.key].get(key)
    return known is not None and (known.is_built, known.record.reason) == (False, one.record.reason)


def _build_slices(runtime: Runtime, rebuild: RebuildRecord, table: Table, chosen: Chosen, now: datetime) -> None:
    """Build, audit, judge and compare these slices, then record them: who is killed in between builds them again."""
    request = LoadRequest(
        days_between(rebuild.first, rebuild.last),
        rebuild.projects,
        frozenset(rebuild.tables),
        rebuild.run_id or "",
        now,
        accepted(rebuild, table),
    )
    plan = TablePlan(
        runtime,
        request,
        table,
        chosen.base_id,
        chosen.pins,
        rebuild.branch,
        chosen.to_build,
        time.monotonic(),
        None,
        is_whole=True,
        built_beside=chosen.built_beside,
    )
    keys = plan.to_build.keys()
    failpoint(Failpoint.AFTER_PIN, table.key)
    work = builder_of(table).build(plan)
    try:
        files = runtime.lakehouse.extend(
            table, rebuild.branch, chosen.base_id, lambda target: write_build(plan, work, target, keys)
        )
        audits = work.audit(files.snapshot_id)
        failpoint(Failpoint.AFTER_AUDIT, table.key)
        judged = judge(plan, StagedSlices(files.snapshot_id, audits, work.keys))
        found = differences(plan, files.snapshot_id, audits)
    finally:
        work.release()
    live = runtime.lakehouse.slice_files(table, files.snapshot_id, keys)
    slices = []
    for key, one in sorted(judged.items()):
        record = refused_beside(one.record, chosen.beside[key])
        record = replace(record, file_hash=live.get(key, NO_FILES).file_hash)
        prior = plan.to_build[key].record
        slices.append(RebuiltSlice(record, prior.digest if prior is not None else EMPTY, found[key]))
        if not record.verdict.is_good:
            runtime.log(f"rebuild {rebuild.number}: {table.key} {key} is {record.verdict.value}: {record.reason}")
    failpoint(Failpoint.BEFORE_LEDGER, table.key)
    runtime.ledger.rebuilds.record(rebuild, slices)
