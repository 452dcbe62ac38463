"""The recorded facts of decisions, and the comparison of input states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from enum import Enum, auto
from functools import cached_property

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Check, Evaluation, lost_file
from pipeline_assets.domain.deliveries import BatchKey, SnapshotDelivery
from pipeline_assets.domain.records import BatchRecord, InputDay, InputState, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Source, neighbourhood, widen
from pipeline_assets.load.deliveries.snapshots import Exclusions
from pipeline_assets.load.runtime import LoadRequest, early_slices
from pipeline_assets.load.staleness.as_of import EXCLUDED, History
from pipeline_assets.load.staleness.finality import first_arrivals
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import VALIDITY, Table, is_dimension
from resources.ledger.store import Ledger

REACH = timedelta(days=31)
"""The greatest age of a snapshot that a count is compared with."""
ROWS_BEFORE = "rows_before"


def counts_on_record(ledger: Ledger, table: Table, days: Collection[date]) -> dict[date, int]:
    """Day -> number of items, for published snapshots that snapshots of these days may be compared with."""
    if not days:
        return {}
    first, last = min(days) - REACH, max(days)
    reach = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    records = ledger.slices(table.key, [ALL_PROJECTS], reach)
    return {key.event_date: record.digest.rows for key, record in records.items() if record.digest != EMPTY}


def former_day(counted: Iterable[date], day: date) -> date | None:
    """The latest earlier day with a snapshot on record, within REACH; else None."""
    return max((other for other in counted if day - REACH <= other < day), default=None)


def refusal_of_count(record: SliceRecord) -> Evaluation | None:
    """The refusal of a snapshot because of its count; None without one."""
    refusals = (e for e in record.refused_evaluations if e.check.name == Check.COUNT_IS_EXPECTED.name)
    return next((evaluation for evaluation in refusals if not evaluation.is_passed), None)


def is_compared_with_another(record: SliceRecord, counts: Mapping[date, int]) -> bool:
    """Whether the count of a snapshot was refused in comparison with another count than the recorded one."""
    refusal, former = refusal_of_count(record), former_day(counts, record.key.event_date)
    return refusal is not None and refusal.figures.get(ROWS_BEFORE) != (counts[former] if former else None)


@dataclass(frozen=True)
class Facts:
    """The facts for decisions about some slices."""

    settings: Settings
    slices: frozenset[Slice]
    batches: Mapping[BatchKey, BatchRecord]
    """Of both sources, from the slices' days to the reprocessing window after them."""
    first_arrivals: Mapping[str, date]
    records: Mapping[str, Mapping[Slice, SliceRecord]] = field(default_factory=dict)
    holds: Mapping[str, Mapping[Slice, str]] = field(default_factory=dict)
    delivered: Mapping[Slice, SnapshotDelivery] = field(default_factory=dict)
    first_snapshots: Mapping[str, date] = field(default_factory=dict)
    item_counts: Mapping[date, int] | None = None
    exclusions: Exclusions | None = None
    """Excluded objects at the time of the listing; None without a listing."""
    excluded: Mapping[Slice, str] = field(default_factory=dict)
    history: History | None = None
    lost: Mapping[str, Mapping[Slice, str]] | None = None
    """Table -> slice -> its lost data file; None if nobody looked, so that records count."""
    is_read_again: bool = False
    released: frozenset[tuple[str, Slice]] = frozenset()

    @classmethod
    def read(
        cls, ledger: Ledger, settings: Settings, slices: Collection[Slice], tables: Sequence[Table], now: datetime
    ) -> Facts:
        """Read the facts about these slices of these tables; a load passes no tables and calls `reading` after pinning."""
        firsts = first_arrivals(ledger, settings, _projects(slices), now.date())
        return cls(settings, frozenset(slices), _batches(ledger, settings, slices), firsts).reading(ledger, tables)

    def reading(self, ledger: Ledger, tables: Sequence[Table]) -> Facts:
        """The facts plus the present records and holds of these tables and of their upstream tables."""
        own = {key.event_date for key in self.slices}
        days: dict[str, set[date]] = {}
        for table in tables:
            days.setdefault(table.key, set()).update(own)
            for name in table.upstream:
                inputs = (table.kind.input_days(name, day, self.settings) for day in own)
                days.setdefault(name, set()).update(*inputs)
        own_projects = _projects(self.slices)
        projects = [*own_projects, ALL_PROJECTS] if any(map(is_dimension, days)) else own_projects
        records = {name: ledger.slices(name, projects, of) for name, of in days.items()}
        holds = {table.key: ledger.interventions.holds(table.key, own_projects) for table in tables}
        of_dimensions = [one for table in tables if table.dimension is not None for one in table.dimension.tables]
        # A delivery for any of them puts the dimension in use.
        read = {one.key for one in of_dimensions if one.reads_landing(self.settings)}
        firsts = {name: ledger.first_day(name) for name in read}
        return replace(
            self,
            records={**self.records, **records},
            holds={**self.holds, **holds},
            first_snapshots={**self.first_snapshots, **{name: day for name, day in firsts.items() if day is not None}},
        )

    def extended(self, ledger: Ledger, slices: Collection[Slice], tables: Sequence[Table]) -> Facts:
        """The same facts about other slices of the same projects, read anew."""
        batches = _batches(ledger, self.settings, slices)
        return replace(self, slices=frozenset(slices), batches=batches, records={}, holds={}).reading(ledger, tables)

    def releasing(self, slices: Iterable[tuple[str, Slice]]) -> Facts:
        """The facts as if these (table, slice) were no longer held."""
        return replace(self, released=self.released | frozenset(slices))

    def loss(self, table: str, key: Slice) -> Evaluation | None:
        """The refusal of a slice with a lost data file; None for every other one."""
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


def slices_to_look_at(
    ledger: Ledger, settings: Settings, projects: Sequence[str], days: Sequence[date]
) -> frozenset[Slice]:
    """The requested days, days that arrivals within the reprocessing window touched, and neighbours in the dedupe window."""
    reach = timedelta(days=settings.reprocessing_window_days)
    chosen = {Slice(day, project) for day in days for project in projects}
    for source in Source:
        batch_days = ledger.batch_days(source, projects, days[0] - reach, days[-1] + reach)
        chosen |= {Slice(day, batch.project_id) for batch, touched in batch_days.items() for day in touched}
    return frozenset(neighbourhood(chosen, settings.dedupe_window_days))


def _projects(slices: Iterable[Slice]) -> list[str]:
    return sorted({key.project_id for key in slices})


def _batches(ledger: Ledger, settings: Settings, slices: Collection[Slice]) -> Mapping[BatchKey, BatchRecord]:
    if not slices:
        return {}
    days = [key.event_date for key in slices]
    reach = timedelta(days=settings.reprocessing_window_days)
    return ledger.batches(_projects(slices), min(days), max(days) + reach)


def slices_read(near: AbstractSet[Slice], settings: Settings, request: LoadRequest, table: Table) -> frozenset[Slice]:
    """The slices of a table that a load may read or build; `near`: `slices_to_look_at`; whole months if requested."""
    if not table.kind.is_shared:
        return frozenset(neighbourhood(near, settings.dedupe_window_days))
    days = widen({key.event_date for key in near}, settings.previous_snapshot_days)
    if table.key in request.tables:
        days |= {day for one in request.days for day in VALIDITY.input_days("", one.replace(day=1), settings)}
    return frozenset(Slice(table.kind.slice_day(day), project) for day in days for project in table.kind.projects(()))


def judging(table: Table, settings: Settings) -> str:
    """Text for the code, checks and bounds of a refusal; if it changes, the slice is tried again."""
    prefix = f"{table.key}:"
    bounds_of = settings.change_bounds.items()
    own = {name: (one.shrink, one.growth) for name, one in sorted(bounds_of) if name.startswith(prefix)}
    names = [name for rule in table.checks for name in rule.settings_read]
    bounds = {name: own if name == "change_bounds" else getattr(settings, name) for name in names}
    rules = [(rule.name, rule.is_blocking) for rule in table.checks]
    return f"{table.code_version(settings)} {rules} {bounds}"


def inputs_on_record(
    table: Table, records: Mapping[str, Mapping[Slice, SliceRecord]], key: Slice, settings: Settings
) -> dict[InputDay, Digest]:
    """Upstream day -> digest, of the recorded slices with rows that a slice of `table` is built from."""
    return {
        InputDay(name, of.event_date): records[name][of].digest
        for name in table.upstream
        for of in table.kind.input_slices(name, key, settings)
        if of in records[name] and records[name][of].digest != EMPTY
    }


class Match(Enum):
    """How the present input state compares with a recorded one."""

    SAME = auto()
    NEIGHBOURS_DIFFER = auto()
    """Only slices of other days differ; the result is the same if rows with shared keys are."""
    DIFFERENT = auto()


def rests_on(
    table: Table, settings: Settings, key: Slice, state: InputState, months: Mapping[tuple[str, Slice], Digest]
) -> dict[tuple[str, Slice], Digest]:
    """(upstream table, slice) -> the digest that a slice was built from, or EMPTY; `months`: from `SlicePlan`."""
    kind = table.kind
    found = {(name, of): EMPTY for name in table.upstream for of in kind.input_slices(name, key, settings)}
    for name, digest in state.upstream.items():
        upstream = table_by_key(name.table)
        if not upstream.reads_history(settings):
            found[name.table, Slice(name.day, ALL_PROJECTS if upstream.kind.is_shared else key.project_id)] = digest
    return found | dict(months)


def compare(recorded: InputState | None, present: InputState, day: date) -> Match:
    """Compare the input states of the slice of `day`; upstream slices of the same day are its own inputs."""
    if recorded is None or recorded.delivered != present.delivered:
        return Match.DIFFERENT
    differing = _differing(recorded, present)
    if not differing:
        return Match.SAME
    is_own = any(name.day == day for name in differing)
    return Match.DIFFERENT if is_own or recorded.cross_day is None else Match.NEIGHBOURS_DIFFER


def cause_of(before: InputState | None, after: InputState, *, has_new_code: bool) -> Cause:
    """Why a slice is built, for its publication record; `before`: the inputs of its last build, None if unknown."""
    differing = _differing(before or InputState(), after)
    is_withdrawn = after.is_nothing or (after.delivered == EXCLUDED and not after.upstream)
    if is_withdrawn and before is not None and before.delivered is not None:
        return Cause.of(CauseKind.EXCLUSION, has_new_code=has_new_code)
    if after.delivered is not None and (before is None or before.delivered != after.delivered):
        return Cause.of(CauseKind.DELIVERY, has_new_code=has_new_code)
    if not differing:
        return Cause.of(CauseKind.CODE)
    if before is None or before.is_nothing:
        return Cause.of(CauseKind.FIRST_BUILD)
    return Cause.of(CauseKind.INPUTS, ", ".join(sorted({name.table for name in differing})), has_new_code=has_new_code)


def _differing(one: InputState, other: InputState) -> set[InputDay]:
    names = one.upstream.keys() | other.upstream.keys()
    return {name for name in names if one.upstream.get(name) != other.upstream.get(name)}
