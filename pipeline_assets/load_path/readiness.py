"""Which batches are due for a load: from listing, ledger and what former looks saw; no JVM.

Lives here: when an hour is complete, when a batch is worth a run, and why. Put here: another reason to load a day. Keep
out: what a load then does (raw/), and runs, cursors and ticks (../sensors/).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.load_path.raw.batches import HOURS_A_DAY, BatchPlan, deadline


@dataclass(frozen=True)
class Seen:
    """What former looks saw of an hour that raw does not hold as landing does."""

    objects: str
    """Digest of the hour's listing."""
    since: datetime
    """When it was first seen like this."""


@dataclass(frozen=True)
class Look:
    """What one look at landing and ledger found."""

    due: Mapping[BatchKey, str]
    """Batch -> why it is worth a load."""
    waiting: Mapping[BatchKey, str]
    """Batch -> what it waits for, where landing and raw differ."""
    seen: Mapping[str, Seen]
    """`batch/hour` -> what the next look compares with."""


def look(
    plans: Mapping[BatchKey, BatchPlan],
    first_arrivals: Mapping[str, date],
    seen: Mapping[str, Seen],
    settings: Settings,
    now: datetime,
) -> Look:
    """Judge every batch of a plan; one whose refusal stands is not due, because a load would only say the same."""
    due: dict[BatchKey, str] = {}
    waiting: dict[BatchKey, str] = {}
    still: dict[str, Seen] = {}
    for key, plan in sorted(plans.items()):
        if plan.is_standing_refusal or _is_known_to_be_missing(plan):
            continue
        hours = _hours_to_load(plan, settings)
        for hour in hours:
            name, objects = _name(key, hour), _objects(plan, hour)
            known = seen.get(name)
            still[name] = known if known is not None and known.objects == objects else Seen(objects, now)
        reason, obstacle = _judge(plan, hours, still, settings, now) if hours else (None, None)
        if not hours:
            reason = _without_news(plan, first_arrivals.get(key.project_id), settings, now)
        if reason is not None:
            due[key] = reason
        elif obstacle is not None:
            waiting[key] = obstacle
    return Look(due, waiting, still)


def state_of(plan: BatchPlan, settings: Settings) -> str:
    """Names all that a load of the batch would start from: another state is another reason to try."""
    parts = (plan.input_state(settings), sorted(plan.hours_marked), plan.is_closed, sorted(plan.missing))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _judge(
    plan: BatchPlan, hours: Mapping[int, str], seen: Mapping[str, Seen], settings: Settings, now: datetime
) -> tuple[str | None, str | None]:
    """(why it is due, what it waits for); one of the two is None."""
    is_past = now > deadline(plan.key.arrival_date, settings)
    complete = [h for h in hours if _is_complete(plan, h, hours[h], seen[_name(plan.key, h)], settings, now)]
    is_open = not is_past and plan.key.source is Source.REGULAR and len(plan.hours_marked) < HOURS_A_DAY
    if not complete:
        return None, f"hours {_listed(hours)} are not complete yet"
    if is_open and settings.hours_complete_by is Completeness.MARKERS and not settings.load_open_days:
        missing = HOURS_A_DAY - len(plan.hours_marked)
        return None, f"{missing} of 24 hours have no marker yet, and TIDEMARK_LOAD_OPEN_DAYS is off"
    counts = Counter(hours[hour] for hour in complete)
    return ", ".join(f"{count} hours {kind}" for kind, count in sorted(counts.items())), None


def _is_complete(plan: BatchPlan, hour: int, kind: str, seen: Seen, settings: Settings, now: datetime) -> bool:
    is_quiet = now - seen.since >= timedelta(minutes=settings.quiet_minutes)
    is_marked_export = plan.key.source is Source.REGULAR and settings.hours_complete_by is Completeness.MARKERS
    if kind == NEW and is_marked_export:
        return hour in plan.hours_marked or now > deadline(plan.key.arrival_date, settings)
    # A marker tells nothing of what is written after it, and recoveries come without.
    return is_quiet


def _without_news(plan: BatchPlan, first_arrival: date | None, settings: Settings, now: datetime) -> str | None:
    prior, day = plan.prior, plan.key.arrival_date
    is_past = now > deadline(day, settings)
    is_awaited = plan.key.source is Source.REGULAR and first_arrival is not None and day >= first_arrival
    if prior is None or prior.verdict is BatchVerdict.WAITING:
        return "its deadline has passed without a delivery" if is_past and is_awaited else None
    if prior.verdict is BatchVerdict.MOVED:
        return "objects changed while they were read"
    if prior.is_missing:
        return "what was missing is back, or behind the horizon"
    is_loaded = prior.verdict is BatchVerdict.ACCEPTED and prior.deliveries > 0
    if is_loaded and plan.is_closed and not prior.is_closed:
        return "it is closed now: all hours have markers, or its deadline has passed"
    return None


def _is_known_to_be_missing(plan: BatchPlan) -> bool:
    prior = plan.prior
    is_told = prior is not None and prior.verdict is BatchVerdict.REFUSED and prior.is_missing
    return bool(plan.missing) and is_told and not plan.changed


NEW = "new"
CHANGED = "changed"
GONE = "gone"


def _hours_to_load(plan: BatchPlan, settings: Settings) -> dict[int, str]:
    """Hour -> NEW, CHANGED or GONE, of the hours whose objects raw does not hold as landing does."""

    def hour_of(key: str) -> int:
        return plan.hour_of(key, settings) or 0

    loaded = {hour_of(key) for key in (*plan.recorded, *plan.refused)}
    hours = {delivery.hour: CHANGED if delivery.hour in loaded else NEW for delivery in plan.changed}
    for key in plan.stale_refusals:
        hours.setdefault(hour_of(key), CHANGED)
    for key in (*plan.withdrawn, *plan.missing):
        hours.setdefault(hour_of(key), GONE)
    return dict(sorted(hours.items()))


def _objects(plan: BatchPlan, hour: int) -> str:
    listed = sorted((d.key, d.etag) for d in plan.listed.values() if d.hour == hour)
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:16]


def _name(key: BatchKey, hour: int) -> str:
    return f"{key}/{hour}"


def _listed(hours: Mapping[int, str]) -> str:
    named = ", ".join(str(hour) for hour in list(hours)[:6])
    return named if len(hours) <= 6 else f"{named} and {len(hours) - 6} more"
