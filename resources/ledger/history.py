"""Publishes of all loads: consistent cuts, changes of final days, recent activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.processes import Identity
from pipeline_assets.domain.slices import BatchVerdict, Digest, Source
from resources.ledger.engine import Reads, in_parts
from resources.ledger.schema import BATCHES, CUTS, DECISIONS, DELIVERIES, PROCESSES, PUBLICATIONS, RUNS


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


_NOT_KNOWN = ("null", "{}")
"""Texts of the input state of a publication that names no inputs."""


class BuiltAgain(NamedTuple):
    """Counts of slices that were published several times from the same inputs by the same code."""

    equal: int
    """Slices whose content was the same each time."""
    differing: tuple[str, ...]
    """`table day/project` of the slices whose content differed."""


class FoundCommit(NamedTuple):
    """A change that a load found in a table and that no running load had recorded."""

    table: str
    day: date
    project_id: str
    kind: CauseKind
    published_at: str


class MarkedDay(NamedTuple):
    """An arrival day of regular exports that was judged."""

    project_id: str
    day: date
    hours_marked: int
    is_closed: bool


class ObjectSizes(NamedTuple):
    """Objects of one arrival day and project, as stored."""

    project_id: str
    day: date
    objects: int
    largest_bytes: int
    all_bytes: int


class ProcessOnRecord(NamedTuple):
    """The process of a run in the last 30 days."""

    run_id: str
    job: str
    begun_at: str | None
    ended_at: str | None = None
    lost_at: str | None = None
    identity: Identity | None = None
    """None where no op of the run has begun."""


class Checkup(Reads):
    """Reads the evidence for `tidemark doctor`; never writes."""

    def built_again(self, projects: Sequence[str]) -> BuiltAgain:
        """Compare repeated publications from the same inputs, over all that name their inputs."""
        c = PUBLICATIONS.c
        inputs = sa.cast(c.input_state, sa.Text)
        place = (c.table_name, c.event_date, c.project_id)
        contents = sa.func.count(sa.distinct(c.digest_after))
        # Find repeated slices by the unique index first: most slices were published once, and reading their texts is slow.
        often = sa.select(*place).group_by(*place).having(sa.func.count() > 1).subquery()
        same = [column == often.c[column.name] for column in place]
        query = (
            sa.select(*place, contents)
            .select_from(often.join(PUBLICATIONS, sa.and_(*same)))
            .where(c.project_id.in_(projects), c.input_state.is_not(None), inputs.not_in(_NOT_KNOWN))
            .group_by(*place, inputs, c.code_version)
            .having(sa.func.count() > 1)
            .order_by(*place)
        )
        rows = self._rows(query)
        differing = tuple(f"{table} {day}/{project}" for table, day, project, count in rows if count > 1)
        return BuiltAgain(len(rows) - len(differing), differing)

    def verdicts(self) -> Counter[str]:
        """Return verdict -> how often finished loads reached it, over all tables."""
        found: Counter[str] = Counter()
        for (verdicts,) in self._rows(sa.select(RUNS.c.verdicts).where(RUNS.c.finished_at.is_not(None))):
            for name, count in (verdicts or {}).items():
                found[name.rpartition(" ")[2]] += count
        return found

    def found_commits(self, projects: Sequence[str]) -> list[FoundCommit]:
        """Return the foreign and unrecorded commits that loads found, newest first."""
        c = PUBLICATIONS.c
        is_found = sa.or_(c.cause == CauseKind.FOREIGN.value, c.cause.startswith(CauseKind.UNRECORDED_RUN.value))
        query = sa.select(c.table_name, c.event_date, c.project_id, c.cause, c.published_at).where(
            c.project_id.in_(projects), is_found
        )
        rows = self._rows(query.order_by(c.id.desc()))
        return [FoundCommit._make((*place, Cause.parse(cause).kind, at or "")) for *place, cause, at in rows]

    def of_unfinished_runs(self, projects: Sequence[str]) -> int:
        """Count publications whose run is not recorded as finished, because it died or is running; rollbacks do not count."""
        c = PUBLICATIONS.c
        query = (
            sa.select(sa.func.count())
            .select_from(PUBLICATIONS.outerjoin(RUNS, RUNS.c.run_id == c.run_id))
            .where(
                c.project_id.in_(projects),
                c.run_id.is_not(None),
                RUNS.c.run_id.is_(None),
                c.cause != CauseKind.ROLLBACK.value,
            )
        )
        return int(self._rows(query)[0][0])

    def marked_days(self, projects: Sequence[str], first: date) -> list[MarkedDay]:
        """Return the arrival days of regular exports since `first` that were accepted with deliveries."""
        c = BATCHES.c
        query = sa.select(c.project_id, c.arrival_date, c.hours_marked, c.is_closed).where(
            c.source == Source.REGULAR.value,
            c.project_id.in_(projects),
            c.arrival_date >= first,
            c.verdict == BatchVerdict.ACCEPTED.value,
            c.deliveries > 0,
        )
        return [MarkedDay._make((*place, marked or 0, bool(closed))) for *place, marked, closed in self._rows(query)]

    def object_sizes(self, projects: Sequence[str], first: date) -> list[ObjectSizes]:
        """Return object sizes per arrival day and project since `first`, both sources together."""
        c = DELIVERIES.c
        place = (c.project_id, c.arrival_date)
        figures = (sa.func.count(), sa.func.max(c.size_bytes), sa.func.sum(c.size_bytes))
        # Name both sources, because the index starts with the source.
        of_both = c.source.in_([source.value for source in Source])
        query = sa.select(*place, *figures).where(
            of_both, c.project_id.in_(projects), c.arrival_date >= first, c.is_accepted
        )
        rows = self._rows(query.group_by(*place).order_by(*place))
        return [ObjectSizes._make((*counted, int(largest or 0), int(whole or 0))) for *counted, largest, whole in rows]

    def recoveries(self, projects: Sequence[str]) -> dict[str, date]:
        """Return project -> the newest arrival day of an accepted recovery."""
        c = BATCHES.c
        query = sa.select(c.project_id, sa.func.max(c.arrival_date)).where(
            c.source == Source.BACKFILL.value,
            c.project_id.in_(projects),
            c.verdict == BatchVerdict.ACCEPTED.value,
            c.deliveries > 0,
        )
        return dict(self._rows(query.group_by(c.project_id)))

    def processes(self) -> list[ProcessOnRecord]:
        """Return all recorded processes, oldest first; those without a start time come before all."""
        c = PROCESSES.c
        of_run = (c.run_id, sa.func.coalesce(c.job, ""), c.begun_at, c.ended_at, c.lost_at)
        query = sa.select(*of_run, c.host, c.place, c.pid, c.started_ticks).order_by(sa.func.coalesce(c.begun_at, ""))
        return [
            ProcessOnRecord._make((*of_run, None if pid is None else Identity(host, place, pid, ticks)))
            for *of_run, host, place, pid, ticks in self._rows(query)
        ]

    def known_decisions(self) -> frozenset[str]:
        """Return the names of the decision objects whose acts this ledger holds."""
        return frozenset(name for (name,) in self._rows(sa.select(DECISIONS.c.name)))

    def first_load(self) -> str | None:
        """Return when the first recorded load began, None where there is none."""
        first = self._rows(sa.select(sa.func.min(RUNS.c.started_at)))[0][0]
        return str(first) if first else None

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._read() as connection:
            return connection.execute(query).all()
