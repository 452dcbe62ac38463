"""Figures over years of what arrived, counted by the database: objects, rows, lateness and what was refused of them.

Contains: one query per figure, and the plain rows that it gives.
Add here: another figure of arrivals of which the database can hold the sums.
Does not contain: figures of slices, batches and runs (summaries.py), what figures mean
(pipeline_assets/inspection/).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.slices import EMPTY, Digest, Source
from resources.ledger.schema import BATCH_DAYS, DELIVERIES, HAS_REFUSALS

_Connect = Callable[[], AbstractContextManager[Connection]]


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


class ArrivalSummaries:
    """Reads of all that arrived, which never turn every row into a record: each answers within a second over years."""

    def __init__(self, read: _Connect) -> None:
        """`read` opens a connection."""
        self._read = read

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
                HAS_REFUSALS,
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
