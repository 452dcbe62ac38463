"""The status of days: the verdict, rows and reasons of each day and table, from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from typing import Any

from pipeline_assets.domain.deliveries import BatchKey, unreadable_values
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source, Verdict
from pipeline_assets.load.runtime import DAY_VERDICTS
from pipeline_assets.load.staleness.finality import is_short
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSION_TABLES, DIMENSIONS, OPTIONAL_TABLES
from pipeline_assets.tables.table import Dimension, Table
from resources.ledger.store import Ledger

NOT_LOADED = "not loaded"
WORST_FIRST = (Verdict.REFUSED, Verdict.HELD, Verdict.WAITING, Verdict.PUBLISHED, Verdict.UNCHANGED)


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
        return vars(self) | {"verdict": self.verdict or NOT_LOADED}


def day_statuses(
    ledger: Ledger, projects: Sequence[str], days: Sequence[date], sources: Sequence[Source]
) -> list[DayStatus]:
    """One status per day and table; days ascending, tables in the order of the graph."""
    wanted = dict.fromkeys(days, projects)
    raw = [status for source in sources for status in _of_raw(ledger, source, wanted, is_all_wanted=True)]
    return _by_day([*raw, *_of_tables(ledger, DERIVED, wanted, is_all_wanted=True)])


def dimension_statuses(ledger: Ledger, days: Sequence[date], *, is_all_wanted: bool = False) -> list[DayStatus]:
    """One status per day and table of dimensions in use; `is_all_wanted`: also of dimensions that were only refused or wait."""
    used = _in_use(ledger)
    if is_all_wanted:
        used = [one for one in DIMENSIONS if one in used or _are_recorded(ledger, one, days)] or list(DIMENSIONS)
    tables = [table for table in DIMENSION_TABLES if any(table in one.tables for one in used)]
    return _by_day(_of_tables(ledger, tables, dict.fromkeys(days, (ALL_PROJECTS,)), is_all_wanted=True))


def joined_statuses(
    ledger: Ledger, projects: Sequence[str], days: Sequence[date], *, is_all_wanted: bool = False
) -> list[DayStatus]:
    """The same for aggregates joined with dimensions in use; `is_all_wanted`: include days without a record."""
    used = _in_use(ledger)
    tables = [table for table in AS_OF_TABLES if table.dimension in used]
    return _by_day(_of_tables(ledger, tables, dict.fromkeys(days, projects), is_all_wanted=is_all_wanted))


def recorded_statuses(ledger: Ledger, slices: Set[Slice], sources: Sequence[Source]) -> list[DayStatus]:
    """The same for these slices on record; one of ALL_PROJECTS means all projects in tables joined with dimensions."""
    wanted: dict[date, list[str]] = {}
    for key in sorted(slices):
        wanted.setdefault(key.event_date, []).append(key.project_id)
    raw = [status for source in sources for status in _of_raw(ledger, source, wanted, is_all_wanted=False)]
    return _by_day([*raw, *_of_tables(ledger, (*DERIVED, *OPTIONAL_TABLES), wanted, is_all_wanted=False)])


def _in_use(ledger: Ledger) -> list[Dimension]:
    return [one for one in DIMENSIONS if any(ledger.first_day(table.key) is not None for table in one.tables)]


def _are_recorded(ledger: Ledger, dimension: Dimension, days: Sequence[date]) -> bool:
    return any(
        ledger.slices(table.key, [ALL_PROJECTS], [table.kind.slice_day(day) for day in days])
        for table in dimension.tables
    )


def _by_day(statuses: Iterable[DayStatus]) -> list[DayStatus]:
    return sorted(statuses, key=lambda status: status.day)


Wanted = Mapping[date, Sequence[str]]


def _of_tables(ledger: Ledger, tables: Iterable[Table], wanted: Wanted, *, is_all_wanted: bool) -> Iterator[DayStatus]:
    """`is_all_wanted`: a slice without a record counts as not loaded, instead of being left out."""
    names = {name for projects in wanted.values() for name in projects}
    for table in tables:
        filed = {day: table.kind.slice_day(day) for day in wanted}
        owners = None if table in AS_OF_TABLES and ALL_PROJECTS in names else sorted(names)
        of_day: dict[date, list[SliceRecord]] = {}
        for key, record in sorted(ledger.slices(table.key, owners, filed.values()).items()):
            of_day.setdefault(key.event_date, []).append(record)
        for day, projects in wanted.items():
            records = of_day.get(filed[day], [])
            if not (table in AS_OF_TABLES and ALL_PROJECTS in projects):
                records = [record for record in records if record.key.project_id in projects]
            is_whole = not is_all_wanted or len(records) == len(projects)
            verdict = _worst(record.verdict for record in records) if is_whole else None
            is_final = verdict is not None and (
                verdict.is_good if table.kind.is_shared else all(record.is_final for record in records)
            )
            told = [(r, text) for r in records for text in (_reason(r), unreadable_values(r.figures)) if text]
            if records or is_all_wanted:
                yield DayStatus(
                    day,
                    table.key,
                    verdict,
                    sum(record.digest.rows for record in records),
                    tuple(f"{record.key.project_id}: {text}" for record, text in told),
                    is_final,
                )


def _of_raw(ledger: Ledger, source: Source, wanted: Wanted, *, is_all_wanted: bool) -> Iterator[DayStatus]:
    table, names = RAW_TABLES[source].key, sorted({name for projects in wanted.values() for name in projects})
    known, slices = ledger.batches(names, min(wanted), max(wanted)), ledger.slices(table, names, wanted)
    for day, projects in wanted.items():
        keys = [
            BatchKey(source, name, day) for name in projects if is_all_wanted or BatchKey(source, name, day) in known
        ]
        if not keys:
            continue
        batches = [known[key] for key in keys if key in known]
        records = {key: record for key in keys if (record := slices.get(Slice(day, key.project_id))) is not None}
        short = {key for key in keys if is_short(known, key)}
        told = [(key, _reason(record)) for key, record in records.items() if record.loss is not None]
        told += [(one.key, _reason(one) or (_lacking_hours(one) if one.key in short else "")) for one in batches]
        passed = ((one.key, of.figures) for one in batches for of in one.evaluations if of.is_passed)
        told += [(key, unreadable_values(figures)) for key, figures in passed]
        is_whole = len(batches) == len(keys)
        yield DayStatus(
            day,
            table,
            _worst(_raw_verdict(records.get(one.key), one) for one in batches) if is_whole else None,
            sum(record.digest.rows for record in records.values()),
            tuple(f"{key.project_id}: {text}" for key, text in told if text),
            all(batch.is_closed and batch.key not in short for batch in batches),
        )


def _raw_verdict(record: SliceRecord | None, batch: BatchRecord) -> Verdict:
    if record is not None and record.loss is not None:
        return Verdict.REFUSED
    verdict = DAY_VERDICTS[batch.verdict]
    was_published = record is not None and record.verdict is Verdict.PUBLISHED
    return Verdict.PUBLISHED if verdict is Verdict.UNCHANGED and was_published else verdict


def _lacking_hours(batch: BatchRecord) -> str:
    if batch.deliveries and not batch.is_closed:
        return ""
    failed = (". ".join(filter(None, (e.reason, e.hint))) for e in batch.evaluations if not e.is_passed)
    return next(failed, "")


def _reason(record: SliceRecord | BatchRecord) -> str:
    return ". ".join(filter(None, (record.reason, record.hint)))


def _worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    present = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in present), None)
