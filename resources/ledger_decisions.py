"""What persons decided, kept in the ledger: deliveries they ruled out, slices they hold.

Lives here: questions about decisions and the transactions that write them. Put here: another kind of decision. Keep out: what
follows from one (load_path/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from typing import Any

import sqlalchemy as sa
from pipeline_assets.domain.slices import Slice, Source
from sqlalchemy.engine import Connection

from resources.ledger_records import Exclusion, Hold
from resources.ledger_rows import exclusion_of, exclusion_row, hold_of
from resources.ledger_schema import EXCLUSIONS, HOLDS

_Connect = Callable[[], AbstractContextManager[Connection]]


class Decisions:
    """Reads and writes of decisions; each write is one transaction."""

    def __init__(self, read: _Connect, write: _Connect) -> None:
        """Wrap a ledger's ways of connecting."""
        self._read, self._write = read, write

    def exclusions(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[str, tuple[Exclusion, ...]]:
        """Object key -> the exclusions of its versions that stand, of arrivals in the range."""
        found: dict[str, tuple[Exclusion, ...]] = {}
        query = sa.select(EXCLUSIONS).where(
            EXCLUSIONS.c.source == source.value, EXCLUSIONS.c.project_id.in_(projects),
            EXCLUSIONS.c.arrival_date.between(first, last), EXCLUSIONS.c.lifted_at.is_(None),
        )  # fmt: skip
        with self._read() as connection:
            for row in connection.execute(query.order_by(EXCLUSIONS.c.id)).mappings():
                found[row["object_key"]] = (*found.get(row["object_key"], ()), exclusion_of(row))
        return found

    def all_exclusions(self, projects: Sequence[str]) -> list[Exclusion]:
        """Every exclusion on record, lifted ones included, oldest first."""
        query = sa.select(EXCLUSIONS).where(EXCLUSIONS.c.project_id.in_(projects)).order_by(EXCLUSIONS.c.id)
        with self._read() as connection:
            return [exclusion_of(row) for row in connection.execute(query).mappings()]

    def exclude(self, exclusions: Iterable[Exclusion], run_id: str) -> list[Exclusion]:
        """Record those that do not stand already; returns these."""
        fresh = []
        with self._write() as connection:
            for one in exclusions:
                known = sa.select(EXCLUSIONS.c.id).where(*_is(one), EXCLUSIONS.c.lifted_at.is_(None))
                if connection.execute(known).first() is None:
                    row = exclusion_row(one) | {"run_id": run_id, "excluded_at": _now()}
                    connection.execute(EXCLUSIONS.insert(), row)
                    fresh.append(one)
        return fresh

    def lift(self, exclusions: Collection[Exclusion], reason: str, run_id: str) -> None:
        """These stand no more."""
        lifted: dict[str, Any] = {"lift_reason": reason, "lift_run_id": run_id, "lifted_at": _now()}
        with self._write() as connection:
            for one in exclusions:
                standing = EXCLUSIONS.update().where(*_is(one), EXCLUSIONS.c.lifted_at.is_(None))
                connection.execute(standing.values(lifted))

    def holds(self, table: str, projects: Sequence[str]) -> dict[Slice, str]:
        """Slices a person holds, with the reason."""
        standing = sa.and_(HOLDS.c.table_name == table, HOLDS.c.released_at.is_(None))
        return {one.key: one.reason for one in self._holds(standing, projects)}

    def all_holds(self, projects: Sequence[str]) -> list[Hold]:
        """Every hold on record, released ones included, oldest first."""
        return self._holds(sa.true(), projects)

    def _holds(self, where: sa.ColumnElement[bool], projects: Sequence[str]) -> list[Hold]:
        query = sa.select(HOLDS).where(where, HOLDS.c.project_id.in_(projects)).order_by(HOLDS.c.id)
        with self._read() as connection:
            return [hold_of(row) for row in connection.execute(query).mappings()]

    def hold(self, slices: Mapping[str, Collection[Slice]], reason: str, run_id: str) -> None:
        """Hold these slices (table -> slices), in one transaction; those that this run holds already stay as they are."""
        with self._write() as connection:
            for table, keys in slices.items():
                for key in sorted(keys):
                    known = connection.execute(sa.select(HOLDS.c.run_id).where(*_stands(table, key))).scalar()
                    if known == run_id:
                        continue
                    self._release(connection, table, key, f"held again: {reason}", run_id)
                    place = {"table_name": table, "event_date": key.event_date, "project_id": key.project_id}
                    connection.execute(HOLDS.insert(), place | {"reason": reason, "run_id": run_id, "held_at": _now()})

    def release(self, slices: Mapping[str, Collection[Slice]], reason: str, run_id: str) -> None:
        """Hold these slices (table -> slices) no more, in one transaction."""
        with self._write() as connection:
            for table, keys in slices.items():
                for key in sorted(keys):
                    self._release(connection, table, key, reason, run_id)

    def _release(self, connection: Connection, table: str, key: Slice, reason: str, run_id: str) -> None:
        values = {"release_reason": reason, "release_run_id": run_id, "released_at": _now()}
        connection.execute(HOLDS.update().where(*_stands(table, key)).values(values))


def _stands(table: str, key: Slice) -> tuple[sa.ColumnElement[bool], ...]:
    """The standing hold of a slice."""
    return (
        HOLDS.c.table_name == table,
        HOLDS.c.event_date == key.event_date,
        HOLDS.c.project_id == key.project_id,
        HOLDS.c.released_at.is_(None),
    )


def _is(one: Exclusion) -> tuple[sa.ColumnElement[bool], ...]:
    """The version that an exclusion names."""
    return (
        EXCLUSIONS.c.source == one.batch.source.value,
        EXCLUSIONS.c.object_key == one.object_key,
        EXCLUSIONS.c.etag == one.etag,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat()
