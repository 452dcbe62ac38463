"""What operators decided, kept in the ledger: deliveries that they excluded, slices that they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.records import Exclusion, Hold
from pipeline_assets.domain.slices import Slice, Source
from resources.failpoints import Failpoint, failpoint
from resources.ledger.engine import Connect
from resources.ledger.rows import exclusion_of, hold_of
from resources.ledger.schema import DECISIONS, EXCLUSIONS, HOLDS

if TYPE_CHECKING:
    from resources.ledger.decision_objects import DecisionObjects
from resources.ledger.acts import Act, ActKind, acts_on_record, apply, hold_in_force, last_act_at, names_version


class Interventions:
    """Reads and writes of decisions; each write is one act and one transaction."""

    def __init__(self, read: Connect, write: Connect, kept: DecisionObjects | None) -> None:
        """Wrap a ledger's ways of connecting, and the place that keeps its decisions as well."""
        self._read, self._write, self._kept = read, write, kept

    def exclusions(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[str, tuple[Exclusion, ...]]:
        """Object key -> the exclusions of its versions that stand, of arrivals in the range."""
        exclusions: dict[str, tuple[Exclusion, ...]] = {}
        query = sa.select(EXCLUSIONS).where(
            EXCLUSIONS.c.source == source.value,
            EXCLUSIONS.c.project_id.in_(projects),
            EXCLUSIONS.c.arrival_date.between(first, last),
            EXCLUSIONS.c.lifted_at.is_(None),
        )
        with self._read() as connection:
            for row in connection.execute(query.order_by(EXCLUSIONS.c.id)).mappings():
                exclusions[row["object_key"]] = (*exclusions.get(row["object_key"], ()), exclusion_of(row))
        return exclusions

    def all_exclusions(self, projects: Sequence[str]) -> list[Exclusion]:
        """Every exclusion on record, lifted ones included, oldest first."""
        query = sa.select(EXCLUSIONS).where(EXCLUSIONS.c.project_id.in_(projects)).order_by(EXCLUSIONS.c.id)
        with self._read() as connection:
            return [exclusion_of(row) for row in connection.execute(query).mappings()]

    def exclude(self, exclusions: Iterable[Exclusion], run_id: str) -> list[Exclusion]:
        """Record those that do not stand already; returns these."""
        with self._read() as connection:
            fresh = [
                exclusion
                for exclusion in exclusions
                if connection.execute(
                    sa.select(EXCLUSIONS.c.id).where(*names_version(exclusion), EXCLUSIONS.c.lifted_at.is_(None))
                ).first()
                is None
            ]
        if fresh:
            self._record(Act(ActKind.EXCLUDE, self._next_at(), run_id, None, tuple(fresh)))
        return fresh

    def lift(self, exclusions: Collection[Exclusion], reason: str, run_id: str) -> None:
        """These stand no more."""
        if exclusions:
            self._record(Act(ActKind.LIFT, self._next_at(), run_id, reason, tuple(exclusions)))

    def holds(self, table: str, projects: Sequence[str]) -> dict[Slice, str]:
        """Slices a person holds, with the reason."""
        in_force = sa.and_(HOLDS.c.table_name == table, HOLDS.c.released_at.is_(None))
        return {hold.key: hold.reason for hold in self._holds(in_force, projects)}

    def all_holds(self, projects: Sequence[str]) -> list[Hold]:
        """Every hold on record, released ones included, oldest first."""
        return self._holds(sa.true(), projects)

    def _holds(self, where: sa.ColumnElement[bool], projects: Sequence[str]) -> list[Hold]:
        query = sa.select(HOLDS).where(where, HOLDS.c.project_id.in_(projects)).order_by(HOLDS.c.id)
        with self._read() as connection:
            return [hold_of(row) for row in connection.execute(query).mappings()]

    def hold(self, slices: Mapping[str, Collection[Slice]], reason: str, run_id: str) -> None:
        """Hold these slices (table -> slices), in one transaction; those that this run holds already for this reason stay so."""
        held = self._held(slices, sa.and_(HOLDS.c.run_id == run_id, HOLDS.c.reason == reason))
        fresh = {table: [key for key in keys if key not in held[table]] for table, keys in slices.items()}
        if any(fresh.values()):
            self._record(Act(ActKind.HOLD, self._next_at(), run_id, reason, slices=fresh))

    def release(self, slices: Mapping[str, Collection[Slice]], reason: str, run_id: str) -> None:
        """Hold these slices (table -> slices) no more, in one transaction."""
        held = self._held(slices, sa.true())
        if any(held.values()):
            self._record(Act(ActKind.RELEASE, self._next_at(), run_id, reason, slices=held))

    def _held(self, slices: Mapping[str, Collection[Slice]], where: sa.ColumnElement[bool]) -> dict[str, set[Slice]]:
        """Those of these slices that are held, by holds of which more is true."""
        with self._read() as connection:
            return {
                table: {
                    key
                    for key in keys
                    if connection.execute(sa.select(HOLDS.c.id).where(*hold_in_force(table, key), where)).first()
                    is not None
                }
                for table, keys in slices.items()
            }

    # -- where the tables are --------------------------------------------------------------------------------------

    def read_back(self) -> Counter[ActKind]:
        """Apply what the warehouse keeps and this ledger lacks, and keep there what only this ledger knows.

        Returns how many versions and slices came back, by kind. Nothing happens to a ledger that is kept nowhere else.
        """
        came_back: Counter[ActKind] = Counter()
        if self._kept is None:
            return came_back
        # Before the warehouse is listed: an act is an object before it is a row, so each row read here has been kept there.
        with self._read() as connection:
            known = set(connection.execute(sa.select(DECISIONS.c.name)).scalars())
            acts = acts_on_record(connection)
        names = self._kept.names()
        lost = known.difference(names)
        if acts and (lost or not known):
            # Of a version that kept none, or of a warehouse that was restored to an earlier state.
            self._note(self._kept.write(acts, datetime.fromisoformat(self._next_at())), forgotten=lost)
        for name in names:
            if name in known:
                continue
            acts = self._kept.read(name)
            with self._write() as connection:
                if self._is_new(connection, name):
                    for act in acts:
                        came_back[act.kind] += apply(connection, act)
        return came_back

    def _record(self, act: Act) -> None:
        """Keep it in the warehouse, then write it here: one that dies in between is completed by whoever reads back next."""
        name = None if self._kept is None else self._kept.write([act], datetime.fromisoformat(act.at))
        failpoint(Failpoint.BEFORE_LEDGER, "decision")
        with self._write() as connection:
            if name is None or self._is_new(connection, name):
                apply(connection, act)

    def _next_at(self) -> str:
        """Now, but after all that was decided before, also where a clock was ahead then."""
        with self._read() as connection:
            last = last_act_at(connection)
        known = [datetime.fromisoformat(last)] if last else []
        known += [self._kept.last_at()] if self._kept is not None else []
        return max([datetime.now(UTC), *(at + timedelta(microseconds=1) for at in known)]).isoformat(
            timespec="microseconds"
        )

    def _note(self, name: str, forgotten: Collection[str]) -> None:
        with self._write() as connection:
            for lost in forgotten:
                connection.execute(DECISIONS.delete().where(DECISIONS.c.name == lost))
            self._is_new(connection, name)

    def _is_new(self, connection: Connection, name: str) -> bool:
        """Whether the acts of this object are to be applied: note that they are."""
        if connection.execute(sa.select(DECISIONS.c.name).where(DECISIONS.c.name == name)).first() is not None:
            return False
        connection.execute(DECISIONS.insert(), {"name": name, "recorded_at": _now()})
        return True


def _now() -> str:
    return datetime.now(UTC).isoformat()
