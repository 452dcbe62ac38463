"""Figures over years of records, computed by the database: verdicts, rows, checks, runs and arrivals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.records import HOURS_HELD
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Source, Verdict
from pipeline_assets.tables.events import RAW_TABLES
from resources.ledger.engine import Part
from resources.ledger.queries import arrived_within
from resources.ledger.schema import BATCH_DAYS, BATCHES, DELIVERIES, HAS_REFUSALS, RUNS, SLICES

_RED = [verdict.value for verdict in Verdict if not verdict.is_good]
_OPEN = [verdict.value for verdict in BatchVerdict if verdict is not BatchVerdict.ACCEPTED]
"""Listed, because an index cannot search for "not accepted"."""
_ROWS_AT_ONCE = 5_000


VerdictCount = tuple[str, date, str, int]
"""A table's key, or a batch's source; day; verdict; number of projects with it."""


class Fault(NamedTuple):
    """A faulty slice or batch, with the recorded texts."""

    place: str
    day: date
    project_id: str
    verdict: str
    reason: str
    hint: str
    evaluations: tuple[Evaluation, ...]
    deliveries: int = 0


class SliceFigures(NamedTuple):
    """Audit measures of one slice of refined.events."""

    day: date
    project_id: str
    rows: int
    raw_rows: int
    removed: int
    """Raw rows that are not in the slice: duplicates of any kind."""
    late_rows: int
    lag_seconds: float
    """From the newest event to the newest upload."""


class CheckFigure(NamedTuple):
    """A figure that a check measured for a slice."""

    table: str
    day: date
    project_id: str
    value: float


LOAD_KINDS = (Source.REGULAR.value, Source.BACKFILL.value, "derived tables only")
_SOURCES = {RAW_TABLES[source].key: source.value for source in (Source.BACKFILL, Source.REGULAR)}
_GOOD = frozenset(verdict.value for verdict in Verdict if verdict.is_good)


class RunTime(NamedTuple):
    """The duration of one complete load, and whether it left anything open."""

    kind: str
    ended_at: datetime
    seconds: float
    is_good: bool


@dataclass(frozen=True)
class RefusedLines:
    """Refused lines and objects of one arrival day with the same reason, or unreadable values of one column."""

    day: date
    is_whole: bool
    """Whether whole objects are refused, instead of single lines."""
    reason: str | None
    """Of lines a key of `DeliveryRecord.line_reasons`; None where none was recorded. An object counts once per reason."""
    objects: int
    lines: int


class ArrivedOn(NamedTuple):
    """One day's arrivals in raw, as stored."""

    project_id: str
    day: date
    objects: int
    size_bytes: int
    largest_bytes: int
    rows: int


class Summaries(Part):
    """Reads the whole ledger without creating a record per row: each query over years takes less than a second."""

    def slice_verdicts(self, projects: Sequence[str]) -> list[VerdictCount]:
        """Return the number of projects per table, event day and verdict."""
        return self._counts(SLICES, SLICES.c.table_name, SLICES.c.event_date, projects)

    def batch_verdicts(self, projects: Sequence[str]) -> list[VerdictCount]:
        """Return the number of projects per source, arrival day and verdict."""
        return self._counts(BATCHES, BATCHES.c.source, BATCHES.c.arrival_date, projects)

    def first_days(self, projects: Sequence[str]) -> dict[str, date]:
        """Return project -> the first arrival day on which a regular load found deliveries."""
        c = BATCHES.c
        is_of = (c.project_id.in_(projects), c.source == Source.REGULAR.value, c.deliveries > 0)
        query = sa.select(c.project_id, sa.func.min(c.arrival_date)).where(*is_of).group_by(c.project_id)
        return dict(self._rows(query))

    def slice_faults(self, projects: Sequence[str]) -> list[Fault]:
        """Return the slices that are refused, waiting or held, by day."""
        c = SLICES.c
        columns = (c.table_name, c.event_date, c.project_id, c.verdict, c.reason, c.cure, c.refused_evaluations)
        query = sa.select(*columns).where(c.project_id.in_(projects), c.verdict.in_(_RED))
        return [_fault(*row) for row in self._rows(query.order_by(c.event_date, c.project_id, c.table_name))]

    def batch_faults(self, projects: Sequence[str]) -> list[Fault]:
        """Return the batches that are refused, waiting or moved, by day."""
        return self._batch_faults(projects, BATCHES.c.verdict.in_(_OPEN))

    def short_batches(self, projects: Sequence[str]) -> list[Fault]:
        """Return the closed batches with deliveries that are recorded as missing hours, by day."""
        is_told = sa.cast(BATCHES.c.evaluations, sa.Text).contains(f'"{HOURS_HELD}"')
        return self._batch_faults(projects, BATCHES.c.verdict.not_in(_OPEN), BATCHES.c.is_closed, is_told)

    def _batch_faults(self, projects: Sequence[str], *of: sa.ColumnElement[bool]) -> list[Fault]:
        c = BATCHES.c
        columns = (c.source, c.arrival_date, c.project_id, c.verdict, c.reason, c.cure, c.evaluations, c.deliveries)
        query = sa.select(*columns).where(c.project_id.in_(projects), *of)
        return [_fault(*row) for row in self._rows(query.order_by(c.arrival_date, c.project_id, c.source))]

    def slice_figures(self, table: str, projects: Sequence[str]) -> Iterator[SliceFigures]:
        """Yield the measures of every slice of refined.events, unordered and streamed."""
        names = ("raw_rows", "late_rows", "watermark_lag_seconds")
        c, measured = SLICES.c, [SLICES.c.figures[name].as_float() for name in names]
        query = sa.select(c.event_date, c.project_id, c.digest, *measured)
        query = query.where(c.table_name == table, c.project_id.in_(projects))
        with self._read() as connection:
            rows_read = connection.execute(query, execution_options={"yield_per": _ROWS_AT_ONCE})
            for day, project, digest, raw_rows, late_rows, lag in rows_read:
                rows = Digest.parse(digest).rows
                raw = rows if raw_rows is None else int(raw_rows)
                yield SliceFigures(day, project, rows, raw, max(0, raw - rows), int(late_rows or 0), lag or 0.0)

    def check_figures(self, names: Sequence[str], projects: Sequence[str]) -> dict[str, list[CheckFigure]]:
        """Return name -> the non-zero figures that checks measured of published or refused slices, in one pass."""
        found: dict[str, list[CheckFigure]] = {name: [] for name in names}
        texts = [sa.cast(column, sa.Text) for column in (SLICES.c.evaluations, SLICES.c.refused_evaluations)]
        is_any = sa.or_(*(_is_not_zero(text, name) for text in texts for name in names))
        columns = (SLICES.c.table_name, SLICES.c.event_date, SLICES.c.project_id)
        query = sa.select(*columns, *texts).where(SLICES.c.project_id.in_(projects), is_any)
        for *place, of_published, of_refused in self._rows(query):
            for text in (of_published, of_refused):
                measured = [one["figures"] for one in json.loads(text or "null") or ()]
                for name in names:
                    if value := sum(figures.get(name, 0) for figures in measured):
                        found[name].append(CheckFigure._make((*place, value)))
        return found

    def run_times(self) -> list[RunTime]:
        """Return every recorded load that went through all its tables, by end time."""
        columns = (RUNS.c.tables, RUNS.c.started_at, RUNS.c.finished_at, RUNS.c.verdicts)
        query = sa.select(*columns).where(RUNS.c.finished_at.is_not(None)).order_by(RUNS.c.finished_at)
        found = []
        for tables, started, finished, verdicts in self._rows(query):
            kind = next((source for table, source in _SOURCES.items() if table in (tables or ())), LOAD_KINDS[-1])
            ended = datetime.fromisoformat(finished)
            seconds = max(0.0, (ended - datetime.fromisoformat(started)).total_seconds())
            left = {name.rpartition(" ")[2] for name, count in (verdicts or {}).items() if count}
            found.append(RunTime(kind, ended, seconds, left <= _GOOD))
        return found

    def _counts(
        self, table: sa.Table, place: sa.Column[Any], day: sa.Column[Any], projects: Sequence[str]
    ) -> list[VerdictCount]:
        query = sa.select(place, day, table.c.verdict, sa.func.count()).where(table.c.project_id.in_(projects))
        return [(*row,) for row in self._rows(query.group_by(table.c.verdict, place, day))]

    def arrivals(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> list[tuple[str, date, date, int]]:
        """Return (project, arrival day, event day, rows in raw) of arrivals in the range."""
        columns = (BATCH_DAYS.c.project_id, BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.event_date, BATCH_DAYS.c.digest)
        query = sa.select(*columns).where(*arrived_within(BATCH_DAYS, source, projects, first, last))
        return [(project, at, day, Digest.parse(text).rows) for project, at, day, text in self._rows(query)]

    def lateness(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> list[tuple[str, date, LatenessSketch | None]]:
        """Return (project, arrival day, lateness sketch) of each non-empty batch day in the range; None = not measured."""
        columns = (BATCH_DAYS.c.project_id, BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.lateness)
        within = arrived_within(BATCH_DAYS, source, projects, first, last)
        return [
            (project, day, None if text is None else LatenessSketch.from_text(text))
            for project, day, text in self._rows(sa.select(*columns).where(*within, BATCH_DAYS.c.digest != str(EMPTY)))
        ]

    def arrived(self, source: Source | None, projects: Sequence[str], first: date, last: date) -> list[ArrivedOn]:
        """Return objects, stored bytes and rows per project and arrival day in the range, of the versions in raw."""
        c, sums = DELIVERIES.c, sa.func.sum
        figures = [sa.func.coalesce(one, 0) for one in (sums(c.size_bytes), sa.func.max(c.size_bytes), sums(c.rows))]
        within = arrived_within(DELIVERIES, source, projects, first, last)
        query = sa.select(c.project_id, c.arrival_date, sa.func.count(), *figures).where(*within, c.is_accepted)
        rows = self._rows(query.group_by(c.project_id, c.arrival_date).order_by(c.project_id, c.arrival_date))
        return [ArrivedOn._make((*row[:2], *map(int, row[2:]))) for row in rows]

    def refused_lines(self, projects: Sequence[str]) -> list[RefusedLines]:
        """Return refused and unreadable content per arrival day and reason, of versions in raw and last refused versions."""
        c = DELIVERIES.c
        columns = (c.arrival_date, c.error, sa.cast(c.line_reasons, sa.Text))
        query = sa.select(*columns, sa.func.count(), sa.func.coalesce(sa.func.sum(c.quarantined), 0))
        query = query.where(c.project_id.in_(projects), HAS_REFUSALS).group_by(*columns)
        found: dict[tuple[date, bool, str | None], tuple[int, int]] = {}
        for day, error, reasons, count, lines in self._rows(query):
            of_lines = json.loads(reasons) if reasons and error is None else {}
            named = {reason: each * count for reason, each in of_lines.items()} or {error: int(lines)}
            for reason, of_reason in named.items():
                objects, known = found.get((day, error is not None, reason), (0, 0))
                found[day, error is not None, reason] = objects + count, known + of_reason
        lines_of = [RefusedLines(*place, *sums) for place, sums in found.items()]
        return sorted(lines_of, key=lambda one: (one.day, one.is_whole, one.reason or ""))


def _is_not_zero(text: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Comparing texts finds the few non-zero figures without parsing JSON."""
    zeros = [text.not_like(f'%"{name}": {zero}{end}%') for zero in ("0", "0.0") for end in (",", "}")]
    return sa.and_(text.like(f'%"{name}":%'), *zeros)


def _fault(place: str, day: date, project_id: str, verdict: str, reason: str, cure: str, *evaluated: Any) -> Fault:
    read = tuple(Evaluation.from_json(one) for one in evaluated[0] or ())
    warned = next((one for one in read if not one.is_passed), None)
    reason, hint = reason or (warned and warned.reason) or "", cure or (warned and warned.hint) or ""
    return Fault(place, day, project_id, verdict, reason, hint, read, next(iter(evaluated[1:]), 0) or 0)
