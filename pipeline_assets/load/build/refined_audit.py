"""Audits staged slices of refined.events: measures them and reconciles them with raw."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Window

from pipeline_assets.domain.checks import Check, Evaluation, number
from pipeline_assets.domain.identity import LOST_UNREAD, RowFate
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.build.audit import Audit
from pipeline_assets.load.build.states import read_states
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import CONTENT, REFINED_EVENTS
from pipeline_assets.transforms.digests import FALSE_HASHES, checked_hashes, digest_aggregates, digest_of
from pipeline_assets.transforms.event_keys import KEY, candidate_duplicates, day_number, with_candidate_keys
from pipeline_assets.transforms.key_changes import held_keys
from pipeline_assets.transforms.named import has_blank_id, is_nameless
from resources.iceberg.metadata import slices_condition

_TAMPERED = "Something else than Tidemark changed the file: docs/operations.md, A row that differs from its hash"
_DEFECT = "This is a defect of Tidemark: report it with the day's raw rows"


def raw_counts(runtime: Runtime, pins: Mapping[str, int], slices: Sequence[Slice]) -> dict[Slice, int]:
    """Rows per slice in both raw tables, from metadata, so that they do not depend on what the build read."""
    rows = dict.fromkeys(slices, 0)
    for table in RAW_TABLES.values():
        for key, files in runtime.lakehouse.slice_files(table, pins[table.key], set(slices)).items():
            is_seen = slices_condition(table, [key])
            read = runtime.lakehouse.read(table, pins[table.key]).where(is_seen) if files.deletes else None
            rows[key] += files.rows if read is None else read.count()
    return rows


def measure_refined(
    runtime: Runtime,
    snapshot_id: int,
    near: Mapping[int, Collection[Slice]],
    slices: Sequence[Slice],
    *,
    is_checked: bool,
) -> dict[Slice, dict[str, Any]]:
    """Slice -> its digest and figures, from the stored hashes of its rows, and its duplicate keys.

    `near`: snapshot -> the slices and neighbours whose present state it holds.
    `is_checked`: recompute every hash from its row. Tasks that write files themselves have already checked a sample.
    """
    staged = runtime.lakehouse.read(REFINED_EVENTS, snapshot_id)
    content = staged.where(slices_condition(REFINED_EVENTS, slices))
    lateness = F.datediff(F.to_date(EXPORT_FORMAT.received_column), F.col("event_date"))
    hashed, also = checked_hashes(content, CONTENT) if is_checked else (content, [])
    rows = (
        hashed.groupBy("event_date", "project_id")
        .agg(
            *digest_aggregates(),
            *also,
            F.count_if(is_nameless()).alias("rows_without_id"),
            F.count_if(has_blank_id()).alias("rows_with_blank_id"),
            F.count_if(lateness > 0).alias("late_rows"),
            (F.max(F.unix_timestamp(EXPORT_FORMAT.received_column)) - F.max(F.unix_timestamp(EVENT_TIME))).alias("lag"),
        )
        .collect()
    )
    measured = {Slice(row["event_date"], row["project_id"]): row.asDict() for row in rows}
    events = read_states(runtime, REFINED_EVENTS, near, held_keys)
    suspected = candidate_duplicates(events)
    twice: dict[Slice, dict[str, Any]] = {}
    # Duplicates are rare, so one narrow pass that finds none saves the join that locates them.
    if not suspected.isEmpty():
        suspects = with_candidate_keys(events, suspected)
        keys_twice = _keys_twice(suspects, runtime.settings.dedupe_window_days)
        rows_twice = keys_twice.where(slices_condition(REFINED_EVENTS, slices)).collect()
        twice = {Slice(row["event_date"], row["project_id"]): row.asDict() for row in rows_twice}
    nothing = {"keys_twice": 0, "keys_twice_a_day": 0}
    return {key: row | twice.get(key, nothing) for key, row in measured.items()}


def _keys_twice(suspects: DataFrame, window: int) -> DataFrame:
    """event_date, project_id, keys_twice, keys_twice_a_day: numbers of rows that share a key within the window or a day."""
    by_key = Window.partitionBy(*KEY).orderBy("_day")
    gaps = (
        suspects.withColumn("_day", day_number())
        .select("event_date", "project_id", "_day", *KEY)
        .withColumns(
            {
                "_gap_before": F.col("_day") - F.lag("_day").over(by_key),
                "_gap_after": F.lead("_day").over(by_key) - F.col("_day"),
            }
        )
    )
    is_twice = (F.col("_gap_before") <= window) | (F.col("_gap_after") <= window)
    is_twice_a_day = (F.col("_gap_before") == 0) | (F.col("_gap_after") == 0)
    return gaps.groupBy("event_date", "project_id").agg(
        F.count_if(F.coalesce(is_twice, F.lit(False))).alias("keys_twice"),
        F.count_if(F.coalesce(is_twice_a_day, F.lit(False))).alias("keys_twice_a_day"),
    )


def audit_of(
    row: Mapping[str, Any] | None, raw_rows: int, reasons: Mapping[str, int], competing_digests: str, wrong: str | None
) -> Audit:
    """The audit of one slice from its measurements.

    `row`: from `measure_refined`, None for a slice without rows; `reasons`: of `refined._reasons`; `wrong`: a mismatch
    that a task found in raw while it wrote the slice's files.
    """
    digest = digest_of(row) if row is not None else EMPTY
    twice = row["keys_twice"] if row is not None else 0
    duplicates = {outcome.value: reasons.get(outcome.value, 0) for outcome in RowFate if outcome is not RowFate.WINNER}
    missing = raw_rows - digest.rows - sum(duplicates.values())
    others = row.get(FALSE_HASHES) or 0 if row is not None else 0
    mismatches = [
        f"{raw_rows} raw rows but {digest.rows} rows and {sum(duplicates.values())} duplicates" if missing else None,
        f"{others} rows are not what raw holds: their hashes differ" if others else None,
        wrong,
    ]
    reason = "; ".join(filter(None, mismatches)) or None
    unique = Evaluation(
        Check.UNIQUE_EVENT_KEY,
        twice == 0,
        None if twice == 0 else f"{twice} rows share a key with another row",
        None if twice == 0 else "Recover the neighbouring day first; it still holds a row that moved here",
        {"duplicate_keys_per_1000": 1000 * twice / digest.rows if digest.rows else 0.0},
    )
    reconciles = Evaluation(
        Check.RECONCILES_WITH_RAW,
        reason is None,
        reason,
        reason and (_TAMPERED if wrong else _DEFECT),
        {"raw_rows": raw_rows, "mismatch_count": abs(missing) + others + (wrong is not None), **duplicates},
    )
    figures = {
        "rows": digest.rows,
        "raw_rows": raw_rows,
        **duplicates,
        **{
            name: row[name] if row is not None else 0 for name in ("rows_without_id", "rows_with_blank_id", "late_rows")
        },
        "watermark_lag_seconds": number(row["lag"]) if row is not None else 0,
        **{name: rows for name, rows in reasons.items() if name == LOST_UNREAD},
    }
    is_on_two_days = twice > 0 and row is not None and row["keys_twice_a_day"] == 0
    return Audit(digest, {"rows": digest.rows}, figures, (unique, reconciles), competing_digests, is_on_two_days)
