"""The recorded facts that decisions about slices rest on, read before anything is decided.

Contains: which slices are looked at, and reading what is recorded of them: a few queries per table, however many days.
Add here: another fact that decisions need.
Does not contain: deciding (decide.py), what is final (finality.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.dimensions import SnapshotDelivery
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source, neighbourhood
from pipeline_assets.load.deliveries.snapshot_exclusions import Exclusions
from pipeline_assets.load.recorded import early_slices
from pipeline_assets.load.staleness.first_arrival import first_arrivals
from pipeline_assets.load.staleness.history import History
from pipeline_assets.tables.kinds import is_dimension
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger


@dataclass(frozen=True)
class Facts:
    """All that decisions about some slices rest on; a value, so that a test may make one by hand."""

    settings: Settings
    slices: frozenset[Slice]
    """Those that are decided about."""
    batches: Mapping[BatchKey, BatchRecord]
    """Of both sources, of arrivals on the days of the slices and in reach after them."""
    first_arrivals: Mapping[str, date]
    """Project -> its first arrival day; a project without any is left out."""
    records: Mapping[str, Mapping[Slice, SliceRecord]] = field(default_factory=dict)
    """Table -> slice -> what is on record: of the tables that are decided about, and of what they are built from."""
    holds: Mapping[str, Mapping[Slice, str]] = field(default_factory=dict)
    """Table -> slice that a person holds -> why."""
    delivered: Mapping[Slice, SnapshotDelivery] = field(default_factory=dict)
    """What landing holds for the slices of a table that is read from there; nothing for all others."""
    first_snapshots: Mapping[str, date] = field(default_factory=dict)
    """Table that is delivered -> the first day that it holds any of, or that landing does."""
    item_counts: Mapping[date, int] | None = None
    """Day -> items on record, of the snapshots that those of the slices are compared with; None where nobody asked."""
    exclusions: Exclusions | None = None
    """Of objects of dimensions, as landing was listed: a slice that was read from an excluded version is not what landing is
    taken to hold. None of a table of which landing was not listed."""
    excluded: Mapping[Slice, str] = field(default_factory=dict)
    """Slice of which landing holds an excluded object -> why."""
    history: History | None = None
    """The delivered intervals that the slices are parts of; None for all others, or where landing holds none."""
    released: frozenset[tuple[str, Slice]] = frozenset()
    """(table, slice) that count as not held, whatever is on record."""

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        settings: Settings,
        slices: Collection[Slice],
        tables: Sequence[Table],
        now: datetime,
    ) -> Facts:
        """Everything about these slices of these tables.

        A load names no tables here: it reads their records when it has pinned their snapshots (`reading`).
        """
        projects = sorted({key.project_id for key in slices})
        firsts = first_arrivals(ledger, settings, projects, now.date())
        return cls(settings, frozenset(slices), _batches(ledger, settings, slices), firsts).reading(ledger, tables)

    def reading(self, ledger: Ledger, tables: Sequence[Table]) -> Facts:
        """With the records and holds of these tables, and of what they are built from, as they are now."""
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
        """The same about other slices of the same projects, of which nothing was read before."""
        batches = _batches(ledger, self.settings, slices)
        return replace(self, slices=frozenset(slices), batches=batches, records={}, holds={}).reading(ledger, tables)

    def releasing(self, slices: Iterable[tuple[str, Slice]]) -> Facts:
        """As if these (table, slice) were held no more."""
        return replace(self, released=self.released | frozenset(slices))

    def hold_of(self, table: str, key: Slice) -> str | None:
        """Why a person holds a slice; None where nobody does, or it counts as released."""
        return None if (table, key) in self.released else self.holds.get(table, {}).get(key)

    @cached_property
    def early(self) -> frozenset[Slice]:
        """Days that wait for deliveries whose deadline lies ahead."""
        return early_slices(self.batches)

    @cached_property
    def _projects(self) -> list[str]:
        return sorted({key.project_id for key in self.slices})


def slices_to_look_at(
    ledger: Ledger, settings: Settings, projects: Sequence[str], days: Sequence[date]
) -> frozenset[Slice]:
    """The days of the projects, the slices that arrivals in their reach touch, and those within the dedupe window of either.

    `days`: ascending, at least one.
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
