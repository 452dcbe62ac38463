"""Hours whose recovery has begun: until their marker is there, landing may hold a part of them alone.

Contains: the claims of recoveries, and which of them count.
Add here: another thing that a recovery tells loads.
Does not contain: recovering (pipeline_assets/operations/recover.py), what a load leaves out for it
(pipeline_assets/load/deliveries/batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.hours import Hour
from pipeline_assets.domain.slices import Source
from resources.ledger.schema import RECOVERIES

_Connect = Callable[[], AbstractContextManager[Connection]]
_LONGEST_HOUR = timedelta(hours=6)
"""So long a claim counts without its end: a recovery that died for good hides what lies there no longer."""
_LONGEST_LISTING = timedelta(hours=1)
"""So long a claim counts after its end: a listing that began before the marker came is not older."""


@dataclass(frozen=True)
class OpenClaim:
    """An hour whose recovery began and is not on record as ended: it is at work, failed or died."""

    project_id: str
    hour: Hour
    begun_at: datetime


class Recoveries:
    """Reads and writes of claims; each write is one transaction."""

    def __init__(self, read: _Connect, write: _Connect) -> None:
        """Wrap a ledger's ways of connecting."""
        self._read, self._write = read, write

    def begin(self, project_id: str, hour: Hour) -> None:
        """Before the first object of an hour is written."""
        values = {"begun_at": datetime.now(UTC).isoformat(), "ended_at": None}
        with self._write() as connection:
            updated = connection.execute(RECOVERIES.update().where(*_is(project_id, hour)).values(values))
            if not updated.rowcount:
                key = {"project_id": project_id, "arrival_date": hour.day, "hour": hour.hour}
                connection.execute(RECOVERIES.insert(), key | values)

    def end(self, project_id: str, hour: Hour) -> None:
        """After the marker of an hour is written; nothing happens where nobody claimed it."""
        with self._write() as connection:
            ended = {"ended_at": datetime.now(UTC).isoformat()}
            connection.execute(RECOVERIES.update().where(*_is(project_id, hour)).values(ended))

    def open(self, projects: Sequence[str]) -> list[OpenClaim]:
        """Claims that have not ended, by project and hour; a recovery that died behind its marker leaves one as well."""
        c = RECOVERIES.c
        query = sa.select(c.project_id, c.arrival_date, c.hour, c.begun_at).where(
            c.project_id.in_(projects), c.ended_at.is_(None)
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(c.project_id, c.arrival_date, c.hour))
            return [OpenClaim(project, Hour(day, hour), datetime.fromisoformat(at)) for project, day, hour, at in rows]

    def is_open(self, project_id: str, hour: Hour) -> bool:
        """Whether a recovery claimed this hour and has not ended."""
        query = sa.select(sa.func.count()).where(*_is(project_id, hour), RECOVERIES.c.ended_at.is_(None))
        with self._read() as connection:
            return bool(connection.execute(query).scalar_one())

    def hours(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, frozenset[int]]:
        """The claimed hours of arrival days, both ends included. Ask after landing is listed, and believe a marker more."""
        now = datetime.now(UTC)
        begun, ended = ((now - longest).isoformat() for longest in (_LONGEST_HOUR, _LONGEST_LISTING))
        query = sa.select(RECOVERIES.c.project_id, RECOVERIES.c.arrival_date, RECOVERIES.c.hour).where(
            RECOVERIES.c.project_id.in_(projects),
            RECOVERIES.c.arrival_date.between(first, last),
            sa.or_(
                sa.and_(RECOVERIES.c.ended_at.is_(None), RECOVERIES.c.begun_at > begun), RECOVERIES.c.ended_at > ended
            ),
        )
        found: dict[BatchKey, frozenset[int]] = {}
        with self._read() as connection:
            for project, day, hour in connection.execute(query):
                key = BatchKey(Source.BACKFILL, project, day)
                found[key] = found.get(key, frozenset()) | {hour}
        return found


def _is(project_id: str, hour: Hour) -> tuple[sa.ColumnElement[bool], ...]:
    columns = RECOVERIES.c
    return columns.project_id == project_id, columns.arrival_date == hour.day, columns.hour == hour.hour
