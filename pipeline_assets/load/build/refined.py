"""Build refined.events from both raw tables, audit it, and tell which keys tie its slices together.

Contains: the reads of raw and refined around the winner rule.
Add here: another figure of a refined slice.
Does not contain: the rule (transforms/dedupe.py) and judging (verdicts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial, reduce
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, Window
from resources.iceberg.metadata import slices_condition
from resources.iceberg.table_files import FileChange

from pipeline_assets.domain.checks import number, Check, Evaluation
from pipeline_assets.domain.identity import Outcome as RowOutcome
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.competing_rows import CompetingRows, raw_rows, competing_digests_of
from pipeline_assets.load.build.refined_files import raw_files, write_refined
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import CONTENT, REFINED_EVENTS
from pipeline_assets.transforms.dedupe import winners
from pipeline_assets.transforms.event_keys import KEY, candidate_duplicates, day_number, with_candidate_keys
from pipeline_assets.transforms.digests import (FALSE_HASHES, checked_hashes, digest_aggregates, digest_of)
from pipeline_assets.transforms.named import has_blank_id, is_nameless
from pipeline_assets.transforms.refine_files import RawFile
from pipeline_assets.transforms.cross_day_keys import linked_days, key_days
from pipeline_assets.transforms.slice_difference import KeyDifference

_EPOCH = date(1970, 1, 1)
_TAMPERED = "Something else than Tidemark changed the file: docs/operations.md, A row that differs from its hash"
_MOST_NAMED_ROWS = 300_000
"""Of rows that share their key, so many are told to tasks by name: the driver holds them meanwhile."""
_MOST_SENT_ROWS = 1_000_000
"""Of rows that share their key: with more of them, wide rows are shuffled to their losers instead of these sent to all."""


def build_refined(
    runtime: Runtime,
    pins: Mapping[str, int],
    todo: Sequence[Slice],
    held: Mapping[Slice, Sequence[str]],
    competing: CompetingRows | None = None,
) -> Build:
    """The build of refined.events for these slices, from both raw tables as of the pinned snapshots.

    `held`: those of which only the difference is to be written -> their files (write_refined.held_files). `competing`: of the
    same snapshots, where there is one already; the build releases it.
    """
    settings = runtime.settings
    window = settings.dedupe_window_days
    near = neighbourhood(todo, window)
    # After a first read: conditions need the engine, which a load that found raw as it was has not started yet.
    if competing is None or not competing.covers(todo):
        if competing is not None:
            competing.release()
        competing = CompetingRows(runtime, pins, todo)
    is_todo = slices_condition(REFINED_EVENTS, todo)
    decided = competing.outcomes(todo).persist()
    release = _releasing(competing, decided)
    try:
        reasons, are_shared = _reasons(decided.where(is_todo) if competing.is_any else None, todo)
        contending = sum(sum(counts.values()) for counts in reasons.values())
        files = raw_files(runtime, pins, todo) if contending <= _MOST_NAMED_ROWS else None
    except BaseException:
        release()
        raise
    do_few_lose = contending <= _MOST_SENT_ROWS
    names = [
        column.name for column in REFINED_EVENTS.columns if column.name not in ("event_date", "project_id", "_source")
    ]
    rows = winners(raw_rows(runtime, pins, todo, names), decided, do_few_lose=do_few_lose)
    do_any_lose = any(outcome != RowOutcome.WINNER.value for counts in reasons.values() for outcome in counts)
    lost = decided.where(is_todo) if do_any_lose else None
    wrong: dict[Slice, str] = {}
    keys_of: dict[Slice, KeyDifference] = {}

    def write(files: Sequence[RawFile]) -> FileChange:
        refined = write_refined(runtime, files, lost, held)
        wrong.update(refined.wrong)
        keys_of.update(refined.keys)
        place = runtime.lakehouse.files.store(REFINED_EVENTS).url
        gone = {key: [f"{place}/{path}" for path in paths] for key, paths in refined.gone.items()}
        return FileChange(refined.files, set(todo) - gone.keys(), gone)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        counted = _raw_counts(runtime, pins, todo)
        measured = _measure_refined(runtime, snapshot_id, near, todo, is_checked=files is None)
        shared = decided.where(F.col("rival").isNotNull()).select("event_date", "project_id", "rival.*")
        competing_digests = competing_digests_of(shared, window, todo) if are_shared else dict.fromkeys(todo, str(EMPTY))
        return {key: _audit(measured.get(key), counted[key], reasons[key], competing_digests[key], wrong.get(key)) for key in todo}

    return Build(
        rows,
        audit,
        release,
        is_shuffled=not do_few_lose,
        write=None if files is None else partial(write, files),
        keys=keys_of,
    )


def _releasing(competing: CompetingRows, decided: DataFrame) -> Callable[[], None]:
    def release() -> None:
        decided.unpersist()
        competing.release()

    return release


def _reasons(decided: DataFrame | None, todo: Sequence[Slice]) -> tuple[dict[Slice, dict[str, int]], bool]:
    """Slice -> outcome -> rows; and whether any of them has a rival on another day."""
    found: dict[Slice, dict[str, int]] = {key: {} for key in todo}
    if decided is None:
        return found, False
    counted = decided.groupBy("event_date", "project_id", "outcome")
    rows = counted.agg(F.count(F.lit(1)).alias("count"), F.count("rival").alias("rivals")).collect()
    for row in rows:
        found[Slice(row["event_date"], row["project_id"])][row["outcome"]] = row["count"]
    return found, any(row["rivals"] for row in rows)


def linked_slices(
    runtime: Runtime, pins: Mapping[str, int], base_id: int, staged_id: int, todo: Sequence[Slice]
) -> set[tuple[Slice, Slice]]:
    """Pairs of slices of which publishing one without the other would lose or double events."""
    window = runtime.settings.dedupe_window_days
    near = neighbourhood(todo, window)

    def refined(snapshot_id: int) -> DataFrame:
        events = runtime.lakehouse.read(REFINED_EVENTS, snapshot_id)
        return key_days(events.where(slices_condition(REFINED_EVENTS, near)))

    by_project: dict[str, list[int]] = {}
    for key in todo:
        by_project.setdefault(key.project_id, []).append((key.event_date - _EPOCH).days)
    is_built = reduce(
        Column.__or__, [(F.col("project_id") == name) & F.col("_day").isin(*days) for name, days in by_project.items()]
    )
    raw = key_days(raw_rows(runtime, pins, near, KEY))
    found = linked_days(refined(base_id), refined(staged_id), raw, is_built, window).collect()
    return {(_slice(row["_day"], row["project_id"]), _slice(row["_other_day"], row["project_id"])) for row in found}


def _slice(day: int, project_id: str) -> Slice:
    return Slice(_EPOCH + timedelta(days=day), project_id)


def _raw_counts(runtime: Runtime, pins: Mapping[str, int], todo: Sequence[Slice]) -> dict[Slice, int]:
    """Rows per slice of both raw tables from their metadata, independent of what the build read."""
    found = dict.fromkeys(todo, 0)
    for table in RAW_TABLES.values():
        for key, files in runtime.lakehouse.slice_files(table, pins[table.key], set(todo)).items():
            found[key] += files.rows
    return found


def _measure_refined(
    runtime: Runtime, snapshot_id: int, near: set[Slice], todo: Sequence[Slice], *, is_checked: bool
) -> dict[Slice, dict[str, Any]]:
    """Per slice its digest and figures, from the hashes that were stored with its rows; and its duplicate keys.

    `is_checked`: each hash is made again from its row. Tasks that write files themselves have checked a sample.
    """
    staged = runtime.lakehouse.read(REFINED_EVENTS, snapshot_id)
    content = staged.where(slices_condition(REFINED_EVENTS, todo))
    lateness = F.datediff(F.to_date("server_upload_time"), F.col("event_date"))
    hashed, also = checked_hashes(content, CONTENT) if is_checked else (content, [])
    rows = (
        hashed.groupBy("event_date", "project_id")
        .agg(
            *digest_aggregates(),
            *also,
            F.count_if(is_nameless()).alias("rows_without_id"),
            F.count_if(has_blank_id()).alias("rows_with_blank_id"),
            F.count_if(lateness > 0).alias("late_rows"),
            (F.max(F.unix_timestamp("server_upload_time")) - F.max(F.unix_timestamp("event_time"))).alias("lag"),
        )
        .collect()
    )
    measured = {Slice(row["event_date"], row["project_id"]): row.asDict() for row in rows}
    events = staged.where(slices_condition(REFINED_EVENTS, near))
    suspected = candidate_duplicates(events)
    twice: dict[Slice, dict[str, Any]] = {}
    # Hardly ever any: one narrow pass that finds no key twice spares the join that tells where it lies twice.
    if not suspected.isEmpty():
        suspects = with_candidate_keys(events.select("event_date", "project_id", *KEY), suspected)
        found = _keys_twice(suspects, runtime.settings.dedupe_window_days)
        rows_twice = found.where(slices_condition(REFINED_EVENTS, todo)).collect()
        twice = {Slice(row["event_date"], row["project_id"]): row.asDict() for row in rows_twice}
    nothing = {"keys_twice": 0, "keys_twice_a_day": 0}
    return {key: row | twice.get(key, nothing) for key, row in measured.items()}


def _keys_twice(suspects: DataFrame, window: int) -> DataFrame:
    """event_date, project_id, keys_twice, keys_twice_a_day: rows that share their key with another one within the window."""
    by_key = Window.partitionBy(*KEY).orderBy("_day")
    gaps = (
        suspects.withColumn("_day", day_number())
        .select("event_date", "project_id", "_day", *KEY)
        .withColumns({
            "_gap_before": F.col("_day") - F.lag("_day").over(by_key),
            "_gap_after": F.lead("_day").over(by_key) - F.col("_day"),
        })
    )  # fmt: skip
    is_twice = (F.col("_gap_before") <= window) | (F.col("_gap_after") <= window)
    is_twice_a_day = (F.col("_gap_before") == 0) | (F.col("_gap_after") == 0)
    return gaps.groupBy("event_date", "project_id").agg(
        F.count_if(F.coalesce(is_twice, F.lit(False))).alias("keys_twice"),
        F.count_if(F.coalesce(is_twice_a_day, F.lit(False))).alias("keys_twice_a_day"),
    )


def _audit(
    row: Mapping[str, Any] | None, raw_rows: int, reasons: Mapping[str, int], competing_digests: str, wrong: str | None
) -> Audit:
    digest = digest_of(row) if row is not None else EMPTY
    twice = row["keys_twice"] if row is not None else 0
    duplicates = {
        outcome.value: reasons.get(outcome.value, 0) for outcome in RowOutcome if outcome is not RowOutcome.WINNER
    }
    missing = raw_rows - digest.rows - sum(duplicates.values())
    others = row.get(FALSE_HASHES) or 0 if row is not None else 0
    told = [
        f"{raw_rows} raw rows but {digest.rows} rows and {sum(duplicates.values())} duplicates" if missing else None,
        f"{others} rows are not what raw holds: their hashes differ" if others else None,
        wrong,
    ]
    reason = "; ".join(filter(None, told)) or None
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
        None
        if reason is None
        else _TAMPERED
        if wrong
        else "This is a defect of Tidemark: report it with the day's raw rows",
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
    }
    is_on_two_days = twice > 0 and row is not None and row["keys_twice_a_day"] == 0
    return Audit(digest, {"rows": digest.rows}, figures, (unique, reconciles), competing_digests, is_on_two_days)
