"""The ledger: records of deliveries, batches, slices and publications in a SQL database; reading it needs no JVM."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from pipeline_assets.domain.errors import LakehouseAccessError, LakehouseUnavailableError, LedgerError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.records import Head
from resources.iceberg.lake_mark import read_mark
from resources.ledger.changes import Changes
from resources.ledger.checkup import Checkup
from resources.ledger.cuts import Activity, Cuts, Revisions
from resources.ledger.engine import Connect, connected, ledger_failures, open_engine, writing
from resources.ledger.golden import GoldenTotals
from resources.ledger.interventions import Interventions
from resources.ledger.outbox import Outbox
from resources.ledger.processes import Processes
from resources.ledger.queries import Queries
from resources.ledger.rebuilds import Rebuilds
from resources.ledger.recoveries import Recoveries, Strays
from resources.ledger.schema import LAKE
from resources.ledger.set_aside import SetAsides
from resources.ledger.summaries import ArrivalSummaries, Summaries
from resources.ledger.writing import LedgerWriting

if TYPE_CHECKING:
    from pipeline_assets.domain.settings import Settings
    from resources.iceberg.lake_mark import Mark
    from resources.ledger.decision_objects import DecisionObjects


_LAKE, _OWN = 1, 2
"""Numbers of the rows with the lake's identity and the ledger's own."""


class LakeOfLedger:
    """The lake that a ledger belongs to; the first run that may write records it."""

    def __init__(self, read: Connect, write: Connect, url: str) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write, self.url = read, write, url

    def lake(self) -> str | None:
        """Return the identity of the recorded lake; None for a ledger without one."""
        with self._read() as connection:
            return self._found(connection, _LAKE)

    def require(self, lake: str | None, mark: Mark | None = None) -> bool:
        """Raise LedgerError for the ledger of another lake, and for another ledger than the mark names; else whether it is bound.

        `lake` is None before the first load; a ledger that is already bound to a lake is refused then as well.
        """
        with self._read() as connection:
            recorded, own = self._found(connection, _LAKE), self._found(connection, _OWN)
        if recorded is not None:
            self._require_same(recorded, lake)
        if mark is not None and mark.ledger not in (None, own):
            raise self.stranger(f"which has the identity {mark.ledger} and is {mark.ledger_url}")
        return recorded is not None

    def identity(self) -> str:
        """Return the ledger's own identity, made on first use."""
        with self._write() as connection:
            return self._kept(connection, _OWN, str(uuid.uuid4()))

    def bind(self, lake: str) -> None:
        """Record the lake; raises LedgerError where another one is recorded."""
        with self._write() as connection:
            self._require_same(self._kept(connection, _LAKE, lake), lake)

    def stranger(self, whose: str) -> LedgerError:
        """Return the error for a ledger that the lake does not name."""
        return LedgerError(
            masked(self.url),
            f"is not the ledger of this lake, {whose}, and nothing was touched",
            "Set TIDEMARK_LEDGER_URL to that one; only where it is lost, let the tables be measured for this one: "
            "tidemark attach --ledger",
        )

    def _require_same(self, recorded: str, lake: str | None) -> None:
        if recorded != lake:
            raise LedgerError(
                masked(self.url),
                f"is the ledger of another lake ({recorded}) than this one ({lake or 'not begun yet'}), and nothing was touched",
                "Check TIDEMARK_LEDGER_URL and TIDEMARK_WAREHOUSE_URL; each lake needs a ledger of its own",
            )

    def _kept(self, connection: Connection, number: int, identity: str) -> str:
        found = self._found(connection, number)
        if found is None:
            connection.execute(LAKE.insert(), {"number": number, "id": identity})
        return found or identity

    def _found(self, connection: Connection, number: int) -> str | None:
        found = connection.execute(sa.select(LAKE.c.id).where(LAKE.c.number == number)).scalar()
        return None if found is None else str(found)


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
