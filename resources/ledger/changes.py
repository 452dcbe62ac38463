"""The changes of one step, and whether they may be recorded on top of later records of other runs and operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import SliceConflictError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Source, Verdict
from pipeline_assets.tables.events import QUARANTINE
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from resources.ledger.queries import OF_BATCH, OF_TABLE, rows_of
from resources.ledger.schema import BATCHES, DELIVERIES, EXCLUSIONS, HOLDS, SLICES


@dataclass(frozen=True)
class BatchAsRead:
    """The recorded state that a judgement of a batch rests on."""

    accepted: Mapping[str, str]
    """Object -> etag of the version whose rows raw holds."""
    judgement: tuple[str, str | None] | None
    """Verdict and input state; None where it was not on record."""
    exclusions: frozenset[tuple[str, str]] = frozenset()


@dataclass
class Changes:
    """The changes that one step of a load writes in one transaction."""

    deliveries: list[DeliveryRecord] = field(default_factory=list)
    forgotten_deliveries: list[tuple[BatchKey, str]] = field(default_factory=list)
    batches: list[BatchRecord] = field(default_factory=list)
    forgotten_refusals: list[tuple[BatchKey, str]] = field(default_factory=list)
    batch_days: dict[BatchKey, dict[date, BatchDay]] = field(default_factory=dict)
    """Replaces all event days of each batch."""
    slices: list[SliceRecord] = field(default_factory=list)
    rewritten: dict[tuple[str, Slice], tuple[str, str]] = field(default_factory=dict)
    """(table, slice) -> recorded file hash, and that of other files with the same rows; the rest of the row stays."""
    publications: list[PublicationRecord] = field(default_factory=list)
    head: tuple[str, int, int | None] | None = None
    """(table, new snapshot, its parent): recorded only where the ledger knows the parent, or for None."""
    read_batches: dict[BatchKey, BatchAsRead] = field(default_factory=dict)
    exclusions: frozenset[tuple[str, str]] | None = None
    """(object, etag) of dimensions' excluded versions at the decision; None without slices of dimensions."""

    def without(self, slices: Collection[tuple[str, Slice]], batches: Collection[BatchKey]) -> Changes:
        """Return the same changes without those of these (table, slice) and batches."""
        return replace(
            self,
            deliveries=[one for one in self.deliveries if one.batch not in batches],
            forgotten_deliveries=[one for one in self.forgotten_deliveries if one[0] not in batches],
            batches=[one for one in self.batches if one.key not in batches],
            forgotten_refusals=[one for one in self.forgotten_refusals if one[0] not in batches],
            batch_days={key: days for key, days in self.batch_days.items() if key not in batches},
            slices=[one for one in self.slices if (one.table, one.key) not in slices],
            rewritten={place: files for place, files in self.rewritten.items() if place not in slices},
            publications=[one for one in self.publications if (one.table, one.key) not in slices],
            read_batches={key: read for key, read in self.read_batches.items() if key not in batches},
        )


_HELD = "an operator held it meanwhile"


def moved_batches(connection: Connection, changes: Changes) -> set[BatchKey]:
    """Return the judged batches that others judged since; raises PublishConflictError where both loaded one."""
    reads = changes.read_batches
    accepted: dict[BatchKey, dict[str, str]] = {key: {} for key in reads}
    for key, object_key, etag in _of_batches(connection, changes, DELIVERIES, "object_key", "etag"):
        accepted[key][object_key] = etag
    judged = list(_of_batches(connection, changes, BATCHES, "verdict", "input_state", "run_id"))
    recorded = {key: (verdict, input_state) for key, verdict, input_state, _ in judged}
    reloaded = {key for key, read in reads.items() if accepted[key] != read.accepted}
    if both := reloaded & _loaded(changes):
        raise _lost_batches(both, f"{_named(run for key, *_, run in judged if key in both)} loaded it meanwhile")
    rejudged = {key for key, read in reads.items() if recorded.get(key) != read.judgement}
    return reloaded | rejudged


def require_decisions(connection: Connection, changes: Changes, decided: Mapping[BatchKey, str]) -> None:
    """Raise SliceConflictError where an operator excluded or included objects that this step loads or builds slices of."""
    if batches := decided.keys() & _loaded(changes):
        raise _lost_batches(batches, decided[min(batches)])
    slices = {(record.table, record.key) for record in changes.slices}
    slices |= {(publication.table, publication.key) for publication in changes.publications}
    if changes.exclusions is not None and slices:
        c = EXCLUSIONS.c
        query = sa.select(c.object_key, c.etag).where(c.project_id == ALL_PROJECTS, c.lifted_at.is_(None))
        in_force = {(row.object_key, row.etag) for row in connection.execute(query)}
        if in_force != changes.exclusions:
            raise _conflict(slices, _decided(changes.exclusions, in_force))


def decided_since(connection: Connection, changes: Changes) -> dict[BatchKey, str]:
    """Return the judged batches whose exclusions changed since -> how."""
    in_force: dict[BatchKey, set[tuple[str, str]]] = {key: set() for key in changes.read_batches}
    for key, object_key, etag in _of_batches(connection, changes, EXCLUSIONS, "object_key", "etag"):
        in_force[key].add((object_key, etag))
    return {
        key: _decided(read.exclusions, in_force[key])
        for key, read in changes.read_batches.items()
        if in_force[key] != read.exclusions
    }


def _decided(before: Set[tuple[str, str]], since: Set[tuple[str, str]]) -> str:
    if since - before:
        return f"an operator excluded {min(since - before)[0]} meanwhile"
    return f"an operator included {min(before - since)[0]} again meanwhile"


def _loaded(changes: Changes) -> set[BatchKey]:
    return {delivery.batch for delivery in changes.deliveries} | changes.batch_days.keys()


def _lost_batches(batches: Set[BatchKey], reason: str) -> SliceConflictError:
    subject = few(sorted(batches), 1)
    lost = {(QUARANTINE.key, Slice(key.arrival_date, key.project_id)) for key in batches}
    return SliceConflictError(subject, reason, "The load lists and reads it again", lost)


def _of_batches(connection: Connection, changes: Changes, table: sa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    keys = {(key.source.value, key.project_id, key.arrival_date) for key in changes.read_batches}
    where: list[sa.ColumnElement[bool]] = [DELIVERIES.c.is_accepted] if table is DELIVERIES else []
    where += [EXCLUSIONS.c.lifted_at.is_(None)] if table is EXCLUSIONS else []
    for source, project, day, *values in rows_of(connection, table, OF_BATCH, keys, *names, where=where):
        yield BatchKey(Source(source), project, day), *values


def unmoved_slices(connection: Connection, records: Sequence[SliceRecord]) -> list[SliceRecord]:
    """Return the records whose row names the files they were read with, or their own; held slices need a hold or commit."""
    places = {(record.table, record.key) for record in records}
    file_hashes, held = dict(_recorded(connection, places, SLICES.c.file_hash)), _held(connection, places)
    return [
        record
        for record in records
        if (record.table, record.key) not in held or record.verdict in (Verdict.HELD, Verdict.PUBLISHED)
        if (present := file_hashes.get((record.table, record.key))) == record.read_hash
        or (present == record.file_hash and record.knows_inputs)
    ]


def require_none_moved(connection: Connection, changes: Changes, unmoved: Collection[SliceRecord]) -> None:
    """Raise SliceConflictError where the row of a derived slice stays: the decision rests on an earlier state."""
    places = {(record.table, record.key) for record in changes.slices if record.table not in SOURCE_OF_TABLE}
    lost = places - {(record.table, record.key) for record in unmoved}
    if not lost:
        return
    others = lost - _held(connection, lost)
    read = {(record.table, record.key): record.digest for record in changes.slices}
    read |= {(record.table, record.key): record.digest_before for record in changes.publications}
    present = dict(_recorded(connection, others, SLICES.c.digest))
    reason = "maintenance wrote its files anew since it was read" if others else _HELD
    # Maintenance keeps the publishing run in the row whose files it replaces.
    if published := {place for place in others if present.get(place) != str(read[place])}:
        reason = f"{_winners(connection, published)} published it since it was read"
    raise _conflict(lost, reason)


def require_rewritten(connection: Connection, changes: Changes, rewritten: Collection[tuple[str, Slice]]) -> None:
    """Raise SliceConflictError where a slice's row no longer names the files that were rewritten."""
    if moved := changes.rewritten.keys() - set(rewritten):
        raise _conflict(moved, f"{_winners(connection, moved)} recorded other files of it since they were read")


def require_inputs(connection: Connection, rests_on: Mapping[tuple[str, Slice], Digest]) -> None:
    """Raise SliceConflictError where one of these (table, slice) has another digest on record."""
    present = dict(_recorded(connection, rests_on, SLICES.c.digest))
    if moved := {place for place, digest in rests_on.items() if present.get(place, str(EMPTY)) != str(digest)}:
        raise _conflict(moved, f"{_winners(connection, moved)} published it while slices were built from it")


def require_not_held(connection: Connection, slices: Collection[tuple[str, Slice]]) -> None:
    """Raise SliceConflictError where an operator holds one of these (table, slice)."""
    if held := _held(connection, slices):
        raise _conflict(held, _HELD)


def _held(connection: Connection, slices: Collection[tuple[str, Slice]]) -> set[tuple[str, Slice]]:
    return {place for place, _ in _recorded(connection, slices, HOLDS.c.reason)}


def _winners(connection: Connection, slices: Collection[tuple[str, Slice]]) -> str:
    return _named(run for _, run in _recorded(connection, slices, SLICES.c.run_id))


def _recorded(
    connection: Connection, slices: Collection[tuple[str, Slice]], column: sa.Column[str]
) -> Iterator[tuple[tuple[str, Slice], str]]:
    where = [HOLDS.c.released_at.is_(None)] if column.table is HOLDS else []
    wanted, days = set(slices), {(table, key.event_date) for table, key in slices}
    rows = rows_of(connection, column.table, OF_TABLE, days, "project_id", column.name, where=where)
    for table, day, project, value in rows:
        if (place := (table, Slice(day, project))) in wanted:
            yield place, value


def _named(runs: Iterable[str | None]) -> str:
    names = sorted({run for run in runs if run})
    return f"run {few(names)}" if names else "another run"


def _conflict(moved: Collection[tuple[str, Slice]], reason: str) -> SliceConflictError:
    subject = few((f"{table} {key}" for table, key in sorted(moved)), 1)
    return SliceConflictError(subject, reason, "Nothing was published; it is built from fresh inputs", moved)
