"""Builds a dimension's snapshots from objects in landing, and judges them and delivered intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any, NoReturn

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, Row

from pipeline_assets.domain.checks import ACCEPTED, UNREAD_OBJECTS, Check, Evaluation
from pipeline_assets.domain.deliveries import NOT_READABLE
from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.build.builder import Audit, Build, Builder, TablePlan
from pipeline_assets.load.staleness.facts import ROWS_BEFORE, counts_on_record, former_day
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.object_text import MOVED
from pipeline_assets.transforms.snapshot_rows import SNAPSHOT, read_objects
from resources.ledger.store import Ledger
from resources.spark.tasks import naming_what_workers_met

UNREAD_HINTS = {
    MOVED: "The next load reads it again",
    NOT_READABLE: "Restore the object, or the right to read it; every load tries again",
}
_CORRECT = "Deliver the snapshot of the day again, corrected; what is published stays until then"


def judge_whole(name: str, read: Mapping[str, Any], staged: int, ids: int) -> Evaluation:
    """The check that an object was read without a problem; `staged`, `ids`: numbers of staged rows and of their distinct ids."""
    figures = {"rows_read": read["rows"], "mismatch_count": abs(read["rows"] - staged) + staged - ids}
    if read["problem"] is not None:
        figures[UNREAD_OBJECTS] = int(read["problem"] in UNREAD_HINTS)
        hint = UNREAD_HINTS.get(read["problem"], _CORRECT)
        return Evaluation(Check.SNAPSHOT_IS_WHOLE, False, f"{name}: {read['detail']}", hint, figures)
    if figures["mismatch_count"]:
        reason = f"{name}: {read['rows']} items were read, {staged} are staged, with {ids} ids"
        hint = "This is a defect of Tidemark: report it with the object"
        return Evaluation(Check.SNAPSHOT_IS_WHOLE, False, reason, hint, figures)
    return with_trimmed(Evaluation(Check.SNAPSHOT_IS_WHOLE, True, figures=figures), name, read["trimmed"], "items")


def judge_count(
    day: date,
    staged: Digest,
    counts: Mapping[date, int],
    settings: Settings,
    *,
    published: Digest,
    accepted: str | None,
    accepted_before: Callable[[], Digest | None],
) -> Evaluation:
    """The check of a count against the latest earlier snapshot; published and accepted content passes.

    `accepted`: why an operator accepts the count; `accepted_before`: the content accepted last, read only if needed.
    """
    rows, former = staged.rows, former_day(counts, day)
    if former is None:
        return Evaluation(Check.COUNT_IS_EXPECTED, True, figures={"rows_after": rows})
    before = counts[former]
    figures = {ROWS_BEFORE: before, "rows_after": rows}
    is_beyond = beyond(before, rows, settings)
    reason = f"{rows:,} items, {before:,} in the snapshot of {former}: {is_beyond}"
    if is_beyond is None:
        passes = None
    elif accepted is not None:
        passes = f"{ACCEPTED}: {accepted} ({reason})"
    elif staged != EMPTY and staged == published:
        passes = f"{reason}; the same items are published"
    elif staged != EMPTY and staged == accepted_before():
        passes = f"{reason}; an operator accepted the same items before"
    else:
        hint = f"{_CORRECT}; or accept the count with a reason (--accept-changes, accept_changes in run config)"
        return Evaluation(Check.COUNT_IS_EXPECTED, False, reason, hint, figures)
    return Evaluation(Check.COUNT_IS_EXPECTED, True, passes, figures=figures)


FEW_ITEMS = 100
"""Snapshots of at most this many items may change freely."""


def beyond(before: int, rows: int, settings: Settings) -> str | None:
    """A text if a count differs from an earlier one (not 0) by more than the settings allow; else None."""
    if max(before, rows) <= FEW_ITEMS:
        return None
    change = (rows - before) / before
    if change < -settings.snapshot_max_shrink:
        return f"{-change:.1%} fewer, and TIDEMARK_SNAPSHOT_MAX_SHRINK allows {settings.snapshot_max_shrink:.1%}"
    if change > settings.snapshot_max_growth:
        return f"{change:.1%} more, and TIDEMARK_SNAPSHOT_MAX_GROWTH allows {settings.snapshot_max_growth:.1%}"
    return None


_CORRECT_INTERVALS = "Deliver the intervals again, corrected; what is published stays until then"


def judge_unread(name: str, problem: str, detail: str) -> Evaluation:
    """The refusal of an invalid or unreadable object; `problem`, `detail`: from `read_objects`."""
    figures = {UNREAD_OBJECTS: int(problem in UNREAD_HINTS)}
    hint = UNREAD_HINTS.get(problem, _CORRECT_INTERVALS)
    return Evaluation(Check.INTERVALS_ARE_WHOLE, False, f"{name}: {detail}", hint, figures)


def judge_doubled(name: str, other: str, day: date) -> Evaluation:
    """The refusal of a day with two objects, since it is unclear which one is meant."""
    reason = f"{name} and {other} are both the intervals as of {day}"
    return Evaluation(Check.INTERVALS_ARE_WHOLE, False, reason, "Remove one of them from landing")


def with_trimmed(whole: Evaluation, name: str, trimmed: int, unit: str) -> Evaluation:
    """A check with the number of items or intervals (`unit`) of the object with white space removed."""
    if not whole.is_passed or not trimmed:
        return whole
    reason = f"{name}: white space around id or status of {trimmed:,} {unit} is left out"
    return replace(whole, reason=reason, figures={**whole.figures, "trimmed_items": trimmed})


def judge_history(
    name: str, days: Mapping[date, Digest], recorded: Mapping[date, Digest], settings: Settings
) -> Evaluation | None:
    """The refusal of a history whose counts change too much; None if it passes. Ignores acceptances.

    `days`, `recorded`: day -> digest of its items, as delivered and as published. A published day is compared with
    its published count, a new day with the latest day before.
    """
    counts = {day: digest.rows for day, digest in recorded.items()}
    told: list[tuple[date, date, str, int]] = []
    for day in sorted(days.keys() | counts.keys()):
        if day in recorded and days.get(day, EMPTY) == recorded[day]:
            continue
        former = day if day in counts else former_day(counts, day)
        rows = days[day].rows if day in days else 0
        is_beyond = beyond(counts[former], rows, settings) if former is not None and counts[former] else None
        if former is not None and is_beyond is not None:
            of = "" if day == former else f"of {former} "
            told.append((day, former, f"{rows:,} items, {counts[former]:,} {of}are published: {is_beyond}", rows))
    if not told:
        return None
    day, former, text, rows = told[0]
    more = f"; and so of {len(told) - 1:,} more days" if len(told) > 1 else ""
    figures = {ROWS_BEFORE: counts[former], "rows_after": rows, "days_beyond": len(told)}
    hint = f"{_CORRECT_INTERVALS}; or accept the counts with a reason (--accept-changes, accept_changes in run config)"
    return Evaluation(Check.INTERVALS_ARE_WHOLE, False, f"{name}: of {day} {text}{more}", hint, figures)


class SnapshotBuilder(Builder[Table]):
    """Builds snapshots from landing; the id identifies a row."""

    naming_columns = ("id",)

    def build(self, plan: TablePlan) -> Build:
        """Read every object once, one task per object; a refused object has no rows."""
        runtime, table, todo = plan.runtime, plan.table, plan.to_build
        deliveries = {key.event_date: one.delivered for key, one in todo.items() if one.delivered is not None}
        # Only a day whose object is excluded becomes empty without a delivery.
        if any(decision.delivered is None and not decision.present.is_nothing for decision in todo.values()):
            reason = "is to be built from nothing that landing holds"
            raise LakehouseError(table.key, reason, "This is a defect: report it")
        runtime.log(f"{table.key}: reading {len(deliveries)} snapshots")
        objects = read_objects(SNAPSHOT, runtime.spark, deliveries, runtime.landing, runtime.settings)
        parsed, summaries = parsed_objects(objects)
        rows = parsed.where(F.col("id").isNotNull()).select(*columns_of_all_projects(table))

        def audit(snapshot_id: int) -> dict[Slice, Audit]:
            return _audits(plan, summaries, plan.measured(snapshot_id, F.countDistinct("id").alias("ids")))

        return Build(plan.write(rows), audit, parsed.unpersist)

    def rows_now(self, *_: object, **__: object) -> NoReturn:
        """Raises UsageError, because a snapshot is not built from tables."""
        reason = "is read from landing, not built from tables"
        raise UsageError(self.table.key, reason, "Look at its object in landing")

    rows_from = rows_now


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


def _audits(
    plan: TablePlan, summaries: Sequence[Row], measured: Mapping[Slice, Mapping[str, Any]]
) -> dict[Slice, Audit]:
    read = {row["snapshot_date"]: row.asDict() for row in summaries}
    counts = counts_on_record(plan.runtime.ledger, plan.table, [key.event_date for key in plan.to_build])
    audits = {}
    for key, decision in sorted(plan.to_build.items()):
        row = measured.get(key, {"digest": EMPTY, "ids": 0})
        digest: Digest = row["digest"]
        rows = {"rows": digest.rows}
        if decision.delivered is None:
            audits[key] = Audit(digest, rows, rows, _of_none(plan, digest))
            counts.pop(key.event_date, None)
            continue
        whole = judge_whole(decision.delivered.key, read[key.event_date], digest.rows, row["ids"])
        expected = judge_count(
            key.event_date,
            digest,
            counts,
            plan.runtime.settings,
            published=decision.record.digest if decision.record is not None else EMPTY,
            accepted=plan.request.accepted.get((plan.table.key, key)),
            accepted_before=partial(accepted_last, plan.runtime.ledger, plan.table, key),
        )
        if whole.is_passed and expected.is_passed:
            counts[key.event_date] = digest.rows
        audits[key] = Audit(digest, rows, rows, (whole, expected) if whole.is_passed else (whole,))
    return audits


def _of_none(plan: TablePlan, staged: Digest) -> tuple[Evaluation, ...]:
    is_empty = staged == EMPTY
    reason = "the object is excluded" if is_empty else f"the object is excluded, and {staged.rows} rows are staged"
    hint = None if is_empty else "This is a defect of Tidemark: report it with the day"
    return tuple(
        Evaluation(check, is_empty, reason, hint) for check in plan.table.checks if check != Check.CHANGE_IS_EXPLAINED
    )


def accepted_last(ledger: Ledger, table: Table, key: Slice) -> Digest | None:
    """The content of a slice when an operator last accepted a change, rollbacks included; None without one."""
    published = ledger.publications(table.key, [key.project_id], [key.event_date])
    return next((one.digest_after for one in reversed(published) if one.accepted_reason is not None), None)
