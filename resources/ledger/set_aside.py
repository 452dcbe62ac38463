"""Notices that a receiver refused for good, set aside so that they do not block later ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from pipeline_assets.domain.notices import Notice
from pipeline_assets.domain.plain_text import recordable
from resources.ledger.engine import Writes
from resources.ledger.notices import read_notices
from resources.ledger.schema import NOTICES, RECEIVERS, SET_ASIDE


@dataclass(frozen=True)
class SetAside:
    """The notices of one body that a receiver refused for good."""

    receiver_id: str
    first_number: int
    last_number: int
    notices: int
    run_id: str | None
    error: str
    """The receiver's last answer."""
    set_aside_at: datetime


class SetAsides(Writes):
    """Reads and writes notices that are set aside; each write is one transaction."""

    def add(self, receiver_id: str, batch: Sequence[Notice], error: str) -> None:
        """Skip these notices and keep them for later; does nothing where another process has sent them meanwhile."""
        first, last = batch[0], batch[-1]
        is_behind = RECEIVERS.c.id == receiver_id, RECEIVERS.c.sent_number < first.number
        passed = {"sent_number": last.number, "refused_body": None, "refusals": 0}
        row = {
            "receiver_id": receiver_id,
            "first_number": first.number,
            "last_number": last.number,
            "notices": len(batch),
            "run_id": first.recorded_by,
            "error": recordable(error),
            "set_aside_at": datetime.now(UTC).isoformat(),
        }
        with self._write() as connection:
            if connection.execute(RECEIVERS.update().where(*is_behind).values(passed)).rowcount:
                connection.execute(SET_ASIDE.insert(), row)

    def all(self) -> list[SetAside]:
        """Return everything that is set aside, by receiver and notice number."""
        query = sa.select(SET_ASIDE).order_by(SET_ASIDE.c.receiver_id, SET_ASIDE.c.first_number)
        with self._read() as connection:
            rows = connection.execute(query).mappings()
            return [SetAside(**{**row, "set_aside_at": datetime.fromisoformat(row["set_aside_at"])}) for row in rows]

    def notices(self, one: SetAside) -> list[Notice]:
        """Return the notices of one entry, oldest first."""
        with self._read() as connection:
            return read_notices(connection, NOTICES.c.number.between(one.first_number, one.last_number))

    def mark_sent(self, one: SetAside) -> None:
        """Remove an entry whose notices the receiver has accepted."""
        with self._write() as connection:
            connection.execute(SET_ASIDE.delete().where(*_is_entry(one)))

    def mark_refused(self, one: SetAside, error: str) -> None:
        """Record the error of another refusal."""
        with self._write() as connection:
            connection.execute(SET_ASIDE.update().where(*_is_entry(one)).values(error=recordable(error)))


def _is_entry(one: SetAside) -> tuple[sa.ColumnElement[bool], ...]:
    return SET_ASIDE.c.receiver_id == one.receiver_id, SET_ASIDE.c.first_number == one.first_number
