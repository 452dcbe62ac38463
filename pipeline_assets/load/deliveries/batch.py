"""Plans a batch from landing and ledger, and finds objects that were moved to the other prefix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipeline_assets.domain.days import days_between, deadline
from pipeline_assets.domain.deliveries import NOT_READABLE, BatchKey, Delivery, Listing, unplaced_hours
from pipeline_assets.domain.records import BatchRecord, DeliveryRecord, Exclusion
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.deliveries.plan import BatchPlan, is_to_be_replayed, without_successor
from pipeline_assets.load.staleness.finality import HOURS_A_DAY, hours_on_record
from resources.ledger.store import Ledger

if TYPE_CHECKING:
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger


@dataclass(frozen=True)
class Relocated:
    """Objects in raw that landing now lists under the other prefix."""

    arrived: frozenset[str] = frozenset()
    """Raw holds the copy's rows, so these leave; `awaited` stay until it does."""
    awaited: frozenset[str] = frozenset()


def _find_relocated(
    gone: Sequence[DeliveryRecord], landing: LandingStore, ledger: Ledger, settings: Settings
) -> Relocated:
    """Accepted deliveries that landing, listed again, has under the other source's prefix."""
    other, projects = gone[0].batch.source.other, sorted({record.batch.project_id for record in gone})
    days = [record.batch.arrival_date for record in gone]
    there = landing.list(other, projects, min(days), max(days)).deliveries
    if not there:
        return Relocated()
    loaded = ledger.deliveries(other, projects, min(days), max(days))
    exclusions = ledger.interventions.exclusions(other, projects, min(days), max(days))
    return sort_relocated(gone, there, loaded, exclusions, settings)


def sort_relocated(
    gone: Sequence[DeliveryRecord],
    there: Sequence[Delivery],
    loaded: Mapping[str, DeliveryRecord],
    exclusions: Mapping[str, Sequence[Exclusion]],
    settings: Settings,
) -> Relocated:
    """The same from values: `there` is the listing of the other prefix, `loaded` the versions in raw."""
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    copies: defaultdict[tuple[str, date, int, int], list[Delivery]] = defaultdict(list)
    for one in there:
        copies[one.batch.project_id, one.batch.arrival_date, one.hour, one.shard].append(one)
    arrived, awaited = set(), set()
    for record in gone:
        batch = record.batch
        named = grammar.parse(batch.source, batch.project_id, record.object_key, "", 0)
        if not isinstance(named, Delivery):
            continue
        for copy in copies[batch.project_id, batch.arrival_date, named.hour, named.shard]:
            known = loaded.get(copy.key)
            is_out = any(one.names(copy.etag, None) for one in exclusions.get(copy.key, ()))
            if known is not None and known.etag == copy.etag:
                if known.sha256 == record.sha256:
                    arrived.add(record.object_key)
            elif copy.size_bytes == record.size_bytes and not is_out:
                awaited.add(record.object_key)
    return Relocated(frozenset(arrived), frozenset(awaited - arrived))


@dataclass(frozen=True)
class Recorded:
    """The ledger's records of the arrivals in reach."""

    accepted: Mapping[str, DeliveryRecord]
    refused: Mapping[str, DeliveryRecord]
    batches: Mapping[BatchKey, BatchRecord]
    exclusions: Mapping[str, Sequence[Exclusion]] = field(default_factory=dict)
    relocated: Relocated = field(default_factory=Relocated)
    recovering: Mapping[BatchKey, Mapping[int, bool]] = field(default_factory=dict)
    """Backfill batch -> hour of a recovery -> whether it still writes: then its marker may be older."""
    marked_days: Set[tuple[str, date]] = frozenset()
    """(project, arrival day) with markers of regular exports; also within the redelivery horizon before."""

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        landing: LandingStore,
        listing: Listing,
        source: Source,
        projects: Sequence[str],
        days: tuple[date, date],
        settings: Settings,
    ) -> Recorded:
        """Read a range of days. Call it after listing landing, since a recovery claims before it writes."""
        first, last = days
        horizon = timedelta(days=settings.redelivery_horizon_days)
        accepted = ledger.deliveries(source, projects, first, last)
        listed = {delivery.key for delivery in listing.deliveries}
        gone = [record for key, record in accepted.items() if key not in listed and record.sha256 is not None]
        return cls(
            accepted,
            ledger.deliveries(source, projects, first, last, is_accepted=False),
            ledger.batches(projects, first, last),
            ledger.interventions.exclusions(source, projects, first, last),
            _find_relocated(gone, landing, ledger, settings) if gone else Relocated(),
            ledger.recoveries.hours(projects, first, last) if source is Source.BACKFILL else {},
            ledger.marked_days(projects, first - horizon, last),
        )

    def delivered_elsewhere(self, source: Source) -> set[BatchKey]:
        """Batches of a source for whose day the other source has deliveries on record."""
        return {
            BatchKey(source, other.project_id, other.arrival_date)
            for other, record in self.batches.items()
            if other.source is not source and record.deliveries
        }

    def hours_elsewhere(self, key: BatchKey) -> frozenset[int]:
        """Hours of the day that the other source holds or has a marker of."""
        return hours_on_record(self.batches.get(replace(key, source=key.source.other)))


def plan_batches(
    source: Source,
    projects: Sequence[str],
    days: Sequence[date],
    listing: Listing,
    recorded: Recorded,
    settings: Settings,
    now: datetime,
    *,
    code_version: str,
    accepted_reasons: Mapping[Slice, str],
    read_again: Mapping[BatchKey, bool] = MappingProxyType({}),
) -> dict[BatchKey, BatchPlan]:
    """A plan for every batch that is requested, listed, marked or recorded.

    `accepted_reasons`: arrival day -> why missing deliveries are accepted; `read_again`: batch -> whether lost files held rows.
    """
    listed: defaultdict[BatchKey, dict[str, Delivery]] = defaultdict(dict)
    excluded: defaultdict[BatchKey, dict[str, Delivery]] = defaultdict(dict)
    for delivery in listing.deliveries:
        is_out = any(one.names(delivery.etag, None) for one in recorded.exclusions.get(delivery.key, ()))
        (excluded if is_out else listed)[delivery.batch][delivery.key] = delivery
    unplaced = unplaced_hours(listing.odd_objects, {delivery.key for delivery in listing.deliveries})
    hours_marked: defaultdict[BatchKey, set[int]] = defaultdict(set)
    for marker in listing.markers:
        if marker.hour not in unplaced.get(marker.batch, {}).values():
            hours_marked[marker.batch].add(marker.hour)
    accepted: defaultdict[BatchKey, dict[str, DeliveryRecord]] = defaultdict(dict)
    refused: defaultdict[BatchKey, dict[str, DeliveryRecord]] = defaultdict(dict)
    for by_batch, records in ((accepted, recorded.accepted), (refused, recorded.refused)):
        for object_key, record in records.items():
            by_batch[record.batch][object_key] = record
    exclusions: defaultdict[BatchKey, dict[str, Sequence[Exclusion]]] = defaultdict(dict)
    for object_key, standing in recorded.exclusions.items():
        exclusions[standing[0].batch][object_key] = standing
    requested = dict.fromkeys(BatchKey(source, project, day) for project in projects for day in days)
    marked_days = recorded.marked_days | {(one.batch.project_id, one.batch.arrival_date) for one in listing.markers}
    horizon = timedelta(days=settings.redelivery_horizon_days)
    by_markers = settings.hours_complete_by is Completeness.MARKERS
    plans = {}
    for key in dict.fromkeys((*requested, *listed, *excluded, *hours_marked, *accepted, *refused)):
        hours, arrival = frozenset(hours_marked.get(key, ())), key.arrival_date
        known = {**accepted.get(key, {}), **refused.get(key, {})}
        claims = recorded.recovering.get(key, {})
        unfinished = {hour for hour, is_open in claims.items() if is_open or hour not in hours}
        # Objects that no load knows, in hours that a recovery still writes: more may follow.
        halves = {
            name: found.hour
            for name, found in listed.get(key, {}).items()
            if found.hour in unfinished and name not in known
        }
        plan = BatchPlan(
            key,
            listed={name: found for name, found in listed.get(key, {}).items() if name not in halves},
            hours_unfinished=frozenset(halves.values()),
            unplaced=unplaced.get(key, {}),
            excluded=excluded.get(key, {}),
            exclusions=exclusions.get(key, {}),
            recorded=accepted.get(key, {}),
            refused=refused.get(key, {}),
            hours_marked=hours,
            hours_elsewhere=recorded.hours_elsewhere(key),
            is_marked=by_markers
            and key.project_id not in settings.sparse_projects
            and any((key.project_id, day) in marked_days for day in days_between(arrival - horizon, arrival)),
            prior=recorded.batches.get(key),
            is_requested=key in requested,
            is_awaited=settings.first_arrival is None or arrival >= settings.first_arrival,
            is_read_again=key in read_again,
            has_lost_rows=read_again.get(key, False),
            is_closed=len(hours) == HOURS_A_DAY or now > deadline(arrival, settings),
            accepted_reason=accepted_reasons.get(Slice(arrival, key.project_id)),
            code_version=code_version,
        )
        plans[key] = _compared(plan, recorded.relocated, settings, now)
    return plans


def _compared(plan: BatchPlan, relocated: Relocated, settings: Settings, now: datetime) -> BatchPlan:
    ruled_out = frozenset(
        key
        for key in (plan.exclusions.keys() & plan.recorded.keys()) - plan.listed.keys()
        if any(plan.holds(key, exclusion) for exclusion in plan.exclusions[key])
    )
    # If landing holds only an excluded version, another one in raw is neither gone nor ruled out.
    unlisted = plan.recorded.keys() - plan.listed.keys() - plan.excluded.keys() - ruled_out
    arrived, awaited = unlisted & relocated.arrived, unlisted & relocated.awaited
    # Past the horizon raw is the archive, except for objects that it lost rows of.
    is_archived = plan.key.arrival_date < now.date() - timedelta(days=settings.redelivery_horizon_days)
    is_kept = is_archived and not plan.has_lost_rows
    gone = sorted(key for key in unlisted - arrived - awaited if not is_kept or plan.recorded[key].is_damaged)
    plan = replace(plan, gone=tuple(gone))
    missing = () if plan.accepted_reason is not None else without_successor(plan, {}, settings)
    changed = [
        delivery
        for delivery in sorted(plan.listed.values())
        if plan.is_read_again
        or (record := plan.recorded.get(delivery.key)) is None
        or record.etag != delivery.etag
        or is_to_be_replayed(record, plan.code_version)
    ]
    plan = replace(
        plan,
        changed=tuple(changed),
        ruled_out=ruled_out,
        relocated=frozenset(arrived),
        being_relocated=frozenset(awaited),
        missing=missing,
        withdrawn=() if missing else tuple(sorted({*gone, *ruled_out, *arrived})),
    )
    archived = hours_on_record(plan.prior) if is_archived else frozenset()
    held = plan.hours_marked | plan.hours_known(settings) | archived
    if plan.unplaced and not plan.is_marked:
        held = frozenset(range(HOURS_A_DAY)) - {*plan.unplaced.values()}
    prior = plan.prior
    is_repeated = prior is not None and prior.verdict is BatchVerdict.REFUSED and not plan.is_read_again
    if is_repeated and prior is not None:
        is_unread = any(key in plan.listed and one.error == NOT_READABLE for key, one in plan.refused.items())
        is_accepted = prior.is_missing and plan.accepted_reason is not None
        is_same = bool(plan.listed or plan.gone) and prior.input_state == plan.input_state(settings)
        is_repeated = is_same and not is_unread and not is_accepted
    return replace(plan, hours_held=held, is_repeated_refusal=is_repeated)
