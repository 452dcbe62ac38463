"""The recorded state next to the listing: a plan for every batch, with what was moved to the other prefix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipeline_assets.domain.days import days_between, deadline
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Listing, unplaced_hours
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


_Place = tuple[str, date, int, int]
"""Project, arrival day, hour and shard: what the names of both prefixes say."""


@dataclass(frozen=True)
class Relocated:
    """Objects in raw that landing lists under the other prefix now."""

    arrived: frozenset[str] = frozenset()
    """Raw holds the copy's rows: these leave."""
    awaited: frozenset[str] = frozenset()
    """The copy is not loaded yet: these stay until it is, or the day would be short of them meanwhile."""


def find_relocated(
    source: Source,
    listing: Listing,
    accepted: Mapping[str, DeliveryRecord],
    landing: LandingStore,
    ledger: Ledger,
    settings: Settings,
) -> Relocated:
    """Of the accepted deliveries of a source, those that its listing lacks and the other source's has.

    Landing is listed once more, after `listing`, and only where something is gone: an object that was copied before it was
    deleted is seen by one of the two. Raises what `LandingStore.list` does.
    """
    listed = {delivery.key for delivery in listing.deliveries}
    gone = [record for key, record in accepted.items() if key not in listed and record.sha256 is not None]
    if not gone:
        return Relocated()
    (other,) = set(Source) - {source}
    projects = sorted({record.batch.project_id for record in gone})
    days = [record.batch.arrival_date for record in gone]
    there = landing.list(other, projects, min(days), max(days)).deliveries
    if not there:
        return Relocated()
    return sort_relocated(
        gone,
        there,
        ledger.deliveries(other, projects, min(days), max(days)),
        ledger.interventions.exclusions(other, projects, min(days), max(days)),
        settings,
    )


def sort_relocated(
    gone: Sequence[DeliveryRecord],
    there: Sequence[Delivery],
    loaded: Mapping[str, DeliveryRecord],
    exclusions: Mapping[str, Sequence[Exclusion]],
    settings: Settings,
) -> Relocated:
    """The same from values: `there` is what the other prefix lists, `loaded` what raw holds of it."""
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    copies: dict[_Place, list[Delivery]] = defaultdict(list)
    for delivery in there:
        batch = delivery.batch
        copies[batch.project_id, batch.arrival_date, delivery.hour, delivery.shard].append(delivery)
    arrived, awaited = set(), set()
    for record in gone:
        batch = record.batch
        named = grammar.parse(batch.source, batch.project_id, record.object_key, "", 0)
        if not isinstance(named, Delivery):
            continue
        for copy in copies[batch.project_id, batch.arrival_date, named.hour, named.shard]:
            known = loaded.get(copy.key)
            if known is not None and known.etag == copy.etag:
                if known.sha256 == record.sha256:
                    arrived.add(record.object_key)
            elif copy.size_bytes == record.size_bytes and not any(
                exclusion.names(copy.etag, None) for exclusion in exclusions.get(copy.key, ())
            ):
                awaited.add(record.object_key)
    return Relocated(frozenset(arrived), frozenset(awaited - arrived))


@dataclass(frozen=True)
class Recorded:
    """What the ledger knows of the arrivals in reach."""

    accepted: Mapping[str, DeliveryRecord]
    """Object key -> the version whose rows raw holds."""
    refused: Mapping[str, DeliveryRecord]
    """Object key -> the version refused last."""
    batches: Mapping[BatchKey, BatchRecord]
    """Of both sources."""
    exclusions: Mapping[str, Sequence[Exclusion]] = field(default_factory=dict)
    """Object key -> the exclusions of its versions that stand."""
    relocated: Relocated = field(default_factory=Relocated)
    """Accepted versions that landing lists under the other source's prefix now."""
    recovering: Mapping[BatchKey, Mapping[int, bool]] = field(default_factory=dict)
    """Backfill batch -> hour that a recovery writes, or wrote -> whether it still does: then its marker may be an older one."""
    marked_days: Set[tuple[str, date]] = frozenset()
    """(project, arrival day) whose regular exports had markers, within the redelivery horizon before the arrivals too."""

    @classmethod
    def read(
        cls, ledger: Ledger, source: Source, projects: Sequence[str], first: date, last: date, settings: Settings
    ) -> Recorded:
        """Of the arrivals in the range, both ends included; after landing is listed, since a recovery claims before it writes."""
        horizon = timedelta(days=settings.redelivery_horizon_days)
        return cls(
            ledger.deliveries(source, projects, first, last),
            ledger.deliveries(source, projects, first, last, is_accepted=False),
            ledger.batches(projects, first, last),
            ledger.interventions.exclusions(source, projects, first, last),
            recovering=ledger.recoveries.hours(projects, first, last) if source is Source.BACKFILL else {},
            marked_days=ledger.marked_days(projects, first - horizon, last),
        )

    def delivered_elsewhere(self, source: Source) -> set[BatchKey]:
        """The batches of a source for whose day the other source has deliveries on record."""
        return {
            BatchKey(source, other.project_id, other.arrival_date)
            for other, record in self.batches.items()
            if other.source is not source and record.deliveries
        }

    def hours_elsewhere(self, key: BatchKey) -> frozenset[int]:
        """Hours of the day that the other source holds, or has a marker of."""
        (other,) = set(Source) - {key.source}
        return hours_on_record(self.batches.get(replace(key, source=other)))


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

    `accepted_reasons`: arrival day of a project -> why a person lets missing deliveries go. `read_again`: batches of which
    files are gone -> whether these held rows, so that only landing has them, or refused lines alone.
    """
    listed: defaultdict[BatchKey, dict[str, Delivery]] = defaultdict(dict)
    excluded: defaultdict[BatchKey, dict[str, Delivery]] = defaultdict(dict)
    for delivery in listing.deliveries:
        exclusions = recorded.exclusions.get(delivery.key, ())
        is_out = any(exclusion.names(delivery.etag, None) for exclusion in exclusions)
        (excluded if is_out else listed)[delivery.batch][delivery.key] = delivery
    unplaced = unplaced_hours(listing.odd_objects, {delivery.key for delivery in listing.deliveries})
    hours_marked: defaultdict[BatchKey, set[int]] = defaultdict(set)
    for marker in listing.markers:
        if marker.hour not in unplaced.get(marker.batch, {}).values():
            hours_marked[marker.batch].add(marker.hour)
    accepted, refused = _by_batch(recorded.accepted), _by_batch(recorded.refused)
    exclusions_of: defaultdict[BatchKey, dict[str, Sequence[Exclusion]]] = defaultdict(dict)
    for object_key, standing in recorded.exclusions.items():
        exclusions_of[standing[0].batch][object_key] = standing
    requested = dict.fromkeys(BatchKey(source, project, day) for project in projects for day in days)
    marked_days = recorded.marked_days | {
        (marker.batch.project_id, marker.batch.arrival_date) for marker in listing.markers
    }
    plans = {}
    for key in dict.fromkeys((*requested, *listed, *excluded, *hours_marked, *accepted, *refused)):
        hours = frozenset(hours_marked.get(key, ()))
        known = {**accepted.get(key, {}), **refused.get(key, {})}
        claims = recorded.recovering.get(key, {})
        unfinished = {hour for hour, is_open in claims.items() if is_open or hour not in hours}
        halves = _of_unfinished_hours(listed.get(key, {}), known, unfinished)
        plan = BatchPlan(
            key,
            listed={name: found for name, found in listed.get(key, {}).items() if name not in halves},
            hours_unfinished=frozenset(halves.values()),
            unplaced=unplaced.get(key, {}),
            excluded=excluded.get(key, {}),
            exclusions=exclusions_of.get(key, {}),
            recorded=accepted.get(key, {}),
            refused=refused.get(key, {}),
            hours_marked=hours,
            hours_elsewhere=recorded.hours_elsewhere(key),
            is_marked=_is_marked(key, marked_days, settings),
            prior=recorded.batches.get(key),
            is_requested=key in requested,
            is_awaited=settings.first_arrival is None or key.arrival_date >= settings.first_arrival,
            is_read_again=key in read_again,
            has_lost_rows=read_again.get(key, False),
            is_closed=len(hours) == HOURS_A_DAY or now > deadline(key.arrival_date, settings),
            accepted_reason=accepted_reasons.get(Slice(key.arrival_date, key.project_id)),
            code_version=code_version,
        )
        plans[key] = _compared(plan, recorded.relocated, settings, now)
    return plans


def _is_marked(key: BatchKey, marked_days: Set[tuple[str, date]], settings: Settings) -> bool:
    """Whether a silent hour of the day is a gap: the project's exporter wrote a marker within the redelivery horizon before."""
    if settings.hours_complete_by is not Completeness.MARKERS or key.project_id in settings.sparse_projects:
        return False
    before = days_between(key.arrival_date - timedelta(days=settings.redelivery_horizon_days), key.arrival_date)
    return any((key.project_id, day) in marked_days for day in before)


def _of_unfinished_hours(
    listed: Mapping[str, Delivery], known: Collection[str], hours: Collection[int]
) -> dict[str, int]:
    """Object -> hour, of the objects that no load knows and whose hour a recovery has not ended: others may be to come."""
    return {key: found.hour for key, found in listed.items() if found.hour in hours and key not in known}


def _by_batch(records: Mapping[str, DeliveryRecord]) -> dict[BatchKey, dict[str, DeliveryRecord]]:
    by_batch: dict[BatchKey, dict[str, DeliveryRecord]] = {}
    for record in records.values():
        by_batch.setdefault(record.batch, {})[record.object_key] = record
    return by_batch


def _compared(plan: BatchPlan, relocated: Relocated, settings: Settings, now: datetime) -> BatchPlan:
    """The plan with what follows from landing and ledger: what is to be read, removed, or missing."""
    changed = tuple(
        delivery
        for delivery in sorted(plan.listed.values())
        if _is_changed(plan, delivery, plan.recorded.get(delivery.key))
    )
    ruled_out = frozenset(_ruled_out(plan))
    # Where landing holds an excluded version alone, another one that raw holds is neither gone nor ruled out.
    unlisted = plan.recorded.keys() - plan.listed.keys() - plan.excluded.keys() - ruled_out
    arrived, awaited = unlisted & relocated.arrived, unlisted & relocated.awaited
    horizon = now.date() - timedelta(days=settings.redelivery_horizon_days)
    is_archived = plan.key.arrival_date < horizon
    # Past the horizon raw is the archive, except for objects that it lost rows of.
    is_kept = is_archived and not plan.has_lost_rows
    gone = sorted(key for key in unlisted - arrived - awaited if not is_kept or plan.recorded[key].is_damaged)
    plan = replace(plan, gone=tuple(gone))
    missing = () if plan.accepted_reason is not None else without_successor(plan, {}, settings)
    withdrawn = () if missing else tuple(sorted({*plan.gone, *ruled_out, *arrived}))
    compared = replace(
        plan,
        changed=changed,
        ruled_out=ruled_out,
        relocated=frozenset(arrived),
        being_relocated=frozenset(awaited),
        missing=missing,
        withdrawn=withdrawn,
    )
    archived = hours_on_record(plan.prior) if plan.key.arrival_date < horizon else frozenset()
    compared = replace(compared, hours_held=plan.hours_marked | compared.hours_known(settings) | archived)
    if plan.unplaced and not plan.is_marked:
        # A silent hour is no gap there, so the objects that cannot be placed are all that the day lacks.
        compared = replace(compared, hours_held=frozenset(range(HOURS_A_DAY)) - {*plan.unplaced.values()})
    return replace(compared, is_repeated_refusal=_is_repeated_refusal(compared, settings))


def _is_changed(plan: BatchPlan, delivery: Delivery, record: DeliveryRecord | None) -> bool:
    if record is None or plan.is_read_again:
        return True
    return record.etag != delivery.etag or is_to_be_replayed(record, plan.code_version)


def _is_repeated_refusal(plan: BatchPlan, settings: Settings) -> bool:
    prior = plan.prior
    return (
        prior is not None
        and prior.verdict is BatchVerdict.REFUSED
        and bool(plan.listed or plan.gone)
        and not (plan.is_to_be_tried_again or plan.is_read_again)
        and prior.input_state == plan.input_state(settings)
        # Where what was missed is back or behind the horizon, the state is another one.
        and not (prior.is_missing and plan.accepted_reason is not None)
    )


def _ruled_out(batch: BatchPlan) -> list[str]:
    """Objects whose rows raw holds of a version that a person excluded, and for which landing has no other version.

    Never by name alone: a version that was not excluded stays, for past the horizon nobody could bring it back.
    """
    return [
        key
        for key, exclusions in batch.exclusions.items()
        if key not in batch.listed
        and key in batch.recorded
        and any(batch.holds(key, exclusion) for exclusion in exclusions)
    ]
