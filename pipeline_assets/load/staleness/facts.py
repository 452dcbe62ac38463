"""The recorded facts on which decisions about slices are based, read before anything is decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property

from pipeline_assets.domain.checks import Check, Evaluation, lost_file
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.dimensions import SnapshotDelivery
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Slice, Source, neighbourhood
from pipeline_assets.load.deliveries.snapshots import Exclusions
from pipeline_assets.load.request import early_slices
from pipeline_assets.load.staleness.finality import first_arrivals
from pipeline_assets.load.staleness.history import History
from pipeline_assets.tables.kinds import is_dimension
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger

REACH = timedelta(days=31)
"""The greatest age of a snapshot that a count is compared with."""
ROWS_BEFORE = "rows_before"
"""Figure of an evaluation: the earlier count that it compared with."""


def counts_on_record(ledger: Ledger, table: Table, days: Collection[date]) -> dict[date, int]:
    """Day -> number of items, for published snapshots that snapshots of these days may be compared with."""
    if not days:
        return {}
    first, last = min(days) - REACH, max(days)
    reach = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    records = ledger.slices(table.key, [ALL_PROJECTS], reach)
    return {key.event_date: record.digest.rows for key, record in records.items() if record.digest != EMPTY}


def former_day(counted: Iterable[date], day: date) -> date | None:
    """The latest earlier day with a recorded snapshot; None if all are too old."""
    return max((other for other in counted if day - REACH <= other < day), default=None)


def refusal_of_count(record: SliceRecord) -> Evaluation | None:
    """The refusal of a snapshot because of its count; None if it was not refused for that reason."""
    refusals = (e for e in record.refused_evaluations if e.check.name == Check.COUNT_IS_EXPECTED.name)
    return next((evaluation for evaluation in refusals if not evaluation.is_passed), None)


def is_compared_with_another(record: SliceRecord, counts: Mapping[date, int]) -> bool:
    """Whether the count of a snapshot was refused in comparison with a count that is no longer on record."""
    refusal = refusal_of_count(record)
    former = former_day(counts, record.key.event_date)
    present = None if former is None else counts[former]
    return refusal is not None and refusal.figures.get(ROWS_BEFORE) != present


@dataclass(frozen=True)
class Facts:
    """The facts for decisions about some slices; a plain value, so that tests can construct it."""

    settings: Settings
    slices: frozenset[Slice]
    """The slices to decide about."""
    batches: Mapping[BatchKey, BatchRecord]
    """Batches of both sources that arrived on the slices' days or within the reprocessing window after them."""
    first_arrivals: Mapping[str, date]
    """Project -> its first arrival day; a project without arrivals is left out."""
    records: Mapping[str, Mapping[Slice, SliceRecord]] = field(default_factory=dict)
    """Table -> slice -> record, for the tables to decide about and for their upstream tables."""
    holds: Mapping[str, Mapping[Slice, str]] = field(default_factory=dict)
    """Table -> slice that an operator holds -> reason."""
    delivered: Mapping[Slice, SnapshotDelivery] = field(default_factory=dict)
    """Deliveries in landing for the slices of a table that is read from there; empty for other tables."""
    first_snapshots: Mapping[str, date] = field(default_factory=dict)
    """Delivered table -> the first day in the table or in landing."""
    item_counts: Mapping[date, int] | None = None
    """Day -> number of items, of the snapshots with which those of the slices are compared; None for other tables."""
    exclusions: Exclusions | None = None
    """Excluded objects of dimensions when landing was listed: a slice read from an excluded version is stale. None for a table
    for which landing was not listed."""
    excluded: Mapping[Slice, str] = field(default_factory=dict)
    """Slice with an excluded object in landing -> reason of the exclusion."""
    history: History | None = None
    """The delivered history that the slices are parts of; None for other tables, or if landing holds none."""
    lost: Mapping[str, Mapping[Slice, str]] | None = None
    """Table -> slice of which a data file is gone -> the file; None where nobody looked, so that records tell."""
    is_read_again: bool = False
    """Whether lost slices are built again."""
    released: frozenset[tuple[str, Slice]] = frozenset()
    """(table, slice) that count as not held, although a hold is on record."""

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        settings: Settings,
        slices: Collection[Slice],
        tables: Sequence[Table],
        now: datetime,
    ) -> Facts:
        """Read the facts about these slices of these tables.

        A load passes no tables, because it reads their records only after pinning their snapshots (`reading`).
        """
        projects = sorted({key.project_id for key in slices})
        firsts = first_arrivals(ledger, settings, projects, now.date())
        return cls(settings, frozenset(slices), _batches(ledger, settings, slices), firsts).reading(ledger, tables)

    def reading(self, ledger: Ledger, tables: Sequence[Table]) -> Facts:
        """The facts plus the present records and holds of these tables and of their upstream tables."""
        days: dict[str, set[date]] = {}
        for table in tables:
            own = {key.event_date for key in self.slices}
            days.setdefault(table.key, set()).update(own)
            for name in table.upstream:
                for day in own:
                    days.setdefault(name, set()).update(table.kind.input_days(name, day, self.settings))
        projects = [*self._projects, ALL_PROJECTS] if any(map(is_dimension, days)) else self._projects
        records = {name: ledger.slices(name, projects, of) for name, of in days.items()}
        holds = {table.key: ledger.interventions.holds(table.key, self._projects) for table in tables}
        read = replace(self, records={**self.records, **records}, holds={**self.holds, **holds})
        dimensions = [table.dimension for table in tables if table.dimension is not None]
        firsts = {name: ledger.first_day(name) for one in dimensions for name in one.delivered_tables(self.settings)}
        known = {name: day for name, day in firsts.items() if day is not None}
        return replace(read, first_snapshots={**self.first_snapshots, **known}) if known else read

    def extended(self, ledger: Ledger, slices: Collection[Slice], tables: Sequence[Table]) -> Facts:
        """The same facts about other slices of the same projects, read anew."""
        batches = _batches(ledger, self.settings, slices)
        return replace(self, slices=frozenset(slices), batches=batches, records={}, holds={}).reading(ledger, tables)

    def releasing(self, slices: Iterable[tuple[str, Slice]]) -> Facts:
        """The facts as if these (table, slice) were no longer held."""
        return replace(self, released=self.released | frozenset(slices))

    def loss(self, table: str, key: Slice) -> Evaluation | None:
        """The refusal of a slice of which a data file is gone; None for every other one."""
        if self.lost is None:
            record = self.records.get(table, {}).get(key)
            return record.loss if record is not None else None
        path = self.lost.get(table, {}).get(key)
        return None if path is None else lost_file(table, key, path)

    def hold_of(self, table: str, key: Slice) -> str | None:
        """Why an operator holds a slice; None if it is not held or counts as released."""
        return None if (table, key) in self.released else self.holds.get(table, {}).get(key)

    @cached_property
    def early(self) -> frozenset[Slice]:
        """Slices that wait for deliveries whose deadline lies ahead."""
        return early_slices(self.batches)

    @cached_property
    def _projects(self) -> list[str]:
        return sorted({key.project_id for key in self.slices})


def slices_to_look_at(
    ledger: Ledger, settings: Settings, projects: Sequence[str], days: Sequence[date]
) -> frozenset[Slice]:
    """The slices that a load considers: the requested days, the days that nearby arrivals touched, and neighbours of both.

    Arrivals are nearby within the reprocessing window, neighbours within the dedupe window. `days`: ascending, at least one.
    """
    reach = timedelta(days=settings.reprocessing_window_days)
    chosen = {Slice(day, project) for day in days for project in projects}
    for source in Source:
        batch_days = ledger.batch_days(source, projects, days[0] - reach, days[-1] + reach)
        chosen |= {Slice(day, batch.project_id) for batch, touched in batch_days.items() for day in touched}
    return frozenset(neighbourhood(chosen, settings.dedupe_window_days))


def _batches(ledger: Ledger, settings: Settings, slices: Collection[Slice]) -> Mapping[BatchKey, BatchRecord]:
    if not slices:
        return {}
    days = [key.event_date for key in slices]
    reach = timedelta(days=settings.reprocessing_window_days)
    return ledger.batches(sorted({key.project_id for key in slices}), min(days), max(days) + reach)
