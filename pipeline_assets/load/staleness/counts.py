"""The number of items in recorded snapshots, and the choice of the snapshot that a count is compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date, timedelta

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger

REACH = timedelta(days=31)
"""The greatest age of a snapshot that a count is compared with."""
ROWS_BEFORE = "rows_before"
"""Figure of an evaluation: the earlier count that it compared with."""


def counts_on_record(ledger: Ledger, table: Table, days: Collection[date]) -> dict[date, int]:
    """Day -> number of items, for published snapshots that snapshots of these days may be compared with."""
    if not days:
        return {}
    first, last = min(days) - REACH, max(days)
    reach = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    records = ledger.slices(table.key, [ALL_PROJECTS], reach)
    return {key.event_date: record.digest.rows for key, record in records.items() if record.digest != EMPTY}


def former_day(counted: Iterable[date], day: date) -> date | None:
    """The latest earlier day with a recorded snapshot; None if all are too old."""
    return max((other for other in counted if day - REACH <= other < day), default=None)


def refusal_of_count(record: SliceRecord) -> Evaluation | None:
    """The refusal of a snapshot because of its count; None if it was not refused for that reason."""
    refusals = (e for e in record.refused_evaluations if e.check.name == Check.COUNT_IS_EXPECTED.name)
    return next((evaluation for evaluation in refusals if not evaluation.is_passed), None)


def is_compared_with_another(record: SliceRecord, counts: Mapping[date, int]) -> bool:
    """Whether the count of a snapshot was refused in comparison with a count that is no longer on record."""
    refusal = refusal_of_count(record)
    former = former_day(counts, record.key.event_date)
    present = None if former is None else counts[former]
    return refusal is not None and refusal.figures.get(ROWS_BEFORE) != present
