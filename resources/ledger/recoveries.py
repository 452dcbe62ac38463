"""Records about landing: claims of recoveries on hours, and strays, which no load will ever request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from pipeline_assets.domain.days import Hour, ends_of
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.slices import Source
from resources.ledger.engine import Writes
from resources.ledger.schema import DELIVERIES, RECOVERIES, RUNS, STRAYS

_LONGEST_HOUR = timedelta(hours=6)
"""How long an open claim counts: after that, a dead recovery no longer hides the hour from loads."""
_LONGEST_LISTING = timedelta(hours=1)
"""How long an ended claim counts: a listing from before the marker was written is never older."""


@dataclass(frozen=True)
class OpenClaim:
    """An hour whose recovery began and has no recorded end: it is running, failed or died."""

    project_id: str
    hour: Hour
    begun_at: datetime


class Recoveries(Writes):
    """Reads and writes claims; each write is one transaction."""

    def begin(self, project_id: str, hour: Hour, brought: Mapping[str, int] | None = None) -> None:
        """Claim an hour, before its first object is written.

        `brought`: object -> size, of what is going to be written for an hour on record as missing.
        """
        values: dict[str, Any] = {"begun_at": datetime.now(UTC).isoformat(), "ended_at": None}
        with self._write() as connection:
            if brought:
                known = connection.execute(sa.select(RECOVERIES.c.brought).where(*_is_hour(project_id, hour))).scalar()
                values["brought"] = {**(known or {}), **brought}
            updated = connection.execute(RECOVERIES.update().where(*_is_hour(project_id, hour)).values(values))
            if not updated.rowcount:
                key = {"project_id": project_id, "arrival_date": hour.day, "hour": hour.hour}
                connection.execute(RECOVERIES.insert(), key | values)

    def end(self, project_id: str, hour: Hour) -> None:
        """End the claim of an hour, after its marker is written; does nothing where there is no claim."""
        with self._write() as connection:
            ended = {"ended_at": datetime.now(UTC).isoformat()}
            connection.execute(RECOVERIES.update().where(*_is_hour(project_id, hour)).values(ended))

    def open(self, projects: Sequence[str]) -> list[OpenClaim]:
        """Return open claims by project and hour; a recovery that died after writing its marker leaves one as well."""
        c = RECOVERIES.c
        query = sa.select(c.project_id, c.arrival_date, c.hour, c.begun_at).where(
            c.project_id.in_(projects), c.ended_at.is_(None)
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(c.project_id, c.arrival_date, c.hour))
            return [OpenClaim(project, Hour(day, hour), datetime.fromisoformat(at)) for project, day, hour, at in rows]

    def brought(self, project_id: str, first: date, last: date, since: str) -> dict[str, int]:
        """Return object -> size, of what recoveries wrote for hours that were on record as missing.

        Also of one that died over its end. Without objects that a load which began at `since` or before has recorded: its
        baseline holds them.
        """
        c, d = RECOVERIES.c, DELIVERIES.c
        query = sa.select(c.brought).where(c.project_id == project_id, c.arrival_date.between(first, last))
        is_accepted = (d.source == Source.BACKFILL.value, d.project_id == project_id, d.is_accepted)
        known = (
            sa.select(d.object_key)
            .outerjoin(RUNS, RUNS.c.run_id == d.run_id)
            .where(*is_accepted, d.arrival_date.between(first, last), sa.func.coalesce(RUNS.c.started_at, "") <= since)
        )
        with self._read() as connection:
            written = {
                key: size for found in connection.execute(query).scalars() for key, size in (found or {}).items()
            }
            before = set(connection.execute(known).scalars()) if written else set()
            return {key: size for key, size in written.items() if key not in before}

    def is_open(self, project_id: str, hour: Hour) -> bool:
        """Whether a recovery claimed this hour and has not ended."""
        query = sa.select(sa.func.count()).where(*_is_hour(project_id, hour), RECOVERIES.c.ended_at.is_(None))
        with self._read() as connection:
            return bool(connection.execute(query).scalar_one())

    def hours(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, dict[int, bool]]:
        """Return batch -> claimed hour -> whether the claim is open, both days included. Call it after listing landing.

        A marker outweighs a claim that ended; under an open one it may say "no data" of an hour that is asked for again.
        """
        now = datetime.now(UTC)
        begun, ended = ((now - longest).isoformat() for longest in (_LONGEST_HOUR, _LONGEST_LISTING))
        columns = (RECOVERIES.c.project_id, RECOVERIES.c.arrival_date, RECOVERIES.c.hour, RECOVERIES.c.ended_at)
        query = sa.select(*columns).where(
            RECOVERIES.c.project_id.in_(projects),
            RECOVERIES.c.arrival_date.between(first, last),
            sa.or_(
                sa.and_(RECOVERIES.c.ended_at.is_(None), RECOVERIES.c.begun_at > begun), RECOVERIES.c.ended_at > ended
            ),
        )
        found: dict[BatchKey, dict[int, bool]] = {}
        with self._read() as connection:
            for project, day, hour, ended_at in connection.execute(query):
                found.setdefault(BatchKey(Source.BACKFILL, project, day), {})[hour] = ended_at is None
        return found


def _is_hour(project_id: str, hour: Hour) -> tuple[sa.ColumnElement[bool], ...]:
    columns = RECOVERIES.c
    return columns.project_id == project_id, columns.arrival_date == hour.day, columns.hour == hour.hour


class Strays(Writes):
    """Reads and writes strays; each write is one transaction."""

    def all(self, projects: Sequence[str]) -> dict[str, BatchKey]:
        """Return object key -> the batch that the key names, sorted by key."""
        query = sa.select(STRAYS).where(STRAYS.c.project_id.in_(projects)).order_by(STRAYS.c.object_key)
        with self._read() as connection:
            return {
                row["object_key"]: BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"])
                for row in connection.execute(query).mappings()
            }

    def replace(self, source: Source, projects: Sequence[str], strays: Iterable[Delivery]) -> None:
        """Replace the recorded strays of a source and projects."""
        present = {stray.key: stray.batch for stray in ends_of(strays)}
        known = {key: batch for key, batch in self.all(projects).items() if batch.source is source}
        if known == present:
            return
        now = datetime.now(UTC).isoformat()
        with self._write() as connection:
            connection.execute(
                STRAYS.delete().where(STRAYS.c.source == source.value, STRAYS.c.project_id.in_(projects))
            )
            rows = [
                {
                    "source": source.value,
                    "project_id": batch.project_id,
                    "arrival_date": batch.arrival_date,
                    "object_key": key,
                    "seen_at": now,
                }
                for key, batch in present.items()
            ]
            if rows:
                connection.execute(STRAYS.insert(), rows)
