"""Which batches are due for a load, from listing, ledger and former observations; no JVM."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from pydantic import AwareDatetime

from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.staleness.finality import HOURS_A_DAY


@dataclass(frozen=True)
class HourObservation:
    """An hour that raw does not hold as landing does, as observed before."""

    objects: str
    since: AwareDatetime


@dataclass(frozen=True)
class ArrivalStatus:
    """The state of every batch of a plan, by landing and ledger."""

    due: Mapping[BatchKey, str]
    waiting: Mapping[BatchKey, str]
    incomplete: Mapping[BatchKey, frozenset[int]]
    observations: Mapping[str, HourObservation]
    """`batch/hour` -> its observation, for hours that are complete once they rest."""


def evaluate_arrivals(
    plans: Mapping[BatchKey, BatchPlan],
    first_arrivals: Mapping[str, date],
    delivered_elsewhere: Collection[BatchKey],
    observations: Mapping[str, HourObservation],
    settings: Settings,
    now: datetime,
    starts: Mapping[str, date] | None = None,
) -> ArrivalStatus:
    """Judge every batch of a plan; one whose refusal is still valid is not due.

    `first_arrivals`, `starts`: project -> first arrival, of this and of any source; `delivered_elsewhere`: days of the other.
    """
    due: dict[BatchKey, str] = {}
    waiting: dict[BatchKey, str] = {}
    incomplete: dict[BatchKey, frozenset[int]] = {}
    still: dict[str, HourObservation] = {}
    for key, planned in sorted(plans.items()):
        plan = planned.from_its_start((first_arrivals if starts is None else starts).get(key.project_id))
        if plan.is_repeated_refusal:
            continue
        hours, is_regular = _hours_to_load(plan, settings), key.source is Source.REGULAR
        complete: set[int] = set()
        for hour, kind in hours.items():
            # A marker says nothing about later objects, and recoveries write none.
            if kind == NEW and is_regular and settings.hours_complete_by is Completeness.MARKERS:
                is_complete = hour in plan.hours_marked or now > deadline(key.arrival_date, settings)
            else:
                name, objects = f"{key}/{hour}", _objects(plan, hour)
                known = observations.get(name, HourObservation(objects, now))
                still[name] = known if known.objects == objects else HourObservation(objects, now)
                is_complete = now - still[name].since >= timedelta(minutes=settings.quiet_minutes)
            complete |= {hour} if is_complete else set()
        reason, obstacle = None, None
        if hours:
            incomplete[key] = frozenset(hours) - complete
            if not complete:
                named = ", ".join(map(str, list(hours)[:6])) + (f" and {len(hours) - 6} more" if len(hours) > 6 else "")
                obstacle = f"hours {named} are not complete yet"
            elif is_regular and not plan.is_closed and not settings.load_open_days:
                until = f"{deadline(key.arrival_date, settings):%Y-%m-%d %H:%M UTC}"
                obstacle = f"the day is open until {until} or all 24 markers are there"
            else:
                counts = Counter(hours[hour] for hour in complete)
                reason = ", ".join(f"{kind} hours: {count}" for kind, count in sorted(counts.items()))
        else:
            first = first_arrivals.get(key.project_id)
            is_awaited = is_regular and first is not None and key.arrival_date >= first
            is_elsewhere = key in delivered_elsewhere
            reason = _without_news(plan, settings, now, is_awaited=is_awaited, is_elsewhere=is_elsewhere)
            is_told = plan.told_partial is not None and not (plan.prior is not None and plan.prior.is_let_go)
            obstacle = f"{plan.told_partial}: recover or accept it" if is_told else None
        obstacle = plan.told_recovery or obstacle
        if reason is not None:
            due[key] = reason
        elif obstacle is not None:
            waiting[key] = obstacle
    return ArrivalStatus(due, waiting, incomplete, still)


def state_of(plan: BatchPlan, settings: Settings) -> str:
    """Text for all that a load of the batch would start from; another state is another reason to try."""
    parts = (plan.input_state(settings), sorted(plan.hours_marked), plan.is_closed)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _without_news(
    plan: BatchPlan, settings: Settings, now: datetime, *, is_awaited: bool, is_elsewhere: bool
) -> str | None:
    prior = plan.prior
    is_accepted = prior is not None and prior.verdict is BatchVerdict.ACCEPTED
    is_open = not (plan.listed or plan.recorded or plan.refused or is_accepted)
    # A recovery without result is not missing if the other source has the day.
    if is_open and (is_awaited or prior is not None) and plan.told_recovery is None:
        if is_elsewhere:
            return "the other source delivered it"
        if plan.is_told_whole:
            return "all hours have markers, and none has events"
    if is_open and is_awaited:
        is_judged = prior is not None and prior.verdict is BatchVerdict.REFUSED
        is_past = now > deadline(plan.key.arrival_date, settings)
        return "its deadline has passed without a delivery" if is_past and not is_judged else None
    if prior is None or prior.verdict is BatchVerdict.WAITING:
        return None
    lacked, is_loaded = prior.partial_hours is not None or prior.has_unplaced, is_accepted and prior.deliveries > 0
    is_lacking = plan.partial_hours is not None or bool(plan.unplaced)
    other_hours = plan.hours_elsewhere and not prior.is_let_go and plan.partial_hours != prior.partial_hours
    was_ahead = prior.is_closed and not plan.is_closed and prior.hours_marked < HOURS_A_DAY
    reasons = {
        "objects changed while they were read": prior.verdict is BatchVerdict.MOVED,
        "what was missing is back, or behind the horizon": prior.is_missing,
        "the other source holds other hours of it than before": other_hours,
        "the hours that it lacked are there, or were never its own": is_loaded and lacked and not is_lacking,
        "it is closed now: all hours have markers, or its deadline has passed": (
            is_loaded and plan.is_closed and not prior.is_closed
        ),
        "it was judged closed by a clock that was ahead": is_loaded and was_ahead,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


NEW = "new"
CHANGED = "changed"
GONE = "gone"


def _hours_to_load(plan: BatchPlan, settings: Settings) -> dict[int, str]:
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
