"""Write the notices of a run's changes in the transaction that records them, so that a crash neither loses nor repeats one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.causes import CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.notices import (
    Arrivals,
    Notice,
    NoticeKind,
    Standing,
    change_notice,
    notice_from_json,
    refusal_notice,
)
from pipeline_assets.domain.records import BatchRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source, Verdict
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import SOURCE_OF_TABLE, measures_of
from resources.ledger.changes import Changes
from resources.ledger.engine import in_parts, insert_into
from resources.ledger.rows import slice_row
from resources.ledger.schema import BATCH_DAYS, BATCHES, DELIVERIES, EXCLUSIONS, NOTICES, PUBLICATIONS, SLICES

Place = tuple[str, Slice]
"""Table and slice; for deliveries of a raw table the slice holds the arrival day."""
_Batch = tuple[str, str, date]
"""Source, project and arrival day, as the ledger's rows have them."""


def arrivals_since(connection: Connection, since: Mapping[Place, str]) -> dict[Place, Arrivals]:
    """Return what arrived, was excluded or was included since each slice's time, in batches with rows of the slice's day."""
    if not since:
        return {}
    earliest = min(since.values())
    batches = _batches_of(connection, {key for _, key in since})
    delivered = _recorded_since(connection, DELIVERIES.c.recorded_at, earliest, batches)
    excluded = _recorded_since(connection, EXCLUSIONS.c.excluded_at, earliest, batches)
    lifted = _recorded_since(connection, EXCLUSIONS.c.lifted_at, earliest, batches)
    return {
        place: Arrivals.of(
            _later(delivered.get(place[1], ()), at),
            _later([*excluded.get(place[1], ()), *lifted.get(place[1], ())], at),
        )
        for place, at in since.items()
    }


def _batches_of(connection: Connection, slices: Collection[Slice]) -> dict[_Batch, list[Slice]]:
    """Batches that hold, or held, rows of these slices -> which of the slices."""
    found: dict[_Batch, list[Slice]] = {}
    # The indexes begin with source and project.
    for (source, project), days in _grouped(
        (one.value, key.project_id, key.event_date) for one in Source for key in slices
    ):
        for part in in_parts(days):
            query = sa.select(BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.event_date).where(
                BATCH_DAYS.c.source == source, BATCH_DAYS.c.project_id == project, BATCH_DAYS.c.event_date.in_(part)
            )
            for arrival, day in connection.execute(query):
                found.setdefault((source, project, arrival), []).append(Slice(day, project))
    return found


def _recorded_since(
    connection: Connection, at: sa.Column[str], since: str, batches: Mapping[_Batch, Sequence[Slice]]
) -> dict[Slice, list[tuple[str, str]]]:
    """Slice -> object and time, of rows with a later time in the table of the column `at`, of these batches.

    The batches are asked for by their key: a join would leave it to the database to read every delivery that is on record.
    """
    table = at.table
    accepted = [DELIVERIES.c.is_accepted] if table is DELIVERIES else []
    found: dict[Slice, list[tuple[str, str]]] = {}
    for (source, project), arrivals in _grouped(batches):
        for part in in_parts(arrivals):
            query = sa.select(table.c.arrival_date, table.c.object_key, at).where(
                table.c.source == source,
                table.c.project_id == project,
                table.c.arrival_date.in_(part),
                *accepted,
                at > since,
            )
            for arrival, object_key, recorded_at in connection.execute(query):
                for key in batches[source, project, arrival]:
                    found.setdefault(key, []).append((object_key, recorded_at))
    return found


def _grouped(places: Iterable[_Batch]) -> Iterator[tuple[tuple[str, str], list[date]]]:
    """Source and project -> the days."""
    found: dict[tuple[str, str], set[date]] = {}
    for source, project, day in places:
        found.setdefault((source, project), set()).add(day)
    for place in sorted(found):
        yield place, sorted(found[place])


def _later(objects: Collection[tuple[str, str]], at: str) -> list[str]:
    return sorted({object_key for object_key, recorded_at in objects if recorded_at > at})


@dataclass(frozen=True)
class Before:
    """The records before a run's changes are written."""

    slices: Mapping[Place, Standing] = field(default_factory=dict)
    batches: Mapping[Place, Standing] = field(default_factory=dict)
    """By raw table and arrival day."""
    published_at: Mapping[Place, str] = field(default_factory=dict)
    """When each final slice that is published again was last published."""

    def was_final(self, publication: PublicationRecord) -> bool:
        """Whether the slice was final before this publication."""
        return self.slices.get((publication.table, publication.key), Standing()).is_final


def read_before(connection: Connection, changes: Changes) -> Before:
    """Read the records that these changes are compared with, in their transaction and before anything is written."""
    slices = dict(_slices(connection, [*changes.slices, *changes.publications]))
    batches = dict(_batches(connection, changes.batches))
    final = [one for one in changes.publications if slices.get((one.table, one.key), Standing()).is_final]
    return Before(slices, batches, dict(_published_at(connection, final)))


def write_notices(
    connection: Connection,
    before: Before,
    changes: Changes,
    judged: tuple[Sequence[SliceRecord], Sequence[BatchRecord]],
    stamp: Mapping[str, Any],
) -> None:
    """Write the notices of a run's changes; existing notices stay as they are.

    `judged` holds the slices and batches whose rows were written; those that another run recorded meanwhile get no notice.
    """
    changed = [
        one
        for one in changes.publications
        if one.digest_before != one.digest_after and (before.was_final(one) or one.cause.kind is CauseKind.UNDELETED)
    ]
    notices = [
        *_change_notices(connection, before, changes, changed, stamp),
        *_refusals(connection, before, judged, stamp),
    ]
    for notice in notices:
        write_notice(connection, notice, stamp)


def write_notice(connection: Connection, notice: Notice, stamp: Mapping[str, Any]) -> None:
    """Put a notice into the outbox, in the transaction of its change; an existing notice stays as it is."""
    row = {
        "id": notice.id,
        "kind": notice.kind.value,
        "table_name": notice.table,
        "event_date": notice.key.event_date,
        "project_id": notice.key.project_id,
        "body": notice.to_json(),
        **stamp,
    }
    connection.execute(insert_into(connection, NOTICES).on_conflict_do_nothing(), row)


def last_notices(
    connection: Connection, kinds: Sequence[NoticeKind], *where: sa.ColumnElement[bool]
) -> dict[Place, Notice]:
    """Return the latest notice of these kinds of each table and day."""
    query = sa.select(NOTICES.c.body).where(NOTICES.c.kind.in_([kind.value for kind in kinds]), *where)
    bodies = connection.execute(query.order_by(NOTICES.c.number)).scalars()
    return {(notice.table, notice.key): notice for notice in map(notice_from_json, bodies)}


# -- what stood before -------------------------------------------------------------------------------------------


def _slices(
    connection: Connection, records: Sequence[SliceRecord | PublicationRecord]
) -> Iterator[tuple[Place, Standing]]:
    columns = ("event_date", "project_id", "verdict", "reason", "is_final", "figures")
    for table, keys in _by_table((record.table, record.key) for record in records).items():
        query = sa.select(*(SLICES.c[name] for name in columns)).where(*_near(SLICES, table, keys))
        for day, project, verdict, reason, is_final, figures in connection.execute(query):
            is_refused = verdict == Verdict.REFUSED.value
            yield (table, Slice(day, project)), Standing(is_final, figures or {}, is_refused, reason)


def _batches(connection: Connection, records: Sequence[BatchRecord]) -> Iterator[tuple[Place, Standing]]:
    days = [record.key.arrival_date for record in records]
    if not days:
        return
    columns = (BATCHES.c.source, BATCHES.c.project_id, BATCHES.c.arrival_date, BATCHES.c.reason)
    query = sa.select(*columns).where(
        BATCHES.c.arrival_date.between(min(days), max(days)), BATCHES.c.verdict == BatchVerdict.REFUSED.value
    )
    for source, project, day, reason in connection.execute(query):
        yield _arrival(BatchKey(Source(source), project, day)), Standing(is_refused=True, reason=reason)


def _published_at(connection: Connection, final: Sequence[PublicationRecord]) -> Iterator[tuple[Place, str]]:
    for table, keys in _by_table((one.table, one.key) for one in final).items():
        columns = (PUBLICATIONS.c.event_date, PUBLICATIONS.c.project_id)
        query = sa.select(*columns, sa.func.max(PUBLICATIONS.c.published_at)).where(*_near(PUBLICATIONS, table, keys))
        for day, project, at in connection.execute(query.group_by(*columns)):
            if Slice(day, project) in keys:
                yield (table, Slice(day, project)), at or ""


def _by_table(places: Iterable[Place]) -> dict[str, set[Slice]]:
    found: dict[str, set[Slice]] = {}
    for table, key in places:
        found.setdefault(table, set()).add(key)
    return found


def _near(table: sa.Table, name: str, keys: Collection[Slice]) -> tuple[sa.ColumnElement[bool], ...]:
    days = [key.event_date for key in keys]
    return table.c.table_name == name, table.c.event_date.between(min(days), max(days))


# -- changes of final days ---------------------------------------------------------------------------------------


def _change_notices(
    connection: Connection,
    before: Before,
    changes: Changes,
    changed: Sequence[PublicationRecord],
    stamp: Mapping[str, Any],
) -> Iterator[Notice]:
    records = {(record.table, record.key): record for record in changes.slices}
    # An operator chose the content of a held slice, so no delivery explains the change.
    chosen = [one for one in changed if one.cause.kind is not CauseKind.UNDELETED]
    held = {place for place, record in records.items() if record.verdict is Verdict.HELD}
    places = [place for one in chosen if (place := (one.table, one.key)) not in held]
    arrivals = arrivals_since(connection, {place: before.published_at.get(place, "") for place in places})
    for one in changed:
        place = one.table, one.key
        record = records.get(place)
        yield change_notice(
            one,
            record.figures if record is not None else one.figures or {},
            before.slices.get(place, Standing()).figures,
            measures_of(one.table),
            arrivals.get(place, Arrivals()),
            stamp["recorded_at"],
        )


# -- refusals ----------------------------------------------------------------------------------------------------


def _refusals(
    connection: Connection,
    before: Before,
    judged: tuple[Sequence[SliceRecord], Sequence[BatchRecord]],
    stamp: Mapping[str, Any],
) -> Iterator[Notice]:
    # Raw days are judged by their batches.
    slices = {(one.table, one.key): one for one in judged[0] if one.table not in SOURCE_OF_TABLE}
    batches = {_arrival(one.key): one for one in judged[1]}
    kinds = (NoticeKind.REFUSAL, NoticeKind.REFUSAL_END)
    last: dict[Place, Notice] = {}
    for table, keys in _by_table([*slices, *batches]).items():
        last |= last_notices(connection, kinds, *_near(NOTICES, table, keys))
    at, run_id = stamp["recorded_at"], stamp["run_id"]
    found = [
        refusal_notice(place, one, before.slices.get(place, Standing()), last.get(place), _inputs(one), at, run_id)
        for place, one in slices.items()
    ]
    found += [
        refusal_notice(
            place, one, before.batches.get(place, Standing()), last.get(place), one.input_state or "", at, run_id
        )
        for place, one in batches.items()
    ]
    return (notice for notice in found if notice is not None)


def _arrival(key: BatchKey) -> Place:
    return RAW_TABLES[key.source].key, Slice(key.arrival_date, key.project_id)


def _inputs(record: SliceRecord) -> str:
    is_refused = record.verdict is Verdict.REFUSED
    return json.dumps(slice_row(record)["refused_state"], sort_keys=True) if is_refused else ""
