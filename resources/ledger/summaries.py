"""Figures over years of records, computed by the database: verdicts, rows, checks, runs and arrivals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.records import HOURS_HELD
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Source, Verdict
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.ledger.engine import Reads
from resources.ledger.schema import BATCH_DAYS, BATCHES, DELIVERIES, HAS_REFUSALS, RUNS, SLICES

_RED = [verdict.value for verdict in Verdict if not verdict.is_good]
_OPEN = [verdict.value for verdict in BatchVerdict if verdict is not BatchVerdict.ACCEPTED]
"""List the verdicts to find: an index finds rows with these few verdicts, but cannot search for "not accepted"."""
_ROWS_AT_ONCE = 5_000


VerdictCount = tuple[str, date, str, int]
"""A table's key, or of batches the source; a day; a verdict; and the number of projects with it."""


@dataclass(frozen=True)
class Fault:
    """A slice or batch that is not good, with the recorded texts."""

    place: str
    """A table's key, or of batches the source."""
    day: date
    project_id: str
    verdict: str
    reason: str
    hint: str
    evaluations: tuple[Evaluation, ...]
    """The evaluations of the refused content."""
    deliveries: int = 0
    """Number of objects of a batch."""


@dataclass(frozen=True)
class SliceFigures:
    """Measures of the audit of one slice of refined.events."""

    day: date
    project_id: str
    rows: int
    raw_rows: int
    removed: int
    """Raw rows that are not in the slice: duplicates of any kind."""
    late_rows: int
    """Rows that were uploaded after their event day."""
    lag_seconds: float
    """From the newest event to the newest upload."""


@dataclass(frozen=True)
class CheckFigure:
    """A figure that a check measured for a slice."""

    table: str
    day: date
    project_id: str
    value: float


LOAD_KINDS = (Source.REGULAR.value, Source.BACKFILL.value, "derived tables only")
"""Kinds of loads: the source that one reads, or none."""
_SOURCES = {RAW_TABLES[source].key: source.value for source in (Source.BACKFILL, Source.REGULAR)}
_GOOD = frozenset(verdict.value for verdict in Verdict if verdict.is_good)


@dataclass(frozen=True)
class RunTime:
    """The duration of one load that went through all its tables, and whether it left anything open."""

    kind: str
    """One of LOAD_KINDS."""
    ended_at: datetime
    seconds: float
    is_good: bool
    """Whether none of its slices is refused, waiting or held."""


class Summaries(Reads):
    """Reads the whole ledger without creating a record per row: each query over years takes less than a second."""

    def slice_verdicts(self, projects: Sequence[str]) -> list[VerdictCount]:
        """Return the number of projects per table, event day and verdict."""
        return self._counts(SLICES, SLICES.c.table_name, SLICES.c.event_date, projects)

    def batch_verdicts(self, projects: Sequence[str]) -> list[VerdictCount]:
        """Return the number of projects per source, arrival day and verdict."""
        return self._counts(BATCHES, BATCHES.c.source, BATCHES.c.arrival_date, projects)

    def first_days(self, projects: Sequence[str]) -> dict[str, date]:
        """Return project -> the first arrival day on which a regular load found deliveries."""
        query = sa.select(BATCHES.c.project_id, sa.func.min(BATCHES.c.arrival_date)).where(
            BATCHES.c.project_id.in_(projects), BATCHES.c.source == Source.REGULAR.value, BATCHES.c.deliveries > 0
        )
        with self._read() as connection:
            rows = connection.execute(query.group_by(BATCHES.c.project_id))
            return {row[0]: row[1] for row in rows}

    def slice_faults(self, projects: Sequence[str]) -> list[Fault]:
        """Return the slices that are refused, waiting or held, by day."""
        query = sa.select(SLICES).where(SLICES.c.project_id.in_(projects), SLICES.c.verdict.in_(_RED))
        with self._read() as connection:
            order = (SLICES.c.event_date, SLICES.c.project_id, SLICES.c.table_name)
            rows = connection.execute(query.order_by(*order)).mappings()
            return [_fault(row, row["table_name"], row["event_date"], row["refused_evaluations"]) for row in rows]

    def batch_faults(self, projects: Sequence[str]) -> list[Fault]:
        """Return the batches that are refused, waiting or moved, by day."""
        return self._batch_faults(projects, BATCHES.c.verdict.in_(_OPEN))

    def short_batches(self, projects: Sequence[str]) -> list[Fault]:
        """Return the closed batches with deliveries that are recorded as missing hours, by day."""
        is_told = sa.cast(BATCHES.c.evaluations, sa.Text).contains(f'"{HOURS_HELD}"')
        return self._batch_faults(projects, BATCHES.c.verdict.not_in(_OPEN), BATCHES.c.is_closed, is_told)

    def _batch_faults(self, projects: Sequence[str], *of: sa.ColumnElement[bool]) -> list[Fault]:
        query = sa.select(BATCHES).where(BATCHES.c.project_id.in_(projects), *of)
        with self._read() as connection:
            order = (BATCHES.c.arrival_date, BATCHES.c.project_id, BATCHES.c.source)
            rows = connection.execute(query.order_by(*order)).mappings()
            return [
                _fault(row, row["source"], row["arrival_date"], row["evaluations"], row["deliveries"] or 0)
                for row in rows
            ]

    def slice_figures(self, table: str, projects: Sequence[str]) -> Iterator[SliceFigures]:
        """Yield the measures of every slice of refined.events, unordered; streams them, so that years need little memory."""
        names = ("raw_rows", "late_rows", "watermark_lag_seconds")
        measured = [SLICES.c.figures[name].as_float() for name in names]
        query = sa.select(SLICES.c.event_date, SLICES.c.project_id, SLICES.c.digest, *measured).where(
            SLICES.c.table_name == table, SLICES.c.project_id.in_(projects)
        )
        with self._read() as connection:
            rows_read = connection.execute(query, execution_options={"yield_per": _ROWS_AT_ONCE})
            for day, project, digest, raw_rows, late_rows, lag in rows_read:
                rows = Digest.parse(digest).rows
                raw = rows if raw_rows is None else int(raw_rows)
                yield SliceFigures(day, project, rows, raw, max(0, raw - rows), int(late_rows or 0), lag or 0.0)

    def check_figures(self, names: Sequence[str], projects: Sequence[str]) -> dict[str, list[CheckFigure]]:
        """Return name -> the non-zero figures that checks measured for published or refused slices.

        One pass finds all names, because it reads the evaluations of every recorded slice.
        """
        found: dict[str, list[CheckFigure]] = {name: [] for name in names}
        texts = [sa.cast(column, sa.Text) for column in (SLICES.c.evaluations, SLICES.c.refused_evaluations)]
        is_any = sa.or_(*(_is_not_zero(text, name) for text in texts for name in names))
        query = sa.select(SLICES.c.table_name, SLICES.c.event_date, SLICES.c.project_id, *texts).where(
            SLICES.c.project_id.in_(projects), is_any
        )
        with self._read() as connection:
            for table, day, project, *evaluations in connection.execute(query):
                for text in evaluations:
                    measured = [one["figures"] for one in json.loads(text or "null") or ()]
                    for name in names:
                        value = sum(figures.get(name, 0) for figures in measured)
                        if value:
                            found[name].append(CheckFigure(table, day, project, value))
        return found

    def run_times(self) -> list[RunTime]:
        """Return every recorded load that went through all its tables, by end time."""
        columns = (RUNS.c.tables, RUNS.c.started_at, RUNS.c.finished_at, RUNS.c.verdicts)
        query = sa.select(*columns).where(RUNS.c.finished_at.is_not(None)).order_by(RUNS.c.finished_at)
        found = []
        with self._read() as connection:
            for tables, started, finished, verdicts in connection.execute(query):
                kind = next((source for table, source in _SOURCES.items() if table in (tables or ())), LOAD_KINDS[-1])
                ended = datetime.fromisoformat(finished)
                seconds = max(0.0, (ended - datetime.fromisoformat(started)).total_seconds())
                left = {name.rpartition(" ")[2] for name, count in (verdicts or {}).items() if count}
                found.append(RunTime(kind, ended, seconds, left <= _GOOD))
        return found

    def _counts(
        self, table: sa.Table, place: sa.Column[Any], day: sa.Column[Any], projects: Sequence[str]
    ) -> list[VerdictCount]:
        query = (
            sa.select(place, day, table.c.verdict, sa.func.count())
            .where(table.c.project_id.in_(projects))
            # Group in the order of an index that covers the query.
            .group_by(table.c.verdict, place, day)
        )
        with self._read() as connection:
            return [(*row,) for row in connection.execute(query)]


def _is_not_zero(text: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Almost all figures are zero; comparing the text finds the others without parsing JSON."""
    zeros = [text.not_like(f'%"{name}": {zero}{end}%') for zero in ("0", "0.0") for end in (",", "}")]
    return sa.and_(text.like(f'%"{name}":%'), *zeros)


def _fault(row: RowMapping, place: str, day: date, evaluations: Any, deliveries: int = 0) -> Fault:
    read = tuple(Evaluation.from_json(one) for one in evaluations or ())
    warned = next((one for one in read if not one.is_passed), None)
    reason, hint = row["reason"] or (warned and warned.reason) or "", row["cure"] or (warned and warned.hint) or ""
    return Fault(place, day, row["project_id"], row["verdict"], reason, hint, read, deliveries)


@dataclass(frozen=True)
class RefusedLines:
    """Refused lines and objects of one arrival day with the same reason, or unreadable values of one column."""

    day: date
    error: str | None
    """Why whole objects were refused; None where only lines of readable objects were."""
    objects: int
    lines: int
    line_reason: str | None = None
    """A key of `DeliveryRecord.line_reasons`; None where an older version recorded none. An object counts in each of its own."""

    @property
    def is_whole(self) -> bool:
        """Whether whole objects are refused, instead of single lines."""
        return self.error is not None

    @property
    def reason(self) -> str | None:
        """The reason of the objects or lines."""
        return self.error if self.is_whole else self.line_reason


@dataclass(frozen=True)
class ArrivedOn:
    """What arrived on one day and is in raw."""

    project_id: str
    day: date
    objects: int
    size_bytes: int
    rows: int


def _within(
    table: sa.Table, source: Source, projects: Sequence[str], first: date, last: date
) -> list[sa.ColumnElement[bool]]:
    of = table.c
    return [of.source == source.value, of.project_id.in_(projects), of.arrival_date.between(first, last)]


class ArrivalSummaries(Reads):
    """Reads arrivals without creating a record per row, so that each query over years takes less than a second."""

    def arrivals(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> list[tuple[str, date, date, int]]:
        """Return (project, arrival day, event day, rows in raw) of arrivals in the range."""
        columns = (BATCH_DAYS.c.project_id, BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.event_date, BATCH_DAYS.c.digest)
        query = sa.select(*columns).where(*_within(BATCH_DAYS, source, projects, first, last))
        with self._read() as connection:
            return [(project, at, day, Digest.parse(text).rows) for project, at, day, text in connection.execute(query)]

    def lateness(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> list[tuple[str, date, LatenessSketch | None]]:
        """Return (project, arrival day, lateness sketch) of each non-empty batch day in the range; None = not measured."""
        columns = (BATCH_DAYS.c.project_id, BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.lateness)
        within = _within(BATCH_DAYS, source, projects, first, last)
        query = sa.select(*columns).where(*within, BATCH_DAYS.c.digest != str(EMPTY))
        with self._read() as connection:
            return [
                (project, day, None if text is None else LatenessSketch.from_text(text))
                for project, day, text in connection.execute(query)
            ]

    def arrived(self, source: Source, projects: Sequence[str], first: date, last: date) -> list[ArrivedOn]:
        """Return objects, stored bytes and rows per project and arrival day in the range, of the versions in raw."""
        names = (DELIVERIES.c.project_id, DELIVERIES.c.arrival_date)
        sums = (sa.func.coalesce(sa.func.sum(column), 0) for column in (DELIVERIES.c.size_bytes, DELIVERIES.c.rows))
        within = _within(DELIVERIES, source, projects, first, last)
        query = sa.select(*names, sa.func.count(), *sums).where(*within, DELIVERIES.c.is_accepted)
        with self._read() as connection:
            rows = connection.execute(query.group_by(*names))
            return [ArrivedOn(project, day, n, int(size), int(count)) for project, day, n, size, count in rows]

    def refused_lines(self, projects: Sequence[str]) -> list[RefusedLines]:
        """Return what is refused or unreadable per arrival day and reason, of versions in raw and of last refused versions."""
        columns = (DELIVERIES.c.arrival_date, DELIVERIES.c.error, sa.cast(DELIVERIES.c.line_reasons, sa.Text))
        query = (
            sa.select(*columns, sa.func.count(), sa.func.coalesce(sa.func.sum(DELIVERIES.c.quarantined), 0))
            .where(DELIVERIES.c.project_id.in_(projects), HAS_REFUSALS)
            .group_by(*columns)
        )
        with self._read() as connection:
            groups = [tuple(row) for row in connection.execute(query)]
        found: dict[tuple[date, str | None, str | None], RefusedLines] = {}
        for day, error, reasons, count, lines in groups:
            # Every object of the group has these same counts.
            told = json.loads(reasons) if reasons else {}
            named = {reason: each * count for reason, each in told.items()} if told else {None: int(lines)}
            for reason, of_reason in named.items():
                known = found.get((day, error, reason), RefusedLines(day, error, 0, 0, reason))
                sums = {"objects": known.objects + count, "lines": known.lines + of_reason}
                found[day, error, reason] = replace(known, **sums)
        return sorted(found.values(), key=lambda one: (one.day, one.error or "", one.line_reason or ""))
