"""Figures over years of records, computed by the database: verdicts, rows, checks and runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.records import HOURS_HELD
from pipeline_assets.domain.slices import BatchVerdict, Digest, Source, Verdict
from resources.ledger.schema import BATCHES, RUNS, SLICES

_Connect = Callable[[], AbstractContextManager[Connection]]
_RED = [verdict.value for verdict in Verdict if not verdict.is_good]
_OPEN = [verdict.value for verdict in BatchVerdict if verdict is not BatchVerdict.ACCEPTED]
"""List the verdicts to find: an index finds rows with these few verdicts, but cannot search for "not accepted"."""
_ROWS_AT_ONCE = 5_000


@dataclass(frozen=True)
class VerdictCount:
    """The number of projects with a verdict on a day."""

    place: str
    """A table's key, or of batches the source."""
    day: date
    verdict: str
    projects: int


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


@dataclass(frozen=True)
class FinishedRun:
    """A load that went through all its tables."""

    run_id: str
    tables: frozenset[str]
    first_day: date
    last_day: date
    started_at: str
    finished_at: str
    verdicts: Mapping[str, int]
    """`refined/events published` -> number of slices."""


class Summaries:
    """Reads the whole ledger without creating a record per row: each query over years takes less than a second."""

    def __init__(self, read: _Connect) -> None:
        """Take `read`, which opens a connection."""
        self._read = read

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

    def finished_runs(self) -> list[FinishedRun]:
        """Return every recorded load that went through all its tables, by end time."""
        columns = (
            RUNS.c.run_id,
            RUNS.c.tables,
            RUNS.c.first_day,
            RUNS.c.last_day,
            RUNS.c.started_at,
            RUNS.c.finished_at,
            RUNS.c.verdicts,
        )
        query = sa.select(*columns).where(RUNS.c.finished_at.is_not(None)).order_by(RUNS.c.finished_at)
        with self._read() as connection:
            return [
                FinishedRun(run_id, frozenset(tables or ()), first, last, started, finished, verdicts or {})
                for run_id, tables, first, last, started, finished, verdicts in connection.execute(query)
            ]

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
            return [VerdictCount(*row) for row in connection.execute(query)]


def _is_not_zero(text: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Almost all figures are zero; comparing the text finds the others without parsing JSON."""
    zeros = [text.not_like(f'%"{name}": {zero}{end}%') for zero in ("0", "0.0") for end in (",", "}")]
    return sa.and_(text.like(f'%"{name}":%'), *zeros)


def _fault(row: RowMapping, place: str, day: date, evaluations: Any, deliveries: int = 0) -> Fault:
    read = tuple(Evaluation.from_json(one) for one in evaluations or ())
    warned = next((one for one in read if not one.is_passed), None)
    reason, hint = row["reason"] or (warned and warned.reason) or "", row["cure"] or (warned and warned.hint) or ""
    return Fault(place, day, row["project_id"], row["verdict"], reason, hint, read, deliveries)
