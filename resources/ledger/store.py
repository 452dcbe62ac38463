"""The ledger: what is recorded of deliveries, batches, slices and publications, in a SQL database.

Contains: transactions.
Add here: another transaction.
Does not contain: questions (queries.py), what a transaction writes (writing.py), the shape of what is kept
(pipeline_assets/domain/records.py), opening the database (engine.py), what another run wrote meanwhile
(concurrency.py), what persons decided (interventions.py), deciding anything (pipeline_assets/load/) and reading tables
(iceberg/lakehouse.py). No JVM is needed to read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection, Engine

from pipeline_assets.domain.records import Head
from resources.ledger.arrival_summaries import ArrivalSummaries
from resources.ledger.changes import Changes
from resources.ledger.checkup import Checkup
from resources.ledger.cuts import Cuts
from resources.ledger.digests import DigestsOnRecord
from resources.ledger.engine import connected, ledger_failures, open_engine, writing
from resources.ledger.golden import GoldenTotals
from resources.ledger.interventions import Interventions
from resources.ledger.lake import LakeOfLedger
from resources.ledger.outbox import Outbox
from resources.ledger.processes import Processes
from resources.ledger.queries import Queries
from resources.ledger.rebuilds import Rebuilds
from resources.ledger.recoveries import Recoveries
from resources.ledger.revisions import Revisions
from resources.ledger.set_aside import SetAsides
from resources.ledger.strays import Strays
from resources.ledger.summaries import Summaries
from resources.ledger.writing import LedgerWriting

if TYPE_CHECKING:
    from resources.ledger.decision_objects import DecisionObjects


class Ledger(Queries):
    """All reads and writes of the ledger; each write is one transaction."""

    def __init__(self, url: str, kept: DecisionObjects | None = None) -> None:
        """Prepare for a SQLAlchemy URL, and a place that keeps decisions as well; nothing is opened before first use."""
        self.url = url
        """The database's address."""
        self.kept = kept
        """Where decisions are kept as well."""
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine, opened and brought to the present schema on first use; raises LedgerError."""
        if self._engine is None:
            self._engine = open_engine(self.url)
        return self._engine

    def close(self) -> None:
        """Release all connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @property
    def interventions(self) -> Interventions:
        """What persons decided."""
        return Interventions(self._read, self._write, self.kept)

    @property
    def lake(self) -> LakeOfLedger:
        """Whose ledger this is."""
        return LakeOfLedger(self._read, self._write, self.url)

    @property
    def processes(self) -> Processes:
        """Which processes work, and which died."""
        return Processes(lambda: self.engine, self.url)

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
    def cuts(self) -> Cuts:
        """Which snapshots belong together."""
        return Cuts(self._read)

    @property
    def summaries(self) -> Summaries:
        """Figures over all that is on record."""
        return Summaries(self._read)

    @property
    def arrival_summaries(self) -> ArrivalSummaries:
        """Figures over all that arrived."""
        return ArrivalSummaries(self._read)

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
            LedgerWriting(connection).record(changes, run_id)

    def record_found(self, changes: Changes, run_id: str, *, known_head: Head | None) -> bool:
        """The same for what was found in a table and not made; False, with nothing written, where its head is known by now."""
        assert changes.head is not None
        with self._write() as connection:
            if self._head(connection, changes.head[0]) != known_head:
                return False
            LedgerWriting(connection).record(changes, run_id)
        return True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that is written in, beside no other one; raises LedgerUnavailableError, also where its end is unknown."""
        with self._write() as connection:
            yield connection

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with ledger_failures(self.url), connected(self.engine) as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with ledger_failures(self.url), writing(self.engine) as connection:
            yield connection
