"""Publishes of all loads: consistent cuts, changes of final days, recent activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.slices import Digest
from resources.ledger.engine import Reads, in_parts
from resources.ledger.schema import CUTS, PROCESSES, PUBLICATIONS, RUNS


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


class Cuts(Reads):
    """Reads cuts."""

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


@dataclass(frozen=True)
class Revision:
    """A publication that changed a final day."""

    table: str
    day: date
    project_id: str
    published_at: str
    cause: str
    accepted_reason: str | None
    run_id: str | None
    rows_before: int
    rows_after: int
    number: int
    measures: Mapping[str, tuple[float | None, float]]
    """Measure -> (before, after), where they differ; before is None where no earlier publication is on record."""


class Revisions(Reads):
    """Reads revisions, and creates records of these publications only."""

    def all(self, tables: Sequence[str], projects: Sequence[str]) -> list[Revision]:
        """Return the publications that changed a day after it had become final, newest first, without measures.

        As in notices, a day was final if the ledger said so at the time of the publication.
        """
        names = ("table_name", "event_date", "project_id", "published_at", "cause", "accepted_reason", "run_id", "id")
        query = (
            sa.select(*(PUBLICATIONS.c[name] for name in (*names, "digest_before", "digest_after")))
            .where(
                PUBLICATIONS.c.was_final.is_(sa.true()),
                PUBLICATIONS.c.table_name.in_(tables),
                PUBLICATIONS.c.project_id.in_(projects),
                PUBLICATIONS.c.digest_before != PUBLICATIONS.c.digest_after,
            )
            .order_by(PUBLICATIONS.c.id.desc())
        )
        with self._read() as connection:
            return [_revision(row) for row in connection.execute(query).mappings()]

    def measures_of(self, revisions: Sequence[Revision]) -> dict[int, Mapping[str, tuple[float | None, float]]]:
        """Return publication number -> measure -> (before, after), where they differ."""
        found: dict[int, Mapping[str, tuple[float | None, float]]] = {}
        wanted = {revision.number for revision in revisions}
        figures: dict[tuple[str, date, str], dict[int, dict[str, float] | None]] = {}
        c = PUBLICATIONS.c
        query = sa.select(c.table_name, c.event_date, c.project_id, c.id, c.figures)
        with self._read() as connection:
            for part in in_parts(sorted({revision.day for revision in revisions})):
                for table, day, project, number, measured in connection.execute(query.where(c.event_date.in_(part))):
                    figures.setdefault((table, day, project), {})[number] = measured
        for history in figures.values():
            before: Mapping[str, float] = {}
            for number, measured in sorted(history.items()):
                after = measured or {}
                if number in wanted:
                    pairs = {name: (before.get(name), value) for name, value in after.items()}
                    found[number] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
                before = after
        return found


def _revision(row: RowMapping) -> Revision:
    return Revision(
        row["table_name"],
        row["event_date"],
        row["project_id"],
        row["published_at"] or "",
        row["cause"] or "",
        row["accepted_reason"],
        row["run_id"],
        Digest.parse(row["digest_before"]).rows,
        Digest.parse(row["digest_after"]).rows,
        row["id"],
        {},
    )


@dataclass(frozen=True)
class Processes:
    """Counts of the recorded processes; ended ones are kept for thirty days."""

    open: int
    """Processes that began, and neither ended nor were found dead."""
    died: int
    """Processes that were found dead."""


class Activity(Reads):
    """Reads runs, publications and processes."""

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
