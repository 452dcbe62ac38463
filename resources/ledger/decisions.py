"""What operators decided, kept in the ledger: deliveries that they excluded, slices that they hold."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.records import Exclusion, Hold
from pipeline_assets.domain.slices import Slice, Source
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.lake_objects import LakeObjects
from resources.ledger.engine import Connect
from resources.ledger.schema import DECISIONS, EXCLUSIONS, HOLDS, exclusion_of, exclusion_row, hold_of

if TYPE_CHECKING:
    pass


FOLDER = "decisions"
"""The folder of decisions, below `_tidemark/` in the warehouse."""
_VERSION = 1
_HINT = "Install the version that wrote it, or restore the object; without it a decision of a person would be lost"
_HINT_FOR_EMPTY = "Restore it where a copy of the warehouse holds it with content; else remove it and decide once more"
_TIME = "%Y%m%dT%H%M%S.%fZ"
_BEFORE = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{32}\.json")


class DecisionObjects:
    """Stores acts as objects that are written once, never changed, and read in the order of their names."""

    def __init__(self, place: LakeObjects) -> None:
        """Wrap the folder; opens nothing before first use."""
        self._place = place

    def names(self) -> list[str]:
        """Return the names of all decision objects, oldest first; other objects in the folder are ignored."""
        return sorted(entry.name for entry in self._place.list() if _NAME.fullmatch(entry.name))

    def last_at(self) -> datetime:
        """Return the time of the last stored decision; 1970 where there is none."""
        return max((_time_of(name) for name in self.names()[-1:]), default=_BEFORE)

    def write(self, acts: Sequence[Act], at: datetime) -> str:
        """Store acts that belong together as one object named after the time; returns its name."""
        body = json.dumps({"version": _VERSION, "acts": [act.to_json() for act in acts]}, indent=1).encode()
        while True:
            name = f"{at.strftime(_TIME)}-{uuid.uuid4().hex}.json"
            if self._place.put(name, body):
                return name

    def read(self, name: str) -> list[Act]:
        """Return the acts of an object; raises LakehouseError where it cannot be read."""
        body = self._place.get(name)
        if body is None:
            raise self._unreadable(name, "is gone since it was listed")
        if not body:
            raise self._unreadable(name, "is empty: the machine stopped while it was written", _HINT_FOR_EMPTY)
        try:
            kept = json.loads(body)
            if kept["version"] != _VERSION:
                raise self._unreadable(name, f"is of version {kept['version']}, which this Tidemark does not know")
            return [Act.from_json(act) for act in kept["acts"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._unreadable(name, f"holds no decision that can be read ({error!r})") from error

    def _unreadable(self, name: str, reason: str, hint: str = _HINT) -> LakehouseError:
        return LakehouseError(f"{self._place.url}/{name}", reason[:300], hint)


def _time_of(name: str) -> datetime:
    try:
        return datetime.strptime(name.partition("-")[0], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return _BEFORE


class ActKind(StrEnum):
    """What the operator did."""

    EXCLUDE = "exclude"
    LIFT = "lift"
    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True)
class Act:
    """One decision of an operator, on one or more versions or slices."""

    kind: ActKind
    at: str
    """ISO 8601 in UTC; later than every act known at that time, even where another machine's clock was ahead."""
    run_id: str | None
    reason: str | None
    """The reason of a lift, a hold or a release; each exclusion has its own."""
    exclusions: tuple[Exclusion, ...] = ()
    slices: Mapping[str, Collection[Slice]] = field(default_factory=dict)
    """Table -> held or released slices."""

    def to_json(self) -> dict[str, Any]:
        """Return the act as JSON-compatible values."""
        return {
            "kind": self.kind.value,
            "at": self.at,
            "run_id": self.run_id,
            "reason": self.reason,
            "exclusions": [
                {
                    name: str(value) if isinstance(value, date) else value
                    for name, value in exclusion_row(exclusion).items()
                }
                for exclusion in self.exclusions
            ],
            "slices": {
                table: [[str(key.event_date), key.project_id] for key in sorted(keys)]
                for table, keys in self.slices.items()
            },
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Act:
        """Parse the result of `to_json`; raises KeyError, TypeError or ValueError for anything else."""
        return Act(
            ActKind(body["kind"]),
            str(body["at"]),
            body["run_id"],
            body["reason"],
            tuple(_exclusion(exclusion) for exclusion in body["exclusions"]),
            {
                str(table): [Slice(date.fromisoformat(day), str(project)) for day, project in keys]
                for table, keys in body["slices"].items()
            },
        )


_OF_THE_ACT = {"batch", "run_id", "excluded_at", "lift_reason", "lifted_at"}
"""Fields of an exclusion that come from its act, not from the stored exclusion."""


def _exclusion(body: Mapping[str, Any]) -> Exclusion:
    batch = BatchKey(Source(body["source"]), body["project_id"], date.fromisoformat(body["arrival_date"]))
    own = [column.name for column in fields(Exclusion) if column.name not in _OF_THE_ACT]
    return Exclusion(batch=batch, **{name: body[name] for name in own if name in body})


def apply(connection: Connection, act: Act) -> int:
    """Apply an act to the ledger; returns how many versions or slices it changed.

    Versions and slices with a later act on record stay as they are: acts may be read back late, or twice.
    """
    return _APPLIED[act.kind](connection, act)


def _exclude(connection: Connection, act: Act) -> int:
    count = 0
    for exclusion in act.exclusions:
        is_known = sa.or_(
            EXCLUSIONS.c.lifted_at.is_(None), EXCLUSIONS.c.excluded_at >= act.at, EXCLUSIONS.c.lifted_at > act.at
        )
        if connection.execute(sa.select(EXCLUSIONS.c.id).where(*names_version(exclusion), is_known)).first() is None:
            connection.execute(
                EXCLUSIONS.insert(), exclusion_row(exclusion) | {"run_id": act.run_id, "excluded_at": act.at}
            )
            count += 1
    return count


def _lift(connection: Connection, act: Act) -> int:
    lifted = {"lift_reason": act.reason, "lift_run_id": act.run_id, "lifted_at": act.at}
    count = 0
    for exclusion in act.exclusions:
        is_in_force = (EXCLUSIONS.c.lifted_at.is_(None), EXCLUSIONS.c.excluded_at < act.at)
        count += connection.execute(
            EXCLUSIONS.update().where(*names_version(exclusion), *is_in_force).values(lifted)
        ).rowcount
    return count


def _hold(connection: Connection, act: Act) -> int:
    count = 0
    for table, key in _slices(act):
        here = (HOLDS.c.table_name == table, HOLDS.c.event_date == key.event_date, HOLDS.c.project_id == key.project_id)
        # Slices that the same run already holds for this reason stay as they are.
        is_own = sa.and_(HOLDS.c.run_id == act.run_id, HOLDS.c.reason == act.reason, HOLDS.c.released_at.is_(None))
        is_known = sa.or_(is_own, HOLDS.c.held_at >= act.at, HOLDS.c.released_at > act.at)
        if connection.execute(sa.select(HOLDS.c.id).where(*here, is_known)).first() is not None:
            continue
        _end_hold(connection, table, key, f"held again: {act.reason}", act)
        place = {"table_name": table, "event_date": key.event_date, "project_id": key.project_id}
        connection.execute(HOLDS.insert(), place | {"reason": act.reason, "run_id": act.run_id, "held_at": act.at})
        count += 1
    return count


def _release(connection: Connection, act: Act) -> int:
    return sum(_end_hold(connection, table, key, act.reason, act) for table, key in _slices(act))


def _end_hold(connection: Connection, table: str, key: Slice, reason: str | None, act: Act) -> int:
    values = {"release_reason": reason, "release_run_id": act.run_id, "released_at": act.at}
    is_older = sa.or_(HOLDS.c.held_at.is_(None), HOLDS.c.held_at < act.at)
    return connection.execute(HOLDS.update().where(*hold_in_force(table, key), is_older).values(values)).rowcount


_APPLIED: Mapping[ActKind, Callable[[Connection, Act], int]] = {
    ActKind.EXCLUDE: _exclude,
    ActKind.LIFT: _lift,
    ActKind.HOLD: _hold,
    ActKind.RELEASE: _release,
}


def _slices(act: Act) -> Iterator[tuple[str, Slice]]:
    for table, keys in act.slices.items():
        for key in sorted(keys):
            yield table, key


def names_version(exclusion: Exclusion) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that select the version that an exclusion names."""
    return (
        EXCLUSIONS.c.source == exclusion.batch.source.value,
        EXCLUSIONS.c.object_key == exclusion.object_key,
        EXCLUSIONS.c.etag == exclusion.etag,
    )


def hold_in_force(table: str, key: Slice) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that select the unreleased hold of a slice."""
    return (
        HOLDS.c.table_name == table,
        HOLDS.c.event_date == key.event_date,
        HOLDS.c.project_id == key.project_id,
        HOLDS.c.released_at.is_(None),
    )


def last_act_at(connection: Connection) -> str:
    """Return the time of the last recorded act as ISO text; empty where there is none."""
    times = (EXCLUSIONS.c.excluded_at, EXCLUSIONS.c.lifted_at, HOLDS.c.held_at, HOLDS.c.released_at)
    return max(connection.execute(sa.select(sa.func.max(at))).scalar() or "" for at in times)


def acts_on_record(connection: Connection) -> list[Act]:
    """Return the acts that would recreate the rows of this ledger, oldest first."""
    acts: list[Act] = []
    for row in connection.execute(sa.select(EXCLUSIONS).order_by(EXCLUSIONS.c.id)).mappings():
        exclusion = exclusion_of(row)
        acts.append(Act(ActKind.EXCLUDE, exclusion.excluded_at, exclusion.run_id, None, (exclusion,)))
        if exclusion.lifted_at is not None:
            acts.append(Act(ActKind.LIFT, exclusion.lifted_at, row["lift_run_id"], exclusion.lift_reason, (exclusion,)))
    for row in connection.execute(sa.select(HOLDS).order_by(HOLDS.c.id)).mappings():
        acts.extend(_acts_of_hold(row))
    # A new hold of a slice releases its earlier one at the same time, so releases sort first.
    return sorted(acts, key=lambda act: (act.at, act.kind not in (ActKind.LIFT, ActKind.RELEASE)))


def _acts_of_hold(row: RowMapping) -> Iterator[Act]:
    slices = {row["table_name"]: [Slice(row["event_date"], row["project_id"])]}
    # Holds of older versions may lack the time.
    held_at = row["held_at"] or ""
    yield Act(ActKind.HOLD, held_at, row["run_id"], row["reason"], slices=slices)
    if row["released_at"] is not None:
        yield Act(ActKind.RELEASE, row["released_at"], row["release_run_id"], row["release_reason"], slices=slices)


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
