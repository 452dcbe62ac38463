"""The outbox: notices, what each receiver has got, and what receivers refused for good."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from pipeline_assets.domain.notices import Notice, NoticeKind, notice_from_json
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.records import PublicationRecord
from resources.ledger.engine import Connect, in_parts
from resources.ledger.rows import publication_of
from resources.ledger.schema import NOTICES, PUBLICATIONS, RECEIVERS, RUNS, SET_ASIDE, SLICES

_SEEN_EVERY = timedelta(hours=12)
"""`seen_at` of a known receiver is updated no more often than this, so that most reads write nothing."""
_WELL: Mapping[str, Any] = {
    "failures": 0,
    "failed_at": None,
    "error": None,
    "retry_at": None,
    "refused_body": None,
    "refusals": 0,
}
"""Columns of a receiver that accepted its last notices."""


@dataclass(frozen=True)
class Pending:
    """A notice that a receiver has not got yet."""

    number: int
    notice: Notice
    run_id: str | None
    """The run that recorded it."""


@dataclass(frozen=True)
class Receiver:
    """An address as the ledger knows it."""

    id: str
    place: str
    """The address as it may be shown."""
    sent_number: int
    """The number of the last notice that it accepted."""
    failures: int = 0
    """Failed attempts since the last success."""
    failed_at: datetime | None = None
    error: str | None = None
    retry_at: datetime | None = None
    """The receiver asked for no request before this time."""


@dataclass(frozen=True)
class RecordedPublication:
    """A publication, and whether its slice was final before."""

    record: PublicationRecord
    was_final: bool | None
    """None where an older version recorded the publication and its slice does not tell either."""


class Outbox:
    """Reads and writes notices and receivers; each write is one transaction."""

    def __init__(self, read: Connect, write: Connect) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write = read, write

    # -- receivers ---------------------------------------------------------------------------------------------

    def register(self, places: Mapping[str, str]) -> dict[str, Receiver]:
        """Register receivers (id -> place) and return them; a new receiver gets the notices recorded from now on."""
        now = datetime.now(UTC)
        seen_before = (now - _SEEN_EVERY).isoformat()
        with self._read() as connection:
            rows = connection.execute(sa.select(RECEIVERS.c.id, RECEIVERS.c.seen_at))
            seen = {row.id: row.seen_at for row in rows}
        due = [name for name in places if (seen.get(name) or "") < seen_before]
        if due:
            with self._write() as connection:
                last = connection.execute(sa.select(sa.func.max(NOTICES.c.number))).scalar() or 0
                for name in due:
                    values = {"place": places[name], "seen_at": now.isoformat()}
                    updated = connection.execute(RECEIVERS.update().where(RECEIVERS.c.id == name).values(values))
                    if not updated.rowcount:
                        row = values | {"id": name, "sent_number": last, "failures": 0}
                        connection.execute(RECEIVERS.insert(), row)
        return {name: receiver for name, receiver in self.receivers().items() if name in places}

    def receivers(self) -> dict[str, Receiver]:
        """Return id -> receiver, of all that were registered and not forgotten."""
        with self._read() as connection:
            rows = connection.execute(sa.select(RECEIVERS)).mappings()
            return {row["id"]: _receiver(row) for row in rows}

    def pending(self, receiver_id: str, most: int) -> list[Pending]:
        """Return the oldest notices that the receiver has not got yet, at most `most` of them."""
        sent = sa.select(RECEIVERS.c.sent_number).where(RECEIVERS.c.id == receiver_id).scalar_subquery()
        query = sa.select(NOTICES).where(NOTICES.c.number > sent).order_by(NOTICES.c.number).limit(most)
        with self._read() as connection:
            return [
                Pending(row["number"], notice_from_json(row["body"]), row["run_id"])
                for row in connection.execute(query).mappings()
            ]

    def waiting(self) -> dict[str, int]:
        """Return receiver id -> number of notices it has not got yet, where there are any."""
        counted = sa.select(RECEIVERS.c.id, sa.func.count().label("notices")).where(
            NOTICES.c.number > RECEIVERS.c.sent_number
        )
        with self._read() as connection:
            return {row.id: row.notices for row in connection.execute(counted.group_by(RECEIVERS.c.id))}

    def mark_sent(self, receiver_id: str, number: int) -> None:
        """Record that the receiver accepted all notices up to this number."""
        with self._write() as connection:
            later = sa.case((RECEIVERS.c.sent_number < number, number), else_=RECEIVERS.c.sent_number)
            values = {"sent_number": later, **_WELL}
            connection.execute(RECEIVERS.update().where(RECEIVERS.c.id == receiver_id).values(values))

    def mark_failed(
        self, receiver_id: str, error: str, retry_at: datetime | None, refused_body: str | None = None
    ) -> int:
        """Record a failed attempt; the pending notices stay pending.

        `refused_body` is the id of a body that it refused for good. Returns how often it has refused this body in a row.
        """
        is_it = RECEIVERS.c.id == receiver_id
        with self._write() as connection:
            values = {
                "failures": RECEIVERS.c.failures + 1,
                "failed_at": datetime.now(UTC).isoformat(),
                "error": recordable(error),
                "retry_at": None if retry_at is None else retry_at.isoformat(),
            }
            if refused_body is not None:
                is_same = RECEIVERS.c.refused_body == refused_body
                again = sa.func.coalesce(RECEIVERS.c.refusals, 0) + 1
                values |= {"refused_body": refused_body, "refusals": sa.case((is_same, again), else_=1)}
            connection.execute(RECEIVERS.update().where(is_it).values(values))
            if refused_body is None:
                return 0
            return connection.execute(sa.select(RECEIVERS.c.refusals).where(is_it)).scalar() or 0

    # -- notices and publications --------------------------------------------------------------------------------

    def of_run(self, run_id: str, table: str) -> list[Notice]:
        """Return the notices of changed final days that a run recorded for a table, by day."""
        query = sa.select(NOTICES.c.body).where(
            NOTICES.c.run_id == run_id, NOTICES.c.table_name == table, NOTICES.c.kind == NoticeKind.CHANGE.value
        )
        with self._read() as connection:
            bodies = connection.execute(query.order_by(NOTICES.c.event_date, NOTICES.c.project_id)).scalars()
            return [notice_from_json(body) for body in bodies]

    def recorded_since(self, since: datetime) -> list[Notice]:
        """Return the notices recorded since a time, oldest first."""
        query = sa.select(NOTICES.c.body).where(NOTICES.c.recorded_at >= since.astimezone(UTC).isoformat())
        with self._read() as connection:
            return [notice_from_json(body) for body in connection.execute(query.order_by(NOTICES.c.number)).scalars()]

    def of_ids(self, ids: Collection[str]) -> list[Notice]:
        """Return the notices with these ids, without those that are not on record."""
        query = sa.select(NOTICES.c.body)
        with self._read() as connection:
            return [
                notice_from_json(body)
                for part in in_parts(sorted(ids))
                for body in connection.execute(query.where(NOTICES.c.id.in_(part))).scalars()
            ]

    def published_since(self, since: datetime) -> list[RecordedPublication]:
        """Return the publications made visible since a time, oldest first.

        For a publication of an older version, the time when its slice became final tells whether it was final before. That
        time is the start of the run that made it final, so that run's own publication changed no final day.
        """
        final = (SLICES.c.is_final, SLICES.c.final_at, RUNS.c.started_at)
        same_slice = [SLICES.c[name] == PUBLICATIONS.c[name] for name in ("table_name", "event_date", "project_id")]
        tables = PUBLICATIONS.outerjoin(SLICES, sa.and_(*same_slice)).outerjoin(
            RUNS, RUNS.c.run_id == PUBLICATIONS.c.run_id
        )
        query = (
            sa.select(PUBLICATIONS, *(column.label(f"_{column.name}") for column in final))
            .select_from(tables)
            .where(PUBLICATIONS.c.published_at >= since.astimezone(UTC).isoformat())
            .order_by(PUBLICATIONS.c.id)
        )
        with self._read() as connection:
            return [
                RecordedPublication(publication_of(row), _was_final(row))
                for row in connection.execute(query).mappings()
            ]

    # -- upkeep ------------------------------------------------------------------------------------------------

    def forget(self, receivers: Collection[str], before: datetime, *, is_dry_run: bool) -> int:
        """Remove change notices recorded before a time that every receiver has got; returns how many.

        Refusals stay, because nothing else keeps their history; a change stays on record with its publication. `receivers` are
        those in use; others are forgotten once they were not registered since `before`.
        """
        cutoff = before.astimezone(UTC).isoformat()
        is_gone = sa.and_(RECEIVERS.c.id.not_in(receivers), RECEIVERS.c.seen_at < cutoff)
        waited_for = sa.select(sa.func.min(RECEIVERS.c.sent_number)).where(sa.not_(is_gone)).scalar_subquery()
        is_set_aside = sa.exists().where(
            NOTICES.c.number.between(SET_ASIDE.c.first_number, SET_ASIDE.c.last_number),
            SET_ASIDE.c.receiver_id.not_in(sa.select(RECEIVERS.c.id).where(is_gone)),
        )
        is_old = sa.and_(
            NOTICES.c.kind == NoticeKind.CHANGE.value,
            NOTICES.c.recorded_at < cutoff,
            NOTICES.c.number <= sa.func.coalesce(waited_for, NOTICES.c.number),
            sa.not_(is_set_aside),
        )
        if is_dry_run:
            with self._read() as connection:
                return int(connection.execute(sa.select(sa.func.count()).where(is_old)).scalar_one())
        with self._write() as connection:
            removed = connection.execute(NOTICES.delete().where(is_old)).rowcount
            connection.execute(RECEIVERS.delete().where(is_gone))
            known = sa.select(RECEIVERS.c.id)
            connection.execute(SET_ASIDE.delete().where(SET_ASIDE.c.receiver_id.not_in(known)))
        return removed


def _receiver(row: RowMapping) -> Receiver:
    return Receiver(
        row["id"],
        row["place"] or "",
        row["sent_number"],
        row["failures"] or 0,
        _time(row["failed_at"]),
        row["error"],
        _time(row["retry_at"]),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _was_final(row: RowMapping) -> bool | None:
    if row["was_final"] is not None:
        return bool(row["was_final"])
    if not row["_is_final"] or row["_final_at"] is None:
        return None
    is_later = row["published_at"] > row["_final_at"] and row["_started_at"] != row["_final_at"]
    return is_later and not row["digest_before"].startswith("0:")
