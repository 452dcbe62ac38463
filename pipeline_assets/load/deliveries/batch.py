"""Which deliveries changed, are missing or ruled out, and the standing of a day without any: from listing and ledger alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from types import MappingProxyType

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import days_between, deadline
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Listing, unplaced_hours
from pipeline_assets.domain.records import EXCLUDED, HOURS_UNFINISHED, MISSING, BatchRecord, DeliveryRecord, Exclusion
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.load.deliveries.losses import Relocated, without_successor
from pipeline_assets.load.deliveries.plan import BatchPlan, is_to_be_replayed
from pipeline_assets.load.staleness.finality import HOURS_A_DAY, hours_on_record
from resources.ledger.store import Ledger


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


def is_empty_by_setting(project_id: str, day: date, settings: Settings, now: datetime) -> bool:
    """Whether a day without any delivery counts as empty, because its deadline has passed and its project is declared sparse."""
    return project_id in settings.sparse_projects and now > deadline(day, settings)


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


def judge_absent(
    batch: BatchPlan, *, is_other_source_there: bool, first_arrival: date | None, settings: Settings, now: datetime
) -> tuple[BatchVerdict, Evaluation]:
    """The verdict on a requested batch that neither landing nor the ledger knows any delivery of."""
    day = batch.key.arrival_date
    figures = {"objects": 0, "hours_marked": len(batch.hours_marked)}
    passed = Evaluation(Check.DELIVERY_RECONCILES, True, figures=figures)
    if batch.exclusions:
        figures = {**figures, EXCLUDED: len(batch.exclusions)}
        return BatchVerdict.ACCEPTED, Evaluation(
            Check.DELIVERY_RECONCILES, True, batch.exclusion_reason, figures=figures
        )
    is_before_history = first_arrival is not None and day < first_arrival
    is_whole = is_before_history or batch.is_told_whole or (is_other_source_there and batch.partial_hours is None)
    # Missing hours can be let go, whether or not the day's deadline has passed.
    is_lacking = batch.partial_hours is not None or not (is_whole or now <= deadline(day, settings))
    if batch.accepted_reason is not None and (batch.refused or is_lacking):
        reason = f"accepted without deliveries: {batch.accepted_reason}"
        figures = {**figures, MISSING: max(1, len(batch.refused))}
        return BatchVerdict.ACCEPTED, Evaluation(Check.DELIVERY_RECONCILES, True, reason, figures=figures)
    if batch.prior is not None and batch.prior.is_loss_accepted and not batch.refused:
        return BatchVerdict.ACCEPTED, batch.prior.evaluations[0]
    # Past the horizon raw is the archive: markers, or what was excluded, may be gone from landing by then.
    is_archived = day < now.date() - timedelta(days=settings.redelivery_horizon_days)
    if is_archived and batch.prior is not None and batch.prior.verdict is BatchVerdict.ACCEPTED:
        return BatchVerdict.ACCEPTED, batch.prior.evaluations[0]
    if batch.told_recovery is not None:
        hint = "A load after the end of the recovery takes them"
        figures = {**figures, HOURS_UNFINISHED: len(batch.hours_unfinished)}
        return BatchVerdict.WAITING, Evaluation(
            Check.DELIVERY_RECONCILES, False, f"{batch.key}: {batch.told_recovery}", hint, figures
        )
    if is_whole or is_other_source_there:
        return BatchVerdict.ACCEPTED, passed
    if is_empty_by_setting(batch.key.project_id, day, settings, now):
        reason = "nothing was delivered by the deadline, and the project is declared sparse"
        return BatchVerdict.ACCEPTED, Evaluation(Check.DELIVERY_RECONCILES, True, reason, figures=figures)
    if now <= deadline(day, settings):
        reason = "; ".join(filter(None, (f"{batch.key}: nothing is delivered yet", batch.told_unplaced)))
        hint = "The next load picks it up; the deadline is " + deadline(day, settings).strftime("%Y-%m-%d %H:%M UTC")
        return BatchVerdict.WAITING, Evaluation(Check.DELIVERY_RECONCILES, False, reason, hint, figures)
    where = "at all" if first_arrival is None else "of either source"
    reason = f"{batch.key}: no delivery {where}, and the deadline has passed"
    reason = "; ".join(filter(None, (reason, batch.told_unplaced)))
    hint = (
        "Check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS; have the vendor export the day again; "
        "a day that truly has no events needs its 24 markers, or a person who accepts that, with a reason; a project that is "
        "often silent is declared by TIDEMARK_SPARSE_PROJECTS"
    )
    evaluation = Evaluation(Check.DELIVERY_RECONCILES, False, reason, hint, figures)
    return BatchVerdict.REFUSED, batch.with_recovery(evaluation)
