"""Recent activity of loads, for monitoring: reported verdicts, seconds per table, live processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from resources.ledger.schema import PROCESSES, PUBLICATIONS, RUNS

_Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class Processes:
    """Counts of the recorded processes; ended ones are kept for thirty days."""

    open: int
    """Processes that began, and neither ended nor were found dead."""
    died: int
    """Processes that were found dead."""


class Activity:
    """Reads runs, publications and processes."""

    def __init__(self, read: _Connect) -> None:
        """Take `read`, which opens a connection."""
        self._read = read

    def reported(self) -> Mapping[tuple[str, str], int]:
        """Return (table, verdict) -> how often finished loads reported that verdict for a slice."""
        query = sa.select(RUNS.c.verdicts).where(RUNS.c.finished_at.is_not(None))
        found: Counter[tuple[str, str]] = Counter()
        with self._read() as connection:
            for (verdicts,) in connection.execute(query):
                for name, count in (verdicts or {}).items():
                    table, _, verdict = name.rpartition(" ")
                    found[table, verdict] += count
        return found

    def seconds(self) -> Mapping[str, float]:
        """Return table -> seconds that the run that published the table last spent on it."""
        found = {}
        with self._read() as connection:
            # Step through the index from one table name to the next instead of scanning all publications.
            table: str | None = _name_after(connection, "")
            while table is not None:
                # `coalesce` keeps the database from using an index on the table: it would read and sort all of the table's
                # publications. Going backwards by id, it stops at the first match.
                is_of_table = sa.func.coalesce(PUBLICATIONS.c.table_name, "") == table
                query = sa.select(PUBLICATIONS.c.seconds).where(is_of_table, PUBLICATIONS.c.seconds.is_not(None))
                seconds = connection.execute(query.order_by(PUBLICATIONS.c.id.desc()).limit(1)).scalar()
                if seconds is not None:
                    found[table] = float(seconds)
                table = _name_after(connection, table)
        return found

    def processes(self) -> Processes:
        """Return how many processes are open, and how many died."""
        is_lost = PROCESSES.c.lost_at.is_not(None)
        is_open = sa.and_(~is_lost, PROCESSES.c.ended_at.is_(None))
        query = sa.select(*(sa.func.coalesce(sa.func.sum(sa.case((one, 1), else_=0)), 0) for one in (is_open, is_lost)))
        with self._read() as connection:
            opened, died = connection.execute(query).one()
        return Processes(int(opened), int(died))


def _name_after(connection: Connection, name: str) -> str | None:
    query = sa.select(sa.func.min(PUBLICATIONS.c.table_name)).where(PUBLICATIONS.c.table_name > name)
    following: str | None = connection.execute(query).scalar()
    return following
