"""The outbox: which notices each receiver has got."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from pipeline_assets.domain.notices import Notice, NoticeKind
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.records import PublicationRecord
from resources.ledger.engine import Writes, in_parts, insert_into
from resources.ledger.notices import read_notices
from resources.ledger.rows import publication_of
from resources.ledger.schema import NOTICES, PUBLICATIONS, RECEIVERS, SET_ASIDE

_SEEN_EVERY = timedelta(hours=12)
"""`seen_at` of a known receiver is updated no more often than this, so that most reads write nothing."""


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
    waiting: int = 0
    """Notices that it has not got yet."""
    seen_at: str = ""


class Outbox(Writes):
    """Reads and writes notices and receivers; each write is one transaction."""

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
                connection.execute(
                    insert.on_conflict_do_update(index_elements=["id"], set_=seen),
                    [{"id": name, "place": places[name], **common} for name in due],
                )
            known = self.receivers()
        return {name: receiver for name, receiver in known.items() if name in places}

    def receivers(self) -> dict[str, Receiver]:
        """Return id -> receiver, of all that were registered and not forgotten."""
        waiting = sa.select(sa.func.count()).where(NOTICES.c.number > RECEIVERS.c.sent_number).scalar_subquery()
        with self._read() as connection:
            rows = connection.execute(sa.select(RECEIVERS, waiting.label("waiting"))).mappings()
            return {row["id"]: _receiver(row) for row in rows}

    def pending(self, receiver_id: str, most: int) -> list[Notice]:
        """Return the oldest notices that the receiver has not got yet, at most `most` of them."""
        sent = sa.select(RECEIVERS.c.sent_number).where(RECEIVERS.c.id == receiver_id).scalar_subquery()
        with self._read() as connection:
            return read_notices(connection, NOTICES.c.number > sent, most=most)

    def mark_sent(self, receiver_id: str, number: int) -> None:
        """Record that the receiver accepted all notices up to this number."""
        well = {"failures": 0, "failed_at": None, "error": None, "retry_at": None, "refused_body": None, "refusals": 0}
        later = sa.case((RECEIVERS.c.sent_number < number, number), else_=RECEIVERS.c.sent_number)
        with self._write() as connection:
            values = {"sent_number": later, **well}
            connection.execute(RECEIVERS.update().where(RECEIVERS.c.id == receiver_id).values(values))

    def mark_failed(
        self, receiver_id: str, error: str, retry_at: datetime | None, refused_body: str | None = None
    ) -> int:
        """Record a failed attempt; the pending notices stay pending.

        `refused_body` is the id of a body that it refused for good. Returns how often it has refused this body in a row.
        """
        values = {
            "failures": RECEIVERS.c.failures + 1,
            "failed_at": datetime.now(UTC).isoformat(),
            "error": recordable(error),
            "retry_at": None if retry_at is None else retry_at.isoformat(),
        }
        if refused_body is not None:
            again = sa.func.coalesce(RECEIVERS.c.refusals, 0) + 1
            refusals = sa.case((RECEIVERS.c.refused_body == refused_body, again), else_=1)
            values |= {"refused_body": refused_body, "refusals": refusals}
        is_it = RECEIVERS.c.id == receiver_id
        with self._write() as connection:
            connection.execute(RECEIVERS.update().where(is_it).values(values))
            count = connection.execute(sa.select(RECEIVERS.c.refusals).where(is_it)).scalar()
        return 0 if refused_body is None else count or 0

    def of_run(self, run_id: str, table: str) -> list[Notice]:
        """Return the notices of changed final days that a run recorded for a table, by day."""
        is_change = NOTICES.c.kind == NoticeKind.CHANGE.value
        with self._read() as connection:
            found = read_notices(connection, NOTICES.c.run_id == run_id, NOTICES.c.table_name == table, is_change)
        return sorted(found, key=lambda notice: notice.key)

    def recorded_since(self, since: datetime) -> list[Notice]:
        """Return the notices recorded since a time, oldest first."""
        with self._read() as connection:
            return read_notices(connection, NOTICES.c.recorded_at >= since.astimezone(UTC).isoformat())

    def of_ids(self, ids: Collection[str]) -> list[Notice]:
        """Return the notices with these ids, without those that are not on record."""
        with self._read() as connection:
            parts = in_parts(sorted(ids))
            return [notice for part in parts for notice in read_notices(connection, NOTICES.c.id.in_(part))]

    def published_since(self, since: datetime) -> list[tuple[PublicationRecord, bool]]:
        """Return the publications made visible since a time, oldest first, and whether the slice was final before."""
        at = since.astimezone(UTC).isoformat()
        query = sa.select(PUBLICATIONS).where(PUBLICATIONS.c.published_at >= at).order_by(PUBLICATIONS.c.id)
        with self._read() as connection:
            rows = connection.execute(query).mappings()
            return [(publication_of(row), bool(row["was_final"])) for row in rows]

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
    times = {name: row[name] and datetime.fromisoformat(row[name]) for name in ("failed_at", "retry_at")}
    return Receiver(**({one.name: row[one.name] for one in fields(Receiver)} | times))
