"""The outbox: notices, their receivers' progress, and the golden totals whose comparison writes some."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain import golden
from pipeline_assets.domain.notices import Notice, NoticeKind, Place
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.engine import Part, in_parts, insert_into, upsert
from resources.ledger.schema import (
    GOLDEN_FAULTS,
    GOLDEN_TOTALS,
    NOTICES,
    PUBLICATIONS,
    RECEIVERS,
    SET_ASIDE,
    columns_of,
    record_of,
    row_of,
)


def write_notice(connection: Connection, notice: Notice, stamp: Mapping[str, Any]) -> None:
    """Put a notice into the outbox, in the transaction of its change; an existing notice stays."""
    row = {"id": notice.id, "kind": notice.kind.value, "table_name": notice.table, "body": notice.to_json()}
    values = {**row, **columns_of(notice.key), **stamp}
    connection.execute(insert_into(connection, NOTICES).on_conflict_do_nothing(), values)


def read_notices(connection: Connection, *where: sa.ColumnElement[bool], most: int | None = None) -> list[Notice]:
    """Return the notices that meet these conditions, in order of record, at most `most`."""
    query = sa.select(NOTICES).where(*where).order_by(NOTICES.c.number).limit(most)
    rows = connection.execute(query).mappings()
    return [Notice.from_json(row["body"], row["number"], row["run_id"]) for row in rows]


def last_notices(
    connection: Connection, kinds: Sequence[NoticeKind], *where: sa.ColumnElement[bool]
) -> dict[Place, Notice]:
    """Return the latest notice of these kinds per table and day."""
    found = read_notices(connection, NOTICES.c.kind.in_([kind.value for kind in kinds]), *where)
    return {(notice.table, notice.key): notice for notice in found}


_SEEN_EVERY = timedelta(hours=12)


@dataclass(frozen=True)
class Receiver:
    """An address as the ledger knows it."""

    id: str
    place: str
    sent_number: int
    failures: int = 0
    failed_at: datetime | None = None
    error: str | None = None
    retry_at: datetime | None = None
    waiting: int = 0
    seen_at: str = ""


class Outbox(Part):
    """Reads and writes notices and receivers; each write is one transaction."""

    def _notices(self, *where: sa.ColumnElement[bool], most: int | None = None) -> list[Notice]:
        with self._read() as connection:
            return read_notices(connection, *where, most=most)

    def register(self, places: Mapping[str, str]) -> dict[str, Receiver]:
        """Register receivers (id -> place) and return them; a new receiver gets the notices recorded from now on."""
        now, known = datetime.now(UTC), self.receivers()
        seen_before = (now - _SEEN_EVERY).isoformat()
        due = [name for name in places if name not in known or known[name].seen_at < seen_before]
        if due:
            with self._write() as connection:
                last = connection.execute(sa.select(sa.func.max(NOTICES.c.number))).scalar() or 0
                insert = insert_into(connection, RECEIVERS)
                seen = {name: insert.excluded[name] for name in ("place", "seen_at")}
                common = {"seen_at": now.isoformat(), "sent_number": last, "failures": 0}
                rows = [{"id": name, "place": places[name], **common} for name in due]
                connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=seen), rows)
            known = self.receivers()
        return {name: receiver for name, receiver in known.items() if name in places}

    def receivers(self) -> dict[str, Receiver]:
        """Return id -> receiver, of all that were registered and not forgotten."""
        waiting = sa.select(sa.func.count()).where(NOTICES.c.number > RECEIVERS.c.sent_number).scalar_subquery()
        rows = self._maps(sa.select(RECEIVERS, waiting.label("waiting")))
        return {row["id"]: record_of(Receiver, row) for row in rows}

    def pending(self, receiver_id: str, most: int) -> list[Notice]:
        """Return the oldest notices that the receiver has not got yet, at most `most`."""
        sent = sa.select(RECEIVERS.c.sent_number).where(RECEIVERS.c.id == receiver_id).scalar_subquery()
        return self._notices(NOTICES.c.number > sent, most=most)

    def mark_sent(self, receiver_id: str, number: int) -> None:
        """Record that the receiver accepted all notices up to this number."""
        well = {"failures": 0, "failed_at": None, "error": None, "retry_at": None, "refused_body": None, "refusals": 0}
        later = sa.case((RECEIVERS.c.sent_number < number, number), else_=RECEIVERS.c.sent_number)
        self._do(RECEIVERS.update().where(RECEIVERS.c.id == receiver_id).values(sent_number=later, **well))

    def mark_failed(
        self, receiver_id: str, error: str, retry_at: datetime | None, refused_body: str | None = None
    ) -> int:
        """Record a failed attempt; returns how often it refused `refused_body` for good in a row."""
        values: dict[str, Any] = {"failures": RECEIVERS.c.failures + 1, "failed_at": datetime.now(UTC).isoformat()}
        values |= {"error": recordable(error), "retry_at": None if retry_at is None else retry_at.isoformat()}
        if refused_body is not None:
            again = sa.func.coalesce(RECEIVERS.c.refusals, 0) + 1
            refusals = sa.case((RECEIVERS.c.refused_body == refused_body, again), else_=1)
            values |= {"refused_body": refused_body, "refusals": refusals}
        failed = RECEIVERS.update().where(RECEIVERS.c.id == receiver_id).values(values)
        with self._write() as connection:
            count = connection.execute(failed.returning(RECEIVERS.c.refusals)).scalar()
        return 0 if refused_body is None else count or 0

    def of_run(self, run_id: str, table: str) -> list[Notice]:
        """Return the notices of changed final days that a run recorded for a table, by day."""
        is_change = NOTICES.c.kind == NoticeKind.CHANGE.value
        found = self._notices(NOTICES.c.run_id == run_id, NOTICES.c.table_name == table, is_change)
        return sorted(found, key=lambda notice: notice.key)

    def recorded_since(self, since: datetime) -> list[Notice]:
        """Return the notices recorded since a time, oldest first."""
        return self._notices(NOTICES.c.recorded_at >= since.astimezone(UTC).isoformat())

    def of_ids(self, ids: Collection[str]) -> list[Notice]:
        """Return the recorded notices with these ids."""
        return [notice for part in in_parts(sorted(ids)) for notice in self._notices(NOTICES.c.id.in_(part))]

    def published_since(self, since: datetime) -> list[tuple[PublicationRecord, bool]]:
        """Return the publications since a time, oldest first, and whether the slice was final before."""
        at = since.astimezone(UTC).isoformat()
        rows = self._maps(sa.select(PUBLICATIONS).where(PUBLICATIONS.c.published_at >= at).order_by(PUBLICATIONS.c.id))
        return [(record_of(PublicationRecord, row, number=row["id"]), bool(row["was_final"])) for row in rows]

    def forget(self, receivers: Collection[str], before: datetime, *, is_dry_run: bool) -> int:
        """Remove change notices older than `before` that every receiver has got, and unused receivers; returns their number."""
        cutoff = before.astimezone(UTC).isoformat()
        is_gone = sa.and_(RECEIVERS.c.id.not_in(receivers), RECEIVERS.c.seen_at < cutoff)
        waited_for = sa.select(sa.func.min(RECEIVERS.c.sent_number)).where(sa.not_(is_gone)).scalar_subquery()
        c, gone = NOTICES.c, sa.select(RECEIVERS.c.id).where(is_gone)
        is_aside = c.number.between(SET_ASIDE.c.first_number, SET_ASIDE.c.last_number)
        is_wanted = sa.exists().where(is_aside, SET_ASIDE.c.receiver_id.not_in(gone))
        is_sent = c.number <= sa.func.coalesce(waited_for, c.number)
        is_old = sa.and_(c.kind == NoticeKind.CHANGE.value, c.recorded_at < cutoff, is_sent, sa.not_(is_wanted))
        if is_dry_run:
            return int(self._value(sa.select(sa.func.count()).where(is_old)))
        with self._write() as connection:
            removed = connection.execute(NOTICES.delete().where(is_old)).rowcount
            connection.execute(RECEIVERS.delete().where(is_gone))
            known = sa.select(RECEIVERS.c.id)
            connection.execute(SET_ASIDE.delete().where(SET_ASIDE.c.receiver_id.not_in(known)))
        return removed


@dataclass(frozen=True)
class SetAside:
    """The notices of one body that a receiver refused for good."""

    receiver_id: str
    first_number: int
    last_number: int
    notices: int
    run_id: str | None
    error: str
    set_aside_at: datetime


class SetAsides(Part):
    """Reads and writes notices that are set aside; each write is one transaction."""

    def add(self, receiver_id: str, batch: Sequence[Notice], error: str) -> None:
        """Skip these notices and keep them for later; does nothing where another process has sent them meanwhile."""
        first, last = batch[0], batch[-1]
        is_behind = RECEIVERS.c.id == receiver_id, RECEIVERS.c.sent_number < first.number
        passed = {"sent_number": last.number, "refused_body": None, "refusals": 0}
        aside = SetAside(
            receiver_id, first.number, last.number, len(batch), first.recorded_by, recordable(error), datetime.now(UTC)
        )
        with self._write() as connection:
            if connection.execute(RECEIVERS.update().where(*is_behind).values(passed)).rowcount:
                connection.execute(SET_ASIDE.insert(), row_of(aside))

    def all(self) -> list[SetAside]:
        """Return all entries, by receiver and notice number."""
        rows = self._maps(sa.select(SET_ASIDE).order_by(SET_ASIDE.c.receiver_id, SET_ASIDE.c.first_number))
        return [record_of(SetAside, row) for row in rows]

    def notices(self, one: SetAside) -> list[Notice]:
        """Return the notices of one entry, oldest first."""
        with self._read() as connection:
            return read_notices(connection, NOTICES.c.number.between(one.first_number, one.last_number))

    def mark_sent(self, one: SetAside) -> None:
        """Remove an entry whose notices the receiver has accepted."""
        self._do(SET_ASIDE.delete().where(*_is_entry(one)))

    def mark_refused(self, one: SetAside, error: str) -> None:
        """Record the error of another refusal."""
        self._do(SET_ASIDE.update().where(*_is_entry(one)).values(error=recordable(error)))


def _is_entry(one: SetAside) -> tuple[sa.ColumnElement[bool], ...]:
    return SET_ASIDE.c.receiver_id == one.receiver_id, SET_ASIDE.c.first_number == one.first_number


class GoldenTotals(Part):
    """Reads and writes golden totals; each write is one transaction."""

    def is_in_use(self) -> bool:
        """Whether any total, fault or notice of a comparison is on record."""
        kinds = [kind.value for kind in (NoticeKind.GOLDEN_MISMATCH, NoticeKind.GOLDEN_AGREEMENT)]
        told = sa.select(NOTICES.c.id).where(NOTICES.c.kind.in_(kinds))
        with self._read() as connection:
            queries = (told, sa.select(GOLDEN_TOTALS.c.source), sa.select(GOLDEN_FAULTS.c.id))
            return any(connection.execute(query.limit(1)).first() is not None for query in queries)

    def of(
        self,
        projects: Sequence[str],
        first: date | None = None,
        last: date | None = None,
        tables: Collection[str] | None = None,
    ) -> list[golden.GoldenTotal]:
        """Return the recorded totals of the days, in order of day; a missing bound means unbounded."""
        c = GOLDEN_TOTALS.c
        days = c.event_date.between(first or date.min, last or date.max)
        query = sa.select(GOLDEN_TOTALS).where(c.project_id.in_(projects), days)
        query = query if tables is None else query.where(c.table_name.in_(tables))
        order = c.event_date, c.project_id, c.table_name, c.measure, c.source
        rows = list(self._maps(query.order_by(*order)))
        measures = [golden.GoldenMeasure(row["table_name"], row["measure"]) for row in rows]
        pairs = zip(rows, measures, strict=True)
        return [record_of(golden.GoldenTotal, row, measure=one, value=Decimal(row["value"])) for row, one in pairs]

    def replace(self, reading: golden.GoldenReading) -> None:
        """Replace a source's totals and faults of the days in a reading: a missing file retracts nothing, an empty one does."""
        common = {"source": reading.source.value, "recorded_at": datetime.now(UTC).isoformat()}
        totals = [
            {**common, **columns_of(one.key), "table_name": one.measure.table, "measure": one.measure.name}
            | {"value": f"{one.value:f}", "origin": recordable(one.origin)}
            for one in reading.totals
        ]
        faults = [
            common | {"origin": recordable(one.origin), "reason": recordable(one.reason), "fix": recordable(one.hint)}
            for one in reading.faults
        ]
        of_totals, of_faults = (table.c.source == reading.source.value for table in (GOLDEN_TOTALS, GOLDEN_FAULTS))
        with self._write() as connection:
            if reading.asked is not None:
                known = connection.execute(sa.select(GOLDEN_FAULTS.c.id, GOLDEN_FAULTS.c.origin).where(of_faults))
                is_query = reading.source is golden.GoldenSource.QUERY
                gone = [
                    number for number, origin in known if is_query or golden.is_origin_between(origin, *reading.asked)
                ]
                for part in in_parts(gone):
                    connection.execute(GOLDEN_FAULTS.delete().where(GOLDEN_FAULTS.c.id.in_(part)))
                if faults:
                    connection.execute(GOLDEN_FAULTS.insert(), faults)
            for days in in_parts(sorted(reading.days)):
                connection.execute(GOLDEN_TOTALS.delete().where(of_totals, GOLDEN_TOTALS.c.event_date.in_(days)))
            upsert(connection, GOLDEN_TOTALS, totals)

    def faults(self, sources: Collection[golden.GoldenSource]) -> list[golden.GoldenFault]:
        """Return the faults of the last reading of these sources, by source."""
        columns = (GOLDEN_FAULTS.c.origin, GOLDEN_FAULTS.c.reason, GOLDEN_FAULTS.c.fix)
        query = sa.select(*columns).where(GOLDEN_FAULTS.c.source.in_([source.value for source in sources]))
        rows = self._rows(query.order_by(GOLDEN_FAULTS.c.source, GOLDEN_FAULTS.c.id))
        return [golden.GoldenFault(origin, reason, fix or "") for origin, reason, fix in rows]

    def record(
        self,
        mismatches: Mapping[Place, str | None],
        projects: Sequence[str],
        first: date,
        last: date,
        run_id: str | None,
    ) -> list[Notice]:
        """Write and return notices for days that began or ceased to differ, in one transaction; no totals count as agreeing."""
        now = datetime.now(UTC).isoformat()
        with self._write() as connection:
            c, kinds = NOTICES.c, (NoticeKind.GOLDEN_MISMATCH, NoticeKind.GOLDEN_AGREEMENT)
            are_of = (c.table_name.in_([table.key for table in DERIVED]), c.project_id.in_(projects))
            last_told = last_notices(connection, kinds, *are_of, c.event_date.between(first, last))
            found = dict.fromkeys(sorted(last_told)) | dict(mismatches)
            made = (golden.golden_notice(place, why, last_told.get(place), now, run_id) for place, why in found.items())
            notices = [notice for notice in made if notice is not None]
            for notice in notices:
                write_notice(connection, notice, {"run_id": run_id, "recorded_at": now})
        return notices
