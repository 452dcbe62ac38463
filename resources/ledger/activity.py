"""What loads did of late, for those who watch: verdicts that they reported, how long tables took, who is at work.

Contains: one query per figure, none of which writes.
Add here: another figure of runs that the database can sum up.
Does not contain: sums over days (summaries.py), looks at processes, which are counted (processes.py).
"""

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
    """Of the processes on record, which go back thirty days."""

    open: int
    """Begun, and neither ended nor found dead."""
    died: int
    """Found dead."""


class Activity:
    """Reads of runs, publications and processes."""

    def __init__(self, read: _Connect) -> None:
        """`read` opens a connection."""
        self._read = read

    def reported(self) -> Mapping[tuple[str, str], int]:
        """Table and verdict -> how often loads that went through all their tables reported it of a slice."""
        query = sa.select(RUNS.c.verdicts).where(RUNS.c.finished_at.is_not(None))
        found: Counter[tuple[str, str]] = Counter()
        with self._read() as connection:
            for (verdicts,) in connection.execute(query):
                for name, count in (verdicts or {}).items():
                    table, _, verdict = name.rpartition(" ")
                    found[table, verdict] += count
        return found

    def seconds(self) -> Mapping[str, float]:
        """Table -> seconds that the run which published it last took for it, up to its last record."""
        found = {}
        with self._read() as connection:
            # From one table's name to the next by the index, never over all that was published.
            table: str | None = _name_after(connection, "")
            while table is not None:
                # No index leads with the table here, so that the newest number is the first that is looked at: an index of all
                # of a table's publications would be read to its end to be put in their order.
                is_of_table = sa.func.coalesce(PUBLICATIONS.c.table_name, "") == table
                query = sa.select(PUBLICATIONS.c.seconds).where(is_of_table, PUBLICATIONS.c.seconds.is_not(None))
                seconds = connection.execute(query.order_by(PUBLICATIONS.c.id.desc()).limit(1)).scalar()
                if seconds is not None:
                    found[table] = float(seconds)
                table = _name_after(connection, table)
        return found

    def processes(self) -> Processes:
        """How many processes are open, and how many died."""
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
