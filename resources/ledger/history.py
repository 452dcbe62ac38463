"""Records of publications and loads: consistent cuts, changes of final days, and evidence for `doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.slices import BatchVerdict, Digest, Source
from resources.ledger.engine import Part, in_parts
from resources.ledger.schema import BATCHES, CUTS, DECISIONS, PUBLICATIONS, RUNS


class Cut(NamedTuple):
    """A state of all tables that was published as a whole."""

    number: int
    run_id: str
    published_at: str
    snapshots: Mapping[str, int]


# By number: after a clock was set back, a later publish has an earlier time.
_LAST_CUT = sa.select(CUTS).order_by(CUTS.c.number.desc()).limit(1)


class Cuts(Part):
    """Reads cuts."""

    def first(self) -> Cut | None:
        """Return the oldest recorded cut, None where there is none."""
        return self._one(sa.select(CUTS).order_by(CUTS.c.number).limit(1))

    def newest(self) -> Cut | None:
        """Return the newest cut that runs of ours published, None where there is none."""
        return self._one(_LAST_CUT)

    def at(self, moment: datetime) -> Cut | None:
        """Return the cut that was current at a timezone-aware moment, None where there was none."""
        return self._one(_LAST_CUT.where(CUTS.c.published_at <= moment.astimezone(UTC).isoformat()))

    def of_run(self, run_id: str) -> Cut | None:
        """Return the last cut that a run published; None where it published nothing."""
        return self._one(_LAST_CUT.where(CUTS.c.run_id == run_id))

    def runs(self, beginning: str) -> list[str]:
        """Return the ids of all recorded runs that start with this text, sorted."""
        both = [sa.select(table.c.run_id.label("run_id")) for table in (CUTS, RUNS)]
        found = sa.union(*both).subquery().c.run_id
        is_meant = sa.func.substr(found, 1, len(beginning)) == beginning
        return [run_id for (run_id,) in self._rows(sa.select(found).where(is_meant).order_by(found))]

    def _one(self, query: sa.Select[Any]) -> Cut | None:
        for row in self._rows(query):
            snapshots = {str(table): int(number) for table, number in row.snapshots.items()}
            return Cut(row.number, row.run_id or "", row.published_at, snapshots)
        return None


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
    """Measure -> (before, after), where they differ; before is None without an earlier publication."""


class Revisions(Part):
    """Reads revisions."""

    def all(self, tables: Sequence[str], projects: Sequence[str]) -> list[Revision]:
        """Return the publications that changed a day that was final by then, newest first, without measures."""
        c = PUBLICATIONS.c
        texts = [sa.func.coalesce(column, "") for column in (c.published_at, c.cause)]
        columns = (c.table_name, c.event_date, c.project_id, *texts, c.accepted_reason, c.run_id)
        are_of = (c.was_final.is_(sa.true()), c.table_name.in_(tables), c.project_id.in_(projects))
        query = sa.select(*columns, c.digest_before, c.digest_after, c.id).where(
            *are_of, c.digest_before != c.digest_after
        )
        rows = self._rows(query.order_by(c.id.desc()))
        return [Revision(*(*row[:7], *(Digest.parse(text).rows for text in row[7:9]), row[9], {})) for row in rows]

    def measures_of(self, revisions: Sequence[Revision]) -> dict[int, Mapping[str, tuple[float | None, float]]]:
        """Return publication number -> measure -> (before, after), where they differ."""
        found: dict[int, Mapping[str, tuple[float | None, float]]] = {}
        wanted = {revision.number for revision in revisions}
        figures: dict[tuple[str, date, str], dict[int, dict[str, float] | None]] = {}
        c = PUBLICATIONS.c
        query = sa.select(c.table_name, c.event_date, c.project_id, c.id, c.figures)
        for part in in_parts(sorted({revision.day for revision in revisions})):
            for *place, number, measured in self._rows(query.where(c.event_date.in_(part))):
                figures.setdefault(tuple(place), {})[number] = measured
        for history in figures.values():
            before: Mapping[str, float] = {}
            for number, measured in sorted(history.items()):
                after = measured or {}
                if number in wanted:
                    pairs = {name: (before.get(name), value) for name, value in after.items()}
                    found[number] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
                before = after
        return found


_NOT_KNOWN = ("null", "{}")


class FoundCommit(NamedTuple):
    """A change that a load found in a table and no running load had recorded."""

    table: str
    day: date
    project_id: str
    kind: CauseKind
    published_at: str


class MarkedDay(NamedTuple):
    """A judged arrival day of regular exports."""

    project_id: str
    day: date
    hours_marked: int
    is_closed: bool


class Checkup(Part):
    """Reads how loads went, for `tidemark doctor` and metrics; never writes."""

    def reported(self) -> Mapping[tuple[str, str], int]:
        """Return (table, verdict) -> how often finished loads reported it for a slice."""
        found: Counter[tuple[str, str]] = Counter()
        for (verdicts,) in self._rows(sa.select(RUNS.c.verdicts).where(RUNS.c.finished_at.is_not(None))):
            for name, count in (verdicts or {}).items():
                table, _, verdict = name.rpartition(" ")
                found[table, verdict] += count
        return found

    def verdicts(self) -> Counter[str]:
        """Return verdict -> how often finished loads reached it, over all tables."""
        found: Counter[str] = Counter()
        for (_, verdict), count in self.reported().items():
            found[verdict] += count
        return found

    def seconds(self) -> Mapping[str, float]:
        """Return table -> seconds that its last publishing run spent on it."""
        c, found, table = PUBLICATIONS.c, dict[str, float](), ""
        while (table := self._value(sa.select(sa.func.min(c.table_name)).where(c.table_name > table))) is not None:
            # `coalesce` prevents use of the table's index and a sort of all its publications; by id the query stops early.
            is_of_table = sa.func.coalesce(c.table_name, "") == table
            query = sa.select(c.seconds).where(is_of_table, c.seconds.is_not(None))
            if (seconds := self._value(query.order_by(c.id.desc()).limit(1))) is not None:
                found[table] = float(seconds)
        return found

    def built_again(self, projects: Sequence[str]) -> tuple[int, Sequence[str]]:
        """Return how many slices the same code published again with equal content from the same inputs, and those that differ."""
        c = PUBLICATIONS.c
        inputs = sa.cast(c.input_state, sa.Text)
        place = (c.table_name, c.event_date, c.project_id)
        contents = sa.func.count(sa.distinct(c.digest_after))
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
        return len(rows) - len(differing), differing

    def found_commits(self, projects: Sequence[str]) -> list[FoundCommit]:
        """Return the foreign and unrecorded commits that loads found, newest first."""
        c = PUBLICATIONS.c
        is_found = sa.or_(c.cause == CauseKind.FOREIGN.value, c.cause.startswith(CauseKind.UNRECORDED_RUN.value))
        query = sa.select(c.table_name, c.event_date, c.project_id, c.cause, c.published_at).order_by(c.id.desc())
        rows = self._rows(query.where(c.project_id.in_(projects), is_found))
        return [FoundCommit._make((*place, Cause.parse(cause).kind, at or "")) for *place, cause, at in rows]

    def of_unfinished_runs(self, projects: Sequence[str]) -> int:
        """Count publications, except rollbacks, whose run is not recorded as finished, because it died or is running."""
        c = PUBLICATIONS.c
        is_unfinished = (c.run_id.is_not(None), RUNS.c.run_id.is_(None), c.cause != CauseKind.ROLLBACK.value)
        joined = PUBLICATIONS.outerjoin(RUNS, RUNS.c.run_id == c.run_id)
        query = sa.select(sa.func.count()).select_from(joined).where(c.project_id.in_(projects), *is_unfinished)
        return int(self._value(query))

    def marked_days(self, projects: Sequence[str], first: date) -> list[MarkedDay]:
        """Return the arrival days of regular exports since `first` that were accepted with deliveries."""
        c = BATCHES.c
        query = sa.select(c.project_id, c.arrival_date, c.hours_marked, c.is_closed)
        query = query.where(*_are_accepted(Source.REGULAR, projects), c.arrival_date >= first)
        return [MarkedDay._make((*place, marked or 0, bool(closed))) for *place, marked, closed in self._rows(query)]

    def recoveries(self, projects: Sequence[str]) -> dict[str, date]:
        """Return project -> the newest arrival day of an accepted recovery."""
        c, are_of = BATCHES.c, _are_accepted(Source.BACKFILL, projects)
        newest = sa.select(c.project_id, sa.func.max(c.arrival_date)).where(*are_of).group_by(c.project_id)
        return dict(self._rows(newest))

    def known_decisions(self) -> frozenset[str]:
        """Return the names of the decision objects whose acts this ledger holds."""
        return frozenset(name for (name,) in self._rows(sa.select(DECISIONS.c.name)))

    def first_load(self) -> str | None:
        """Return when the first recorded load began, None where there is none."""
        return self._value(sa.select(sa.func.min(RUNS.c.started_at))) or None


def _are_accepted(source: Source, projects: Sequence[str]) -> tuple[sa.ColumnElement[bool], ...]:
    c = BATCHES.c
    is_accepted = c.verdict == BatchVerdict.ACCEPTED.value, c.deliveries > 0
    return c.source == source.value, c.project_id.in_(projects), *is_accepted
