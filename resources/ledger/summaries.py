"""Figures over years of records, counted by the database: of verdicts, rows, checks and runs.

Contains: one query per figure, and the plain rows that it gives.
Add here: another figure of which the database can hold the sums.
Does not contain: what arrived (arrival_summaries.py), what figures mean and how they are joined
(pipeline_assets/inspection/health/), questions of a load (store.py), changes of what was published
(revisions.py).
"""

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
from pipeline_assets.domain.slices import BatchVerdict, Digest, Source, Verdict
from resources.ledger.schema import BATCHES, RUNS, SLICES

_Connect = Callable[[], AbstractContextManager[Connection]]
_RED = [verdict.value for verdict in Verdict if not verdict.is_good]
_OPEN = [verdict.value for verdict in BatchVerdict if verdict is not BatchVerdict.ACCEPTED]
"""Named one by one: by the verdicts that they have the few are found, by one that they have not nothing is."""
_ROWS_AT_ONCE = 5_000


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
class FinishedRun:
    """A load that went through all its tables."""

    run_id: str
    tables: frozenset[str]
    first_day: date
    last_day: date
    started_at: str
    finished_at: str
    verdicts: Mapping[str, int]
    """`refined/events published` -> of how many slices."""


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
        query = sa.select(SLICES).where(SLICES.c.project_id.in_(projects), SLICES.c.verdict.in_(_RED))
        with self._read() as connection:
            order = (SLICES.c.event_date, SLICES.c.project_id, SLICES.c.table_name)
            rows = connection.execute(query.order_by(*order)).mappings()
            return [_fault(row, row["table_name"], row["event_date"], row["refused_evaluations"]) for row in rows]

    def batch_faults(self, projects: Sequence[str]) -> list[Fault]:
        """The batches that are refused, waiting or moved, in the order of days."""
        query = sa.select(BATCHES).where(BATCHES.c.project_id.in_(projects), BATCHES.c.verdict.in_(_OPEN))
        with self._read() as connection:
            order = (BATCHES.c.arrival_date, BATCHES.c.project_id, BATCHES.c.source)
            rows = connection.execute(query.order_by(*order)).mappings()
            return [
                _fault(row, row["source"], row["arrival_date"], row["evaluations"], row["deliveries"] or 0)
                for row in rows
            ]

    def slice_figures(self, table: str, projects: Sequence[str]) -> Iterator[SliceFigures]:
        """What was measured of every slice of refined.events, in no order; years of them are in memory only as they are kept."""
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
        """Figures that checks measured of slices that are published or refused, by name, where they are not zero.

        All are looked for in one pass: it reads the texts of every slice on record.
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
        """Every load on record that went through all its tables, by its end."""
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
            # In the order of an index that holds all of it.
            .group_by(table.c.verdict, place, day)
        )
        with self._read() as connection:
            return [VerdictCount(*row) for row in connection.execute(query)]


def _is_not_zero(text: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Almost all are zero, which the text tells without reading it as JSON."""
    zeros = [text.not_like(f'%"{name}": {zero}{end}%') for zero in ("0", "0.0") for end in (",", "}")]
    return sa.and_(text.like(f'%"{name}":%'), *zeros)


def _fault(row: RowMapping, place: str, day: date, evaluations: Any, deliveries: int = 0) -> Fault:
    read = tuple(Evaluation.from_json(one) for one in evaluations or ())
    reason, hint = row["reason"] or "", row["cure"] or ""
    return Fault(place, day, row["project_id"], row["verdict"], reason, hint, read, deliveries)
