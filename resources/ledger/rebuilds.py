"""Rebuilds on record: what was asked for, how far each is, and what it made of each slice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.errors import TakenOverError, UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, ReportedSlice, SliceDifference
from pipeline_assets.domain.slices import Digest, Slice
from resources.ledger.engine import Writes
from resources.ledger.rows import slice_of, slice_row
from resources.ledger.schema import PUBLICATIONS, REBUILDS, REBUILT_SLICES

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
    """What the publish of a rebuild asks and writes of it (resources/publishing/request.py, Alongside)."""

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
