"""Which deliveries changed, are missing or ruled out, and the standing of a day without any: from listing and ledger alone.

Contains: the plans of a raw load, deadlines, closed batches, days without deliveries.
Add here: a rule about batches that needs no Spark.
Does not contain: what a plan says (plan.py), parsing and publishing (read.py, publish.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey, Listing
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.load.deliveries.plan import BatchPlan, is_to_be_replayed
from pipeline_assets.load.deliveries.relocated import Relocated
from pipeline_assets.load.staleness.coverage import HOURS_A_DAY, hours_on_record
from resources.ledger.records import EXCLUDED, MISSING, BatchRecord, DeliveryRecord, Exclusion
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

    @classmethod
    def read(cls, ledger: Ledger, source: Source, projects: Sequence[str], first: date, last: date) -> Recorded:
        """Of the arrivals in the range, both ends included."""
        return cls(
            ledger.deliveries(source, projects, first, last),
            ledger.deliveries(source, projects, first, last, is_accepted=False),
            ledger.batches(projects, first, last),
            ledger.interventions.exclusions(source, projects, first, last),
        )

    def delivered_elsewhere(self, source: Source) -> dict[BatchKey, frozenset[int]]:
        """The batches of a source for whose day the other source has deliveries on record -> their hours."""
        return {
            BatchKey(source, other.project_id, other.arrival_date): hours_on_record(record)
            for other, record in self.batches.items()
            if other.source is not source and record.deliveries
        }


def deadline(day: date, settings: Settings) -> datetime:
    """When a day without all markers counts as closed."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    return midnight + timedelta(hours=settings.final_after_hours)


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
) -> dict[BatchKey, BatchPlan]:
    """A plan for every batch that is requested, listed, marked or recorded.

    `accepted_reasons`: arrival day of a project -> why a person lets missing deliveries go.
    """
    plans: dict[BatchKey, BatchPlan] = {}

    def plan(key: BatchKey) -> BatchPlan:
        reason = accepted_reasons.get(Slice(key.arrival_date, key.project_id))
        return plans.setdefault(key, BatchPlan(key, code_version=code_version, accepted_reason=reason))

    for project in projects:
        for day in days:
            plan(BatchKey(source, project, day)).is_requested = True
    for delivery in listing.deliveries:
        batch = plan(delivery.batch)
        exclusions = recorded.exclusions.get(delivery.key, ())
        is_out = any(one.names(delivery.etag, None) for one in exclusions)
        (batch.excluded if is_out else batch.listed)[delivery.key] = delivery
    for marker in listing.markers:
        batch = plan(marker.batch)
        batch.hours_marked |= {marker.hour}
    for record in recorded.accepted.values():
        plan(record.batch).recorded[record.object_key] = record
    for record in recorded.refused.values():
        plan(record.batch).refused[record.object_key] = record
    for object_key, standing in recorded.exclusions.items():
        if standing[0].batch in plans:
            plans[standing[0].batch].exclusions[object_key] = standing
    elsewhere = recorded.delivered_elsewhere(source)
    for key, batch in plans.items():
        batch.hours_elsewhere = elsewhere.get(key, frozenset())
        batch.prior = recorded.batches.get(key)
        batch.is_awaited = settings.first_arrival is None or key.arrival_date >= settings.first_arrival
        batch.is_closed = len(batch.hours_marked) == HOURS_A_DAY or now > deadline(key.arrival_date, settings)
        _compare(batch, recorded.relocated, settings, now)
    return plans


def _compare(batch: BatchPlan, relocated: Relocated, settings: Settings, now: datetime) -> None:
    for delivery in sorted(batch.listed.values()):
        record = batch.recorded.get(delivery.key)
        if record is None or record.etag != delivery.etag or is_to_be_replayed(record, batch.code_version):
            batch.changed.append(delivery)
    batch.ruled_out = frozenset(_ruled_out(batch))
    # Where landing holds an excluded version alone, another one that raw holds is neither gone nor ruled out.
    unlisted = batch.recorded.keys() - batch.listed.keys() - batch.excluded.keys() - batch.ruled_out
    batch.relocated = frozenset(unlisted & relocated.arrived)
    batch.being_relocated = frozenset(unlisted & relocated.awaited)
    horizon = now.date() - timedelta(days=settings.redelivery_horizon_days)
    if batch.key.arrival_date >= horizon:
        gone = sorted(unlisted - batch.relocated - batch.being_relocated)
        batch.missing = [] if batch.accepted_reason is not None else _missing(batch, gone, settings)
        batch.withdrawn = [] if batch.missing else gone
    if not batch.missing:
        batch.withdrawn = sorted({*batch.withdrawn, *batch.ruled_out, *batch.relocated})
    prior = batch.prior
    batch.is_repeated_refusal = (
        prior is not None
        and prior.verdict is BatchVerdict.REFUSED
        and bool(batch.listed)
        and not batch.is_to_be_tried_again
        and prior.input_state == batch.input_state(settings)
        # What was missed is back, accepted, or behind the horizon.
        and not (prior.is_missing and not batch.missing)
    )


def _ruled_out(batch: BatchPlan) -> list[str]:
    """Objects whose rows raw holds of a version that a person excluded, and for which landing has no other version.

    Never by name alone: a version that was not excluded stays, for past the horizon nobody could bring it back.
    """
    return [
        key
        for key, exclusions in batch.exclusions.items()
        if key not in batch.listed and key in batch.recorded and any(batch.holds(key, one) for one in exclusions)
    ]


def _missing(batch: BatchPlan, gone: Sequence[str], settings: Settings) -> list[str]:
    """Of the objects that are gone, those that brought rows in an hour for which landing lists nothing any more.

    An hour that still lists objects was written again: another number of shards, fewer rows. A whole hour does not
    vanish from the vendor's side but while it is being rewritten, or by a lifecycle rule.
    """
    in_landing = {**batch.listed, **batch.excluded}
    hours_listed = {delivery.hour for delivery in in_landing.values()}
    return [
        key
        for key in gone
        if not in_landing or (batch.recorded[key].rows and batch.hour_of(key, settings) not in hours_listed)
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
    is_whole = is_before_history or len(batch.hours_marked) == HOURS_A_DAY
    is_whole = is_whole or (is_other_source_there and batch.partial_hours is None)
    # Hours that are told to be missing can be let go, whether or not the day's deadline has passed.
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
    if is_whole or is_other_source_there:
        return BatchVerdict.ACCEPTED, passed
    if is_empty_by_setting(batch.key.project_id, day, settings, now):
        reason = "nothing was delivered by the deadline, and the project is declared sparse"
        return BatchVerdict.ACCEPTED, Evaluation(Check.DELIVERY_RECONCILES, True, reason, figures=figures)
    if now <= deadline(day, settings):
        reason = f"{batch.key}: nothing is delivered yet"
        hint = "The next load picks it up; the deadline is " + deadline(day, settings).strftime("%Y-%m-%d %H:%M UTC")
        return BatchVerdict.WAITING, Evaluation(Check.DELIVERY_RECONCILES, False, reason, hint, figures)
    where = "at all" if first_arrival is None else "of either source"
    reason = f"{batch.key}: no delivery {where}, and the deadline has passed"
    hint = (
        "Check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS; have the vendor export the day again; "
        "a day that truly has no events needs its 24 markers, or a person who accepts that, with a reason; a project that is "
        "often silent is declared by TIDEMARK_SPARSE_PROJECTS"
    )
    return BatchVerdict.REFUSED, Evaluation(Check.DELIVERY_RECONCILES, False, reason, hint, figures)
