"""Reads the current delivery of a dimension's intervals once, before a load decides about its months."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pyspark.sql.functions as F

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.slices import ALL_PROJECTS, Digest
from pipeline_assets.load.build.history_checks import judge_doubled, judge_history, judge_unread
from pipeline_assets.load.deliveries.snapshot_exclusions import is_ruled_out
from pipeline_assets.load.deliveries.snapshots import SnapshotListing
from pipeline_assets.load.draft import LoadRuntime
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.history import (
    History,
    Records,
    days_on_record,
    is_on_record,
    is_refused_before,
    month_of,
    nothing_since,
    standing_day,
    version_of,
)
from pipeline_assets.load.staleness.inputs import judging
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.intervals import digests_by_day
from pipeline_assets.transforms.snapshot_rows import read_histories
from resources.spark.tasks import naming_what_workers_met


def look_at_history(
    runtime: LoadRuntime, request: LoadRequest, table: Table, listing: SnapshotListing
) -> History | None:
    """The current delivery, read unless it is on record; None if landing has no complete one as recent as the published one."""
    settings, log = runtime.settings, runtime.log
    day = standing_day(listing.days, settings, request.now)
    # Pinning syncs the ledger, so that its records match the published table.
    runtime.draft.pin(table)
    records = runtime.ledger.slices(table.key, [ALL_PROJECTS])
    last = max(days_on_record(table, records), default=None)
    own = records.get(month_of(table, last)) if last is not None else None
    is_excluded = is_ruled_out(listing.exclusions, own)
    if last is not None and (day is None or day < last):
        if not is_excluded:
            log(f"{table.key}: landing no longer holds the intervals as of {last}; those that are published stay")
            return None
        log(
            f"{table.key}: the intervals as of {last} are excluded; {f'those as of {day} stand' if day else 'none stand'}"
        )
        if day is None:
            return nothing_since(last)
    if day is None:
        return None
    delivery = listing.days[day]
    history = History(day, delivery, version_of(delivery, settings))
    if is_on_record(table, day, history.version, records):
        return history
    if is_refused_before(table, day, history.version, records, judging(table, settings), request.accepted):
        return replace(history, is_refused=True)
    if delivery.others:
        other = delivery.others[0].rpartition(" ")[0]
        return replace(history, failure=judge_doubled(delivery.key, other, day))
    log(f"{table.key}: reading the intervals as of {day}")
    days, failure = _read(runtime, history)
    # The counts of an excluded delivery are not used for comparisons.
    compared = {} if is_excluded else records
    return replace(history, days=days, failure=failure or _judged(runtime, request, table, history, days, compared))


def _read(runtime: Runtime, history: History) -> tuple[dict[date, Digest], Evaluation | None]:
    settings = runtime.settings
    deliveries = {history.day: history.delivery}
    parsed = read_histories(runtime.spark, deliveries, runtime.landing, settings).persist()
    try:
        with naming_what_workers_met():
            (summary,) = parsed.where(F.col("id").isNull()).collect()
        if summary["problem"] is not None:
            return {}, judge_unread(history.delivery.key, summary["problem"], summary["detail"])
        first = F.lit(settings.calendar_start)
        rows = parsed.where(F.col("id").isNotNull() & (F.col("active_end_date") >= first)).withColumn(
            "active_start_date", F.greatest("active_start_date", first)
        )
        left_out = int(summary["rows"]) - rows.count()
        if left_out:
            runtime.log(f"{history.delivery.key}: {left_out:,} intervals end before {settings.calendar_start}")
        return digests_by_day(rows, history.day), None
    finally:
        parsed.unpersist()


def _judged(
    runtime: Runtime,
    request: LoadRequest,
    table: Table,
    history: History,
    days: dict[date, Digest],
    records: Records,
) -> Evaluation | None:
    # A history has no days after its own day, so days from a newer, excluded delivery are not missing in it.
    recorded = {day: one for day, one in days_on_record(table, records).items() if day <= history.day}
    failure = judge_history(history.delivery.key, days, recorded, runtime.settings)
    accepted = request.accepted.change(table.key, month_of(table, history.day))
    if failure is not None and accepted is not None:
        runtime.log(f"{table.key}: accepted: {accepted} ({failure.reason})")
        return None
    return failure
