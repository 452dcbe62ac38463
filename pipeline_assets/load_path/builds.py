"""Builds: the staged rows of a derived table and the audit that measures them, from pinned inputs.

Lives here: how refined.events and an aggregate are read, built and measured. Put here: a derived table with another form
of input. Keep out: judging the measures (load_path/derived.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row, Window
from resources.lakehouse import slices_condition

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.identity import Outcome as RowOutcome
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load_path.request import Workbench
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import CONTENT, REFINED_EVENTS
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import AggregateTable, Table
from pipeline_assets.transforms.dedupe import KEY, outcomes, winners, with_key
from pipeline_assets.transforms.measure import HASH_A, HASH_B, digest_aggregates, digest_of, number, with_row_hashes


@dataclass(frozen=True)
class Audit:
    """What one pass over a staged slice found."""

    digest: Digest
    measures: Mapping[str, float]
    """What `change_is_explained` bounds."""
    figures: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True)
class Build:
    """Rows to stage, and how to audit them once they are."""

    rows: DataFrame
    audit: Callable[[int], dict[Slice, Audit]]
    """Staged snapshot id -> one audit per slice to build, empty ones included."""
    cached: tuple[DataFrame, ...] = field(default=())

    def release(self) -> None:
        """Free what was cached between build and audit."""
        for frame in self.cached:
            frame.unpersist()


def build_for(bench: Workbench, table: Table, pins: Mapping[str, int], todo: Sequence[Slice]) -> Build:
    """The build of a derived table for these slices, from its upstream tables as of the pinned snapshots."""
    if isinstance(table, AggregateTable):
        return _aggregate(bench, table, pins[REFINED_EVENTS.key], todo)
    return _refined(bench, pins, todo)


def _refined(bench: Workbench, pins: Mapping[str, int], todo: Sequence[Slice]) -> Build:
    settings = bench.settings
    window = settings.dedupe_window_days
    near = {
        Slice(key.event_date + timedelta(days=shift), key.project_id)
        for key in todo
        for shift in range(-window, window + 1)
    }
    raw = reduce(
        DataFrame.unionByName,
        [
            bench.lakehouse.read(table, pins[table.key])
            .where(slices_condition(table, near))
            .select(
                "event_date",
                "project_id",
                *CONTENT,
                "_object_key",
                "_line_number",
                F.lit(source.value).alias("_source"),
            )
            for source, table in RAW_TABLES.items()
        ],
    )
    is_todo = slices_condition(REFINED_EVENTS, todo)
    decided = outcomes(raw, CONTENT, settings.source_precedence, window).where(is_todo).persist()
    rows = winners(raw.where(is_todo), decided)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        counted = decided.groupBy("event_date", "project_id", "outcome").count().collect()
        reasons: dict[Slice, dict[str, int]] = {key: {} for key in todo}
        for row in counted:
            reasons[Slice(row["event_date"], row["project_id"])][row["outcome"]] = row["count"]
        raw_rows = _raw_rows(bench, pins, todo)
        measured = _measure_refined(bench, snapshot_id, near, todo)
        return {key: _refined_audit(measured.get(key), raw_rows[key], reasons[key]) for key in todo}

    return Build(rows, audit, (decided,))


def _raw_rows(bench: Workbench, pins: Mapping[str, int], todo: Sequence[Slice]) -> dict[Slice, int]:
    """Rows per slice of both raw tables from their metadata, independent of what the build read."""
    found = dict.fromkeys(todo, 0)
    for table in RAW_TABLES.values():
        for key, files in bench.lakehouse.slice_files(table, pins[table.key], set(todo)).items():
            found[key] += files.rows
    return found


def _measure_refined(bench: Workbench, snapshot_id: int, near: set[Slice], todo: Sequence[Slice]) -> dict[Slice, Row]:
    window = bench.settings.dedupe_window_days
    staged = bench.lakehouse.read(REFINED_EVENTS, snapshot_id).where(slices_condition(REFINED_EVENTS, near))
    by_key = Window.partitionBy(*KEY).orderBy("_day")
    narrow = (
        with_row_hashes(staged, CONTENT)
        .transform(with_key)
        .select("event_date", *KEY, HASH_A, HASH_B, "event_time", "server_upload_time",
                F.datediff(F.col("event_date"), F.lit("1970-01-01").cast("date")).alias("_day"))
        .withColumns({
            "_gap_before": F.col("_day") - F.lag("_day").over(by_key),
            "_gap_after": F.lead("_day").over(by_key) - F.col("_day"),
        })
    )  # fmt: skip
    is_twice = (F.col("_gap_before") <= window) | (F.col("_gap_after") <= window)
    lateness = F.datediff(F.to_date("server_upload_time"), F.col("event_date"))
    rows = (
        narrow.where(slices_condition(REFINED_EVENTS, todo))
        .groupBy("event_date", "project_id")
        .agg(
            *digest_aggregates(),
            F.count_if(F.coalesce(is_twice, F.lit(False))).alias("keys_twice"),
            F.count_if(F.col("_key_id").isNull()).alias("keys_null"),
            F.count_if(lateness > 0).alias("late_rows"),
            (F.max(F.unix_timestamp("server_upload_time")) - F.max(F.unix_timestamp("event_time"))).alias("lag"),
        )
        .collect()
    )
    return {Slice(row["event_date"], row["project_id"]): row for row in rows}


def _refined_audit(row: Row | None, raw_rows: int, reasons: Mapping[str, int]) -> Audit:
    digest = digest_of(row.asDict()) if row is not None else EMPTY
    twice, nulls = (row["keys_twice"], row["keys_null"]) if row is not None else (0, 0)
    duplicates = {
        outcome.value: reasons.get(outcome.value, 0) for outcome in RowOutcome if outcome is not RowOutcome.WINNER
    }
    missing = raw_rows - digest.rows - sum(duplicates.values())
    unique = Evaluation(
        Check.UNIQUE_EVENT_KEY,
        twice == 0 and nulls == 0,
        None if not (twice or nulls) else f"{twice} rows share a key with another row, {nulls} have none",
        None if not (twice or nulls) else "Recover the neighbouring day first; it still holds a row that moved here",
        {"duplicate_keys_per_1000": 1000 * twice / digest.rows if digest.rows else 0.0, "null_keys": nulls},
    )
    reconciles = Evaluation(
        Check.RECONCILES_WITH_RAW,
        missing == 0,
        None
        if missing == 0
        else f"{raw_rows} raw rows but {digest.rows} rows and {sum(duplicates.values())} duplicates",
        None if missing == 0 else "This is a defect of Tidemark: report it with the day's raw rows",
        {"raw_rows": raw_rows, "mismatch_count": abs(missing), **duplicates},
    )
    figures = {
        "rows": digest.rows,
        "raw_rows": raw_rows,
        **duplicates,
        "late_rows": row["late_rows"] if row is not None else 0,
        "watermark_lag_seconds": number(row["lag"]) if row is not None else 0,
    }
    return Audit(digest, {"rows": digest.rows}, figures, (unique, reconciles))


def _aggregate(bench: Workbench, table: AggregateTable, pin: int, todo: Sequence[Slice]) -> Build:
    refined = bench.lakehouse.read(REFINED_EVENTS, pin).where(slices_condition(REFINED_EVENTS, todo))
    if table.build is None or table.controls is None or table.measures is None:
        msg = f"{table.key} declares no build, controls or measures"
        raise TypeError(msg)
    build, controls, measures = table.build, table.controls, table.measures

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        staged = bench.lakehouse.read(table_by_key(table.key), snapshot_id).where(slices_condition(table, todo))
        by = ["event_date", "project_id"]
        measured = (
            with_row_hashes(staged, table.content_columns)
            .groupBy(*by)
            .agg(*digest_aggregates(), *[expression().alias(name) for name, expression in measures.items()])
        )
        found = {Slice(row["event_date"], row["project_id"]): row.asDict() for row in measured.collect()}
        control = {
            Slice(row["event_date"], row["project_id"]): row.asDict()
            for row in controls(refined, bench.settings).collect()
        }
        return {key: _aggregate_audit(table, found.get(key, {}), control.get(key, {})) for key in todo}

    return Build(build(refined, bench.settings), audit)


def _aggregate_audit(table: AggregateTable, found: Mapping[str, object], control: Mapping[str, object]) -> Audit:
    digest = digest_of(found) if found else EMPTY
    names = tuple(table.measures or ())
    differing = [name for name in names if (found.get(name) or 0) != (control.get(name) or 0)]
    reason = ", ".join(
        f"{name} {found.get(name) or 0} here, {control.get(name) or 0} in refined/events" for name in differing
    )
    measures = {name: number(found.get(name)) for name in names}
    extra = {name: number(value) for name, value in control.items() if name not in (*names, "event_date", "project_id")}
    reconciles = Evaluation(
        Check.RECONCILES_WITH_REFINED,
        not differing,
        reason or None,
        "This is a defect of Tidemark: report it with the day's refined rows" if differing else None,
        {"mismatch_count": len(differing), **{f"{name}_in_refined": number(control.get(name)) for name in names}},
    )
    return Audit(digest, measures, {"rows": digest.rows, **measures, **extra}, (reconciles,))
