"""Decisions of operators on deliveries and slices, as acts that can be stored anywhere and applied to a ledger idempotently."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.domain.slices import Slice, Source
from resources.ledger.rows import exclusion_of, exclusion_row
from resources.ledger.schema import EXCLUSIONS, HOLDS

if TYPE_CHECKING:
    pass


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
