"""Check staged rows, accept the event days that they change, and report one outcome per requested or changed day."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError, ReadTwiceError
from pipeline_assets.domain.lateness import lateness, out_of_reach
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import BatchDay, InputState, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict, days_by_project
from pipeline_assets.load import file_tasks
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.read import Attempt
from pipeline_assets.load.runtime import Outcome, TableReport, standing_outcomes
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.slice_changes import Published
from resources.ledger.changes import Changes


def publish(attempt: Attempt) -> None:
    """Audit the staged rows and accept the event days that they change into the draft, which the load publishes at its end."""
    if attempt.staged is None:
        return
    runtime, table, ledger = attempt.runtime, attempt.table, attempt.runtime.ledger
    batches = [plan.key for plan in attempt.staged_plans]
    arrivals, projects = [batch.arrival_date for batch in batches], sorted({batch.project_id for batch in batches})
    before = ledger.batch_days(attempt.source, projects, min(arrivals), max(arrivals))
    audited = file_tasks.batch_days(runtime, table, attempt.staged.snapshot_id, batches)
    # Days that a batch held rows of stay on record as touched by it, so that what is derived from them follows.
    days = {batch: {**dict.fromkeys(before.get(batch, ()), BatchDay()), **audited[batch]} for batch in batches}
    for plan in attempt.staged_plans:
        _require_parsed_rows(attempt, plan, days[plan.key])
    failpoint(Failpoint.AFTER_AUDIT, table.key)
    # Also days whose rows came to lie in other objects or lines: rows left under the key of a withdrawn object could never be
    # replaced.
    changed: dict[Slice, list[BatchKey]] = {}
    for batch, of_batch in days.items():
        for day, part in of_batch.items():
            if before.get(batch, {}).get(day, BatchDay()) != part:
                changed.setdefault(Slice(day, batch.project_id), []).append(batch)
    changed |= attempt.brought_back
    # Rows may be of days beyond the reach that this load looked at.
    gone = runtime.draft.look_at(table, changed.keys() - attempt.losses.found.keys())
    if gone:
        reason = "lost a data file, which shows only where rows are added to it"
        raise ReadTwiceError(f"{table.key} {few(gone)}", reason, "Load the day again")
    attempt.changes = Changes(batch_days=days)
    if not changed:
        return
    # As of the base: what others publish meanwhile is theirs to tell.
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


def _require_parsed_rows(attempt: Attempt, plan: BatchPlan, days: Mapping[date, BatchDay]) -> None:
    """Staged rows must be those of the objects left alone and those parsed."""
    replaced, summaries = attempt.replaced(plan), attempt.summaries
    expected = sum(rows for key, rows in attempt.present[plan.key].items() if key not in replaced)
    expected += sum(summaries[key].rows for key in replaced if key in summaries)
    staged = sum(part.digest.rows for part in days.values())
    if staged != expected:
        reason = f"{staged} rows are staged but {expected} were parsed"
        raise LakehouseError(str(plan.key), reason, "Nothing was published: report it")


def _account(
    attempt: Attempt,
    publication: Published,
    key: Slice,
    batches: Sequence[BatchKey],
    parts: Mapping[BatchKey, BatchDay],
    prior: SliceRecord | None,
) -> None:
    """The ledger's rows of a published slice, whose digest is the sum of its batch days (`parts`).

    `batches`: those that changed it; `prior`: what is on record of it.
    """
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
    """One outcome per requested day and project, from its batch and its slice; and one per other day with news."""
    request, ledger, lost = attempt.request, attempt.runtime.ledger, attempt.losses.found
    plans = {Slice(key.arrival_date, key.project_id): plan for key, plan in attempt.batches.items()}
    days = {key.event_date for key in plans.keys() | attempt.published.keys() | lost.keys()}
    standing = {one.key: one for one in standing_outcomes(ledger, attempt.table.key, request.projects, days)}
    standing |= {key: Outcome(attempt.table.key, key, Verdict.REFUSED) for key in lost.keys() - standing.keys()}
    told = [_told(attempt, one, plans.get(key)) for key, one in standing.items()]
    outcomes = sorted(filter(None, told), key=lambda one: (not one.is_requested, one.key))
    return TableReport(attempt.table.key, tuple(outcomes), seconds=time.monotonic() - attempt.started_at)


def _told(attempt: Attempt, one: Outcome, plan: BatchPlan | None) -> Outcome | None:
    """The outcome of a day as this load tells it; None if nobody asked for the day and nothing of it is new.

    A late fact changes the slice of a day whose own batch may be refused or be unknown: such a day does not go green.
    """
    loss, is_published = attempt.losses.found.get(one.key), one.key in attempt.published
    one = replace(one, is_requested=plan is not None and plan.is_requested)
    if loss is not None and not is_published:
        refused = replace(one, verdict=Verdict.REFUSED, reason=loss.reason, hint=loss.hint, evaluations=())
        return replace(refused, is_early=False, is_repeat=one.key in attempt.losses.before)
    is_good, prior = one.verdict.is_good, plan.prior if plan is not None else None
    # What this run wrote before it was tried again, nobody was told of yet.
    is_of_this_run = prior is not None and prior.run_id == attempt.request.run_id
    if is_good and is_published:
        one = replace(one, verdict=Verdict.PUBLISHED)
    if plan is None:
        return replace(one, is_repeat=False) if is_good and is_published else None
    verdict, evaluation = attempt.verdicts[plan.key]
    is_same = prior is not None and (prior.verdict, prior.reason) == (verdict, evaluation.reason)
    one = replace(one, is_repeat=is_same and not is_of_this_run and not is_good)
    if plan.is_requested:
        return replace(one, figures={**one.figures, **_late(attempt, plan.key)})
    if not is_good:
        is_news = plan.needs_work or plan.missing or is_of_this_run
        return one if verdict is BatchVerdict.REFUSED and is_news else None
    is_recovered = prior is not None and prior.verdict is not BatchVerdict.ACCEPTED
    return replace(one, was_good=not is_recovered) if is_recovered or is_published else None


def _late(attempt: Attempt, batch: BatchKey) -> dict[str, float]:
    """Of the rows that arrived on a day: those after the window of their own day, and those no window is for."""
    settings, day = attempt.runtime.settings, batch.arrival_date
    days = attempt.runtime.ledger.batch_days(attempt.source, [batch.project_id], day, day).get(batch, {})
    arrivals = [(batch.project_id, day, event_day, part.digest.rows) for event_day, part in days.items()]
    late = lateness(arrivals)[""]
    missed = {"rows_beyond_window": late.missed_beyond(settings.reprocessing_window_days)}
    return {**missed, **out_of_reach(arrivals, settings)}
