"""The ledger: records of deliveries, batches, slices and publications in a SQL database; it needs no JVM."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseAccessError, LakehouseUnavailableError, LedgerError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Slice, Source, Verdict
from resources.iceberg.lake_identity import read_mark
from resources.ledger.changes import Changes
from resources.ledger.decisions import Interventions
from resources.ledger.engine import Database, Part, insert_into
from resources.ledger.history import Checkup, Cuts, Revisions
from resources.ledger.outbox import GoldenTotals, Outbox, SetAsides
from resources.ledger.processes import Processes
from resources.ledger.queries import Queries, head
from resources.ledger.rebuilds import Rebuilds, Recoveries, Strays
from resources.ledger.schema import LAKE
from resources.ledger.summaries import Summaries
from resources.ledger.writing import LedgerWriting

if TYPE_CHECKING:
    from pipeline_assets.domain.settings import Settings
    from resources.iceberg.lake_identity import Mark
    from resources.ledger.decisions import DecisionObjects


_LAKE, _OWN = 1, 2


class LakeOfLedger(Part):
    """The lake that a ledger belongs to; the first run that may write records it."""

    def lake(self) -> str | None:
        """Return the identity of the recorded lake; None for a ledger without one."""
        return self._ids().get(_LAKE)

    def require(self, lake: str | None, mark: Mark | None = None) -> bool:
        """Return whether the ledger is bound; raises LedgerError for another lake's ledger or another than the mark names."""
        ids = self._ids()
        self._require_same(ids.get(_LAKE, lake), lake)
        if mark is not None and mark.ledger not in (None, ids.get(_OWN)):
            raise self.stranger(f"which has the identity {mark.ledger} and is {mark.ledger_url}")
        return _LAKE in ids

    def identity(self) -> str:
        """Return the ledger's own identity, made on first use."""
        return self._kept(_OWN, str(uuid.uuid4()))

    def bind(self, lake: str) -> None:
        """Record the lake; raises LedgerError where another one is recorded."""
        self._require_same(self._kept(_LAKE, lake), lake)

    def stranger(self, whose: str) -> LedgerError:
        """Return the error for a ledger that the lake does not name."""
        reason = f"is not the ledger of this lake, {whose}, and nothing was touched"
        lost = "only where it is lost, let the tables be measured for this one: tidemark attach --ledger"
        return LedgerError(masked(self.url), reason, f"Set TIDEMARK_LEDGER_URL to that one; {lost}")

    def _require_same(self, recorded: str | None, lake: str | None) -> None:
        if recorded != lake:
            both = f"is the ledger of another lake ({recorded}) than this one ({lake or 'not begun yet'})"
            hint = "Check TIDEMARK_LEDGER_URL and TIDEMARK_WAREHOUSE_URL; each lake needs a ledger of its own"
            raise LedgerError(masked(self.url), f"{both}, and nothing was touched", hint)

    def _ids(self) -> dict[int, str]:
        return dict(self._rows(sa.select(LAKE.c.number, LAKE.c.id)))

    def _kept(self, number: int, identity: str) -> str:
        with self._write() as connection:
            insert = insert_into(connection, LAKE).values(number=number, id=identity)
            connection.execute(insert.on_conflict_do_nothing())
        return self._ids()[number]


@contextmanager
def own_ledger(settings: Settings) -> Iterator[Ledger]:
    """Open the lake's ledger; raises LedgerError for another one; without the warehouse the ledger must be bound to a lake."""
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

    def __init__(self, database: Database | str, kept: DecisionObjects | None = None) -> None:
        super().__init__(database if isinstance(database, Database) else Database(database))
        self.kept = kept
        own = self._database
        self.interventions, self.lake, self.processes = Interventions(own, kept), LakeOfLedger(own), Processes(own)
        self.strays, self.recoveries, self.rebuilds = Strays(own), Recoveries(own), Rebuilds(own)
        self.outbox, self.set_aside, self.golden = Outbox(own), SetAsides(own), GoldenTotals(own)
        self.cuts, self.revisions, self.checkup = Cuts(own), Revisions(own), Checkup(own)
        self.summaries = Summaries(own)
        self.transaction = self._write
        """Opens an exclusive write transaction; raises LedgerUnavailableError, also where its commit's outcome is unknown."""

    @property
    def engine(self) -> Engine:
        """The engine, opened and created on first use; raises LedgerError."""
        return self._database.engine

    def close(self) -> None:
        """Release all connections."""
        self._database.close()

    def record(self, changes: Changes, run_id: str) -> None:
        """Write one step's changes in one transaction, as `LedgerWriting.record` does; repeating it changes nothing."""
        with self._write() as connection:
            LedgerWriting(connection).record(changes, run_id)

    def record_found(self, changes: Changes, run_id: str, *, known_head: Head | None) -> bool:
        """Record changes that were found in a table; False, with nothing written, where the recorded head is not `known_head`."""
        assert changes.head is not None
        with self._write() as connection:
            if head(connection, changes.head[0]) != known_head:
                return False
            LedgerWriting(connection).record(changes, run_id)
        return True


def _is_within(batch: BatchKey, projects: Collection[str], first: date, last: date) -> bool:
    return batch.project_id in projects and first <= batch.arrival_date <= last


class PendingLedger(Ledger):
    """A ledger that answers as if pending changes were written; no other process sees them."""

    def __init__(self, under: Ledger) -> None:
        super().__init__(under._database, under.kept)
        self._deliveries: dict[tuple[Source, str, bool], tuple[BatchKey, DeliveryRecord | None]] = {}
        self._batches: dict[BatchKey, BatchRecord] = {}
        self._days_of_batches: dict[BatchKey, dict[date, BatchDay]] = {}
        self._slices: dict[tuple[str, Slice], SliceRecord] = {}
        self._publications: list[PublicationRecord] = []

    def close(self) -> None:
        """Do nothing: the underlying ledger stays open."""

    def record(self, changes: Changes, run_id: str) -> None:
        """Add the run's changes to the pending ones."""
        for forgotten, is_accepted in ((changes.forgotten_deliveries, True), (changes.forgotten_refusals, False)):
            for batch, object_key in forgotten:
                self._deliveries[batch.source, object_key, is_accepted] = batch, None
        for one in changes.deliveries:
            self._deliveries[one.batch.source, one.object_key, one.is_accepted] = one.batch, one
        for judged in changes.batches:
            self._batches[judged.key] = replace(judged, run_id=run_id)
        for key, days in changes.batch_days.items():
            self._days_of_batches[key] = dict(days)
        for record in changes.slices:
            self._slices[record.table, record.key] = replace(record, read_hash=record.file_hash, run_id=run_id)
        self._publications.extend(changes.publications)

    def deliveries(
        self, source: Source, projects: Sequence[str], first: date, last: date, *, is_accepted: bool = True
    ) -> dict[str, DeliveryRecord]:
        """As `Ledger.deliveries`, with the pending changes applied."""
        found = super().deliveries(source, projects, first, last, is_accepted=is_accepted)
        for (of, object_key, accepted), (batch, record) in self._deliveries.items():
            if (of, accepted) == (source, is_accepted) and _is_within(batch, projects, first, last):
                found.pop(object_key, None)
                found |= {object_key: record} if record is not None else {}
        return found

    def batches(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, BatchRecord]:
        """As `Ledger.batches`, with the pending changes applied."""
        own = {key: record for key, record in self._batches.items() if _is_within(key, projects, first, last)}
        return super().batches(projects, first, last) | own

    def nearest_arrivals(
        self, bounds: Mapping[str, date], source: Source | None = None, *, is_before: bool = False
    ) -> dict[str, date]:
        """As `Ledger.nearest_arrivals`, with the pending changes applied."""
        under, sources = super().nearest_arrivals, [source] if source is not None else list(Source)
        known = {batch for batch, record in self._deliveries.values() if record is not None}
        known |= {key for key, record in self._batches.items() if record.deliveries > 0}
        touched = {batch for batch, _ in self._deliveries.values()} | self._batches.keys()

        def is_empty(project: str, day: date) -> bool:
            batches = {BatchKey(of, project, day) for of in sources}
            if batches.isdisjoint(touched) or not batches.isdisjoint(known):
                return False
            judged = self.batches([project], day, day)
            return not any(
                (key in judged and judged[key].deliveries)
                or any(
                    self.deliveries(key.source, [project], day, day, is_accepted=accepted) for accepted in (True, False)
                )
                for key in batches
            )

        found = under(bounds, source, is_before=is_before)
        while passed := {project: day for project, day in found.items() if is_empty(project, day)}:
            further = under(passed, source, is_before=is_before)
            found = {project: day for project, day in found.items() if project not in passed} | further
        nearer = max if is_before else min
        for project, day in ((key.project_id, key.arrival_date) for key in known if key.source in sources):
            if project in bounds and (day < bounds[project] if is_before else day > bounds[project]):
                found[project] = nearer(found.get(project, day), day)
        return found

    def batch_days(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[BatchKey, dict[date, BatchDay]]:
        """As `Ledger.batch_days`, with the pending changes applied."""
        found = super().batch_days(source, projects, first, last)
        for key, days in self._days_of_batches.items():
            if key.source is source and _is_within(key, projects, first, last):
                found[key] = dict(days)
        return {key: days for key, days in found.items() if days}

    def batch_days_of(
        self, source: Source, project_id: str, event_days: Sequence[date]
    ) -> dict[date, dict[BatchKey, BatchDay]]:
        """As `Ledger.batch_days_of`, with the pending changes applied."""
        found = super().batch_days_of(source, project_id, event_days)
        for key, days in self._days_of_batches.items():
            if (key.source, key.project_id) != (source, project_id):
                continue
            for day, batches in found.items():
                batches.pop(key, None)
                if day in days:
                    batches[key] = days[day]
        return found

    def slices(
        self, table: str, projects: Sequence[str] | None, days: Iterable[date] | None = None
    ) -> dict[Slice, SliceRecord]:
        """As `Ledger.slices`, with the pending changes applied."""
        wanted = None if days is None else set(days)
        found = super().slices(table, projects, wanted)
        for (of, key), record in self._slices.items():
            is_of = of == table and (projects is None or key.project_id in projects)
            if is_of and (wanted is None or key.event_date in wanted):
                found[key] = record
        return found

    def first_day(self, table: str) -> date | None:
        """As `Ledger.first_day`, with the pending changes applied."""
        own = {key: record for (of, key), record in self._slices.items() if of == table}
        days = self._first_days(table, own)
        days += [key.event_date for key, one in own.items() if one.digest != EMPTY or one.verdict is Verdict.HELD]
        published = [one.key for one in self._publications if one.table == table]
        if published:
            projects = sorted({key.project_id for key in published})
            told = self.publications(table, projects, {key.event_date for key in published})
            days += [one.key.event_date for one in told if one.digest_before != EMPTY or one.digest_after != EMPTY]
        return min(days, default=None)

    def publications(
        self, table: str | None = None, projects: Sequence[str] | None = None, days: Iterable[date] | None = None
    ) -> list[PublicationRecord]:
        """As `Ledger.publications`, with the pending changes applied, without duplicates."""
        wanted = None if days is None else set(days)
        found = super().publications(table, projects, wanted)
        told = {(one.table, one.key, one.snapshot_id, one.parent_id) for one in found}
        for one in self._publications:
            place = (one.table, one.key, one.snapshot_id, one.parent_id)
            is_of_table = table in (None, one.table) and (projects is None or one.key.project_id in projects)
            if is_of_table and (wanted is None or one.key.event_date in wanted) and place not in told:
                found.append(one)
                told.add(place)
        return found
