"""Notices that a receiver refused for good: set aside for this receiver, so that they hold up no later ones.

Contains: setting them aside, listing them, and what becomes of them when they are sent again.
Add here: another thing that is done with them.
Does not contain: when a refusal is for good (resources/webhooks.py), after how many they are set
aside (pipeline_assets/operations/notices.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.notices import notice_from_json
from pipeline_assets.domain.plain_text import recordable
from resources.ledger.outbox import Pending
from resources.ledger.schema import NOTICES, RECEIVERS, SET_ASIDE

_Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class SetAside:
    """One body that a receiver refused for good."""

    receiver_id: str
    first_number: int
    last_number: int
    notices: int
    run_id: str | None
    error: str
    """What it answered last."""
    set_aside_at: datetime


class SetAsides:
    """Reads and writes of what is set aside; each write is one transaction."""

    def __init__(self, read: _Connect, write: _Connect) -> None:
        """Wrap a ledger's ways of connecting."""
        self._read, self._write = read, write

    def add(self, receiver_id: str, batch: Sequence[Pending], error: str) -> None:
        """Count these notices as passed, and keep them; nothing happens where another round had them taken meanwhile."""
        first, last = batch[0].number, batch[-1].number
        is_it = RECEIVERS.c.id == receiver_id
        row = {
            "receiver_id": receiver_id,
            "first_number": first,
            "last_number": last,
            "notices": len(batch),
            "run_id": batch[0].run_id,
            "error": recordable(error),
            "set_aside_at": datetime.now(UTC).isoformat(),
        }
        with self._write() as connection:
            passed = {"sent_number": last, "refused_body": None, "refusals": 0}
            moved = connection.execute(
                RECEIVERS.update().where(is_it, RECEIVERS.c.sent_number < first).values(passed)
            ).rowcount
            if moved:
                connection.execute(SET_ASIDE.insert(), row)

    def all(self) -> list[SetAside]:
        """What is set aside, by receiver and in the order of notices."""
        query = sa.select(SET_ASIDE).order_by(SET_ASIDE.c.receiver_id, SET_ASIDE.c.first_number)
        with self._read() as connection:
            return [
                SetAside(
                    row["receiver_id"],
                    row["first_number"],
                    row["last_number"],
                    row["notices"],
                    row["run_id"],
                    row["error"] or "",
                    datetime.fromisoformat(row["set_aside_at"]),
                )
                for row in connection.execute(query).mappings()
            ]

    def notices(self, one: SetAside) -> list[Pending]:
        """The notices themselves, oldest first."""
        query = sa.select(NOTICES).where(NOTICES.c.number.between(one.first_number, one.last_number))
        with self._read() as connection:
            rows = connection.execute(query.order_by(NOTICES.c.number)).mappings()
            return [Pending(row["number"], notice_from_json(row["body"]), row["run_id"]) for row in rows]

    def mark_sent(self, one: SetAside) -> None:
        """The receiver took them after all."""
        with self._write() as connection:
            connection.execute(SET_ASIDE.delete().where(*_is(one)))

    def mark_refused(self, one: SetAside, error: str) -> None:
        """It refused them once more."""
        with self._write() as connection:
            connection.execute(SET_ASIDE.update().where(*_is(one)).values(error=recordable(error)))


def _is(one: SetAside) -> tuple[sa.ColumnElement[bool], ...]:
    return SET_ASIDE.c.receiver_id == one.receiver_id, SET_ASIDE.c.first_number == one.first_number
