"""Builds a dimension's snapshots from objects in landing, and judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import NoReturn

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, Row

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.build.builder import NamedRowsBuilder
from pipeline_assets.load.build.snapshot_checks import judge_count, judge_whole
from pipeline_assets.load.build.step import Audit, Build, TablePlan
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.facts import counts_on_record
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.snapshot_rows import SNAPSHOT, read_objects
from resources.iceberg.metadata import slices_condition
from resources.ledger.store import Ledger
from resources.spark.tasks import naming_what_workers_met


class SnapshotBuilder(NamedRowsBuilder[Table]):
    """Builds snapshots from landing; the id identifies a row."""

    def build(self, plan: TablePlan) -> Build:
        """Read every object once, one task per object; a refused object has no rows."""
        return _build(plan)

    naming_columns = ("id",)

    def proposed(self, *_: object, **__: object) -> NoReturn:
        """Raises UsageError, because a snapshot is not built from tables."""
        reason = "is read from landing, not built from tables"
        raise UsageError(self.table.key, reason, "Look at its object in landing")

    def rows_from(self, *_: object) -> NoReturn:
        """Raises UsageError, as `proposed` does."""
        self.proposed()


def parsed_objects(parsed: DataFrame) -> tuple[DataFrame, list[Row]]:
    """The frame of `read_objects`, cached until the caller releases it, and its summaries."""
    parsed.persist()
    try:
        with naming_what_workers_met():
            return parsed, parsed.where(F.col("id").isNull()).collect()
    except BaseException:
        parsed.unpersist()
        raise


def columns_of_all_projects(table: Table) -> list[Column]:
    """The table's columns, of parsed items."""
    return [F.col(c.name) if c.name != "project_id" else F.lit(ALL_PROJECTS).alias(c.name) for c in table.columns]


def _build(plan: TablePlan) -> Build:
    runtime, table, todo = plan.runtime, plan.table, plan.to_build
    deliveries = {key.event_date: one for key, plan_ in todo.items() if (one := plan_.delivered) is not None}
    # Only a day whose object is excluded may be built without a delivery; it becomes empty.
    if any(decision.delivered is None and not decision.present.is_nothing for decision in todo.values()):
        raise LakehouseError(table.key, "is to be built from nothing that landing holds", "This is a defect: report it")
    runtime.log(f"{table.key}: reading {len(deliveries)} snapshots")
    parsed, read = parsed_objects(read_objects(SNAPSHOT, runtime.spark, deliveries, runtime.landing, runtime.settings))
    summaries = {row["snapshot_date"]: row for row in read}
    rows = parsed.where(F.col("id").isNotNull()).select(*columns_of_all_projects(table))

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        return _audits(plan, summaries, _measure(runtime, table, snapshot_id, sorted(todo)))

    return Build(rows, audit, parsed.unpersist)


def _measure(
    runtime: Runtime, table: Table, snapshot_id: int, slices: Sequence[Slice]
) -> dict[Slice, tuple[Digest, int]]:
    """Slice -> the digest of its staged rows, and their number of distinct ids."""
    staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, slices))
    measured = with_row_hashes(staged, table.content_columns).groupBy(*table.partition_columns)
    rows = measured.agg(*digest_aggregates(), F.countDistinct("id").alias("ids")).collect()
    return {Slice(row[table.day_column], row["project_id"]): (digest_of(row.asDict()), row["ids"]) for row in rows}


def _audits(
    plan: TablePlan, summaries: Mapping[date, Row], measured: Mapping[Slice, tuple[Digest, int]]
) -> dict[Slice, Audit]:
    counts = counts_on_record(plan.runtime.ledger, plan.table, [key.event_date for key in plan.to_build])
    audits = {}
    for key, decision in sorted(plan.to_build.items()):
        digest, ids = measured.get(key, (EMPTY, 0))
        rows = {"rows": digest.rows}
        if decision.delivered is None:
            audits[key] = Audit(digest, rows, rows, _of_none(plan, digest))
            counts.pop(key.event_date, None)
            continue
        whole = judge_whole(decision.delivered.key, summaries[key.event_date].asDict(), digest.rows, ids)
        expected = judge_count(
            key.event_date,
            digest,
            counts,
            plan.runtime.settings,
            published=decision.record.digest if decision.record is not None else EMPTY,
            accepted=plan.request.accepted.change(plan.table.key, key),
            accepted_before=partial(accepted_last, plan.runtime.ledger, plan.table, key),
        )
        if whole.is_passed and expected.is_passed:
            counts[key.event_date] = digest.rows
        audits[key] = Audit(digest, rows, rows, (whole, expected) if whole.is_passed else (whole,))
    return audits


def _of_none(plan: TablePlan, staged: Digest) -> tuple[Evaluation, ...]:
    """The checks of a day whose object is excluded: no row may be left."""
    is_empty = staged == EMPTY
    reason = "the object is excluded" if is_empty else f"the object is excluded, and {staged.rows} rows are staged"
    hint = None if is_empty else "This is a defect of Tidemark: report it with the day"
    return tuple(
        Evaluation(check, is_empty, reason, hint) for check in plan.table.checks if check != Check.CHANGE_IS_EXPLAINED
    )


def accepted_last(ledger: Ledger, table: Table, key: Slice) -> Digest | None:
    """The content of a slice when an operator last accepted a change, rollbacks included; None if nobody did."""
    published = ledger.publications_of(table.key, [key.project_id], [key.event_date])
    return next((one.digest_after for one in reversed(published) if one.accepted_reason is not None), None)
