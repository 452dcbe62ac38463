"""The ledger: what is recorded of deliveries, batches, slices and publications, in a SQL database.

Contains: transactions.
Add here: a new way of writing.
Does not contain: questions (queries.py), the shape of what is kept (pipeline_assets/domain/records.py), opening the
database (engine.py), what another run wrote meanwhile (concurrency.py), what persons decided
(interventions.py), deciding anything (pipeline_assets/load/) and reading tables
(iceberg/lakehouse.py). No JVM is needed to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, Head
from pipeline_assets.domain.slices import Source
from resources.ledger.activity import Activity
from resources.ledger.changes import Changes
from resources.ledger.checkup import Checkup
from resources.ledger.concurrency import moved_batches, unmoved_slices
from resources.ledger.digests import DigestsOnRecord
from resources.ledger.engine import connected, ledger_failures, open_engine, writing
from resources.ledger.golden import GoldenTotals
from resources.ledger.interventions import Interventions
from resources.ledger.lake import LakeOfLedger
from resources.ledger.notices import read_before, write_notices
from resources.ledger.outbox import Outbox
from resources.ledger.processes import Processes
from resources.ledger.queries import Queries
from resources.ledger.rebuilds import Rebuilds
from resources.ledger.recoveries import Recoveries
from resources.ledger.revisions import Revisions
from resources.ledger.rows import (
    batch_day_row,
    batch_row,
    delivery_row,
    head_number,
    publication_row,
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
from resources.ledger.set_aside import SetAsides
from resources.ledger.strays import Strays
from resources.ledger.summaries import Summaries

if TYPE_CHECKING:
    from resources.ledger.decision_objects import DecisionObjects


class Ledger(Queries):
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
    def activity(self) -> Activity:
        """What loads did of late."""
        return Activity(self._read)

    @property
    def strays(self) -> Strays:
        """Objects in landing that nobody will ask for."""
        return Strays(self._read, self._write)

    @property
    def recoveries(self) -> Recoveries:
        """Which hours recoveries write."""
        return Recoveries(self._read, self._write)

    @property
    def rebuilds(self) -> Rebuilds:
        """What is built again beside main."""
        return Rebuilds(self._read, self._write)

    @property
    def revisions(self) -> Revisions:
        """Changes of final days."""
        return Revisions(self._read)

    @property
    def summaries(self) -> Summaries:
        """Figures over all that is on record."""
        return Summaries(self._read)

    @property
    def checkup(self) -> Checkup:
        """What is on record of how this deployment recovers."""
        return Checkup(self._read)

    @property
    def outbox(self) -> Outbox:
        """What people are told, and who was told what."""
        return Outbox(self._read, self._write)

    @property
    def set_aside(self) -> SetAsides:
        """What receivers refused for good."""
        return SetAsides(self._read, self._write)

    @property
    def golden(self) -> GoldenTotals:
        """What outside systems say of published days."""
        return GoldenTotals(self._read, self._write)

    @property
    def digests(self) -> DigestsOnRecord:
        """The digests that are kept, wherever they are."""
        return DigestsOnRecord(self._read, self._write)

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
        of_batch = [BATCH_DAYS.c[name] == value for name, value in keys.items()]
        # What was not measured now is known where the same rows were measured before.
        names = ("event_date", "digest", "lateness")
        known = {
            (day, digest): lateness
            for day, digest, lateness in connection.execute(
                sa.select(*(BATCH_DAYS.c[n] for n in names)).where(*of_batch)
            )
        }
        connection.execute(BATCH_DAYS.delete().where(*of_batch))
        rows: list[dict[str, Any]] = [keys | batch_day_row(day, part, known) for day, part in days.items()]
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
