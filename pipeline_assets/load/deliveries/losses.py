"""What a batch lacks: hours without a marker, objects that moved to the other prefix, and rows that are lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import RENAME, Delivery, Listing
from pipeline_assets.domain.records import (
    EXCLUDED,
    HOURS_HELD,
    HOURS_UNFINISHED,
    HOURS_UNPLACED,
    MISSING,
    THIS_LOAD,
    DeliveryRecord,
    Exclusion,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.staleness.finality import HOURS_A_DAY

if TYPE_CHECKING:
    from pipeline_assets.load.deliveries.plan import BatchPlan
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger


def without_successor(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> tuple[str, ...]:
    """Of the objects that are gone, those that brought rows in an hour that lists nothing that was delivered after them.

    Told from the ledger, since copying gives objects other times and etags. `read`: listed versions as they were read; before
    it is read, another version counts as a new delivery. An excluded object replaces nothing.
    """
    latest: dict[int | None, str] = {}
    for listed in plan.listed.values():
        known = read.get(listed.key) or plan.recorded.get(listed.key)
        is_new = known is None or (known.etag != listed.etag and known.sha256 is not None)
        at = THIS_LOAD if known is None or is_new else known.recorded_at
        latest[listed.hour] = max(latest.get(listed.hour, ""), at)

    def is_replaced(gone: DeliveryRecord) -> bool:
        return not gone.rows or latest.get(plan.hour_of(gone.object_key, settings), "") > gone.recorded_at

    is_empty = not (plan.listed or plan.excluded)
    return tuple(key for key in plan.gone if is_empty or not is_replaced(plan.recorded[key]))


def loss_of(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> tuple[tuple[str, ...], int]:
    """The objects that landing lost, or holds a version of that cannot be read, and the rows by which their hours shrink.

    Rows that are read in their place are no loss; nor are those of an hour of which landing lists nothing but what was delivered
    after them, with as many rows: an earlier load read the rewritten hour.
    """
    came = plan.listed.keys() & read.keys()
    broken = [key for key in sorted(came & plan.recorded.keys()) if read[key].error and plan.recorded[key].rows]
    rows, keys = 0, (*plan.let_go, *broken)
    for hour in {plan.hour_of(key, settings) for key in keys}:
        gone = [plan.recorded[key] for key in plan.let_go if plan.hour_of(key, settings) == hour]
        names = {key for key, found in plan.listed.items() if found.hour == hour}
        left = [record for key in names if (record := read.get(key) or plan.recorded.get(key)) is not None]
        lost, last = sum(record.rows for record in gone), max((record.recorded_at for record in gone), default="")
        if all(record.recorded_at > last for record in left) and sum(record.rows for record in left) >= lost:
            lost = 0
        former = sum(plan.recorded[key].rows for key in came & names & plan.recorded.keys())
        rows += max(0, lost + former - sum(read[key].rows for key in came & names))
    return keys, rows


def completeness(plan: BatchPlan, verdict: Evaluation) -> Evaluation:
    """Whether all hours of the batch are marked, by what is listed; `verdict` is of the other check."""
    if plan.told_recovery is not None:
        hint = "A load after the end of the recovery takes them; six hours after it began they are taken as they lie"
        unfinished = {HOURS_UNFINISHED: len(plan.hours_unfinished)}
        return Evaluation(Check.DELIVERY_COMPLETE, False, plan.told_recovery, hint, unfinished)
    held = plan.partial_hours
    rename = f"{RENAME}. " if plan.unplaced else ""
    if plan.unplaced and held is None:
        hint = f"{rename}The day stays provisional until then"
        unplaced = {HOURS_UNPLACED: len({*plan.unplaced.values()})}
        return Evaluation(Check.DELIVERY_COMPLETE, False, plan.told_unplaced, hint, unplaced)
    figures = {"hours_marked": len(plan.hours_marked), "hours_delivered": len({d.hour for d in plan.listed.values()})}
    is_decided = verdict.figures.get(MISSING) or (verdict.figures.get(EXCLUDED) and not plan.known)
    if plan.told_partial is not None and verdict.is_passed and not is_decided:
        return Evaluation(
            Check.DELIVERY_COMPLETE,
            False,
            plan.told_partial,
            f"{rename}Recover the other hours, or accept that they are lost, with a reason (--accept-missing, accept_missing in "
            f"run config); the day stays provisional until then{'' if plan.is_closed else ', and until its deadline'}",
            {**figures, HOURS_HELD: held or 0},
        )
    missing = HOURS_A_DAY - len(plan.hours_marked)
    # Recoveries need no markers, and an empty day of one source is complete.
    is_complete = missing == 0 or plan.is_closed or not plan.listed
    return Evaluation(
        Check.DELIVERY_COMPLETE,
        is_complete,
        None
        if is_complete
        else "; ".join(filter(None, (f"{missing} of 24 hours have no marker yet", plan.told_unplaced))),
        None if is_complete else f"{rename}The day stays provisional until they come or the deadline passes",
        figures if is_complete or held is None else {**figures, HOURS_HELD: held},
    )


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
