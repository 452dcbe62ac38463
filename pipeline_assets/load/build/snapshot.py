"""Build a dimension's snapshots from the objects that landing holds, and judge what was read.

Contains: the kind's builder: reading, what refuses a snapshot, the bounds on its count.
Add here: what all dimensions are checked for.
Does not contain: reading one object (transforms/snapshot_rows.py), when one is loaded (staleness/snapshots.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.checks import ACCEPTED, UNREAD_OBJECTS, Check, Evaluation
from pipeline_assets.domain.deliveries import NOT_READABLE
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.build.audit import Audit, Build
from pipeline_assets.load.build.builder import Builder, Proposal
from pipeline_assets.load.build.step import TablePlan
from pipeline_assets.load.deliveries.read import naming_what_workers_met
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.key_changes import row_contents, with_keys
from pipeline_assets.transforms.parse import MOVED
from pipeline_assets.transforms.snapshot_rows import read_snapshots
from resources.iceberg.metadata import slices_condition

_KEY = ("id",)
_HINTS = {
    MOVED: "The next load reads it again",
    NOT_READABLE: "Restore the object, or the right to read it; every load tries again",
}
_CORRECT = "Deliver the snapshot of the day again, corrected; what is published stays until then"
_REACH = timedelta(days=31)
"""So old may the snapshot be that a count is compared with."""


class SnapshotBuilder(Builder[Table]):
    """Builds snapshots from landing; their ids name rows."""

    def build(self, plan: TablePlan) -> Build:
        """Every object once, one task each; what is refused has no rows."""
        return _build(plan)

    @contextmanager
    def proposed(
        self,
        runtime: Runtime,  # noqa: ARG002 - it is refused whatever is asked
        key: Slice,  # noqa: ARG002
        heads: Mapping[str, int],  # noqa: ARG002
        *,
        on_published: bool,  # noqa: ARG002
    ) -> Iterator[Proposal]:
        """Raises UsageError: it is built from no table that could be compared with."""
        raise self._no_inputs()
        yield

    def rows_from(
        self,
        settings: Settings,  # noqa: ARG002 - as above
        key: Slice,  # noqa: ARG002
        inputs: Callable[[str], DataFrame],  # noqa: ARG002
    ) -> DataFrame:
        """Raises UsageError: there are no inputs."""
        raise self._no_inputs()

    def _no_inputs(self) -> UsageError:
        reason = "is read from landing, not built from tables"
        return UsageError(self.table.key, reason, "Look at its object in landing")

    def contents(self, rows: DataFrame) -> DataFrame:
        """By id, the content of all."""
        return row_contents(rows, _KEY, self.table.content_columns)

    def with_keys(self, rows: DataFrame) -> DataFrame:
        """By id."""
        return with_keys(rows, _KEY)

    @property
    def naming_columns(self) -> tuple[str, ...]:
        """The id."""
        return _KEY


@dataclass(frozen=True)
class _Measured:
    """A staged snapshot."""

    digest: Digest
    ids: int
    """Different ones that are there."""


def _build(plan: TablePlan) -> Build:
    runtime, table, todo = plan.runtime, plan.table, plan.to_build
    deliveries = {key.event_date: one for key, plan_ in todo.items() if (one := plan_.delivered) is not None}
    if len(deliveries) < len(todo):
        raise LakehouseError(table.key, "is to be built from nothing that landing holds", "This is a defect: report it")
    runtime.log(f"{table.key}: reading {len(deliveries)} snapshots")
    parsed = read_snapshots(runtime.spark, deliveries, runtime.landing, runtime.settings.max_snapshot_bytes).persist()
    try:
        with naming_what_workers_met():
            summaries = {row["snapshot_date"]: row for row in parsed.where(F.col("id").isNull()).collect()}
    except BaseException:
        parsed.unpersist()
        raise
    columns = [F.col(c.name) if c.name != "project_id" else F.lit(ALL_PROJECTS).alias(c.name) for c in table.columns]
    rows = parsed.where(F.col("id").isNotNull()).select(*columns)

    def audit(snapshot_id: int) -> dict[Slice, Audit]:
        return _audits(plan, summaries, _measure(runtime, table, snapshot_id, sorted(todo)))

    return Build(rows, audit, partial(_release, parsed))


def _release(frame: DataFrame) -> None:
    frame.unpersist()


def _measure(runtime: Runtime, table: Table, snapshot_id: int, slices: Sequence[Slice]) -> dict[Slice, _Measured]:
    staged = runtime.lakehouse.read(table, snapshot_id).where(slices_condition(table, slices))
    measured = with_row_hashes(staged, table.content_columns).groupBy(*table.partition_columns)
    rows = measured.agg(*digest_aggregates(), F.countDistinct("id").alias("ids")).collect()
    return {
        Slice(row[table.day_column], row["project_id"]): _Measured(digest_of(row.asDict()), row["ids"]) for row in rows
    }


def _audits(plan: TablePlan, summaries: Mapping[date, Row], measured: Mapping[Slice, _Measured]) -> dict[Slice, Audit]:
    counts = _counts_on_record(plan)
    audits = {}
    for key, decision in sorted(plan.to_build.items()):
        found = measured.get(key, _Measured(EMPTY, 0))
        name = decision.delivered.key if decision.delivered is not None else str(key)
        whole = _whole(name, summaries[key.event_date], found)
        expected = _expected(plan, key, found.digest.rows, counts)
        if whole.is_passed and expected.is_passed:
            counts[key.event_date] = found.digest.rows
        rows = {"rows": found.digest.rows}
        audits[key] = Audit(found.digest, rows, rows, (whole, expected) if whole.is_passed else (whole,))
    return audits


def _whole(name: str, summary: Row, found: _Measured) -> Evaluation:
    """Of one object: what reading found wrong, and whether what is staged is what was read."""
    read, staged = int(summary["rows"]), found.digest.rows
    figures = {"rows_read": read, "mismatch_count": abs(read - staged) + staged - found.ids}
    if summary["problem"] is not None:
        figures[UNREAD_OBJECTS] = int(summary["problem"] == NOT_READABLE)
        hint = _HINTS.get(summary["problem"], _CORRECT)
        return Evaluation(Check.SNAPSHOT_IS_WHOLE, False, f"{name}: {summary['detail']}", hint, figures)
    if figures["mismatch_count"]:
        reason = f"{name}: {read} items were read, {staged} are staged, with {found.ids} ids"
        hint = "This is a defect of Tidemark: report it with the object"
        return Evaluation(Check.SNAPSHOT_IS_WHOLE, False, reason, hint, figures)
    return Evaluation(Check.SNAPSHOT_IS_WHOLE, True, figures=figures)


def _counts_on_record(plan: TablePlan) -> dict[date, int]:
    """Day -> items, of the published snapshots that these ones may be compared with."""
    days = [key.event_date for key in plan.to_build]
    first, last = min(days) - _REACH, max(days)
    reach = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    records = plan.runtime.ledger.slices(plan.table.key, [ALL_PROJECTS], reach)
    return {key.event_date: record.digest.rows for key, record in records.items() if record.digest != EMPTY}


def _expected(plan: TablePlan, key: Slice, rows: int, counts: Mapping[date, int]) -> Evaluation:
    """Against the latest snapshot of a day before it; the first one of all is compared with nothing."""
    day, settings = key.event_date, plan.runtime.settings
    earlier = [other for other in counts if day - _REACH <= other < day]
    if not earlier:
        return Evaluation(Check.COUNT_IS_EXPECTED, True, figures={"rows_after": rows})
    before = counts[max(earlier)]
    figures = {"rows_before": before, "rows_after": rows}
    beyond = _beyond(before, rows, settings)
    if beyond is None:
        return Evaluation(Check.COUNT_IS_EXPECTED, True, figures=figures)
    reason = f"{rows:,} items, {before:,} in the snapshot of {max(earlier)}: {beyond}"
    accepted = plan.request.accepted.change(plan.table.key, key)
    if accepted is not None:
        return Evaluation(Check.COUNT_IS_EXPECTED, True, f"{ACCEPTED}: {accepted} ({reason})", figures=figures)
    hint = f"{_CORRECT}; or accept the count with a reason (--accept-changes, accept_changes in run config)"
    return Evaluation(Check.COUNT_IS_EXPECTED, False, reason, hint, figures)


def _beyond(before: int, rows: int, settings: Settings) -> str | None:
    if max(before, rows) <= settings.snapshot_min_rows:
        return None
    change = (rows - before) / before
    if change < -settings.snapshot_max_shrink:
        return f"{-change:.1%} fewer, and TIDEMARK_SNAPSHOT_MAX_SHRINK allows {settings.snapshot_max_shrink:.1%}"
    if change > settings.snapshot_max_growth:
        return f"{change:.1%} more, and TIDEMARK_SNAPSHOT_MAX_GROWTH allows {settings.snapshot_max_growth:.1%}"
    return None
