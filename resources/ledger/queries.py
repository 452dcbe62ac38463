"""Queries of the ledger: deliveries, batches, slices, publications and runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from resources.ledger.engine import in_parts
from resources.ledger.schema import (
    BATCH_DAYS,
    BATCHES,
    DELIVERIES,
    HEADS,
    PUBLICATIONS,
    RUNS,
    SLICES,
    batch_of,
    delivery_of,
    head_of,
    publication_of,
    slice_of,
)


class Queries(ABC):
    """The queries of a ledger; each runs in one transaction."""

    @abstractmethod
    def _read(self) -> AbstractContextManager[Connection]:
        """Open a read transaction; raises LedgerError."""

    def head(self, table: str) -> Head | None:
        """Return the snapshot that the ledger last agreed with; None where it does not know the table."""
        with self._read() as connection:
            return self._head(connection, table)

    def _head(self, connection: Connection, table: str) -> Head | None:
        number = connection.execute(sa.select(HEADS.c.snapshot_id).where(HEADS.c.table_name == table)).scalar()
        return None if number is None else head_of(int(number))

    def deliveries(
        self, source: Source, projects: Sequence[str], first: date, last: date, *, is_accepted: bool = True
    ) -> dict[str, DeliveryRecord]:
        """Return object key -> the version in raw (or the version refused last), of arrivals in the range."""
        with self._read() as connection:
            rows = connection.execute(
                sa.select(DELIVERIES).where(
                    DELIVERIES.c.source == source.value,
                    DELIVERIES.c.project_id.in_(projects),
                    DELIVERIES.c.arrival_date.between(first, last),
                    DELIVERIES.c.is_accepted == is_accepted,
                )
            ).mappings()
            return {row["object_key"]: delivery_of(row) for row in rows}

    def marked_days(self, projects: Sequence[str], first: date, last: date) -> set[tuple[str, date]]:
        """Return the (project, arrival day) in the range whose regular exports had markers."""
        c = BATCHES.c
        is_marked = (c.source == Source.REGULAR.value, c.project_id.in_(projects), c.hours_marked > 0)
        query = sa.select(c.project_id, c.arrival_date).where(*is_marked, c.arrival_date.between(first, last))
        with self._read() as connection:
            return {(project, day) for project, day in connection.execute(query)}

    def near_with_rows(self, project_id: str, day: date) -> list[DeliveryRecord]:
        """Return a delivery of which raw holds rows, the nearest up to a day, and the nearest after it."""
        c = DELIVERIES.c
        held = sa.select(DELIVERIES).where(
            c.source.in_(list(Source)), c.project_id == project_id, c.is_accepted, c.rows > 0
        )
        ends = (held.where(c.arrival_date <= day).order_by(c.arrival_date.desc()), held.order_by(c.arrival_date))
        with self._read() as connection:
            return [delivery_of(row) for query in ends for row in connection.execute(query.limit(1)).mappings()]

    def batches(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, BatchRecord]:
        """Return the batches of both sources that arrived in the range."""
        with self._read() as connection:
            rows = connection.execute(
                sa.select(BATCHES).where(
                    # Name all sources, because the key starts with the source.
                    BATCHES.c.source.in_([source.value for source in Source]),
                    BATCHES.c.project_id.in_(projects),
                    BATCHES.c.arrival_date.between(first, last),
                )
            ).mappings()
            return {record.key: record for record in map(batch_of, rows)}

    def next_arrivals(self, after: Mapping[str, date], source: Source | None = None) -> dict[str, date]:
        """Return project -> its first arrival day after the given day with a known delivery, of the source or of either.

        Uses one index lookup per project and never reads a whole history.
        """
        return self._nearest_arrivals(after, source, is_before=False)

    def previous_arrivals(self, before: Mapping[str, date], source: Source | None = None) -> dict[str, date]:
        """Return project -> its last arrival day before the given day, as `next_arrivals` does for later ones."""
        return self._nearest_arrivals(before, source, is_before=True)

    def _nearest_arrivals(
        self, bounds: Mapping[str, date], source: Source | None, *, is_before: bool
    ) -> dict[str, date]:
        found: dict[str, list[date]] = {}
        sources = [source] if source is not None else list(Source)
        with self._read() as connection:
            for part in in_parts(sorted(bounds.items()), width=2):
                places = sa.union_all(
                    *(
                        sa.select(sa.literal(project).label("project_id"), sa.literal(day, sa.Date).label("bound"))
                        for project, day in part
                    )
                ).subquery("places")
                days = [
                    _nearest_day(kept, of, places, is_before=is_before)
                    for kept in (DELIVERIES, BATCHES)
                    for of in sources
                ]
                for project, *nearest in connection.execute(sa.select(places.c.project_id, *days)):
                    found[project] = [day for day in nearest if day is not None]
        nearer = max if is_before else min
        return {project: nearer(days) for project, days in found.items() if days}

    def _batches_of(self, source: Source, object_keys: Sequence[str]) -> set[BatchKey]:
        """The batches of these objects, over all recorded versions."""
        query = sa.select(DELIVERIES.c.project_id, DELIVERIES.c.arrival_date).where(DELIVERIES.c.source == source.value)
        with self._read() as connection:
            return {
                BatchKey(source, project, day)
                for part in in_parts(object_keys)
                for project, day in connection.execute(query.where(DELIVERIES.c.object_key.in_(part)))
            }

    def batch_days(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[BatchKey, dict[date, BatchDay]]:
        """Return batch -> event day -> its rows in raw, of batches that arrived in the range."""
        batches: dict[BatchKey, dict[date, BatchDay]] = {}
        for batch, day, part in self._batch_days(source, projects, BATCH_DAYS.c.arrival_date.between(first, last)):
            batches.setdefault(batch, {})[day] = part
        return batches

    def batch_days_of(
        self, source: Source, project_id: str, event_days: Sequence[date]
    ) -> dict[date, dict[BatchKey, BatchDay]]:
        """Return event day -> batch -> its rows in raw, of event days of one project."""
        batches: dict[date, dict[BatchKey, BatchDay]] = {day: {} for day in event_days}
        for chunk in in_parts(event_days):
            for batch, day, part in self._batch_days(source, [project_id], BATCH_DAYS.c.event_date.in_(chunk)):
                batches[day][batch] = part
        return batches

    def _batch_days(
        self, source: Source, projects: Sequence[str], where: Any
    ) -> Iterator[tuple[BatchKey, date, BatchDay]]:
        # Leave out lateness sketches: a load reads thousands of rows and needs no sketches.
        names = ("project_id", "arrival_date", "event_date", "digest", "lineage")
        with self._read() as connection:
            rows = connection.execute(
                sa.select(*(BATCH_DAYS.c[name] for name in names)).where(
                    BATCH_DAYS.c.source == source.value, BATCH_DAYS.c.project_id.in_(projects), where
                )
            ).mappings()
            for row in rows:
                key = BatchKey(source, row["project_id"], row["arrival_date"])
                yield key, row["event_date"], BatchDay(Digest.parse(row["digest"]), row["lineage"])

    def slices(
        self, table: str, projects: Sequence[str] | None, days: Iterable[date] | None = None
    ) -> dict[Slice, SliceRecord]:
        """Return slice -> record of a table, of all days or of those given."""
        query = sa.select(SLICES).where(SLICES.c.table_name == table)
        if projects is not None:
            query = query.where(SLICES.c.project_id.in_(projects))
        wanted = None if days is None else set(days)
        if wanted is not None:
            if not wanted:
                return {}
            query = query.where(SLICES.c.event_date.between(min(wanted), max(wanted)))
        with self._read() as connection:
            records = map(slice_of, connection.execute(query).mappings())
            return {r.key: r for r in records if wanted is None or r.key.event_date in wanted}

    def slice_keys(self, tables: Collection[str], projects: Sequence[str], first: date, last: date) -> set[Slice]:
        """Return the recorded slices of any of these tables, of days in the range."""
        query = sa.select(SLICES.c.event_date, SLICES.c.project_id).where(
            SLICES.c.table_name.in_(tables),
            SLICES.c.project_id.in_(projects),
            SLICES.c.event_date.between(first, last),
        )
        with self._read() as connection:
            return {Slice(day, project) for day, project in connection.execute(query)}

    def event_days(self, tables: Collection[str]) -> list[date]:
        """Return the recorded days of any of these tables, ascending."""
        query = sa.select(SLICES.c.event_date).where(SLICES.c.table_name.in_(tables)).distinct()
        with self._read() as connection:
            return sorted(connection.execute(query).scalars())

    def first_day(self, table: str) -> date | None:
        """Return the first day on which a table has or had rows, also before a rollback; None where it never had any."""
        days = (self._first_day_of_slices(table), self._first_day_of_publications(table))
        return min((day for day in days if day is not None), default=None)

    def _first_day_of_slices(self, table: str, without: Collection[Slice] = ()) -> date | None:
        """The first such day among the recorded slices, without those given."""
        query = sa.select(SLICES.c.event_date, SLICES.c.project_id).where(
            SLICES.c.table_name == table,
            sa.or_(SLICES.c.digest != str(EMPTY), SLICES.c.verdict == Verdict.HELD.value),
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(SLICES.c.event_date).limit(len(without) + 1)).all()
        return next((day for day, project_id in rows if Slice(day, project_id) not in without), None)

    def _first_day_of_publications(self, table: str) -> date | None:
        empty = str(EMPTY)
        query = sa.select(sa.func.min(PUBLICATIONS.c.event_date)).where(
            PUBLICATIONS.c.table_name == table,
            sa.or_(PUBLICATIONS.c.digest_before != empty, PUBLICATIONS.c.digest_after != empty),
        )
        with self._read() as connection:
            day: date | None = connection.execute(query).scalar()
        return day

    def publications(self, table: str | None = None) -> list[PublicationRecord]:
        """Return every recorded publication, of one table or of all, oldest first."""
        query = sa.select(PUBLICATIONS).order_by(PUBLICATIONS.c.id)
        if table is not None:
            query = query.where(PUBLICATIONS.c.table_name == table)
        with self._read() as connection:
            return [publication_of(row) for row in connection.execute(query).mappings()]

    def publications_of(self, table: str, projects: Sequence[str], days: Iterable[date]) -> list[PublicationRecord]:
        """Return every recorded publication of some days of a table, oldest first."""
        wanted = sorted(set(days))
        query = sa.select(PUBLICATIONS).where(
            PUBLICATIONS.c.table_name == table,
            PUBLICATIONS.c.event_date.in_(wanted),
            PUBLICATIONS.c.project_id.in_(projects),
        )
        with self._read() as connection:
            return [publication_of(row) for row in connection.execute(query.order_by(PUBLICATIONS.c.id)).mappings()]

    def began(self, publication: PublicationRecord) -> str:
        """Return when the run of a publication began; when it was published, where no run is on record."""
        query = sa.select(RUNS.c.started_at).where(RUNS.c.run_id == publication.run_id)
        with self._read() as connection:
            return connection.execute(query).scalar() or publication.published_at

    def recorded_snapshots(self, table: str, snapshot_ids: Sequence[int]) -> set[tuple[Slice, int]]:
        """Return (slice, snapshot) of the recorded publications of these snapshots."""
        columns = (PUBLICATIONS.c.event_date, PUBLICATIONS.c.project_id, PUBLICATIONS.c.snapshot_id)
        query = sa.select(*columns).where(PUBLICATIONS.c.table_name == table)
        with self._read() as connection:
            return {
                (Slice(day, project), int(snapshot))
                for part in in_parts(snapshot_ids)
                for day, project, snapshot in connection.execute(query.where(PUBLICATIONS.c.snapshot_id.in_(part)))
            }

    def last_run(self) -> Mapping[str, Any] | None:
        """Return the row of the last recorded run: range, verdict counts, final snapshot of every table; None without runs."""
        with self._read() as connection:
            row = connection.execute(sa.select(RUNS).order_by(RUNS.c.finished_at.desc()).limit(1)).mappings().first()
        return dict(row) if row else None

    def skew_of_runs(self, most: int) -> dict[str, list[dict[str, Any]]]:
        """Return run -> its heavy steps in the form of `StepSkew.as_json`, of the newest `most` finished runs, newest first."""
        query = sa.select(RUNS.c.run_id, RUNS.c.skew).where(RUNS.c.finished_at.is_not(None))
        with self._read() as connection:
            rows = connection.execute(query.order_by(RUNS.c.finished_at.desc()).limit(most)).all()
        return {run_id: list(steps or ()) for run_id, steps in rows}


def _nearest_day(kept: sa.Table, source: Source, places: sa.Subquery, *, is_before: bool) -> sa.ScalarSelect[date]:
    """Subquery for the first day after (or last before) a place's bound, using the index that starts with source and project."""
    day = kept.c.arrival_date
    # A batch whose objects moved during the read is known, although none of its deliveries is on record.
    is_known = sa.true() if kept is DELIVERIES else kept.c.deliveries > 0
    query = sa.select(day).where(
        kept.c.source == source.value,
        kept.c.project_id == places.c.project_id,
        day < places.c.bound if is_before else day > places.c.bound,
        is_known,
    )
    return query.order_by(day.desc() if is_before else day).limit(1).scalar_subquery()
