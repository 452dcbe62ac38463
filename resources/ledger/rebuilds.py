"""Rebuilds on record: what was asked for, how far each is, and what it made of each slice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.days import Hour, ends_of
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.errors import TakenOverError, UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, ReportedSlice, SliceDifference
from pipeline_assets.domain.slices import Digest, Slice, Source
from resources.ledger.engine import Writes
from resources.ledger.schema import (
    DELIVERIES,
    PUBLICATIONS,
    REBUILDS,
    REBUILT_SLICES,
    RECOVERIES,
    RUNS,
    STRAYS,
    slice_of,
    slice_row,
)

_OPEN = [state.value for state in RebuildState if state.is_open]


class Rebuilds(Writes):
    """Reads and writes of rebuilds; each write is one transaction."""

    def all(self) -> list[RebuildRecord]:
        """Every rebuild on record, oldest first."""
        with self._read() as connection:
            return [_rebuild_of(row) for row in _rows(connection, sa.true())]

    def open(self) -> list[RebuildRecord]:
        """Those that a person has not answered yet, oldest first."""
        with self._read() as connection:
            return [_rebuild_of(row) for row in _rows(connection, REBUILDS.c.state.in_(_OPEN))]

    def find(self, number: int) -> RebuildRecord | None:
        """The rebuild of this number."""
        with self._read() as connection:
            return next((_rebuild_of(row) for row in _rows(connection, REBUILDS.c.number == number)), None)

    def get(self, number: int) -> RebuildRecord:
        """The same; raises UsageError where there is none."""
        rebuild = self.find(number)
        if rebuild is None:
            raise UsageError(f"rebuild {number}", "is not on record", "`tidemark rebuild show` lists them")
        return rebuild

    def open_like(self, asked: RebuildRecord) -> RebuildRecord | None:
        """The open rebuild about exactly the same slices; raises UsageError where an open one shares only some of them."""
        with self._read() as connection:
            return _open_like(connection, asked)

    def begin(self, asked: RebuildRecord) -> RebuildRecord:
        """Record it, or give the open one about the same slices; raises UsageError where an open one shares some of them.

        The number of `asked` is given here.
        """
        with self._write() as connection:
            same = _open_like(connection, asked)
            if same is not None:
                return same
            started = replace(asked, started_at=_now())
            number = connection.execute(REBUILDS.insert().returning(REBUILDS.c.number), _row(started)).scalar_one()
            return replace(started, number=int(number))

    def claim(self, rebuild: RebuildRecord, run_id: str) -> RebuildRecord:
        """From now on this run works on it; raises TakenOverError where another one came first."""
        is_as_read = REBUILDS.c.run_id.is_(None) if rebuild.run_id is None else REBUILDS.c.run_id == rebuild.run_id
        with self._write() as connection:
            claimed = connection.execute(
                REBUILDS.update().where(REBUILDS.c.number == rebuild.number, is_as_read).values(run_id=run_id)
            ).rowcount
        if not claimed:
            raise _taken(rebuild)
        return replace(rebuild, run_id=run_id)

    def change(self, rebuild: RebuildRecord, **values: Any) -> RebuildRecord:
        """Write what became of it; raises TakenOverError where another run works on it by now."""
        changed = replace(rebuild, **values)
        with self._write() as connection:
            _require_own(connection, rebuild)
            connection.execute(REBUILDS.update().where(REBUILDS.c.number == rebuild.number).values(_row(changed)))
        return changed

    def slices(self, rebuild: RebuildRecord) -> dict[str, dict[Slice, RebuiltSlice]]:
        """Table -> slice -> what the rebuild made of it, as far as it got."""
        found: dict[str, dict[Slice, RebuiltSlice]] = {table: {} for table in rebuild.tables}
        query = sa.select(REBUILT_SLICES).where(REBUILT_SLICES.c.rebuild == rebuild.number)
        with self._read() as connection:
            for row in connection.execute(query).mappings():
                one = _slice_of(row)
                found.setdefault(one.record.table, {})[one.key] = one
        return found

    def report(self, rebuild: RebuildRecord, state: RebuildState) -> RebuildRecord:
        """What it made of each slice is what a person is shown from now on, whatever it makes of it later.

        One transaction with its state; raises TakenOverError as `change` does.
        """
        changed = replace(rebuild, state=state)
        own = REBUILT_SLICES.c.rebuild == rebuild.number
        with self._write() as connection:
            _require_own(connection, rebuild)
            for row in connection.execute(sa.select(REBUILT_SLICES).where(own)).mappings().all():
                one = _slice_of(row)
                told = ReportedSlice(one.record.digest, one.record.figures, one.goes)
                place = _place(rebuild, one)
                connection.execute(REBUILT_SLICES.update().where(*place).values(reported=told.to_json()))
            connection.execute(REBUILDS.update().where(REBUILDS.c.number == rebuild.number).values(_row(changed)))
        return changed

    def record(self, rebuild: RebuildRecord, slices: Iterable[RebuiltSlice]) -> None:
        """Write what it made of these slices, in place of what it made before; what was reported of them stays.

        Raises TakenOverError as `change` does.
        """
        with self._write() as connection:
            _require_own(connection, rebuild)
            for one in slices:
                place = _place(rebuild, one)
                reported = connection.execute(sa.select(REBUILT_SLICES.c.reported).where(*place)).scalar()
                connection.execute(REBUILT_SLICES.delete().where(*place))
                connection.execute(REBUILT_SLICES.insert(), {**_slice_row(rebuild, one), "reported": reported})

    def last_publication(self) -> int:
        """The number of the last change on record; 0 before the first."""
        with self._read() as connection:
            return int(connection.execute(sa.select(sa.func.max(PUBLICATIONS.c.id))).scalar() or 0)


@dataclass(frozen=True)
class SwapOfRebuild:
    """What the publish of a rebuild asks and writes of it (resources/publishing.py, Alongside)."""

    rebuild: RebuildRecord
    """As the run that swaps it in has it."""

    def require(self, connection: Connection) -> None:
        """Raise TakenOverError where another run works on it by now, or somebody answered it."""
        _require_own(connection, self.rebuild)
        query = sa.select(REBUILDS.c.state).where(REBUILDS.c.number == self.rebuild.number)
        if connection.execute(query).scalar() != self.rebuild.state.value:
            raise _taken(self.rebuild)

    def write(self, connection: Connection) -> None:
        """Main shows it; raises TakenOverError as `require` does."""
        self.require(connection)
        swapped = replace(self.rebuild, state=RebuildState.SWAPPED, finished_at=_now())
        connection.execute(REBUILDS.update().where(REBUILDS.c.number == self.rebuild.number).values(_row(swapped)))


def _require_own(connection: Connection, rebuild: RebuildRecord) -> None:
    query = sa.select(REBUILDS.c.run_id).where(REBUILDS.c.number == rebuild.number)
    if connection.execute(query).scalar() != rebuild.run_id:
        raise _taken(rebuild)


def _open_like(connection: Connection, asked: RebuildRecord) -> RebuildRecord | None:
    same = None
    for other in map(_rebuild_of, _rows(connection, REBUILDS.c.state.in_(_OPEN))):
        if other.is_same(asked):
            same = other
        elif other.overlaps(asked):
            shared = ", ".join(name for name in asked.tables if name in other.tables)
            days = f"{max(asked.first, other.first)} to {min(asked.last, other.last)}"
            raise UsageError(
                f"rebuild of {shared} {days}",
                f"rebuild {other.number} is open for these days ({other.reason})",
                f"Answer it first: tidemark rebuild swap {other.number}, or tidemark rebuild abandon {other.number}",
            )
    return same


def _taken(rebuild: RebuildRecord) -> TakenOverError:
    return TakenOverError(
        f"rebuild {rebuild.number}", "another run works on it by now", "See how far it is: tidemark rebuild show"
    )


def _rows(connection: Connection, where: sa.ColumnElement[bool]) -> Iterable[RowMapping]:
    return connection.execute(sa.select(REBUILDS).where(where).order_by(REBUILDS.c.number)).mappings()


def _rebuild_of(row: RowMapping) -> RebuildRecord:
    names = ("number", "reason", "who", "run_id", "finished_at", "swap_after", "answered_by", "answer")
    return RebuildRecord(
        tables=tuple(row["tables"]),
        first=row["first_day"],
        last=row["last_day"],
        projects=tuple(row["projects"]),
        state=RebuildState(row["state"]),
        started_at=row["started_at"] or "",
        swap_runs=tuple(row["swap_runs"] or ()),
        **{name: row[name] for name in names},
    )


def _row(record: RebuildRecord) -> dict[str, Any]:
    """Without its number."""
    names = ("reason", "who", "run_id", "started_at", "finished_at", "swap_after", "answered_by", "answer")
    return {
        "tables": list(record.tables),
        "first_day": record.first,
        "last_day": record.last,
        "projects": list(record.projects),
        "state": record.state.value,
        "swap_runs": list(record.swap_runs),
        **{name: getattr(record, name) for name in names},
    }


def _place(rebuild: RebuildRecord, one: RebuiltSlice) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        REBUILT_SLICES.c.rebuild == rebuild.number,
        REBUILT_SLICES.c.table_name == one.record.table,
        REBUILT_SLICES.c.event_date == one.key.event_date,
        REBUILT_SLICES.c.project_id == one.key.project_id,
    )


def _slice_of(row: RowMapping) -> RebuiltSlice:
    difference, reported = row["difference"], row["reported"]
    return RebuiltSlice(
        slice_of(row),
        Digest.parse(row["published"]),
        None if difference is None else SliceDifference.from_json(difference),
        tuple(row["blocked_by"] or ()),
        None if reported is None else ReportedSlice.from_json(reported),
    )


def _slice_row(rebuild: RebuildRecord, one: RebuiltSlice) -> Mapping[str, Any]:
    beside = {
        "rebuild": rebuild.number,
        "run_id": rebuild.run_id,
        "recorded_at": _now(),
        "published": str(one.published),
        "difference": None if one.difference is None else one.difference.to_json(),
        "blocked_by": list(one.blocked_by),
    }
    return slice_row(one.record) | beside


def _now() -> str:
    return datetime.now(UTC).isoformat()


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
