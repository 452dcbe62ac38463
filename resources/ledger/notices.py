"""Write the notices of a run's changes in the transaction that records them, so that a crash neither loses nor repeats one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.notices import Judged, Notice, NoticeKind, Place, change_notice, refusal_notice
from pipeline_assets.domain.records import BatchRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source, Verdict
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import SOURCE_OF_TABLE, measures_of
from resources.ledger.changes import Changes
from resources.ledger.engine import in_parts, insert_into
from resources.ledger.rows import rejection_json
from resources.ledger.schema import BATCH_DAYS, BATCHES, DELIVERIES, EXCLUSIONS, NOTICES, PUBLICATIONS, SLICES

_DAY = ("table_name", "event_date")
_BATCH, _EVENT_DAY = ("source", "project_id", "arrival_date"), ("source", "project_id", "event_date")
"""Columns by which rows are asked for; the last is a day."""


class ChangeNotices:
    """The notices of a run's changes. Made in their transaction before anything is written, to read the records before."""

    def __init__(self, connection: Connection, changes: Changes, stamp: Mapping[str, Any]) -> None:
        """Read what the changes are compared with; `stamp`: run and time that rows get."""
        self._connection, self._changes, self._stamp = connection, changes, stamp
        days = {(one.table, one.key.event_date) for one in changes.slices}
        days |= {(one.table, one.key.event_date) for one in changes.publications}
        self._slices: dict[Place, SliceRecord] = {}
        rows = _rows(connection, SLICES, _DAY, days, "project_id", "verdict", "reason", "is_final", "figures")
        for table, day, project, verdict, reason, is_final, figures in rows:
            self._slices[table, Slice(day, project)] = SliceRecord(
                table, Slice(day, project), Verdict(verdict), reason, is_final=bool(is_final), figures=figures or {}
            )
        batches = [(one.key.source.value, one.key.project_id, one.key.arrival_date) for one in changes.batches]
        rows = _rows(connection, BATCHES, _BATCH, batches, "verdict", "reason")
        self._batches = {
            (batch := BatchKey(Source(source), project, day)): BatchRecord(batch, BatchVerdict(verdict), reason)
            for source, project, day, verdict, reason in rows
        }

    def was_final(self, publication: PublicationRecord) -> bool:
        """Whether the slice was final before this publication."""
        before = self._slices.get((publication.table, publication.key))
        return before is not None and before.is_final

    def write(self, slices: Sequence[SliceRecord], batches: Sequence[BatchRecord]) -> None:
        """Write the notices, after deliveries and before publications; existing ones stay as they are.

        `slices`, `batches`: those whose rows were written; those that another run recorded meanwhile get no notice.
        """
        for notice in (*self._changed(), *self._refused(slices, batches)):
            write_notice(self._connection, notice, self._stamp)

    def _changed(self) -> Iterator[Notice]:
        changed = [
            one
            for one in self._changes.publications
            if one.digest_before != one.digest_after and (self.was_final(one) or one.cause.kind is CauseKind.UNDELETED)
        ]
        records = {(record.table, record.key): record for record in self._changes.slices}
        # An operator chose the content of a held slice, so no delivery explains the change.
        held = {place for place, record in records.items() if record.verdict is Verdict.HELD}
        chosen = {(one.table, one.key) for one in changed if one.cause.kind is not CauseKind.UNDELETED}
        since = dict.fromkeys(chosen - held, "")
        days = {(table, key.event_date) for table, key in since}
        for table, day, project, at in _rows(self._connection, PUBLICATIONS, _DAY, days, "project_id", "published_at"):
            if (place := (table, Slice(day, project))) in since:
                since[place] = max(since[place], at or "")
        arrivals = arrivals_since(self._connection, since)
        for one in changed:
            place = one.table, one.key
            after, before = records.get(place), self._slices.get(place)
            yield change_notice(
                one,
                after.figures if after is not None else one.figures or {},
                before.figures if before is not None else {},
                measures_of(one.table),
                arrivals.get(place, ((), ())),
                self._stamp["recorded_at"],
            )

    def _refused(self, slices: Sequence[SliceRecord], batches: Sequence[BatchRecord]) -> Iterator[Notice]:
        judged: dict[Place, tuple[Judged, Judged | None, str]] = {}
        for one in slices:
            # Raw days are judged by their batches.
            if one.table not in SOURCE_OF_TABLE:
                place = one.table, one.key
                refused = rejection_json(one.rejection) if one.verdict is Verdict.REFUSED else None
                judged[place] = one, self._slices.get(place), json.dumps(refused, sort_keys=True) if refused else ""
        for batch in batches:
            place = RAW_TABLES[batch.key.source].key, Slice(batch.key.arrival_date, batch.key.project_id)
            judged[place] = batch, self._batches.get(batch.key), batch.input_state or ""
        last: dict[Place, Notice] = {}
        for is_day in _conditions(NOTICES, _DAY, ((table, key.event_date) for table, key in judged)):
            last |= last_notices(self._connection, (NoticeKind.REFUSAL, NoticeKind.REFUSAL_END), *is_day)
        for place, (record, before, inputs) in judged.items():
            at, run_id = self._stamp["recorded_at"], self._stamp["run_id"]
            notice = refusal_notice(place, record, before, last.get(place), inputs, at, run_id)
            if notice is not None:
                yield notice


def arrivals_since(connection: Connection, since: Mapping[Place, str]) -> dict[Place, tuple[list[str], list[str]]]:
    """Return the objects delivered, and those excluded or included again, since each slice's time, sorted.

    Of batches that hold, or held, rows of the slice's day.
    """
    earliest = min(since.values(), default="")
    days = ((source.value, key.project_id, key.event_date) for source in Source for _, key in since)
    batches: dict[tuple[str, str, date], list[Slice]] = defaultdict(list)
    for source, project, day, arrival in _rows(connection, BATCH_DAYS, _EVENT_DAY, days, "arrival_date"):
        batches[source, project, arrival].append(Slice(day, project))
    found: dict[tuple[str, Slice], set[tuple[str, str]]] = defaultdict(set)
    for table, at in ((DELIVERIES, "recorded_at"), (EXCLUSIONS, "excluded_at"), (EXCLUSIONS, "lifted_at")):
        where = (table.c[at] > earliest, *([DELIVERIES.c.is_accepted] if table is DELIVERIES else []))
        for *batch, object_key, moment in _rows(connection, table, _BATCH, batches, "object_key", at, where=where):
            for key in batches[tuple(batch)]:
                found[table.name, key].add((object_key, moment))

    def later(table: sa.Table, place: Place) -> list[str]:
        return sorted({name for name, moment in found[table.name, place[1]] if moment > since[place]})

    return {place: (later(DELIVERIES, place), later(EXCLUSIONS, place)) for place in since}


def write_notice(connection: Connection, notice: Notice, stamp: Mapping[str, Any]) -> None:
    """Put a notice into the outbox, in the transaction of its change; an existing notice stays as it is."""
    key = {"event_date": notice.key.event_date, "project_id": notice.key.project_id}
    row = {"id": notice.id, "kind": notice.kind.value, "table_name": notice.table, "body": notice.to_json()} | key
    connection.execute(insert_into(connection, NOTICES).on_conflict_do_nothing(), {**row, **stamp})


def read_notices(connection: Connection, *where: sa.ColumnElement[bool], most: int | None = None) -> list[Notice]:
    """Return the notices of which this is true, in the order in which they were recorded, at most so many."""
    query = sa.select(NOTICES).where(*where).order_by(NOTICES.c.number).limit(most)
    rows = connection.execute(query).mappings()
    return [Notice.from_json(row["body"], row["number"], row["run_id"]) for row in rows]


def last_notices(
    connection: Connection, kinds: Sequence[NoticeKind], *where: sa.ColumnElement[bool]
) -> dict[Place, Notice]:
    """Return the latest notice of these kinds of each table and day."""
    found = read_notices(connection, NOTICES.c.kind.in_([kind.value for kind in kinds]), *where)
    return {(notice.table, notice.key): notice for notice in found}


def _conditions(
    table: sa.Table, key: Sequence[str], wanted: Iterable[tuple[Any, ...]]
) -> Iterator[list[sa.ColumnElement[bool]]]:
    """Conditions that select the rows with these keys by an index."""
    days: dict[tuple[Any, ...], set[date]] = defaultdict(set)
    for *group, day in wanted:
        days[tuple(group)].add(day)
    for values in sorted(days):
        for part in in_parts(sorted(days[values])):
            same = [table.c[name] == value for name, value in zip(key, values, strict=False)]
            yield [*same, table.c[key[-1]].in_(part)]


def _rows(
    connection: Connection,
    table: sa.Table,
    key: Sequence[str],
    wanted: Iterable[tuple[Any, ...]],
    *names: str,
    where: Sequence[sa.ColumnElement[bool]] = (),
) -> Iterator[Any]:
    """The key and these columns of the rows with these keys.

    Each table is asked by its keys: a join would leave it to the database to read every delivery that is on record.
    """
    query = sa.select(*(table.c[name] for name in (*key, *names))).where(*where)
    for is_wanted in _conditions(table, key, wanted):
        yield from connection.execute(query.where(*is_wanted))
