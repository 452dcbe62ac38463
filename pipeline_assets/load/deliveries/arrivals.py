"""The plan of a raw load: arrivals in reach, compared with the ledger, and verdicts on batches without deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

from pipeline_assets.domain.checks import BatchFigures, Check, Evaluation, reconcile_batch
from pipeline_assets.domain.days import asked_for, deadline, describe_strays
from pipeline_assets.domain.deliveries import BatchKey, Listing
from pipeline_assets.domain.records import EXCLUDED, HOURS_UNFINISHED, MISSING
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.load.deliveries.batch import Recorded, plan_batches
from pipeline_assets.load.deliveries.plan import BatchPlan, together
from pipeline_assets.load.deliveries.snapshots import MOST_NAMED, log_some
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.finality import first_arrivals
from pipeline_assets.tables.events import RAW_TABLES

_NOTHING_CAME = (
    "Check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS; have the vendor export the day again; "
    "a day that truly has no events needs its 24 markers, or an operator who accepts that, with a reason; a project that is "
    "often silent is declared by TIDEMARK_SPARSE_PROJECTS"
)


def plan_arrivals(
    runtime: Runtime, request: LoadRequest, source: Source, read_again: Mapping[BatchKey, bool]
) -> dict[BatchKey, BatchPlan]:
    """List arrivals in reach of the requested days and plan their batches. `read_again` (see `plan_batches`) is in reach, too."""
    table, settings, projects = RAW_TABLES[source], runtime.settings, request.projects
    window = timedelta(days=settings.reprocessing_window_days)
    arrived = [batch.arrival_date for batch in read_again]
    if arrived:
        waiting = runtime.ledger.batches(projects, min(arrived), request.now.date()).items()
        arrived += [batch.arrival_date for batch, one in waiting if one.verdict is BatchVerdict.WAITING]
    first, last = min([request.days[0] - window, *arrived]), max([request.days[-1] + window, *arrived])
    listing = runtime.landing.list(source, projects, first, last, asked_for(settings, request.now.date()))
    runtime.ledger.strays.replace(source, projects, listing.strays)
    if listing.strays:
        runtime.log(f"{table.key}: {describe_strays([stray.key for stray in listing.strays])}")
    recorded = Recorded.read(runtime.ledger, runtime.landing, listing, source, projects, (first, last), settings)
    requested = [Slice(day, project) for day in request.days for project in projects]
    plans = plan_batches(
        source,
        projects,
        request.days,
        listing,
        recorded,
        settings,
        request.now,
        code_version=table.code_version(settings),
        accepted_reasons={key: why for key in requested if (why := request.accepted.get((table.key, key)))},
        read_again=read_again,
    )
    plans = _with_verdicts(runtime, request, source, listing, plans, recorded)
    _log_plans(runtime, table.key, plans, listing, f"arrived {first} to {last}")
    return plans


def _log_plans(
    runtime: Runtime, table_key: str, plans: Mapping[BatchKey, BatchPlan], listing: Listing, arrived: str
) -> None:
    for key, plan in plans.items():
        loss = plan.told_loss(runtime.settings) if plan.accepted_reason is not None else None
        moved = {"are": plan.relocated, "wait in raw until they are": plan.being_relocated}
        relocated = [
            f"{len(keys)} objects were moved to the other prefix and {how} loaded from there"
            for how, keys in moved.items()
            if keys
        ]
        for told in filter(None, (loss, together(*relocated), plan.told_recovery)):
            runtime.log(f"{table_key}: {key} {told}")
    work = [plan for plan in plans.values() if plan.needs_work]
    objects = sum(len(plan.changed) for plan in work)
    runtime.log(
        f"{table_key}: {len(listing.deliveries)} deliveries {arrived}, {objects} new or changed in {len(work)} batches"
    )
    ruled_out = [f"{key} {plan.exclusion_reason}" for key, plan in plans.items() if plan.exclusion_reason]
    log_some(ruled_out, table_key, "batches with excluded objects", runtime.log)
    odd = [f"{one.key} is not loaded: {one.oddity.value}, {one.detail}" for one in listing.odd_objects]
    left_out = Counter(one.oddity.value for one in listing.odd_objects[MOST_NAMED:])
    counts = ", ".join(f"{count:,} {oddity}" for oddity, count in sorted(left_out.items()))
    log_some(odd, table_key, f"objects are not loaded: {counts}", runtime.log)


def _with_verdicts(
    runtime: Runtime,
    request: LoadRequest,
    source: Source,
    listing: Listing,
    plans: Mapping[BatchKey, BatchPlan],
    recorded: Recorded,
) -> dict[BatchKey, BatchPlan]:
    firsts = first_arrivals(runtime.ledger, runtime.settings, request.projects, request.now.date(), listing=listing)
    elsewhere = recorded.delivered_elsewhere(source)

    def judged(plan: BatchPlan) -> BatchPlan:
        verdict = judge_absent(
            plan,
            is_other_source_there=plan.key in elsewhere,
            first_arrival=firsts.get(plan.key.project_id),
            settings=runtime.settings,
            now=request.now,
        )
        return replace(plan, verdict=verdict)

    judged_plans: dict[BatchKey, BatchPlan] = {}
    lacking: list[BatchPlan] = []
    for key, batch in sorted(plans.items()):
        is_delivered = batch.listed or batch.excluded or batch.recorded or batch.refused or batch.hours_unfinished
        # A few markers are no reason to judge a day that nobody requested; a full set says that the day is empty.
        if not (batch.is_requested or is_delivered or batch.is_newly_empty):
            continue
        plan = batch.from_its_start(firsts.get(key.project_id))
        if plan.missing and not plan.is_repeated_refusal:
            figures = BatchFigures(len(plan.listed), (), 0, 0, 0, 0)
            evaluation = reconcile_batch(figures, runtime.settings, plan.missing)
            plan = replace(plan, verdict=(BatchVerdict.REFUSED, plan.with_recovery(evaluation)))
        elif not plan.listed and not plan.recorded:
            plan = judged(plan)
            lacking += [plan] if plan.verdict is None or plan.verdict[0] is not BatchVerdict.ACCEPTED else []
        judged_plans[key] = plan
    # Landing is listed for the other source only if the ledger knows no deliveries of it.
    if lacking:
        delivered, hours_told = _listed_elsewhere(runtime, source, lacking)
        elsewhere |= delivered
        for plan in lacking:
            hours = plan.hours_elsewhere | hours_told.get(plan.key, frozenset())
            judged_plans[plan.key] = judged(replace(plan, hours_elsewhere=hours))
    return judged_plans


def _listed_elsewhere(
    runtime: Runtime, source: Source, lacking: Sequence[BatchPlan]
) -> tuple[set[BatchKey], dict[BatchKey, frozenset[int]]]:
    projects = sorted({plan.key.project_id for plan in lacking})
    days = [plan.key.arrival_date for plan in lacking]
    listing = runtime.landing.list(source.other, projects, min(days), max(days))
    recovering = runtime.ledger.recoveries.hours(projects, min(days), max(days))
    whole = {(marker.batch, marker.hour) for marker in listing.markers}
    whole -= {(batch, hour) for batch, claims in recovering.items() for hour, is_open in claims.items() if is_open}
    delivered = {(found.batch, found.hour) for found in listing.deliveries}
    delivered -= {(batch, hour) for batch, claims in recovering.items() for hour in claims} - whole
    hours: dict[BatchKey, frozenset[int]] = {}
    for batch, hour in delivered | whole:
        key = replace(batch, source=source)
        hours[key] = hours.get(key, frozenset()) | {hour}
    return {replace(batch, source=source) for batch, _ in delivered}, hours


def is_empty_by_setting(project_id: str, day: date, settings: Settings, now: datetime) -> bool:
    """Whether a day without deliveries counts as empty: its deadline has passed, and its project is declared sparse."""
    return project_id in settings.sparse_projects and now > deadline(day, settings)


def judge_absent(
    batch: BatchPlan, *, is_other_source_there: bool, first_arrival: date | None, settings: Settings, now: datetime
) -> tuple[BatchVerdict, Evaluation]:
    """The verdict on a requested batch without deliveries in landing or ledger."""
    day, prior = batch.key.arrival_date, batch.prior
    figures: dict[str, float] = {"objects": 0, "hours_marked": len(batch.hours_marked)}

    def accepted(reason: str | None, **more: int) -> tuple[BatchVerdict, Evaluation]:
        return BatchVerdict.ACCEPTED, Evaluation(Check.DELIVERY_RECONCILES, True, reason, figures={**figures, **more})

    if batch.exclusions:
        return accepted(batch.exclusion_reason, **{EXCLUDED: len(batch.exclusions)})
    is_open = now <= deadline(day, settings)
    is_before_history = first_arrival is not None and day < first_arrival
    is_whole = is_before_history or batch.is_told_whole or (is_other_source_there and batch.partial_hours is None)
    is_lacking = batch.partial_hours is not None or not (is_whole or is_open)
    if batch.accepted_reason is not None and (batch.refused or is_lacking):
        reason = f"accepted without deliveries: {batch.accepted_reason}"
        return accepted(reason, **{MISSING: max(1, len(batch.refused))})
    # Past the horizon raw is the archive: landing may have lost markers or excluded objects.
    is_archived = day < now.date() - timedelta(days=settings.redelivery_horizon_days)
    if prior is not None and (
        (prior.is_loss_accepted and not batch.refused) or (is_archived and prior.verdict is BatchVerdict.ACCEPTED)
    ):
        return BatchVerdict.ACCEPTED, prior.evaluations[0]
    if batch.told_recovery is not None:
        hint, reason = "A load after the end of the recovery takes them", f"{batch.key}: {batch.told_recovery}"
        figures |= {HOURS_UNFINISHED: len(batch.hours_unfinished)}
        return BatchVerdict.WAITING, Evaluation(Check.DELIVERY_RECONCILES, False, reason, hint, figures)
    if is_whole or is_other_source_there:
        return accepted(None)
    if is_empty_by_setting(batch.key.project_id, day, settings, now):
        return accepted("nothing was delivered by the deadline, and the project is declared sparse")
    if is_open:
        waits = together(f"{batch.key}: nothing is delivered yet", batch.told_unplaced)
        hint = "The next load picks it up; the deadline is " + deadline(day, settings).strftime("%Y-%m-%d %H:%M UTC")
        return BatchVerdict.WAITING, Evaluation(Check.DELIVERY_RECONCILES, False, waits, hint, figures)
    where = "at all" if first_arrival is None else "of either source"
    missing = together(f"{batch.key}: no delivery {where}, and the deadline has passed", batch.told_unplaced)
    evaluation = Evaluation(Check.DELIVERY_RECONCILES, False, missing, _NOTHING_CAME, figures)
    return BatchVerdict.REFUSED, batch.with_recovery(evaluation)
