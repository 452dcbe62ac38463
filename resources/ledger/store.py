"""The ledger: what is recorded of deliveries, batches, slices and publications, in a SQL database.

Contains: questions and transactions.
Add here: a new question or a new way of writing.
Does not contain: the shape of what is kept (pipeline_assets/domain/records.py), opening the
database (engine.py), what another run wrote meanwhile (concurrency.py), what persons decided
(interventions.py), deciding anything (pipeline_assets/load/) and reading tables
(iceberg/lakehouse.py). No JVM is needed to read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import Digest, Slice, Source
from resources.ledger.changes import Changes
from resources.ledger.concurrency import moved_batches, unmoved_slices
from resources.ledger.digests import DigestsOnRecord
from resources.ledger.engine import connected, in_parts, ledger_failures, open_engine, writing
from resources.ledger.interventions import Interventions
from resources.ledger.lake import LakeOfLedger
from resources.ledger.notices import read_before, write_notices
from resources.ledger.outbox import Outbox
from resources.ledger.processes import Processes
from resources.ledger.revisions import Revisions
from resources.ledger.rows import (
    batch_of,
    batch_row,
    delivery_of,
    delivery_row,
    head_number,
    head_of,
    publication_of,
    publication_row,
    slice_of,
    slice_row,
)
from resources.ledger.schema import (
    BATCH_DAYS,
    BATCHES,
    DELIVERIES,
    HEADS,
    PUBLICATIONS,
    RUNS,
    SLICES,
)
from resources.ledger.strays import Strays
from resources.ledger.summaries import Summaries

if TYPE_CHECKING:
    from resources.ledger.decision_objects import DecisionObjects


class Ledger:
    """All reads and writes of the ledger; each write is one transaction."""

    def __init__(self, url: str, kept: DecisionObjects | None = None) -> None:
        """Prepare for a SQLAlchemy URL, and a place that keeps decisions as well; nothing is opened before first use."""
        self._url, self._kept = url, kept
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine, opened and brought to the present schema on first use; raises LedgerError."""
        if self._engine is None:
            self._engine = open_engine(self._url)
        return self._engine

    def close(self) -> None:
        """Release all connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @property
    def interventions(self) -> Interventions:
        """What persons decided."""
        return Interventions(self._read, self._write, self._kept)

    @property
    def lake(self) -> LakeOfLedger:
        """Whose ledger this is."""
        return LakeOfLedger(self._read, self._write, self._url)

    @property
    def processes(self) -> Processes:
        """Which processes work, and which died."""
        return Processes(lambda: self.engine, self._url)

    @property
    def strays(self) -> Strays:
        """Objects in landing that nobody will ask for."""
        return Strays(self._read, self._write)

    @property
    def revisions(self) -> Revisions:
        """Changes of final days."""
        return Revisions(self._read)

    @property
    def summaries(self) -> Summaries:
        """Figures over all that is on record."""
        return Summaries(self._read)

    @property
    def outbox(self) -> Outbox:
        """What people are told, and who was told what."""
        return Outbox(self._read, self._write)

    @property
    def digests(self) -> DigestsOnRecord:
        """The digests that are kept, wherever they are."""
        return DigestsOnRecord(self._read, self._write)

    # -- reading -----------------------------------------------------------------------------------------------

    def head(self, table: str) -> Head | None:
        """The snapshot of the table that the ledger agreed with last; None where it knows nothing of the table."""
        with self._read() as connection:
            return self._head(connection, table)

    def _head(self, connection: Connection, table: str) -> Head | None:
        number = connection.execute(sa.select(HEADS.c.snapshot_id).where(HEADS.c.table_name == table)).scalar()
        return None if number is None else head_of(int(number))

    def deliveries(
        self, source: Source, projects: Sequence[str], first: date, last: date, *, is_accepted: bool = True
    ) -> dict[str, DeliveryRecord]:
        """Object key -> the version whose rows raw holds (or the one refused last), of arrivals in the range."""
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

    def batches(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, BatchRecord]:
        """Batches of both sources that arrived in the range."""
        with self._read() as connection:
            rows = connection.execute(
                sa.select(BATCHES).where(
                    BATCHES.c.project_id.in_(projects), BATCHES.c.arrival_date.between(first, last)
                )
            ).mappings()
            return {record.key: record for record in map(batch_of, rows)}

    def arrival_days(self, projects: Sequence[str], source: Source | None = None) -> dict[str, frozenset[date]]:
        """Project -> arrival days with a known delivery of a source (of either where none is named), read or not."""
        days_by_project: dict[str, set[date]] = {}
        # A batch whose objects moved while they were read is known although no delivery of it is on record.
        for table, is_known in ((DELIVERIES, sa.true()), (BATCHES, BATCHES.c.deliveries > 0)):
            query = sa.select(table.c.project_id, table.c.arrival_date).distinct()
            if source is not None:
                query = query.where(table.c.source == source.value)
            with self._read() as connection:
                for project, day in connection.execute(query.where(table.c.project_id.in_(projects), is_known)):
                    days_by_project.setdefault(project, set()).add(day)
        return {project: frozenset(days) for project, days in days_by_project.items()}

    def batch_days(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[BatchKey, dict[date, BatchDay]]:
        """Batch -> event day -> its rows in raw, for batches that arrived in the range."""
        batches: dict[BatchKey, dict[date, BatchDay]] = {}
        for batch, day, part in self._batch_days(source, projects, BATCH_DAYS.c.arrival_date.between(first, last)):
            batches.setdefault(batch, {})[day] = part
        return batches

    def batch_days_of(
        self, source: Source, project_id: str, event_days: Sequence[date]
    ) -> dict[date, dict[BatchKey, BatchDay]]:
        """Event day -> batch -> its rows, for event days of one project."""
        batches: dict[date, dict[BatchKey, BatchDay]] = {day: {} for day in event_days}
        for chunk in in_parts(event_days):
            for batch, day, part in self._batch_days(source, [project_id], BATCH_DAYS.c.event_date.in_(chunk)):
                batches[day][batch] = part
        return batches

    def _batch_days(
        self, source: Source, projects: Sequence[str], where: Any
    ) -> Iterator[tuple[BatchKey, date, BatchDay]]:
        with self._read() as connection:
            rows = connection.execute(
                sa.select(BATCH_DAYS).where(
                    BATCH_DAYS.c.source == source.value, BATCH_DAYS.c.project_id.in_(projects), where
                )
            ).mappings()
            for row in rows:
                key = BatchKey(source, row["project_id"], row["arrival_date"])
                yield key, row["event_date"], BatchDay(Digest.parse(row["digest"]), row["lineage"])

    def slices(
        self, table: str, projects: Sequence[str] | None, days: Iterable[date] | None = None
    ) -> dict[Slice, SliceRecord]:
        """The recorded slices of a table, of all days or of those given."""
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

    def publications(self, table: str | None = None) -> list[PublicationRecord]:
        """Every recorded change, oldest first."""
        query = sa.select(PUBLICATIONS).order_by(PUBLICATIONS.c.id)
        if table is not None:
            query = query.where(PUBLICATIONS.c.table_name == table)
        with self._read() as connection:
            return [publication_of(row) for row in connection.execute(query).mappings()]

    def recorded_snapshots(self, table: str, snapshot_ids: Sequence[int]) -> set[tuple[Slice, int]]:
        """Slice and snapshot of the publications on record that these snapshots made."""
        columns = (PUBLICATIONS.c.event_date, PUBLICATIONS.c.project_id, PUBLICATIONS.c.snapshot_id)
        query = sa.select(*columns).where(PUBLICATIONS.c.table_name == table)
        with self._read() as connection:
            return {
                (Slice(day, project), int(snapshot))
                for part in in_parts(snapshot_ids)
                for day, project, snapshot in connection.execute(query.where(PUBLICATIONS.c.snapshot_id.in_(part)))
            }

    def last_run(self) -> Mapping[str, Any] | None:
        """The run recorded last: job, range, verdict counts and the snapshot of every table at its end."""
        with self._read() as connection:
            row = connection.execute(sa.select(RUNS).order_by(RUNS.c.finished_at.desc()).limit(1)).mappings().first()
        return dict(row) if row else None

    # -- writing -----------------------------------------------------------------------------------------------

    def record(self, changes: Changes, run_id: str) -> None:
        """Write one step's changes in one transaction; repeating it changes nothing.

        What another run recorded meanwhile stays: rows of slices that name other files by now, rows of batches that were only
        judged. Raises PublishConflictError, with nothing written, where it loaded a batch that this step loaded too.
        """
        with self._write() as connection:
            self._record(connection, changes, {"run_id": run_id, "recorded_at": datetime.now(UTC).isoformat()})

    def record_found(self, changes: Changes, run_id: str, *, known_head: Head | None) -> bool:
        """The same for what was found in a table and not made; False, with nothing written, where its head is known by now."""
        assert changes.head is not None
        with self._write() as connection:
            if self._head(connection, changes.head[0]) != known_head:
                return False
            self._record(connection, changes, {"run_id": run_id, "recorded_at": datetime.now(UTC).isoformat()})
        return True

    def _record(self, connection: Connection, changes: Changes, stamp: dict[str, Any]) -> None:
        moved = moved_batches(connection, changes)
        before = read_before(connection, changes)
        batches = [batch for batch in changes.batches if batch.key not in moved]
        self._forget(connection, changes.forgotten_deliveries, is_accepted=True)
        self._forget(connection, changes.forgotten_refusals, is_accepted=False)
        self._upsert(connection, DELIVERIES, [delivery_row(d) | stamp for d in changes.deliveries])
        self._upsert(connection, BATCHES, [batch_row(b) | stamp for b in batches])
        for batch, days in changes.batch_days.items():
            self._replace_batch_days(connection, batch, days)
        unmoved = unmoved_slices(connection, changes.slices)
        self._upsert(connection, SLICES, [slice_row(s) | stamp for s in unmoved])
        for publication in changes.publications:
            row = publication_row(publication, stamp["recorded_at"]) | {"was_final": before.was_final(publication)}
            self._insert_once(connection, PUBLICATIONS, row)
        write_notices(connection, self._insert, before, changes, (unmoved, batches), stamp)
        if changes.head is not None:
            published = {publication.key for publication in changes.publications}
            left = {record.key for record in changes.slices} - {record.key for record in unmoved}
            self._move_head(connection, *changes.head, is_whole=not published & left)

    def record_run(self, run_id: str, **values: Any) -> None:
        """Write or complete the row of a run."""
        with self._write() as connection:
            self._upsert(connection, RUNS, [{"run_id": run_id, **values}])

    def _forget(self, connection: Connection, keys: Sequence[tuple[Source, str]], *, is_accepted: bool) -> None:
        for source, object_key in keys:
            connection.execute(
                DELIVERIES.delete().where(
                    DELIVERIES.c.source == source.value,
                    DELIVERIES.c.object_key == object_key,
                    DELIVERIES.c.is_accepted == is_accepted,
                )
            )

    def _replace_batch_days(self, connection: Connection, batch: BatchKey, days: Mapping[date, BatchDay]) -> None:
        keys = {"source": batch.source.value, "project_id": batch.project_id, "arrival_date": batch.arrival_date}
        connection.execute(BATCH_DAYS.delete().where(*(BATCH_DAYS.c[name] == value for name, value in keys.items())))
        rows: list[dict[str, Any]] = [
            keys | {"event_date": day, "digest": str(part.digest), "lineage": part.lineage}
            for day, part in days.items()
        ]
        if rows:
            connection.execute(BATCH_DAYS.insert(), rows)

    def _move_head(
        self, connection: Connection, table: str, snapshot_id: int, follows: int | None, *, is_whole: bool
    ) -> None:
        """A head is moved only from the snapshot the ledger agrees with; else it is doubted, and the next run compares.

        Another writer committed in between, main was set back, or a row of a published slice was left to another run.
        """
        known = self._head(connection, table)
        if is_whole and (follows is None or known == Head(follows)):
            head = Head(snapshot_id)
        elif known is not None:
            head = replace(known, is_trusted=False)
        else:
            return
        self._upsert(connection, HEADS, [{"table_name": table, "snapshot_id": head_number(head)}])

    def _upsert(self, connection: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        keys = [column.name for column in table.primary_key]
        insert = self._insert(table)
        updates = {name: insert.excluded[name] for name in rows[0] if name not in keys}
        connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=updates), rows)

    def _insert_once(self, connection: Connection, table: sa.Table, row: dict[str, Any]) -> None:
        connection.execute(self._insert(table).on_conflict_do_nothing(), row)

    def _insert(self, table: sa.Table) -> Any:
        return sqlite.insert(table) if self.engine.dialect.name == "sqlite" else postgresql.insert(table)

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with ledger_failures(self._url), connected(self.engine) as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with ledger_failures(self._url), writing(self.engine) as connection:
            yield connection
