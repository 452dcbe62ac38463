"""Decisions of operators on deliveries and slices: acts, applied to the ledger and also stored in the warehouse."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.records import Exclusion, Hold
from pipeline_assets.domain.slices import Slice, Source
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.lake_objects import LakeObjects
from resources.ledger.engine import Database, Part, insert_into
from resources.ledger.queries import arrived_within
from resources.ledger.schema import DECISIONS, EXCLUSIONS, HOLDS, columns_of, record_of, row_of


class ActKind(StrEnum):
    """The kind of an operator's decision."""

    EXCLUDE = "exclude"
    LIFT = "lift"
    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True)
class Act:
    """One decision of an operator, on one or more versions or slices."""

    kind: ActKind
    at: str
    """ISO 8601 in UTC; later than every act known then, even where another machine's clock was ahead."""
    run_id: str | None
    reason: str | None
    exclusions: Sequence[Exclusion] = ()
    slices: Mapping[str, Collection[Slice]] = field(default_factory=dict)

    @property
    def targets(self) -> Iterator[dict[str, Any]]:
        """The columns of each excluded version and each slice."""
        for exclusion in self.exclusions:
            yield row_of(exclusion, *_OF_THE_ACT)
        for table, keys in self.slices.items():
            yield from ({"table_name": table, "reason": self.reason, **columns_of(key)} for key in sorted(keys))

    def to_json(self) -> dict[str, Any]:
        """Return the act as JSON-compatible values."""
        versions = [row_of(exclusion, *_OF_THE_ACT) for exclusion in self.exclusions]
        slices = {
            table: [[str(key.event_date), key.project_id] for key in sorted(keys)]
            for table, keys in self.slices.items()
        }
        exclusions = [row | {"arrival_date": str(row["arrival_date"])} for row in versions]
        act = {"kind": self.kind.value, "at": self.at, "run_id": self.run_id, "reason": self.reason}
        return act | {"exclusions": exclusions, "slices": slices}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Act:
        """Parse the result of `to_json`; raises KeyError, TypeError or ValueError for anything else."""
        versions = [row | {"arrival_date": date.fromisoformat(row["arrival_date"])} for row in body["exclusions"]]
        of_act = dict.fromkeys(("lift_reason", "lifted_at", "run_id"), None)
        exclusions = [record_of(Exclusion, row, excluded_at="", **of_act) for row in versions]
        slices = {
            str(table): [Slice(date.fromisoformat(day), str(project)) for day, project in keys]
            for table, keys in body["slices"].items()
        }
        return Act(ActKind(body["kind"]), str(body["at"]), body["run_id"], body["reason"], exclusions, slices)


_RecordT = TypeVar("_RecordT", Exclusion, Hold)
_OF_THE_ACT = ("run_id", "excluded_at", "lift_reason", "lifted_at")


class _Term(NamedTuple):
    table: sa.Table
    names: tuple[str, ...]
    begin: ActKind
    begun_at: str
    end: ActKind
    ended_at: str
    end_reason: str
    end_run: str

    def is_named(self, target: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
        return [self.table.c[name] == target[name] for name in self.names]

    def finish(self, connection: Connection, target: Mapping[str, Any], act: Act, reason: str | None) -> int:
        c = self.table.c
        is_older = (c[self.ended_at].is_(None), c[self.begun_at] < act.at)
        values = {self.end_reason: reason, self.end_run: act.run_id, self.ended_at: act.at}
        return connection.execute(self.table.update().where(*self.is_named(target), *is_older).values(values)).rowcount


_TERMS = (
    _Term(EXCLUSIONS, ("source", "object_key", "etag"), ActKind.EXCLUDE, "excluded_at",
          ActKind.LIFT, "lifted_at", "lift_reason", "lift_run_id"),
    _Term(HOLDS, ("table_name", "event_date", "project_id"), ActKind.HOLD, "held_at",
          ActKind.RELEASE, "released_at", "release_reason", "release_run_id"),
)  # fmt: skip


def apply(connection: Connection, act: Act) -> int:
    """Apply an act where none later is on record, as it may come late or twice; returns the number of changed targets."""
    term = next(one for one in _TERMS if act.kind in (one.begin, one.end))
    if act.kind is term.end:
        return sum(term.finish(connection, target, act, act.reason) for target in act.targets)
    c, count = term.table.c, 0
    for target in act.targets:
        is_same: list[sa.ColumnElement[bool]] = [c[term.ended_at].is_(None)]
        if act.kind is ActKind.HOLD:
            # Another hold replaces the earlier one; the same run's hold for this reason stays.
            is_same += [c.run_id == act.run_id, c.reason == act.reason]
        is_known = sa.or_(sa.and_(*is_same), c[term.begun_at] >= act.at, c[term.ended_at] > act.at)
        if connection.execute(sa.select(c.id).where(*term.is_named(target), is_known)).first() is None:
            term.finish(connection, target, act, f"held again: {act.reason}")
            connection.execute(term.table.insert(), {**target, "run_id": act.run_id, term.begun_at: act.at})
            count += 1
    return count


def acts_on_record(connection: Connection) -> list[Act]:
    """Return the acts that would recreate this ledger's rows, oldest first."""
    acts: list[Act] = []
    for term in _TERMS:
        for row in connection.execute(sa.select(term.table).order_by(term.table.c.id)).mappings():
            on: dict[str, Any] = {"exclusions": (record_of(Exclusion, row),)} if term.table is EXCLUSIONS else {}
            reason = None if on else row["reason"]
            on = on or {"slices": {row["table_name"]: [Slice(row["event_date"], row["project_id"])]}}
            acts.append(Act(term.begin, row[term.begun_at], row["run_id"], reason, **on))
            if row[term.ended_at] is not None:
                acts.append(Act(term.end, row[term.ended_at], row[term.end_run], row[term.end_reason], **on))
    # A new hold releases the earlier one, so releases sort first.
    return sorted(acts, key=lambda act: (act.at, act.kind not in (ActKind.LIFT, ActKind.RELEASE)))


FOLDER = "decisions"
_VERSION = 1
_HINT = "Install the version that wrote it, or restore the object; without it an operator's decision would be lost"
_HINT_FOR_EMPTY = "Restore it where a copy of the warehouse holds it with content; else remove it and decide once more"
_TIME = "%Y%m%dT%H%M%S.%fZ"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{32}\.json")


class DecisionObjects:
    """Stores acts as objects that are written once, never changed, and read in the order of their names."""

    def __init__(self, place: LakeObjects) -> None:
        self._place = place

    def names(self) -> list[str]:
        """Return the names of all decision objects, oldest first; ignores other objects."""
        return sorted(entry.name for entry in self._place.list() if _NAME.fullmatch(entry.name))

    def last_at(self) -> datetime:
        """Return the time of the last stored decision; 1970 where there is none."""
        for name in self.names()[-1:]:
            with suppress(ValueError):
                return datetime.strptime(name.partition("-")[0], _TIME).replace(tzinfo=UTC)
        return datetime(1970, 1, 1, tzinfo=UTC)

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


class Interventions(Part):
    """Reads and writes decisions; each write is one act and one transaction."""

    def __init__(self, database: Database, kept: DecisionObjects | None) -> None:
        super().__init__(database)
        self._kept = kept

    def exclusions(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[str, tuple[Exclusion, ...]]:
        """Return object key -> the exclusions in force of its versions, of arrivals in the range."""
        within = arrived_within(EXCLUSIONS, source, projects, first, last)
        found: dict[str, tuple[Exclusion, ...]] = {}
        for exclusion in self._recorded(Exclusion, *within, EXCLUSIONS.c.lifted_at.is_(None)):
            found[exclusion.object_key] = (*found.get(exclusion.object_key, ()), exclusion)
        return found

    def all_exclusions(self, projects: Sequence[str]) -> list[Exclusion]:
        """Return every recorded exclusion, lifted ones included, oldest first."""
        return self._recorded(Exclusion, EXCLUSIONS.c.project_id.in_(projects))

    def _recorded(self, kind: type[_RecordT], *where: sa.ColumnElement[bool]) -> list[_RecordT]:
        table = EXCLUSIONS if issubclass(kind, Exclusion) else HOLDS
        return [record_of(kind, row) for row in self._maps(sa.select(table).where(*where).order_by(table.c.id))]

    def exclude(self, exclusions: Iterable[Exclusion], run_id: str) -> list[Exclusion]:
        """Record those that are not in force already; returns these."""
        c = EXCLUSIONS.c
        known = set(map(tuple, self._rows(sa.select(c.source, c.object_key, c.etag).where(c.lifted_at.is_(None)))))
        fresh = [one for one in exclusions if (one.batch.source.value, one.object_key, one.etag) not in known]
        if fresh:
            self._record(Act(ActKind.EXCLUDE, self._next_at(), run_id, None, fresh))
        return fresh

    def lift(self, exclusions: Collection[Exclusion], reason: str, run_id: str) -> None:
        """End these exclusions."""
        if exclusions:
            self._record(Act(ActKind.LIFT, self._next_at(), run_id, reason, tuple(exclusions)))

    def holds(self, table: str, projects: Sequence[str]) -> dict[Slice, str]:
        """Return the slices that an operator holds, with the reason."""
        c = HOLDS.c
        found = self._recorded(Hold, c.table_name == table, c.released_at.is_(None), c.project_id.in_(projects))
        return {hold.key: hold.reason for hold in found}

    def all_holds(self, projects: Sequence[str]) -> list[Hold]:
        """Return every recorded hold, released ones included, oldest first."""
        return self._recorded(Hold, HOLDS.c.project_id.in_(projects))

    def hold(self, slices: Mapping[str, Collection[Slice]], reason: str, run_id: str) -> None:
        """Hold these slices (table -> slices) in one transaction, without those that this run already holds for this reason."""
        held = self._held(HOLDS.c.run_id == run_id, HOLDS.c.reason == reason)
        fresh = {table: [key for key in keys if (table, key) not in held] for table, keys in slices.items()}
        if any(fresh.values()):
            self._record(Act(ActKind.HOLD, self._next_at(), run_id, reason, slices=fresh))

    def release(self, slices: Mapping[str, Collection[Slice]], reason: str, run_id: str) -> None:
        """End the holds of these slices (table -> slices) in one transaction."""
        held = self._held()
        ended = {table: [key for key in keys if (table, key) in held] for table, keys in slices.items()}
        if any(ended.values()):
            self._record(Act(ActKind.RELEASE, self._next_at(), run_id, reason, slices=ended))

    def _held(self, *where: sa.ColumnElement[bool]) -> set[tuple[str, Slice]]:
        return {(hold.table, hold.key) for hold in self._recorded(Hold, HOLDS.c.released_at.is_(None), *where)}

    def read_back(self) -> Counter[ActKind]:
        """Apply the warehouse's acts that this ledger lacks, and store there those that only it has; counts the applied ones."""
        came_back: Counter[ActKind] = Counter()
        if self._kept is None:
            return came_back
        # Before the listing: an act is an object before it is a row, so each row read here has an object.
        with self._read() as connection:
            known = set(connection.execute(sa.select(DECISIONS.c.name)).scalars())
            acts = acts_on_record(connection)
        names = self._kept.names()
        lost = known.difference(names)
        if acts and (lost or not known):
            name = self._kept.write(acts, datetime.fromisoformat(self._next_at()))
            with self._write() as connection:
                connection.execute(DECISIONS.delete().where(DECISIONS.c.name.in_(lost)))
                _note(connection, name)
        for name in (name for name in names if name not in known):
            acts = self._kept.read(name)
            with self._write() as connection:
                _note(connection, name)
                for act in acts:
                    came_back[act.kind] += apply(connection, act)
        return came_back

    def _record(self, act: Act) -> None:
        """Store it in the warehouse first: if the process dies in between, the next `read_back` completes it."""
        name = None if self._kept is None else self._kept.write([act], datetime.fromisoformat(act.at))
        failpoint(Failpoint.BEFORE_LEDGER, "decision")
        with self._write() as connection:
            if name is not None:
                _note(connection, name)
            apply(connection, act)

    def _next_at(self) -> str:
        """Now, but after all earlier decisions, also where a clock was ahead."""
        times = [one.table.c[at] for one in _TERMS for at in (one.begun_at, one.ended_at)]
        known = [datetime.fromisoformat(at) for one in times if (at := self._value(sa.select(sa.func.max(one))))]
        known += [self._kept.last_at()] if self._kept is not None else []
        at = max([datetime.now(UTC), *(at + timedelta(microseconds=1) for at in known)])
        return at.isoformat(timespec="microseconds")


def _note(connection: Connection, name: str) -> None:
    row = {"name": name, "recorded_at": datetime.now(UTC).isoformat()}
    connection.execute(insert_into(connection, DECISIONS).on_conflict_do_nothing(), row)
