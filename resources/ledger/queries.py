"""Queries of the ledger: deliveries, batches, slices and publications."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from resources.ledger.engine import Part, in_parts
from resources.ledger.schema import (
    BATCH_DAYS,
    BATCHES,
    DELIVERIES,
    HEADS,
    PUBLICATIONS,
    RUNS,
    SLICES,
    head_of,
    record_of,
)


class Queries(Part):
    """The queries of a ledger; each runs in one transaction."""

    def head(self, table: str) -> Head | None:
        """Return the snapshot that the ledger last agreed with; None where it does not know the table."""
        with self._read() as connection:
            return head(connection, table)

    def deliveries(
        self, source: Source, projects: Sequence[str], first: date, last: date, *, is_accepted: bool = True
    ) -> dict[str, DeliveryRecord]:
        """Return object key -> the version in raw (or the version refused last), of arrivals in the range."""
        wanted = sa.and_(*arrived_within(DELIVERIES, source, projects, first, last))
        rows = self._maps(sa.select(DELIVERIES).where(wanted, DELIVERIES.c.is_accepted == is_accepted))
        return {row["object_key"]: record_of(DeliveryRecord, row) for row in rows}

    def marked_days(self, projects: Sequence[str], first: date, last: date) -> set[tuple[str, date]]:
        """Return the (project, arrival day) in the range whose regular exports had markers."""
        query = sa.select(BATCHES.c.project_id, BATCHES.c.arrival_date)
        within = arrived_within(BATCHES, Source.REGULAR, projects, first, last)
        return {(project, day) for project, day in self._rows(query.where(*within, BATCHES.c.hours_marked > 0))}

    def near_with_rows(self, project_id: str, day: date) -> list[DeliveryRecord]:
        """Return a delivery with rows in raw, the nearest up to a day, and the nearest after it."""
        c = DELIVERIES.c
        is_held = (c.source.in_(list(Source)), c.project_id == project_id, c.is_accepted, c.rows > 0)
        held = sa.select(DELIVERIES).where(*is_held).limit(1)
        ends = (held.where(c.arrival_date <= day).order_by(c.arrival_date.desc()), held.order_by(c.arrival_date))
        return [record_of(DeliveryRecord, row) for query in ends for row in self._maps(query)]

    def batches(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, BatchRecord]:
        """Return the batches of both sources that arrived in the range."""
        rows = self._maps(sa.select(BATCHES).where(*arrived_within(BATCHES, None, projects, first, last)))
        return {record.key: record for record in (record_of(BatchRecord, row) for row in rows)}

    def nearest_arrivals(
        self, bounds: Mapping[str, date], source: Source | None = None, *, is_before: bool = False
    ) -> dict[str, date]:
        """Return project -> its nearest arrival day with a known delivery after the given day, or before it (`is_before`)."""
        found: dict[str, list[date]] = {}
        sources = [source] if source is not None else list(Source)
        for part in in_parts(sorted(bounds.items()), width=2):
            rows = (
                sa.select(sa.literal(project).label("project_id"), sa.literal(day, sa.Date).label("bound"))
                for project, day in part
            )
            places = sa.union_all(*rows).subquery("places")
            days = [_nearest_day(kept, of, places, is_before) for kept in (DELIVERIES, BATCHES) for of in sources]
            for project, *nearest in self._rows(sa.select(places.c.project_id, *days)):
                found[project] = [day for day in nearest if day is not None]
        nearer = max if is_before else min
        return {project: nearer(days) for project, days in found.items() if days}

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
        c = BATCH_DAYS.c
        query = sa.select(c.project_id, c.arrival_date, c.event_date, c.digest, c.lineage)
        query = query.where(c.source == source.value, c.project_id.in_(projects), where)
        for project, arrival, day, digest, lineage in self._rows(query):
            yield BatchKey(source, project, arrival), day, BatchDay(Digest.parse(digest), lineage)

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
        records = (record_of(SliceRecord, row, read_hash=row["file_hash"]) for row in self._maps(query))
        return {one.key: one for one in records if wanted is None or one.key.event_date in wanted}

    def slice_keys(self, tables: Collection[str], projects: Sequence[str], first: date, last: date) -> set[Slice]:
        """Return the recorded slices of any of these tables, of days in the range."""
        c = SLICES.c
        is_wanted = (c.table_name.in_(tables), c.project_id.in_(projects), c.event_date.between(first, last))
        rows = self._rows(sa.select(c.event_date, c.project_id).where(*is_wanted))
        return {Slice(day, project) for day, project in rows}

    def event_days(self, tables: Collection[str]) -> list[date]:
        """Return the recorded days of any of these tables, ascending."""
        query = sa.select(SLICES.c.event_date).where(SLICES.c.table_name.in_(tables)).distinct()
        return sorted(day for (day,) in self._rows(query))

    def first_day(self, table: str) -> date | None:
        """Return the first day on which a table has or had rows, also before a rollback; None without any."""
        return min(self._first_days(table), default=None)

    def _first_days(self, table: str, without: Collection[Slice] = ()) -> list[date]:
        c, of = SLICES.c, PUBLICATIONS.c
        has_rows = sa.or_(c.digest != str(EMPTY), c.verdict == Verdict.HELD.value)
        query = sa.select(c.event_date, c.project_id).where(c.table_name == table, has_rows)
        rows = self._rows(query.order_by(c.event_date).limit(len(without) + 1))
        had_rows = sa.or_(of.digest_before != str(EMPTY), of.digest_after != str(EMPTY))
        published = self._value(sa.select(sa.func.min(of.event_date)).where(of.table_name == table, had_rows))
        days = [day for day, project_id in rows if Slice(day, project_id) not in without]
        return days[:1] + ([] if published is None else [published])

    def publications(
        self, table: str | None = None, projects: Sequence[str] | None = None, days: Iterable[date] | None = None
    ) -> list[PublicationRecord]:
        """Return every recorded publication, oldest first, or those of one table, of these projects and of these days."""
        c, query = PUBLICATIONS.c, sa.select(PUBLICATIONS).order_by(PUBLICATIONS.c.id)
        if table is not None:
            query = query.where(c.table_name == table)
        if projects is not None:
            query = query.where(c.project_id.in_(projects))
        if days is not None:
            query = query.where(c.event_date.in_(sorted(set(days))))
        return [record_of(PublicationRecord, row, number=row["id"]) for row in self._maps(query)]

    def began(self, publication: PublicationRecord) -> str:
        """Return when the run of a publication began; the time of publication, where no run is on record."""
        query = sa.select(RUNS.c.started_at).where(RUNS.c.run_id == publication.run_id)
        return self._value(query) or publication.published_at

    def recorded_snapshots(self, table: str, snapshot_ids: Sequence[int]) -> set[tuple[Slice, int]]:
        """Return (slice, snapshot) of the recorded publications of these snapshots."""
        c = PUBLICATIONS.c
        query = sa.select(c.event_date, c.project_id, c.snapshot_id).where(c.table_name == table)
        return {
            (Slice(day, project), int(snapshot))
            for part in in_parts(snapshot_ids)
            for day, project, snapshot in self._rows(query.where(c.snapshot_id.in_(part)))
        }


def head(connection: Connection, table: str) -> Head | None:
    """Return the recorded head of a table."""
    number = connection.execute(sa.select(HEADS.c.snapshot_id).where(HEADS.c.table_name == table)).scalar()
    return None if number is None else head_of(int(number))


OF_TABLE, OF_BATCH = ("table_name", "event_date"), ("source", "project_id", "arrival_date")
OF_EVENTS = ("source", "project_id", "event_date")
"""Keys of rows for `conditions` and `rows_of`; the last column is a day."""


def conditions(
    table: sa.Table, key: Sequence[str], wanted: Collection[tuple[Any, ...]]
) -> Iterator[list[sa.ColumnElement[bool]]]:
    """Yield conditions that select, by an index, all rows with any combination of these keys' columns."""
    *groups, days = (sorted(set(values)) for values in zip(*wanted, strict=True)) if wanted else ([],)
    same = [table.c[name].in_(values) for name, values in zip(key, groups, strict=False)]
    for part in in_parts(days):
        yield [*same, table.c[key[-1]].in_(part)]


def rows_of(
    connection: Connection,
    table: sa.Table,
    key: Sequence[str],
    wanted: Collection[tuple[Any, ...]],
    *names: str,
    where: Sequence[sa.ColumnElement[bool]] = (),
) -> Iterator[Any]:
    """Yield the key and these columns of the rows with these keys."""
    # By its keys: with a join the database might read every recorded delivery.
    query = sa.select(*(table.c[name] for name in (*key, *names))).where(*where)
    for is_wanted in conditions(table, key, wanted):
        yield from (row for row in connection.execute(query.where(*is_wanted)) if row[: len(key)] in wanted)


def arrived_within(
    table: sa.Table, source: Source | None, projects: Sequence[str], first: date, last: date
) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that rows are of the source, or of either, and arrived in the range."""
    # Name all sources, because keys and indexes start with the source.
    of_source = table.c.source.in_([one.value for one in Source]) if source is None else table.c.source == source.value
    return of_source, table.c.project_id.in_(projects), table.c.arrival_date.between(first, last)


def _nearest_day(kept: sa.Table, source: Source, places: sa.Subquery, is_before: bool) -> sa.ScalarSelect[date]:
    """Uses the index that starts with source and project."""
    day = kept.c.arrival_date
    # A batch whose objects moved during the read is known, although none of its deliveries is on record.
    is_known = sa.true() if kept is DELIVERIES else kept.c.deliveries > 0
    is_past = day < places.c.bound if is_before else day > places.c.bound
    is_place = (kept.c.source == source.value, kept.c.project_id == places.c.project_id)
    query = sa.select(day).where(*is_place, is_past, is_known)
    return query.order_by(day.desc() if is_before else day).limit(1).scalar_subquery()
