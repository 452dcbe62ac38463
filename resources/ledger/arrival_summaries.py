"""Figures over years of arrivals, computed by the database: objects, rows, lateness and refusals."""

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
    """Refused lines and objects of one arrival day with the same reason, or unreadable values of one column."""

    day: date
    error: str | None
    """Why whole objects were refused; None where only lines of readable objects were."""
    objects: int
    lines: int
    line_reason: str | None = None
    """A key of `DeliveryRecord.line_reasons`; None where an older version recorded none. An object counts in each of its own."""


@dataclass(frozen=True)
class ArrivedOn:
    """What arrived on one day and is in raw."""

    project_id: str
    day: date
    objects: int
    size_bytes: int
    rows: int


class ArrivalSummaries:
    """Reads arrivals without creating a record per row, so that each query over years takes less than a second."""

    def __init__(self, read: _Connect) -> None:
        """Take `read`, which opens a connection."""
        self._read = read

    def arrivals(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> list[tuple[str, date, date, int]]:
        """Return (project, arrival day, event day, rows in raw) of arrivals in the range."""
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
        """Return (project, arrival day, lateness sketch) of each non-empty batch day in the range; None = not measured."""
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
        """Return objects, stored bytes and rows per project and arrival day in the range, of the versions in raw."""
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
        """Return what is refused or unreadable per arrival day and reason, of versions in raw and of last refused versions."""
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
            # Every object of the group has these same counts.
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
