"""Objects in landing that no load will ever request, recorded at the last listing for `status`, which does not list landing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.arrival_days import ends_of
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.slices import Source
from resources.ledger.schema import STRAYS

_Connect = Callable[[], AbstractContextManager[Connection]]


class Strays:
    """Reads and writes strays; each write is one transaction."""

    def __init__(self, read: _Connect, write: _Connect) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write = read, write

    def all(self, projects: Sequence[str]) -> dict[str, BatchKey]:
        """Return object key -> the batch that the key names, sorted by key."""
        query = sa.select(STRAYS).where(STRAYS.c.project_id.in_(projects)).order_by(STRAYS.c.object_key)
        with self._read() as connection:
            return {
                row["object_key"]: BatchKey(Source(row["source"]), row["project_id"], row["arrival_date"])
                for row in connection.execute(query).mappings()
            }

    def replace(self, source: Source, projects: Sequence[str], strays: Iterable[Delivery]) -> None:
        """Replace the recorded strays of a source and projects."""
        present = {stray.key: stray.batch for stray in ends_of(strays)}
        known = {key: batch for key, batch in self.all(projects).items() if batch.source is source}
        if known == present:
            return
        now = datetime.now(UTC).isoformat()
        with self._write() as connection:
            connection.execute(
                STRAYS.delete().where(STRAYS.c.source == source.value, STRAYS.c.project_id.in_(projects))
            )
            rows = [
                {
                    "source": source.value,
                    "project_id": batch.project_id,
                    "arrival_date": batch.arrival_date,
                    "object_key": key,
                    "seen_at": now,
                }
                for key, batch in present.items()
            ]
            if rows:
                connection.execute(STRAYS.insert(), rows)
