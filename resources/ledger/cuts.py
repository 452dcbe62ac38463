"""Which snapshots of all tables belong together: one cut for each publish.

Contains: finding a cut, the newest one, of a run or of a moment.
Add here: another way to name a cut.
Does not contain: writing them (writing.py), whether their snapshots are kept still (pipeline_assets/inspection/cuts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from resources.ledger.schema import CUTS, RUNS

_Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class Cut:
    """A state of all tables that was published as a whole."""

    number: int
    """Ascends with each publish."""
    run_id: str
    """Of the run that published last before it."""
    published_at: str
    """Aware time as ISO text."""
    snapshots: Mapping[str, int]
    """Table -> snapshot of main."""


class Cuts:
    """Reads of cuts."""

    def __init__(self, read: _Connect) -> None:
        """`read` opens a connection."""
        self._read = read

    def first(self) -> Cut | None:
        """The oldest on record."""
        return self._one(sa.select(CUTS).order_by(CUTS.c.number).limit(1))

    def newest(self) -> Cut | None:
        """What tables show together now, as far as runs of ours made it."""
        return self._one(_last())

    def at(self, moment: datetime) -> Cut | None:
        """What they showed at a moment (aware)."""
        return self._one(_last().where(CUTS.c.published_at <= moment.astimezone(UTC).isoformat()))

    def of_run(self, run_id: str) -> Cut | None:
        """What they showed when a run published last; None where it published nothing."""
        return self._one(_last().where(CUTS.c.run_id == run_id))

    def runs(self, beginning: str) -> list[str]:
        """Ids of all runs on record that begin so."""
        found = set()
        with self._read() as connection:
            for table in (CUTS, RUNS):
                is_meant = sa.func.substr(table.c.run_id, 1, len(beginning)) == beginning
                found |= set(connection.execute(sa.select(table.c.run_id).distinct().where(is_meant)).scalars())
        return sorted(found)

    def _one(self, query: sa.Select[tuple[object, ...]]) -> Cut | None:
        with self._read() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            return None
        snapshots = {str(table): int(number) for table, number in row["snapshots"].items()}
        return Cut(row["number"], row["run_id"] or "", row["published_at"], snapshots)


def _last() -> sa.Select[tuple[object, ...]]:
    # By number: a clock that was set back makes a later publish look earlier.
    return sa.select(CUTS).order_by(CUTS.c.number.desc()).limit(1)
