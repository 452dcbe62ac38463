"""Consistent cuts: the snapshots of all tables that belong together, one cut per publish."""

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
    """The run whose publish created the cut."""
    published_at: str
    """Timezone-aware ISO 8601."""
    snapshots: Mapping[str, int]
    """Table -> snapshot of main."""


class Cuts:
    """Reads cuts."""

    def __init__(self, read: _Connect) -> None:
        """Take `read`, which opens a connection."""
        self._read = read

    def first(self) -> Cut | None:
        """Return the oldest recorded cut, None where there is none."""
        return self._one(sa.select(CUTS).order_by(CUTS.c.number).limit(1))

    def newest(self) -> Cut | None:
        """Return the newest cut that runs of ours published, None where there is none."""
        return self._one(_last())

    def at(self, moment: datetime) -> Cut | None:
        """Return the cut that was current at a timezone-aware moment, None where there was none."""
        return self._one(_last().where(CUTS.c.published_at <= moment.astimezone(UTC).isoformat()))

    def of_run(self, run_id: str) -> Cut | None:
        """Return the last cut that a run published; None where it published nothing."""
        return self._one(_last().where(CUTS.c.run_id == run_id))

    def runs(self, beginning: str) -> list[str]:
        """Return the ids of all recorded runs that start with this text, sorted."""
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
    # Order by number: after a clock was set back, a later publish has an earlier time.
    return sa.select(CUTS).order_by(CUTS.c.number.desc()).limit(1)
