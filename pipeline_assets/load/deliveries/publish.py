"""Judges each batch, checks staged rows, finds the event days that change, and reports an outcome per day."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import MISSING_HINT, BatchFigures, Evaluation, reconcile_batch
from pipeline_assets.domain.deliveries import NOT_READABLE, BatchKey
from pipeline_assets.domain.errors import LakehouseError, ReadTwiceError
from pipeline_assets.domain.lateness import lateness, out_of_reach
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import (
    EXCLUDED,
    MISSING,
    VANISHED,
    BatchDay,
    DeliveryRecord,
    InputState,
    PublicationRecord,
    SliceRecord,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict, days_by_project
from pipeline_assets.load import file_tasks
from pipeline_assets.load.deliveries.plan import BatchPlan, together, without_successor
from pipeline_assets.load.deliveries.read import Attempt
from pipeline_assets.load.runtime import Outcome, TableReport, standing_outcomes
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.transforms.object_text import MOVED
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.slice_changes import Published
from resources.ledger.changes import Changes

_UNREADABLE = "Restore the object, or the right to read it, or take it out of landing; every load tries again"


def judge(
    plans: Mapping[BatchKey, BatchPlan],
    read: Mapping[str, DeliveryRecord],
    details: Mapping[str, str],
    settings: Settings,
) -> dict[BatchKey, tuple[BatchVerdict, Evaluation]]:
    """The verdict on every batch; `read`, `details`: as in `Attempt`."""
    verdicts = {key: _verdict(plan, read, details, settings) for key, plan in plans.items()}
    losses: dict[BatchKey | None, list[tuple[BatchPlan, tuple[str, ...], int, int]]] = {}
    for key, plan in plans.items():
        keys, lost = loss_of(plan, read, settings)
        if verdicts[key][0] is BatchVerdict.ACCEPTED and lost and plan.accepted_reason is None:
            before = int(plan.prior.vanished_rows) if plan.prior is not None else 0
            held = before + sum(record.rows for record in plan.recorded.values())
            # Batches too small for their own bound share one.
            of = key if held > settings.change_min_rows else None
            losses.setdefault(of, []).append((plan, keys, before + lost, held))
    for of, together_bounded in losses.items():
        lost, held = sum(one[2] for one in together_bounded), sum(one[3] for one in together_bounded)
        most, _ = settings.change_bound(RAW_TABLES[together_bounded[0][0].key.source].key, "rows")
        is_much = lost > held * most and (of is not None or lost > settings.change_min_rows)
        for plan, keys, own, _ in together_bounded:
            verdict, evaluation = verdicts[plan.key]
            figures = {**evaluation.figures, VANISHED: own}
            if is_much:
                figures = {**evaluation.figures, MISSING: len(keys)}
                among = "" if of is not None else f" in {len(together_bounded)} small batches"
                reason = f"rows vanished from landing: {lost} of {held} ({lost / held:.1%}){among}, first {keys[0]}"
                evaluation = replace(evaluation, is_passed=False, reason=reason, hint=MISSING_HINT)
                verdict, evaluation = BatchVerdict.REFUSED, plan.with_recovery(evaluation)
            verdicts[plan.key] = verdict, replace(evaluation, figures=figures)
    return verdicts


def _verdict(
    plan: BatchPlan, read: Mapping[str, DeliveryRecord], details: Mapping[str, str], settings: Settings
) -> tuple[BatchVerdict, Evaluation]:
    if plan.verdict is not None:
        return plan.verdict
    if plan.is_repeated_refusal and plan.prior is not None:
        return BatchVerdict.REFUSED, plan.prior.evaluations[0]
    records = [read.get(key) or plan.recorded[key] for key in sorted(plan.listed)]
    told = {key: f", {detail}" for key, detail in details.items() if detail}
    names = {one.object_key: f"{one.object_key}: {one.error}{told.get(one.object_key, '')}" for one in records}
    missing = () if plan.accepted_reason is not None else without_successor(plan, read, settings)
    evaluation = reconcile_batch(
        BatchFigures(
            objects=len(records),
            unreadable=tuple(names[one.object_key] for one in records if one.error and one.error != MOVED),
            lines=sum(one.lines for one in records),
            rows=sum(one.rows for one in records),
            quarantined=sum(one.quarantined for one in records),
            blank=sum(one.blank for one in records),
            line_reasons=sum((Counter(dict(one.line_reasons)) for one in records), Counter()),
            quarantined_in=tuple(one.object_key for one in records if one.quarantined),
        ),
        settings,
        missing,
    )
    unread = [key for key in names if key in read and read[key].error == NOT_READABLE]
    if unread:
        reason = f"unreadable objects: {len(unread)}, first {names[unread[0]]}"
        refused = replace(evaluation, is_passed=False, reason=reason, hint=_UNREADABLE)
        return BatchVerdict.REFUSED, plan.with_recovery(refused)
    moved = [one.object_key for one in records if one.error == MOVED]
    if moved:
        reason = f"objects changed while they were read: {len(moved)}, first {moved[0]}"
        hint = "The next load reads them again"
        return BatchVerdict.MOVED, Evaluation(evaluation.check, False, reason, hint, evaluation.figures)
    if missing or evaluation.figures["unreadable_objects"] > settings.max_unreadable_objects:
        return BatchVerdict.REFUSED, plan.with_recovery(evaluation)
    if not evaluation.is_passed:
        return BatchVerdict.REFUSED, evaluation
    why, figures = evaluation.reason, dict(evaluation.figures)
    lost, _ = loss_of(plan, read, settings)
    if lost and plan.accepted_reason is not None:
        figures |= {MISSING: len(lost), VANISHED: 0}
        how = "withdrawn" if plan.let_go else "without a readable version"
        why = together(why, f"{len(lost)} {how}: {plan.accepted_reason}")
    if plan.exclusion_reason is not None:
        figures[EXCLUDED] = len(plan.excluded.keys() | plan.ruled_out)
        why = together(why, plan.exclusion_reason)
    if (loss := plan.loss_reason(why)) is not None:
        figures[MISSING] = max(1, len(plan.let_go))
        why = loss
    return BatchVerdict.ACCEPTED, replace(evaluation, reason=why, figures=figures)


def loss_of(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> tuple[tuple[str, ...], int]:
    """Objects that landing lost or holds unreadable, and the rows that their hours lose, less rows delivered in their place."""
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


def publish(attempt: Attempt) -> None:
    """Audit the staged rows and accept the event days that they change into the draft."""
    if attempt.staged is None:
        return
    runtime, table, ledger = attempt.runtime, attempt.table, attempt.runtime.ledger
    batches = [plan.key for plan in attempt.staged_plans]
    arrivals, projects = [batch.arrival_date for batch in batches], sorted({batch.project_id for batch in batches})
    before = ledger.batch_days(attempt.source, projects, min(arrivals), max(arrivals))
    audited = file_tasks.batch_days(runtime, table, attempt.staged.snapshot_id, batches)
    # Days that a batch held rows of stay on record as touched, so that derived slices follow.
    days = {batch: {**dict.fromkeys(before.get(batch, ()), BatchDay()), **audited[batch]} for batch in batches}
    for plan in attempt.staged_plans:
        replaced, read = attempt.replaced(plan), attempt.summaries
        expected = sum(rows for key, rows in attempt.present[plan.key].items() if key not in replaced)
        expected += sum(read[key].rows for key in replaced if key in read)
        staged = sum(part.digest.rows for part in days[plan.key].values())
        if staged != expected:
            reason = f"{staged} rows are staged but {expected} were parsed"
            raise LakehouseError(str(plan.key), reason, "Nothing was published: report it")
    failpoint(Failpoint.AFTER_AUDIT, table.key)
    # Days with moved rows count too: rows under the key of a withdrawn object could never be replaced.
    changed: dict[Slice, list[BatchKey]] = {}
    for batch, of_batch in days.items():
        for day, part in of_batch.items():
            if before.get(batch, {}).get(day, BatchDay()) != part:
                changed.setdefault(Slice(day, batch.project_id), []).append(batch)
    changed |= attempt.brought_back
    gone = runtime.draft.look_at(table, changed.keys() - attempt.losses.found.keys())
    if gone:
        reason = "lost a data file, which shows only where rows are added to it"
        raise ReadTwiceError(f"{table.key} {few(gone)}", reason, "Load the day again")
    attempt.changes = Changes(batch_days=days)
    if not changed:
        return
    parts: dict[Slice, dict[BatchKey, BatchDay]] = {}
    records: dict[Slice, SliceRecord] = {}
    for project, of_project in days_by_project(changed).items():
        for day, recorded in ledger.batch_days_of(attempt.source, project, sorted(of_project)).items():
            parts[Slice(day, project)] = dict(recorded)
        records |= ledger.slices(table.key, [project], of_project)
    publication = runtime.draft.accept(attempt.staged, changed.keys(), is_whole=True)
    for key in sorted(changed):
        own = {
            batch: of.get(key.event_date, BatchDay())
            for batch, of in days.items()
            if batch.project_id == key.project_id
        }
        _account(attempt, publication, key, changed[key], parts.get(key, {}) | own, records.get(key))
    attempt.changes.head = (table.key, publication.snapshot_id, publication.parent_id)


def _account(
    attempt: Attempt,
    publication: Published,
    key: Slice,
    batches: Sequence[BatchKey],
    parts: Mapping[BatchKey, BatchDay],
    prior: SliceRecord | None,
) -> None:
    """Record a published slice, whose digest is the sum of its batch days (`parts`); `batches`: those that changed it."""
    table, settings = attempt.table, attempt.runtime.settings
    before, code = prior.digest if prior else EMPTY, table.code_version(settings)
    digest = attempt.published[key] = sum((part.digest for part in parts.values()), EMPTY)
    attempt.changes.slices.append(
        SliceRecord(
            table.key,
            key,
            Verdict.PUBLISHED,
            digest=digest,
            file_hash=publication.files[key].file_hash,
            input_state=InputState(),
            code_version=code,
            figures={"rows": digest.rows},
            read_hash=prior.read_hash if prior else None,
        )
    )
    plans = [attempt.batches[batch] for batch in batches]
    reasons = [plan.accepted_reason for plan in plans if plan.ruled_out != set(plan.withdrawn)]
    reasons += [plan.exclusion_reason for plan in plans if plan.ruled_out]
    cause = CauseKind.DELIVERY if digest != before else CauseKind.SAME_ROWS
    cause = CauseKind.EXCLUSION if any(plan.ruled_out for plan in plans) else cause
    attempt.changes.publications.append(
        PublicationRecord(
            table.key,
            key,
            publication.snapshot_id,
            publication.parent_id,
            before,
            digest,
            Cause.of(CauseKind.FILES_GONE if key in attempt.brought_back else cause),
            attempt.request.run_id,
            code_version=code,
            accepted_reason="; ".join(dict.fromkeys(filter(None, reasons))) or None,
            seconds=round(time.monotonic() - attempt.started_at, 3),
            settings=table.recorded_settings(settings),
        )
    )


def report(attempt: Attempt) -> TableReport:
    """One outcome per requested day and project, from its batch and slice; and one per other day with news."""
    request, ledger, lost = attempt.request, attempt.runtime.ledger, attempt.losses.found
    plans = {Slice(key.arrival_date, key.project_id): plan for key, plan in attempt.batches.items()}
    days = {key.event_date for key in plans.keys() | attempt.published.keys() | lost.keys()}
    standing = {one.key: one for one in standing_outcomes(ledger, attempt.table.key, request.projects, days)}
    standing |= {key: Outcome(attempt.table.key, key, Verdict.REFUSED) for key in lost.keys() - standing.keys()}
    arrived = ledger.batch_days(attempt.source, request.projects, request.days[0], request.days[-1])
    told = [_told(attempt, one, plans.get(key), arrived) for key, one in standing.items()]
    outcomes = sorted(filter(None, told), key=lambda one: (not one.is_requested, one.key))
    return TableReport(attempt.table.key, tuple(outcomes), seconds=time.monotonic() - attempt.started_at)


def _told(
    attempt: Attempt, one: Outcome, plan: BatchPlan | None, arrived: Mapping[BatchKey, Mapping[date, BatchDay]]
) -> Outcome | None:
    """A day's outcome in this load's report; None without news if nobody requested it. A refused batch keeps its day red."""
    loss, is_published = attempt.losses.found.get(one.key), one.key in attempt.published
    one = replace(one, is_requested=plan is not None and plan.is_requested)
    if loss is not None and not is_published:
        refused = replace(one, verdict=Verdict.REFUSED, reason=loss.reason, hint=loss.hint, evaluations=())
        return replace(refused, is_early=False, is_repeat=one.key in attempt.losses.before)
    is_good, prior = one.verdict.is_good, plan.prior if plan is not None else None
    is_of_this_run = prior is not None and prior.run_id == attempt.request.run_id
    if is_good and is_published:
        one = replace(one, verdict=Verdict.PUBLISHED)
    if plan is None:
        return replace(one, is_repeat=False) if is_good and is_published else None
    verdict, evaluation = attempt.verdicts[plan.key]
    is_same = prior is not None and (prior.verdict, prior.reason) == (verdict, evaluation.reason)
    one = replace(one, is_repeat=is_same and not is_of_this_run and not is_good)
    if plan.is_requested:
        late = rows_late(plan.key, arrived.get(plan.key, {}), attempt.runtime.settings)
        return replace(one, figures={**one.figures, **late})
    if not is_good:
        is_news = plan.needs_work or plan.missing or is_of_this_run
        return one if verdict is BatchVerdict.REFUSED and is_news else None
    is_recovered = prior is not None and prior.verdict is not BatchVerdict.ACCEPTED
    return replace(one, was_good=not is_recovered) if is_recovered or is_published else None


def rows_late(batch: BatchKey, days: Mapping[date, BatchDay], settings: Settings) -> dict[str, float]:
    """Figures of a batch's rows that arrived late; `days`: event day -> its rows."""
    arrivals = [(batch.project_id, batch.arrival_date, day, part.digest.rows) for day, part in days.items()]
    missed = {"rows_beyond_window": lateness(arrivals)[""].missed_beyond(settings.reprocessing_window_days)}
    return {**missed, **out_of_reach(arrivals, settings)}
