"""Evidence in the ledger of whether this deployment can recover: rebuilds, foreign commits, markers, objects, processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

import sqlalchemy as sa

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.processes import Identity
from pipeline_assets.domain.slices import BatchVerdict, Source
from resources.ledger.engine import Reads
from resources.ledger.schema import BATCHES, DECISIONS, DELIVERIES, PROCESSES, PUBLICATIONS, RUNS

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
