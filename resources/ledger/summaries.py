"""Figures over years of records, counted by the database: of verdicts, rows, lateness, quarantine and runs.

Contains: one query per figure, and the plain rows that it gives.
Add here: another figure of which the database can hold the sums.
Does not contain: what figures mean and how they are joined (pipeline_assets/inspection/health/),
questions of a load (store.py), changes of what was
published (revisions.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Source, Verdict
from resources.ledger.schema import BATCH_DAYS, BATCHES, DELIVERIES, RUNS, SLICES

_Connect = Callable[[], AbstractContextManager[Connection]]
_GOOD = [verdict.value for verdict in Verdict if verdict.is_good]


@dataclass(frozen=True)
class VerdictCount:
    """How many projects of a day have a verdict."""

    place: str
    """A table's key, or of batches the source."""
    day: date
    verdict: str
    projects: int


@dataclass(frozen=True)
class Fault:
    """A slice or batch that is not good, in the words on record."""

    place: str
    """A table's key, or of batches the source."""
    day: date
    project_id: str
    verdict: str
    reason: str
    hint: str
    evaluations: tuple[Evaluation, ...]
    """Of what was refused."""
    deliveries: int = 0
    """Of a batch: objects that it holds."""


@dataclass(frozen=True)
class SliceFigures:
    """What the audit of one slice of refined.events measured."""

    day: date
    project_id: str
    rows: int
    raw_rows: int
    removed: int
    """Raw rows that are no row of the slice: duplicates of any kind."""
    late_rows: int
    """Rows that were uploaded on a later day than their own."""
    lag_seconds: float
    """From the newest event to the newest upload."""


@dataclass(frozen=True)
class CheckFigure:
    """A figure that a check measured of a slice or a batch."""

    table: str
    day: date
    project_id: str
    value: float


@dataclass(frozen=True)
class RefusedLines:
    """Refused lines and objects of one arrival day that have the same reason."""

    day: date
    error: str | None
    """Why whole objects are refused; None of objects that are read, but for some lines."""
    objects: int
    lines: int
    line_reason: str | None = None
    """Why single lines are refused; None where an older version recorded them. Objects with lines of several are in each."""


@dataclass(frozen=True)
class ArrivedOn:
    """What arrived on one day, as far as raw holds it."""

    project_id: str
    day: date
    objects: int
    size_bytes: int
    rows: int


@dataclass(frozen=True)
class FinishedRun:
    """A load that went through all its tables."""

    run_id: str
    tables: frozenset[str]
    first_day: date
    last_day: date
    started_at: str
    finished_at: str


class Summaries:
    """Reads of the whole ledger, which never turn every row into a record: each answers within a second over years."""

    def __init__(self, read: _Connect) -> None:
        """`read` opens a connection."""
        self._read = read

    def slice_verdicts(self, projects: Sequence[str]) -> list[VerdictCount]:
        """Of each table and event day, how many projects have which verdict."""
        return self._counts(SLICES, SLICES.c.table_name, SLICES.c.event_date, projects)

    def batch_verdicts(self, projects: Sequence[str]) -> list[VerdictCount]:
        """Of each source and arrival day, how many projects have which verdict."""
        return self._counts(BATCHES, BATCHES.c.source, BATCHES.c.arrival_date, projects)

    def first_days(self, projects: Sequence[str]) -> dict[str, date]:
        """Project -> the first arrival day that a regular load looked at and found deliveries of."""
        query = sa.select(BATCHES.c.project_id, sa.func.min(BATCHES.c.arrival_date)).where(
            BATCHES.c.project_id.in_(projects), BATCHES.c.source == Source.REGULAR.value, BATCHES.c.deliveries > 0
        )
        with self._read() as connection:
            rows = connection.execute(query.group_by(BATCHES.c.project_id))
            return {row[0]: row[1] for row in rows}

    def slice_faults(self, projects: Sequence[str]) -> list[Fault]:
        """The slices that are refused, waiting or held, in the order of days."""
        query = sa.select(SLICES).where(SLICES.c.project_id.in_(projects), SLICES.c.verdict.not_in(_GOOD))
        with self._read() as connection:
            order = (SLICES.c.event_date, SLICES.c.project_id, SLICES.c.table_name)
            rows = connection.execute(query.order_by(*order)).mappings()
            return [_fault(row, row["table_name"], row["event_date"], row["refused_evaluations"]) for row in rows]

    def batch_faults(self, projects: Sequence[str]) -> list[Fault]:
        """The batches that are refused, waiting or moved, in the order of days."""
        query = sa.select(BATCHES).where(
            BATCHES.c.project_id.in_(projects), BATCHES.c.verdict != BatchVerdict.ACCEPTED.value
        )
        with self._read() as connection:
            order = (BATCHES.c.arrival_date, BATCHES.c.project_id, BATCHES.c.source)
            rows = connection.execute(query.order_by(*order)).mappings()
            return [
                _fault(row, row["source"], row["arrival_date"], row["evaluations"], row["deliveries"] or 0)
                for row in rows
            ]

    def slice_figures(self, table: str, projects: Sequence[str]) -> list[SliceFigures]:
        """What was measured of every slice of refined.events."""
        names = ("raw_rows", "late_rows", "watermark_lag_seconds")
        measured = [SLICES.c.figures[name].as_float() for name in names]
        query = sa.select(SLICES.c.event_date, SLICES.c.project_id, SLICES.c.digest, *measured).where(
            SLICES.c.table_name == table, SLICES.c.project_id.in_(projects)
        )
        found = []
        with self._read() as connection:
            for day, project, digest, raw_rows, late_rows, lag in connection.execute(query):
                rows = Digest.parse(digest).rows
                raw = rows if raw_rows is None else int(raw_rows)
                found.append(SliceFigures(day, project, rows, raw, max(0, raw - rows), int(late_rows or 0), lag or 0.0))
        return found

    def check_figure(self, name: str, projects: Sequence[str]) -> list[CheckFigure]:
        """A figure that checks measured of slices that are published or refused, where it is not zero."""
        found = []
        for column in (SLICES.c.evaluations, SLICES.c.refused_evaluations):
            text = sa.cast(column, sa.Text)
            # Almost all are zero, which the text tells without reading it as JSON.
            zeros = [text.not_like(f'%"{name}": {zero}{end}%') for zero in ("0", "0.0") for end in (",", "}")]
            query = sa.select(SLICES.c.table_name, SLICES.c.event_date, SLICES.c.project_id, text).where(
                SLICES.c.project_id.in_(projects), text.like(f'%"{name}":%'), *zeros
            )
            with self._read() as connection:
                for table, day, project, evaluations in connection.execute(query):
                    value = sum(one["figures"].get(name, 0) for one in json.loads(evaluations))
                    found.append(CheckFigure(table, day, project, value))
        return found

    def arrivals(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> list[tuple[str, date, date, int]]:
        """Project, arrival day, event day and rows in raw, of what arrived in the range."""
        query = sa.select(
            BATCH_DAYS.c.project_id, BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.event_date, BATCH_DAYS.c.digest
        ).where(
            BATCH_DAYS.c.source == source.value,
            BATCH_DAYS.c.project_id.in_(projects),
            BATCH_DAYS.c.arrival_date.between(first, last),
        )
        with self._read() as connection:
            return [(project, at, day, Digest.parse(text).rows) for project, at, day, text in connection.execute(query)]

    def lateness(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> list[tuple[str, date, LatenessSketch | None]]:
        """Project, arrival day and sketch of each batch day with rows that arrived in the range; None = not measured."""
        columns = (BATCH_DAYS.c.project_id, BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.lateness)
        query = sa.select(*columns).where(
            BATCH_DAYS.c.source == source.value,
            BATCH_DAYS.c.project_id.in_(projects),
            BATCH_DAYS.c.arrival_date.between(first, last),
            BATCH_DAYS.c.digest != str(EMPTY),
        )
        with self._read() as connection:
            return [
                (project, day, None if text is None else LatenessSketch.from_text(text))
                for project, day, text in connection.execute(query)
            ]

    def arrived(self, source: Source, projects: Sequence[str], first: date, last: date) -> list[ArrivedOn]:
        """Objects, stored bytes and rows per project and arrival day in the range, of the versions that raw holds."""
        names = (DELIVERIES.c.project_id, DELIVERIES.c.arrival_date)
        sums = (sa.func.coalesce(sa.func.sum(column), 0) for column in (DELIVERIES.c.size_bytes, DELIVERIES.c.rows))
        query = sa.select(*names, sa.func.count(), *sums).where(
            DELIVERIES.c.source == source.value,
            DELIVERIES.c.project_id.in_(projects),
            DELIVERIES.c.arrival_date.between(first, last),
            DELIVERIES.c.is_accepted,
        )
        with self._read() as connection:
            rows = connection.execute(query.group_by(*names))
            return [ArrivedOn(project, day, n, int(size), int(count)) for project, day, n, size, count in rows]

    def refused_lines(self, projects: Sequence[str]) -> list[RefusedLines]:
        """Refused lines and objects per arrival day and reason, of the versions that raw holds or that were refused last."""
        columns = (DELIVERIES.c.arrival_date, DELIVERIES.c.error, sa.cast(DELIVERIES.c.line_reasons, sa.Text))
        query = (
            sa.select(*columns, sa.func.count(), sa.func.coalesce(sa.func.sum(DELIVERIES.c.quarantined), 0))
            .where(
                DELIVERIES.c.project_id.in_(projects),
                sa.or_(DELIVERIES.c.quarantined > 0, DELIVERIES.c.error.is_not(None)),
            )
            .group_by(*columns)
        )
        with self._read() as connection:
            groups = [tuple(row) for row in connection.execute(query)]
        found: Counter[tuple[date, str | None, str | None]] = Counter()
        objects: Counter[tuple[date, str | None, str | None]] = Counter()
        for day, error, reasons, count, lines in groups:
            # Of each object of the group the same.
            told = json.loads(reasons) if reasons else {}
            named = {reason: each * count for reason, each in told.items()} if told else {None: int(lines)}
            for reason, of_reason in named.items():
                found[day, error, reason] += of_reason
                objects[day, error, reason] += count
        refused = [
            RefusedLines(day, error, objects[day, error, reason], lines, reason)
            for (day, error, reason), lines in found.items()
        ]
        return sorted(refused, key=lambda one: (one.day, one.error or "", one.line_reason or ""))

    def finished_runs(self) -> list[FinishedRun]:
        """Every load on record that went through all its tables, by its end."""
        columns = (
            RUNS.c.run_id,
            RUNS.c.tables,
            RUNS.c.first_day,
            RUNS.c.last_day,
            RUNS.c.started_at,
            RUNS.c.finished_at,
        )
        query = sa.select(*columns).where(RUNS.c.finished_at.is_not(None)).order_by(RUNS.c.finished_at)
        with self._read() as connection:
            return [
                FinishedRun(run_id, frozenset(tables or ()), *values)
                for run_id, tables, *values in connection.execute(query)
            ]

    def _counts(
        self, table: sa.Table, place: sa.Column[Any], day: sa.Column[Any], projects: Sequence[str]
    ) -> list[VerdictCount]:
        query = (
            sa.select(place, day, table.c.verdict, sa.func.count())
            .where(table.c.project_id.in_(projects))
            .group_by(place, day, table.c.verdict)
        )
        with self._read() as connection:
            return [VerdictCount(*row) for row in connection.execute(query)]


def _fault(row: RowMapping, place: str, day: date, evaluations: Any, deliveries: int = 0) -> Fault:
    read = tuple(Evaluation.from_json(one) for one in evaluations or ())
    reason, hint = row["reason"] or "", row["cure"] or ""
    return Fault(place, day, row["project_id"], row["verdict"], reason, hint, read, deliveries)
