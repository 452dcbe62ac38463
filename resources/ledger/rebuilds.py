"""Long operations on record: rebuilds with their slices, claims of recoveries on hours, and strays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.days import Hour, ends_of
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.errors import TakenOverError, UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, ReportedSlice
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import Slice, Source
from resources.ledger.engine import Part, upsert
from resources.ledger.queries import arrived_within
from resources.ledger.schema import (
    DELIVERIES,
    PUBLICATIONS,
    REBUILDS,
    REBUILT_SLICES,
    RECOVERIES,
    RUNS,
    STRAYS,
    columns_of,
    is_key,
    record_of,
    row_of,
)

_OPEN = [state.value for state in RebuildState if state.is_open]


class Rebuilds(Part):
    """Reads and writes rebuilds; each write is one transaction."""

    def all(self, *where: sa.ColumnElement[bool]) -> list[RebuildRecord]:
        """Return every rebuild on record, oldest first."""
        with self._read() as connection:
            return _rebuilds(connection, *where)

    def open(self) -> list[RebuildRecord]:
        """Return the rebuilds that no operator has answered yet, oldest first."""
        return self.all(REBUILDS.c.state.in_(_OPEN))

    def find(self, number: int) -> RebuildRecord | None:
        """Return the rebuild of this number; None where there is none."""
        return next(iter(self.all(REBUILDS.c.number == number)), None)

    def get(self, number: int) -> RebuildRecord:
        """Return the rebuild of this number; raises UsageError where there is none."""
        if (rebuild := self.find(number)) is None:
            raise UsageError(f"rebuild {number}", "is not on record", "`tidemark rebuild show` lists them")
        return rebuild

    def open_like(self, asked: RebuildRecord) -> RebuildRecord | None:
        """Return the open rebuild of exactly the same slices; raises UsageError where an open one shares only some of them."""
        with self._read() as connection:
            return _open_like(connection, asked)

    def begin(self, asked: RebuildRecord) -> RebuildRecord:
        """Record it with a number, or return the open one of the same slices; raises UsageError as `open_like` does."""
        with self._write() as connection:
            if (same := _open_like(connection, asked)) is not None:
                return same
            started = replace(asked, started_at=_now())
            insert = REBUILDS.insert().values(row_of(started, "number")).returning(REBUILDS.c.number)
            return replace(started, number=int(connection.execute(insert).scalar_one()))

    def claim(self, rebuild: RebuildRecord, run_id: str) -> RebuildRecord:
        """Let this run work on it; raises TakenOverError where another one came first."""
        is_as_read = REBUILDS.c.run_id.is_not_distinct_from(rebuild.run_id)
        if not self._do(_update(rebuild).where(is_as_read).values(run_id=run_id)):
            raise _taken(rebuild)
        return replace(rebuild, run_id=run_id)

    def change(self, rebuild: RebuildRecord, **values: Any) -> RebuildRecord:
        """Write its new state; raises TakenOverError where another run works on it by now."""
        changed = replace(rebuild, **values)
        with self._write() as connection:
            _require_own(connection, rebuild)
            connection.execute(_update(rebuild).values(row_of(changed, "number")))
        return changed

    def slices(self, rebuild: RebuildRecord) -> dict[str, dict[Slice, RebuiltSlice]]:
        """Return table -> slice -> the rebuild's result so far."""
        found: dict[str, dict[Slice, RebuiltSlice]] = {table: {} for table in rebuild.tables}
        with self._read() as connection:
            for one in _slices(connection, rebuild):
                found.setdefault(one.record.table, {})[one.key] = one
        return found

    def report(self, rebuild: RebuildRecord, state: RebuildState) -> RebuildRecord:
        """Keep its slices as the operator was shown them, and write its state; raises as `change` does."""
        changed = replace(rebuild, state=state)
        with self._write() as connection:
            _require_own(connection, rebuild)
            for one in _slices(connection, rebuild):
                told = ReportedSlice(one.record.digest, one.record.figures, one.goes)
                place = is_key(REBUILT_SLICES, one.key, rebuild=rebuild.number, table_name=one.record.table)
                connection.execute(REBUILT_SLICES.update().where(place).values(reported=told.to_json()))
            connection.execute(_update(rebuild).values(row_of(changed, "number")))
        return changed

    def record(self, rebuild: RebuildRecord, slices: Iterable[RebuiltSlice]) -> None:
        """Write the results of these slices, keeping the reported ones; raises TakenOverError as `change` does."""
        stamp = {"rebuild": rebuild.number, "run_id": rebuild.run_id, "recorded_at": _now()}
        made = [(row_of(one.record, "run_id", "read_hash"), row_of(one, "record", "reported")) for one in slices]
        with self._write() as connection:
            _require_own(connection, rebuild)
            upsert(connection, REBUILT_SLICES, [record | beside | stamp for record, beside in made])

    def last_publication(self) -> int:
        """Return the number of the last change on record; 0 before the first."""
        return int(self._value(sa.select(sa.func.max(PUBLICATIONS.c.id))) or 0)


@dataclass(frozen=True)
class SwapOfRebuild:
    """The ledger's part in the publish of a rebuild (resources/publishing.py, Alongside)."""

    rebuild: RebuildRecord

    def require(self, connection: Connection) -> None:
        """Raise TakenOverError where another run works on it by now, or somebody answered it."""
        if _require_own(connection, self.rebuild) != self.rebuild.state.value:
            raise _taken(self.rebuild)

    def write(self, connection: Connection) -> None:
        """Record that main shows it; raises TakenOverError as `require` does."""
        self.require(connection)
        swapped = replace(self.rebuild, state=RebuildState.SWAPPED, finished_at=_now())
        connection.execute(_update(self.rebuild).values(row_of(swapped, "number")))


def _require_own(connection: Connection, rebuild: RebuildRecord) -> str | None:
    query = sa.select(REBUILDS.c.run_id, REBUILDS.c.state).where(REBUILDS.c.number == rebuild.number)
    run_id, state = connection.execute(query).first() or (None, None)
    if run_id != rebuild.run_id:
        raise _taken(rebuild)
    return state


def _open_like(connection: Connection, asked: RebuildRecord) -> RebuildRecord | None:
    same = None
    for other in _rebuilds(connection, REBUILDS.c.state.in_(_OPEN)):
        if other.is_same(asked):
            same = other
        elif other.overlaps(asked):
            shared = ", ".join(name for name in asked.tables if name in other.tables)
            days = f"{max(asked.first, other.first)} to {min(asked.last, other.last)}"
            reason = f"rebuild {other.number} is open for these days ({other.reason})"
            hint = f"Answer it first: tidemark rebuild swap {other.number}, or tidemark rebuild abandon {other.number}"
            raise UsageError(f"rebuild of {shared} {days}", reason, hint)
    return same


def _taken(rebuild: RebuildRecord) -> TakenOverError:
    hint = "See how far it is: tidemark rebuild show"
    return TakenOverError(f"rebuild {rebuild.number}", "another run works on it by now", hint)


def _update(rebuild: RebuildRecord) -> sa.Update:
    return REBUILDS.update().where(REBUILDS.c.number == rebuild.number)


def _rebuilds(connection: Connection, *where: sa.ColumnElement[bool]) -> list[RebuildRecord]:
    query = sa.select(REBUILDS).where(*where).order_by(REBUILDS.c.number)
    return [record_of(RebuildRecord, row) for row in connection.execute(query).mappings()]


def _slices(connection: Connection, rebuild: RebuildRecord) -> list[RebuiltSlice]:
    query = sa.select(REBUILT_SLICES).where(REBUILT_SLICES.c.rebuild == rebuild.number)
    rows = connection.execute(query).mappings().all()
    records = [record_of(SliceRecord, row, read_hash=row["file_hash"]) for row in rows]
    return [record_of(RebuiltSlice, row, record=one) for row, one in zip(rows, records, strict=True)]


def _now() -> str:
    return datetime.now(UTC).isoformat()


_LONGEST_HOUR = timedelta(hours=6)
"""An older open claim is of a dead recovery and does not hide the hour from loads."""
_LONGEST_LISTING = timedelta(hours=1)
"""An ended claim counts for this long: a listing from before its marker is never older."""


@dataclass(frozen=True)
class OpenClaim:
    """An hour whose recovery began and has no recorded end: it is running, failed or died."""

    project_id: str
    hour: Hour
    begun_at: datetime


class Recoveries(Part):
    """Reads and writes claims; each write is one transaction."""

    def begin(self, project_id: str, hour: Hour, brought: Mapping[str, int] | None = None) -> None:
        """Claim an hour before its first object is written; `brought`: object -> size, for an hour on record as missing."""
        row: dict[str, Any] = {"project_id": project_id, "arrival_date": hour.day, "hour": hour.hour}
        row |= {"begun_at": _now(), "ended_at": None}
        with self._write() as connection:
            if brought:
                known = connection.execute(sa.select(RECOVERIES.c.brought).where(*_is_hour(project_id, hour))).scalar()
                row["brought"] = {**(known or {}), **brought}
            upsert(connection, RECOVERIES, [row])

    def end(self, project_id: str, hour: Hour) -> None:
        """End the claim of an hour, after its marker is written; does nothing without a claim."""
        self._do(RECOVERIES.update().where(*_is_hour(project_id, hour)).values(ended_at=_now()))

    def open(self, projects: Sequence[str]) -> list[OpenClaim]:
        """Return open claims by project and hour; a recovery that died after writing its marker leaves one too."""
        c = RECOVERIES.c
        of_hour = (c.project_id, c.arrival_date, c.hour)
        query = sa.select(*of_hour, c.begun_at).where(c.project_id.in_(projects), c.ended_at.is_(None))
        rows = self._rows(query.order_by(*of_hour))
        return [OpenClaim(project, Hour(day, hour), datetime.fromisoformat(at)) for project, day, hour, at in rows]

    def brought(self, project_id: str, first: date, last: date, since: str) -> dict[str, int]:
        """Return object -> size of recovered missing hours, without objects that a load begun at `since` or before recorded."""
        c, d = RECOVERIES.c, DELIVERIES.c
        query = sa.select(c.brought).where(c.project_id == project_id, c.arrival_date.between(first, last))
        within = arrived_within(DELIVERIES, Source.BACKFILL, [project_id], first, last)
        known = sa.select(d.object_key).outerjoin(RUNS, RUNS.c.run_id == d.run_id)
        known = known.where(*within, d.is_accepted, sa.func.coalesce(RUNS.c.started_at, "") <= since)
        written = {key: size for (found,) in self._rows(query) for key, size in (found or {}).items()}
        before = {key for (key,) in self._rows(known)} if written else set()
        return {key: size for key, size in written.items() if key not in before}

    def is_open(self, project_id: str, hour: Hour) -> bool:
        """Whether a recovery claimed this hour and has not ended."""
        query = sa.select(RECOVERIES.c.hour).where(*_is_hour(project_id, hour), RECOVERIES.c.ended_at.is_(None))
        return bool(self._rows(query))

    def hours(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, dict[int, bool]]:
        """Return batch -> claimed hour -> whether the claim is open and outweighs a marker; call it after listing landing."""
        now, c = datetime.now(UTC), RECOVERIES.c
        begun, ended = ((now - longest).isoformat() for longest in (_LONGEST_HOUR, _LONGEST_LISTING))
        counts = sa.or_(sa.and_(c.ended_at.is_(None), c.begun_at > begun), c.ended_at > ended)
        query = sa.select(c.project_id, c.arrival_date, c.hour, c.ended_at)
        query = query.where(c.project_id.in_(projects), c.arrival_date.between(first, last), counts)
        found: dict[BatchKey, dict[int, bool]] = {}
        for project, day, hour, ended_at in self._rows(query):
            found.setdefault(BatchKey(Source.BACKFILL, project, day), {})[hour] = ended_at is None
        return found


def _is_hour(project_id: str, hour: Hour) -> tuple[sa.ColumnElement[bool], ...]:
    columns = RECOVERIES.c
    return columns.project_id == project_id, columns.arrival_date == hour.day, columns.hour == hour.hour


class Strays(Part):
    """Reads and writes strays, objects outside of the days that loads request; each write is one transaction."""

    def all(self, projects: Sequence[str]) -> dict[str, BatchKey]:
        """Return object key -> the batch that the key names, sorted by key."""
        c = STRAYS.c
        query = sa.select(c.object_key, c.source, c.project_id, c.arrival_date).where(c.project_id.in_(projects))
        rows = self._rows(query.order_by(c.object_key))
        return {key: BatchKey(Source(source), project, day) for key, source, project, day in rows}

    def replace(self, source: Source, projects: Sequence[str], strays: Iterable[Delivery]) -> None:
        """Replace the recorded strays of a source and projects."""
        present = {stray.key: stray.batch for stray in ends_of(strays)}
        known = {key: batch for key, batch in self.all(projects).items() if batch.source is source}
        if known == present:
            return
        are_theirs = (STRAYS.c.source == source.value, STRAYS.c.project_id.in_(projects))
        with self._write() as connection:
            connection.execute(STRAYS.delete().where(*are_theirs))
            rows = [{"object_key": key, "seen_at": _now(), **columns_of(batch)} for key, batch in present.items()]
            upsert(connection, STRAYS, rows)
