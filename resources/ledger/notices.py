"""Write the notices of a run's changes in the transaction that records them, so that a crash neither loses nor repeats one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.causes import CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.notices import (
    Arrivals,
    Notice,
    NoticeKind,
    Published,
    Standing,
    change_notice,
    notice_from_json,
)
from pipeline_assets.domain.records import BatchRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.refusal_notices import Judged, refusal_notice
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source, Verdict
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import SOURCE_OF_TABLE, measures_of
from resources.ledger.arrivals import Place, arrivals_since
from resources.ledger.changes import Changes
from resources.ledger.engine import insert_into
from resources.ledger.rows import publication_row, slice_row
from resources.ledger.schema import BATCHES, NOTICES, PUBLICATIONS, SLICES


@dataclass(frozen=True)
class Before:
    """The records before a run's changes are written."""

    slices: Mapping[Place, Standing] = field(default_factory=dict)
    batches: Mapping[BatchKey, Standing] = field(default_factory=dict)
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


def published_of(record: PublicationRecord, figures: Mapping[str, float], recorded_at: str = "") -> Published:
    """Return a publication in the form of a notice; `recorded_at` is its time where the record has none."""
    return Published(
        record.table,
        record.key,
        record.snapshot_id,
        record.parent_id,
        record.digest_before,
        record.digest_after,
        figures,
        publication_row(record, "")["cause"],
        record.accepted_reason,
        record.run_id,
        record.published_at or recorded_at,
    )


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


def _batches(connection: Connection, records: Sequence[BatchRecord]) -> Iterator[tuple[BatchKey, Standing]]:
    wanted = {record.key for record in records}
    if not wanted:
        return
    days = [key.arrival_date for key in wanted]
    columns = (BATCHES.c.source, BATCHES.c.project_id, BATCHES.c.arrival_date, BATCHES.c.reason)
    query = sa.select(*columns).where(
        BATCHES.c.arrival_date.between(min(days), max(days)), BATCHES.c.verdict == BatchVerdict.REFUSED.value
    )
    for source, project, day, reason in connection.execute(query):
        key = BatchKey(Source(source), project, day)
        if key in wanted:
            yield key, Standing(is_refused=True, reason=reason)


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
    places = [place for one in chosen if not _is_held(records.get(place := (one.table, one.key)))]
    arrivals = arrivals_since(connection, {place: before.published_at.get(place, "") for place in places})
    for one in changed:
        place = one.table, one.key
        record = records.get(place)
        figures = record.figures if record is not None else one.figures or {}
        published = published_of(one, figures, stamp["recorded_at"])
        yield change_notice(
            published,
            before.slices.get(place, Standing()).figures,
            measures_of(one.table),
            arrivals.get(place, Arrivals()),
        )


def _is_held(record: SliceRecord | None) -> bool:
    return record is not None and record.verdict is Verdict.HELD


# -- refusals ----------------------------------------------------------------------------------------------------


def _refusals(
    connection: Connection,
    before: Before,
    judged: tuple[Sequence[SliceRecord], Sequence[BatchRecord]],
    stamp: Mapping[str, Any],
) -> Iterator[Notice]:
    days = [*map(_judged_slice, filter(_is_derived, judged[0])), *map(_judged_batch, judged[1])]
    standing = {
        **before.slices,
        **{(RAW_TABLES[key.source].key, _arrival_day(key)): one for key, one in before.batches.items()},
    }
    last = _last_refusals(connection, days)
    for day in days:
        place = day.table, day.key
        notice = refusal_notice(
            day, standing.get(place, Standing()), last.get(place), stamp["recorded_at"], stamp["run_id"]
        )
        if notice is not None:
            yield notice


def _is_derived(record: SliceRecord) -> bool:
    """Whether the slice is of a derived table; raw days are judged by their batches instead."""
    return record.table not in SOURCE_OF_TABLE


def _arrival_day(key: BatchKey) -> Slice:
    return Slice(key.arrival_date, key.project_id)


def _judged_slice(record: SliceRecord) -> Judged:
    accepted = next((one.reason for one in record.evaluations if one.is_accepted_change), None)
    is_refused = record.verdict is Verdict.REFUSED
    return Judged(
        record.table,
        record.key,
        record.verdict.value,
        is_refused,
        record.verdict.is_good,
        record.reason,
        record.hint,
        json.dumps(slice_row(record)["refused_state"], sort_keys=True) if is_refused else "",
        accepted,
    )


def _judged_batch(record: BatchRecord) -> Judged:
    accepted = next((one.reason for one in record.evaluations if one.is_passed), None) if record.is_decided else None
    is_refused = record.verdict is BatchVerdict.REFUSED
    return Judged(
        RAW_TABLES[record.key.source].key,
        _arrival_day(record.key),
        record.verdict.value,
        is_refused,
        record.verdict is BatchVerdict.ACCEPTED,
        record.reason,
        record.hint,
        record.input_state or "",
        accepted,
    )


def _last_refusals(connection: Connection, days: Sequence[Judged]) -> dict[Place, Notice]:
    """Return the latest refusal or refusal-end notice of each of these days."""
    found: dict[Place, Notice] = {}
    kinds = (NoticeKind.REFUSAL.value, NoticeKind.REFUSAL_END.value)
    for table, keys in _by_table((one.table, one.key) for one in days).items():
        query = sa.select(NOTICES.c.body).where(*_near(NOTICES, table, keys), NOTICES.c.kind.in_(kinds))
        for body in connection.execute(query.order_by(NOTICES.c.number)).scalars():
            notice = notice_from_json(body)
            found[table, notice.key] = notice
    return found
