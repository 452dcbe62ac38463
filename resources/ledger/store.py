"""The ledger: records of deliveries, batches, slices and publications in a SQL database; reading it needs no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection, Engine

from pipeline_assets.domain.errors import LakehouseAccessError, LakehouseUnavailableError
from pipeline_assets.domain.records import Head
from resources.iceberg.lake_mark import read_mark
from resources.ledger.activity import Activity
from resources.ledger.arrival_summaries import ArrivalSummaries
from resources.ledger.changes import Changes
from resources.ledger.checkup import Checkup
from resources.ledger.cuts import Cuts
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
    from pipeline_assets.domain.settings import Settings
    from resources.ledger.decision_objects import DecisionObjects


@contextmanager
def own_ledger(settings: Settings) -> Iterator[Ledger]:
    """Open the lake's ledger, for what reads or writes it without the tables; raises LedgerError for any other ledger.

    Where the warehouse is out of reach, a ledger that knows a lake is taken for its own, and one that knows none is refused.
    """
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        try:
            mark = read_mark(settings)
        except (LakehouseAccessError, LakehouseUnavailableError):
            if ledger.lake.lake() is None:
                raise
        else:
            if mark is not None and not ledger.lake.require(mark.lake, mark) and mark.ledger is None:
                raise ledger.lake.stranger("whose records it does not hold")
        yield ledger


class Ledger(Queries):
    """All reads and writes of the ledger; each write is one transaction."""

    def __init__(self, url: str, kept: DecisionObjects | None = None) -> None:
        """Take a SQLAlchemy URL, and optionally a second store of decisions; opens nothing before first use."""
        self.url = url
        """The URL of the database."""
        self.kept = kept
        """The second store of decisions, in the warehouse."""
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine, opened and migrated on first use; raises LedgerError."""
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
        """Decisions of operators: exclusions and holds."""
        return Interventions(self._read, self._write, self.kept)

    @property
    def lake(self) -> LakeOfLedger:
        """The lake that this ledger belongs to."""
        return LakeOfLedger(self._read, self._write, self.url)

    @property
    def processes(self) -> Processes:
        """The processes of runs."""
        return Processes(lambda: self.engine, self.url)

    @property
    def activity(self) -> Activity:
        """Recent activity of loads."""
        return Activity(self._read)

    @property
    def strays(self) -> Strays:
        """Objects in landing outside of the days that loads request."""
        return Strays(self._read, self._write)

    @property
    def recoveries(self) -> Recoveries:
        """Claims of recoveries on hours."""
        return Recoveries(self._read, self._write)

    @property
    def rebuilds(self) -> Rebuilds:
        """Rebuilds of slices beside main."""
        return Rebuilds(self._read, self._write)

    @property
    def revisions(self) -> Revisions:
        """Changes of final days."""
        return Revisions(self._read)

    @property
    def cuts(self) -> Cuts:
        """Snapshots of all tables that belong together."""
        return Cuts(self._read)

    @property
    def summaries(self) -> Summaries:
        """Figures over slices, batches and runs."""
        return Summaries(self._read)

    @property
    def arrival_summaries(self) -> ArrivalSummaries:
        """Figures over arrivals."""
        return ArrivalSummaries(self._read)

    @property
    def checkup(self) -> Checkup:
        """Evidence of how well this deployment recovers."""
        return Checkup(self._read)

    @property
    def outbox(self) -> Outbox:
        """Notices, and what each receiver has got."""
        return Outbox(self._read, self._write)

    @property
    def set_aside(self) -> SetAsides:
        """Notices that receivers refused for good."""
        return SetAsides(self._read, self._write)

    @property
    def golden(self) -> GoldenTotals:
        """Totals of published days from outside systems."""
        return GoldenTotals(self._read, self._write)

    # -- writing -----------------------------------------------------------------------------------------------

    def record(self, changes: Changes, run_id: str) -> None:
        """Write one step's changes in one transaction; repeating it changes nothing.

        Keeps what another run recorded meanwhile: rows of slices that name other files by now, rows of batches that this step
        only judged. Raises PublishConflictError, with nothing written, where another run loaded a batch that this step loaded
        too.
        """
        with self._write() as connection:
            LedgerWriting(connection).record(changes, run_id)

    def record_found(self, changes: Changes, run_id: str, *, known_head: Head | None) -> bool:
        """Record changes that were found in a table; False, with nothing written, where the recorded head is not `known_head`."""
        assert changes.head is not None
        with self._write() as connection:
            if self._head(connection, changes.head[0]) != known_head:
                return False
            LedgerWriting(connection).record(changes, run_id)
        return True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open an exclusive write transaction; raises LedgerUnavailableError, also where the outcome of its commit is unknown."""
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
