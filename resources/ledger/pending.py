"""The ledger as it will be once a load's staged changes are published: the records, overlaid with the pending changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date

from sqlalchemy.engine import Engine

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, DeliveryRecord, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Slice, Source, Verdict
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger


class PendingLedger(Ledger):
    """A ledger with pending changes: it answers as if they were written, and no other process sees them."""

    def __init__(self, under: Ledger) -> None:
        """Overlay a ledger, which is not changed."""
        super().__init__(under.url, under.kept)
        self._under = under
        self._deliveries: dict[tuple[Source, str, bool], DeliveryRecord | None] = {}
        self._batches: dict[BatchKey, BatchRecord] = {}
        self._days_of_batches: dict[BatchKey, dict[date, BatchDay]] = {}
        self._slices: dict[tuple[str, Slice], SliceRecord] = {}
        self._publications: list[PublicationRecord] = []

    @property
    def engine(self) -> Engine:
        """The engine of the underlying ledger."""
        return self._under.engine

    def close(self) -> None:
        """Do nothing: the underlying ledger stays open."""

    def record(self, changes: Changes, run_id: str) -> None:
        """Answer from now on as if the run had written these changes."""
        for batch, object_key in changes.forgotten_deliveries:
            self._deliveries[batch.source, object_key, True] = None
        for batch, object_key in changes.forgotten_refusals:
            self._deliveries[batch.source, object_key, False] = None
        for delivery in changes.deliveries:
            self._deliveries[delivery.batch.source, delivery.object_key, delivery.is_accepted] = delivery
        for judged in changes.batches:
            self._batches[judged.key] = replace(judged, run_id=run_id)
        for key, days in changes.batch_days.items():
            self._days_of_batches[key] = dict(days)
        for record in changes.slices:
            self._slices[record.table, record.key] = replace(record, read_hash=record.file_hash, run_id=run_id)
        self._publications.extend(changes.publications)

    # -- questions ---------------------------------------------------------------------------------------------

    def deliveries(
        self, source: Source, projects: Sequence[str], first: date, last: date, *, is_accepted: bool = True
    ) -> dict[str, DeliveryRecord]:
        """As `Ledger.deliveries`, with the pending changes applied."""
        found = super().deliveries(source, projects, first, last, is_accepted=is_accepted)
        for (of, object_key, accepted), record in self._deliveries.items():
            if (of, accepted) != (source, is_accepted):
                continue
            if record is None:
                found.pop(object_key, None)
            elif record.batch.project_id in projects and first <= record.batch.arrival_date <= last:
                found[object_key] = record
        return found

    def batches(self, projects: Sequence[str], first: date, last: date) -> dict[BatchKey, BatchRecord]:
        """As `Ledger.batches`, with the pending changes applied."""
        own = {
            key: record
            for key, record in self._batches.items()
            if key.project_id in projects and first <= key.arrival_date <= last
        }
        return super().batches(projects, first, last) | own

    def _nearest_arrivals(
        self, bounds: Mapping[str, date], source: Source | None, *, is_before: bool
    ) -> dict[str, date]:
        """As `Ledger._nearest_arrivals`, with the pending changes applied."""
        under = super()._nearest_arrivals
        found = under(bounds, source, is_before=is_before)
        gone = {
            (key.project_id, key.arrival_date) for key in self._emptied(list(bounds)) if not self._is_held(key, source)
        }
        while passed := {project: day for project, day in found.items() if (project, day) in gone}:
            further = under(passed, source, is_before=is_before)
            found = {project: day for project, day in found.items() if project not in passed} | further
        nearer = max if is_before else min
        for key in self._known():
            bound = bounds.get(key.project_id)
            if bound is None or source not in (None, key.source):
                continue
            if key.arrival_date < bound if is_before else key.arrival_date > bound:
                found[key.project_id] = nearer(found.get(key.project_id, key.arrival_date), key.arrival_date)
        return found

    def _known(self) -> set[BatchKey]:
        """Batches with a delivery in the pending changes."""
        known = {record.batch for record in self._deliveries.values() if record is not None}
        return known | {key for key, record in self._batches.items() if record.deliveries > 0}

    def _is_held(self, batch: BatchKey, source: Source | None) -> bool:
        """Whether a delivery of the day is still known, of the given source or of either."""
        places = [replace(batch, source=of) for of in ([source] if source is not None else Source)]
        return any(map(self._is_delivered, places))

    def _emptied(self, projects: Sequence[str]) -> set[BatchKey]:
        """Batches whose deliveries in the underlying ledger are removed by the pending changes."""
        emptied = {key for key, record in self._batches.items() if not record.deliveries and key.project_id in projects}
        if emptied:
            arrivals = [key.arrival_date for key in emptied]
            under = super().batches(projects, min(arrivals), max(arrivals))
            emptied = {key for key in emptied if key in under and under[key].deliveries}
        for source in Source:
            forgotten = [key for (of, key, _), record in self._deliveries.items() if of is source and record is None]
            emptied |= {key for key in self._batches_of(source, forgotten) if key.project_id in projects}
        return emptied

    def _is_delivered(self, batch: BatchKey) -> bool:
        place = ([batch.project_id], batch.arrival_date, batch.arrival_date)
        judged = self.batches(*place).get(batch)
        return (judged is not None and judged.deliveries > 0) or any(
            self.deliveries(batch.source, *place, is_accepted=is_accepted) for is_accepted in (True, False)
        )

    def batch_days(
        self, source: Source, projects: Sequence[str], first: date, last: date
    ) -> dict[BatchKey, dict[date, BatchDay]]:
        """As `Ledger.batch_days`, with the pending changes applied."""
        found = super().batch_days(source, projects, first, last)
        for key, days in self._days_of_batches.items():
            if key.source is source and key.project_id in projects and first <= key.arrival_date <= last:
                found.pop(key, None)
                if days:
                    found[key] = dict(days)
        return found

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
        own = {
            key: record
            for (of, key), record in self._slices.items()
            if of == table
            and (projects is None or key.project_id in projects)
            and (wanted is None or key.event_date in wanted)
        }
        return super().slices(table, projects, wanted) | own

    def first_day(self, table: str) -> date | None:
        """As `Ledger.first_day`, with the pending changes applied."""
        own = {key: record for (of, key), record in self._slices.items() if of == table}
        days = [self._first_day_of_slices(table, own), self._first_day_of_publications(table)]
        days += [key.event_date for key, one in own.items() if one.digest != EMPTY or one.verdict is Verdict.HELD]
        published = [one.key for one in self._publications if one.table == table]
        if published:
            # Use the public query: a publication that is already on record counts as recorded.
            projects = sorted({key.project_id for key in published})
            told = self.publications_of(table, projects, {key.event_date for key in published})
            days += [one.key.event_date for one in told if one.digest_before != EMPTY or one.digest_after != EMPTY]
        return min((day for day in days if day is not None), default=None)

    def publications_of(self, table: str, projects: Sequence[str], days: Iterable[date]) -> list[PublicationRecord]:
        """As `Ledger.publications_of`, with the pending changes applied."""
        wanted = set(days)
        found = super().publications_of(table, projects, wanted)
        told = {(one.key, one.snapshot_id, one.parent_id) for one in found}
        for one in self._publications:
            place = (one.key, one.snapshot_id, one.parent_id)
            if one.table == table and one.key.project_id in projects and one.key.event_date in wanted:
                # Skip publications that are on record already.
                found += [one] if place not in told else []
                told.add(place)
        return found
