"""The status of days: the verdict, rows and reasons of each day and table, from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from pipeline_assets.domain.deliveries import BatchKey, unreadable_values
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source, Verdict
from pipeline_assets.load.runtime import DAY_VERDICTS
from pipeline_assets.load.staleness.finality import is_short
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSION_TABLES, DIMENSIONS, OPTIONAL_TABLES
from pipeline_assets.tables.table import Dimension
from resources.ledger.store import Ledger

NOT_LOADED = "not loaded"
_WORST_FIRST = (Verdict.REFUSED, Verdict.HELD, Verdict.WAITING, Verdict.PUBLISHED, Verdict.UNCHANGED)


@dataclass(frozen=True)
class DayStatus:
    """One day of one table, all projects together: the worst verdict and all reasons."""

    day: date
    table: str
    verdict: Verdict | None
    """None where the day is not loaded for some project."""
    rows: int
    reasons: tuple[str, ...]
    is_final: bool

    @property
    def is_good(self) -> bool:
        """Whether the day is published or unchanged for every project."""
        return self.verdict is not None and self.verdict.is_good

    def to_json(self) -> dict[str, Any]:
        """The JSON form for `--json`."""
        return {
            "day": self.day.isoformat(),
            "table": self.table,
            "rows": self.rows,
            "is_final": self.is_final,
            "verdict": self.verdict.value if self.verdict else NOT_LOADED,
            "reasons": list(self.reasons),
        }


def day_statuses(
    ledger: Ledger, projects: Sequence[str], days: Sequence[date], sources: Sequence[Source]
) -> list[DayStatus]:
    """One status per day and table; days ascending, tables in the order of the graph."""
    return _statuses(ledger, {Slice(day, project) for day in days for project in projects}, sources)


def dimension_statuses(ledger: Ledger, days: Sequence[date], *, is_all_wanted: bool = False) -> list[DayStatus]:
    """One status per day and table of the dimensions in use, read from the slice that files the day.

    `is_all_wanted`: include dimensions whose snapshots of these days were only refused or wait, or all if there are none.
    """
    used: Sequence[Dimension] = _in_use(ledger)
    if is_all_wanted:
        known = [one for one in DIMENSIONS if one in used or _are_recorded(ledger, one, days)]
        used = known or DIMENSIONS
    tables = [table for table in DIMENSION_TABLES if any(table in one.tables for one in used)]
    statuses = []
    for table in tables:
        filed = {day: table.kind.slice_day(day) for day in days}
        records = ledger.slices(table.key, [ALL_PROJECTS], filed.values())
        for day, under in filed.items():
            record = records.get(Slice(under, ALL_PROJECTS))
            status = _status(day, table.key, [record] if record is not None else [], 1)
            # A delivered snapshot is complete; nothing more is expected for it.
            statuses.append(replace(status, is_final=status.verdict is not None and status.verdict.is_good))
    return sorted(statuses, key=lambda status: status.day)


def joined_statuses(
    ledger: Ledger, projects: Sequence[str], days: Sequence[date], *, is_all_wanted: bool = False
) -> list[DayStatus]:
    """The same for aggregates joined with dimensions in use; `is_all_wanted`: include days without a record."""
    statuses = []
    for table in AS_OF_TABLES:
        if table.dimension not in _in_use(ledger):
            continue
        recorded = ledger.slices(table.key, projects, days)
        for day in days:
            records = [record for key, record in sorted(recorded.items()) if key.event_date == day]
            if records or is_all_wanted:
                statuses.append(_status(day, table.key, records, len(projects) if is_all_wanted else len(records)))
    return sorted(statuses, key=lambda status: status.day)


def _are_recorded(ledger: Ledger, dimension: Dimension, days: Sequence[date]) -> bool:
    return any(
        ledger.slices(table.key, [ALL_PROJECTS], [table.kind.slice_day(day) for day in days])
        for table in dimension.tables
    )


def _in_use(ledger: Ledger) -> list[Dimension]:
    return [one for one in DIMENSIONS if any(ledger.first_day(table.key) is not None for table in one.tables)]


def recorded_statuses(ledger: Ledger, slices: Set[Slice], sources: Sequence[Source]) -> list[DayStatus]:
    """The same for these slices only, without those that the ledger has no record of.

    A slice of ALL_PROJECTS stands for the day in dimension tables, and for all projects in the tables joined with them.
    """
    statuses = _statuses(ledger, slices, sources, is_all_wanted=False)
    for table in OPTIONAL_TABLES:
        for day in sorted({key.event_date for key in slices}):
            projects = {key.project_id for key in slices if key.event_date == day}
            is_of_all = ALL_PROJECTS in projects
            if table.kind.is_shared and not is_of_all:
                continue
            filed = table.kind.slice_day(day)
            wanted = None if is_of_all and not table.kind.is_shared else table.kind.projects(sorted(projects))
            records = [record for _, record in sorted(ledger.slices(table.key, wanted, [filed]).items())]
            statuses.append(_status(day, table.key, records, len(records)))
    told = [status for status in statuses if status.verdict is not None]
    return sorted(told, key=lambda status: status.day)


def _statuses(
    ledger: Ledger, wanted: Set[Slice], sources: Sequence[Source], *, is_all_wanted: bool = True
) -> list[DayStatus]:
    """One status per day and table. `is_all_wanted`: a slice without a record counts as not loaded, instead of being left out."""
    days = sorted({key.event_date for key in wanted})
    projects = sorted({key.project_id for key in wanted})
    batches = ledger.batches(projects, days[0], days[-1])
    source_of = {RAW_TABLES[source].key: source for source in sources}
    tables = [*source_of, *(table.key for table in DERIVED)]
    slices = {table: ledger.slices(table, projects, days) for table in tables}
    statuses: list[DayStatus] = []
    for day in days:
        keys = [Slice(day, project) for project in projects if Slice(day, project) in wanted]
        for table in tables:
            if table in source_of:
                pairs = [
                    (slices[table].get(key), batches.get(BatchKey(source_of[table], key.project_id, day)))
                    for key in keys
                ]
                known = [pair for pair in pairs if is_all_wanted or pair[1] is not None]
                short = {key for key in batches if is_short(batches, key)}
                statuses.append(_raw_status(day, table, known, short))
            else:
                records = [slices[table][key] for key in keys if key in slices[table]]
                statuses.append(_status(day, table, records, len(keys) if is_all_wanted else len(records)))
    return statuses


def _status(day: date, table: str, records: Sequence[SliceRecord], projects: int) -> DayStatus:
    is_whole = len(records) == projects
    return DayStatus(
        day=day,
        table=table,
        verdict=_worst(record.verdict for record in records) if is_whole else None,
        rows=sum(record.digest.rows for record in records),
        reasons=tuple(
            f"{r.key.project_id}: {said}"
            for r in records
            for said in (_reason(r), unreadable_values(r.figures))
            if said
        ),
        is_final=is_whole and all(record.is_final for record in records),
    )


def _raw_status(
    day: date, table: str, pairs: Sequence[tuple[SliceRecord | None, BatchRecord | None]], short: Set[BatchKey]
) -> DayStatus:
    """The status of a raw table, taken from the batches that arrived on the day; `short`: those that lack hours."""
    batches = [batch for _, batch in pairs if batch is not None]
    losses = [
        (record.key.project_id, _reason(record))
        for record, _ in pairs
        if record is not None and record.loss is not None
    ]
    reasons = [
        (batch.key.project_id, _reason(batch) or (_lacking_hours(batch) if batch.key in short else None))
        for batch in batches
    ]
    passed = [(batch.key.project_id, one) for batch in batches for one in batch.evaluations if one.is_passed]
    reasons += [(project, unreadable_values(one.figures)) for project, one in passed]
    return DayStatus(
        day=day,
        table=table,
        verdict=_worst(_raw_verdict(*pair) for pair in pairs) if len(batches) == len(pairs) else None,
        rows=sum(record.digest.rows for record, _ in pairs if record is not None),
        reasons=tuple(f"{project}: {reason}" for project, reason in [*losses, *reasons] if reason),
        is_final=all(batch.is_closed and batch.key not in short for batch in batches),
    )


def _raw_verdict(record: SliceRecord | None, batch: BatchRecord | None) -> Verdict | None:
    if batch is None:
        return None
    verdict = DAY_VERDICTS[batch.verdict]
    if record is not None and record.loss is not None:
        return Verdict.REFUSED
    was_published = record is not None and record.verdict is Verdict.PUBLISHED
    return Verdict.PUBLISHED if verdict is Verdict.UNCHANGED and was_published else verdict


def _lacking_hours(batch: BatchRecord) -> str | None:
    """The missing hours of a day that is over, or of which recoveries delivered only some; else None."""
    if batch.deliveries and not batch.is_closed:
        return None
    failed = (e for e in batch.evaluations if not e.is_passed)
    return next((". ".join(filter(None, (e.reason, e.hint))) for e in failed), None)


def _reason(record: SliceRecord | BatchRecord) -> str:
    return ". ".join(filter(None, (record.reason, record.hint)))


def _worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    present = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in present), None)
