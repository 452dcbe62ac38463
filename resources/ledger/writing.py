"""A transaction's writes to the ledger: the changes of steps, their notices, the resulting cut, the run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.notices import Judged, Notice, NoticeKind, Place, change_notice, refusal_notice
from pipeline_assets.domain.records import THIS_LOAD, BatchDay, BatchRecord, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source, Verdict
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import SOURCE_OF_TABLE, measures_of
from resources.ledger import schema
from resources.ledger.changes import (
    Changes,
    decided_since,
    moved_batches,
    require_decisions,
    require_none_moved,
    require_rewritten,
    unmoved_slices,
)
from resources.ledger.engine import insert_into, upsert
from resources.ledger.outbox import last_notices, write_notice
from resources.ledger.queries import OF_BATCH, OF_EVENTS, OF_TABLE, conditions, head, rows_of


class ChangeNotices:
    """The notices of a run's changes; made before anything is written, to read the earlier records."""

    def __init__(self, connection: Connection, changes: Changes, stamp: Mapping[str, Any]) -> None:
        self._connection, self._changes, self._stamp = connection, changes, stamp
        days = {(one.table, one.key.event_date) for one in changes.slices}
        days |= {(one.table, one.key.event_date) for one in changes.publications}
        self._slices: dict[Place, SliceRecord] = {}
        names = ("project_id", "verdict", "reason", "is_final", "figures")
        for table, day, project, verdict, reason, *known in rows_of(connection, schema.SLICES, OF_TABLE, days, *names):
            key, (is_final, figures) = Slice(day, project), known
            record = SliceRecord(table, key, Verdict(verdict), reason, is_final=bool(is_final), figures=figures or {})
            self._slices[table, key] = record
        batches = {(one.key.source.value, one.key.project_id, one.key.arrival_date) for one in changes.batches}
        rows = rows_of(connection, schema.BATCHES, OF_BATCH, batches, "verdict", "reason")
        self._batches = {
            (batch := BatchKey(Source(source), project, day)): BatchRecord(batch, BatchVerdict(verdict), reason)
            for source, project, day, verdict, reason in rows
        }

    def was_final(self, publication: PublicationRecord) -> bool:
        """Whether the slice was final before this publication."""
        before = self._slices.get((publication.table, publication.key))
        return before is not None and before.is_final

    def write(self, slices: Sequence[SliceRecord], batches: Sequence[BatchRecord]) -> None:
        """Write the notices of changes and of the written slices and batches, after deliveries and before publications."""
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
        rows = rows_of(self._connection, schema.PUBLICATIONS, OF_TABLE, days, "project_id", "published_at")
        for table, day, project, at in rows:
            if (place := (table, Slice(day, project))) in since:
                since[place] = max(since[place], at or "")
        arrivals = arrivals_since(self._connection, since)
        for one in changed:
            place = one.table, one.key
            after = records[place].figures if place in records else one.figures or {}
            before = self._slices[place].figures if place in self._slices else {}
            arrived, at = arrivals.get(place, ((), ())), self._stamp["recorded_at"]
            yield change_notice(one, after, before, measures_of(one.table), arrived, at)

    def _refused(self, slices: Sequence[SliceRecord], batches: Sequence[BatchRecord]) -> Iterator[Notice]:
        judged: dict[Place, tuple[Judged, Judged | None, str]] = {}
        for one in slices:
            if one.table not in SOURCE_OF_TABLE:
                place = one.table, one.key
                refused = schema.rejection_json(one.rejection) if one.verdict is Verdict.REFUSED else None
                judged[place] = one, self._slices.get(place), json.dumps(refused, sort_keys=True) if refused else ""
        for batch in batches:
            place = RAW_TABLES[batch.key.source].key, Slice(batch.key.arrival_date, batch.key.project_id)
            judged[place] = batch, self._batches.get(batch.key), batch.input_state or ""
        last: dict[Place, Notice] = {}
        for is_day in conditions(schema.NOTICES, OF_TABLE, {(table, key.event_date) for table, key in judged}):
            last |= last_notices(self._connection, (NoticeKind.REFUSAL, NoticeKind.REFUSAL_END), *is_day)
        for place, (record, before, inputs) in judged.items():
            at, run_id = self._stamp["recorded_at"], self._stamp["run_id"]
            notice = refusal_notice(place, record, before, last.get(place), inputs, at, run_id)
            if notice is not None:
                yield notice


def arrivals_since(connection: Connection, since: Mapping[Place, str]) -> dict[Place, tuple[list[str], list[str]]]:
    """Return the objects of each slice's batches delivered since its time, and those excluded or included again, sorted."""
    earliest = min(since.values(), default="")
    days = {(source.value, key.project_id, key.event_date) for source in Source for _, key in since}
    batches: dict[tuple[str, str, date], list[Slice]] = defaultdict(list)
    for source, project, day, arrival in rows_of(connection, schema.BATCH_DAYS, OF_EVENTS, days, "arrival_date"):
        batches[source, project, arrival].append(Slice(day, project))
    found: dict[tuple[str, Slice], set[tuple[str, str]]] = defaultdict(set)
    for at in ("recorded_at", "excluded_at", "lifted_at"):
        table = schema.DELIVERIES if at == "recorded_at" else schema.EXCLUSIONS
        where = (table.c[at] > earliest, *([schema.DELIVERIES.c.is_accepted] if table is schema.DELIVERIES else []))
        for *batch, object_key, moment in rows_of(connection, table, OF_BATCH, batches, "object_key", at, where=where):
            for key in batches[tuple(batch)]:
                found[table.name, key].add((object_key, moment))

    def later(table: sa.Table, place: Place) -> list[str]:
        return sorted({name for name, moment in found[table.name, place[1]] if moment > since[place]})

    return {place: (later(schema.DELIVERIES, place), later(schema.EXCLUSIONS, place)) for place in since}


class LedgerWriting:
    """Writes on one connection, with the same moment in every row."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._now = datetime.now(UTC).isoformat()

    def record(self, changes: Changes, run_id: str, *, is_strict: bool = False) -> None:
        """Write one step's changes; raises PublishConflictError where another run loaded a batch that this step loaded too.

        `is_strict`: others' changes of derived slices and of exclusions meanwhile are conflicts.
        """
        connection, stamp = self._connection, {"run_id": run_id, "recorded_at": self._now}
        decided = decided_since(connection, changes)
        moved = moved_batches(connection, changes) | decided.keys()
        if is_strict:
            require_decisions(connection, changes, decided)
        notices = ChangeNotices(connection, changes, stamp)
        batches = [batch for batch in changes.batches if batch.key not in moved]
        for forgotten, is_accepted in ((changes.forgotten_deliveries, True), (changes.forgotten_refusals, False)):
            for batch, object_key in forgotten:
                known = {"source": batch.source.value, "object_key": object_key, "is_accepted": is_accepted}
                connection.execute(schema.DELIVERIES.delete().filter_by(**known))
        # The same bytes are no new delivery: they keep their run and moment.
        rows = [schema.row_of(one) | (stamp if one.recorded_at == THIS_LOAD else {}) for one in changes.deliveries]
        upsert(connection, schema.DELIVERIES, rows)
        upsert(connection, schema.BATCHES, [schema.row_of(batch) | stamp for batch in batches])
        for batch, days in changes.batch_days.items():
            self._replace_batch_days(batch, days)
        unmoved = unmoved_slices(connection, changes.slices)
        if is_strict:
            require_none_moved(connection, changes, unmoved)
        upsert(connection, schema.SLICES, [schema.row_of(record, "read_hash") | stamp for record in unmoved])
        rewritten = set()
        for (table, key), (before, after) in changes.rewritten.items():
            names_former = schema.is_key(schema.SLICES, key, table_name=table, file_hash=before)
            if connection.execute(schema.SLICES.update().where(names_former).values(file_hash=after)).rowcount:
                rewritten.add((table, key))
        if is_strict:
            require_rewritten(connection, changes, rewritten)
        notices.write(unmoved, batches)
        for one in changes.publications:
            row = schema.row_of(replace(one, published_at=one.published_at or self._now), "number")
            once = insert_into(connection, schema.PUBLICATIONS).on_conflict_do_nothing()
            connection.execute(once, row | {"was_final": notices.was_final(one)})
        if changes.head is not None:
            left = {record.key for record in changes.slices} - {record.key for record in unmoved}
            is_left = left & {publication.key for publication in changes.publications}
            self._move_head(*changes.head, is_whole=not is_left and changes.rewritten.keys() == rewritten)

    def record_cut(self, run_id: str, published: Mapping[str, int]) -> dict[str, int]:
        """Record and return table -> snapshot of all tables that belong together; `published` wins over recorded heads."""
        rows = self._connection.execute(sa.select(schema.HEADS.c.table_name, schema.HEADS.c.snapshot_id))
        heads = {name: schema.head_of(int(number)) for name, number in rows}
        former = self._connection.execute(
            sa.select(schema.CUTS.c.snapshots).order_by(schema.CUTS.c.number.desc()).limit(1)
        ).scalar()
        doubted = {name: head.snapshot_id for name, head in heads.items() if not head.is_trusted}
        trusted = {name: head.snapshot_id for name, head in heads.items() if head.is_trusted}
        found = {**doubted, **{name: int(number) for name, number in (former or {}).items()}, **trusted, **published}
        snapshots = {name: str(found[name]) for name in sorted(found)}
        if snapshots != former:
            row = {"run_id": run_id, "published_at": self._now, "snapshots": snapshots}
            self._connection.execute(schema.CUTS.insert(), row)
        return found

    def record_run(self, run_id: str, values: Mapping[str, Any]) -> None:
        """Write or complete the row of a run."""
        upsert(self._connection, schema.RUNS, [{"run_id": run_id, **values}])

    def _replace_batch_days(self, batch: BatchKey, days: Mapping[date, BatchDay]) -> None:
        is_batch, c = schema.is_key(schema.BATCH_DAYS, batch), schema.BATCH_DAYS.c
        rows = self._connection.execute(sa.select(c.event_date, c.digest, c.lateness).where(is_batch))
        known = {(day, digest): lateness for day, digest, lateness in rows}
        self._connection.execute(schema.BATCH_DAYS.delete().where(is_batch))
        if days:
            new = [schema.columns_of(batch) | schema.batch_day_row(day, part, known) for day, part in days.items()]
            self._connection.execute(schema.BATCH_DAYS.insert(), new)

    def _move_head(self, table: str, snapshot_id: int, follows: int | None, *, is_whole: bool) -> None:
        """Move a head from the snapshot the ledger agrees with; else it is doubted, and the next run compares."""
        known = head(self._connection, table)
        number = None if known is None else -known.snapshot_id
        if is_whole and (follows is None or known in (Head(follows), Head(snapshot_id))):
            number = snapshot_id
        if number is not None:
            upsert(self._connection, schema.HEADS, [{"table_name": table, "snapshot_id": number}])
