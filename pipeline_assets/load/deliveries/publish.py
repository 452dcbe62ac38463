"""Check staged rows, accept the event days that they change, and report one outcome per requested or changed day."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError, ReadTwiceError
from pipeline_assets.domain.lateness import lateness, out_of_reach
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import BatchDay, InputState, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Verdict, days_by_project
from pipeline_assets.load import file_tasks
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.read import Attempt
from pipeline_assets.load.deliveries.stage import Staged
from pipeline_assets.load.deliveries.verdicts import Judged
from pipeline_assets.load.runtime import DAY_VERDICTS, Outcome, TableReport, standing_outcomes
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.slice_changes import Published as StagedPublication
from resources.ledger.changes import Changes


@dataclass(frozen=True)
class Published:
    """What was accepted into the draft, and what the ledger is to say of it."""

    slices: Mapping[Slice, Digest]
    """Event days that this run accepted by now, its former attempts included."""
    changes: Changes = field(default_factory=Changes)
    """What the ledger is to hold of them and of all batches that were staged."""


def publish(attempt: Attempt, judged: Judged, staged: Staged | None) -> Published:
    """Audit the staged rows and accept the event days that they change into the draft, which the load publishes at its end."""
    if staged is None:
        return Published(attempt.published_before)
    table = attempt.table
    batches = [plan.key for plan in staged.plans]
    before = _batch_days(attempt, batches)
    # Days that a batch held rows of stay on record as touched by it, so that what is derived from them follows.
    audited = file_tasks.batch_days(attempt.runtime, table, staged.snapshot.snapshot_id, batches)
    days = {batch: {**dict.fromkeys(before[batch], BatchDay()), **audited[batch]} for batch in batches}
    for plan in staged.plans:
        _require_parsed_rows(judged, plan, staged.present[plan.key], days[plan.key])
    failpoint(Failpoint.AFTER_AUDIT, table.key)
    changed = {**_changed_slices(before, days), **judged.brought_back}
    # Rows may be of days beyond the reach that this load looked at.
    gone = attempt.runtime.draft.look_at(table, changed.keys() - attempt.losses.found.keys())
    if gone:
        reason = "lost a data file, which shows only where rows are added to it"
        raise ReadTwiceError(f"{table.key} {few(gone)}", reason, "Load the day again")
    changes = Changes(batch_days=days)
    if not changed:
        return Published(attempt.published_before, changes)
    # As of the base: what others publish meanwhile is theirs to tell.
    ledger = attempt.runtime.ledger
    parts: dict[Slice, Mapping[BatchKey, BatchDay]] = {}
    slices: dict[Slice, SliceRecord] = {}
    for project, of_project in days_by_project(changed).items():
        for day, recorded in ledger.batch_days_of(attempt.source, project, sorted(of_project)).items():
            parts[Slice(day, project)] = recorded
        slices |= ledger.slices(table.key, [project], of_project)
    publication = attempt.runtime.draft.accept(staged.snapshot, changed.keys(), is_whole=True)
    return _account(attempt, judged, publication, changed, parts, slices, changes)


def _batch_days(attempt: Attempt, batches: Sequence[BatchKey]) -> dict[BatchKey, dict[date, BatchDay]]:
    """Batch -> event day -> its recorded rows."""
    arrivals = [batch.arrival_date for batch in batches]
    projects = sorted({batch.project_id for batch in batches})
    recorded = attempt.runtime.ledger.batch_days(attempt.source, projects, min(arrivals), max(arrivals))
    return {batch: recorded.get(batch, {}) for batch in batches}


def _require_parsed_rows(
    judged: Judged, plan: BatchPlan, present: Mapping[str, int], days: Mapping[date, BatchDay]
) -> None:
    """Staged rows must be those of the objects left alone and those parsed."""
    replaced, summaries = judged.read.plan.replaced(plan), judged.read.summaries
    expected = sum(rows for key, rows in present.items() if key not in replaced)
    expected += sum(summaries[key].rows for key in replaced if key in summaries)
    staged = sum(part.digest.rows for part in days.values())
    if staged != expected:
        reason = f"{staged} rows are staged but {expected} were parsed"
        raise LakehouseError(str(plan.key), reason, "Nothing was published: report it")


def _changed_slices(
    before: Mapping[BatchKey, Mapping[date, BatchDay]], after: Mapping[BatchKey, Mapping[date, BatchDay]]
) -> dict[Slice, list[BatchKey]]:
    """Event days whose rows changed, or came to lie in other objects or lines, and the batches that did it.

    The latter must be published too: rows left under the key of an object that was withdrawn could never be replaced.
    """
    changed: dict[Slice, list[BatchKey]] = {}
    for batch, days in after.items():
        for day, part in days.items():
            if before[batch].get(day, BatchDay()) != part:
                changed.setdefault(Slice(day, batch.project_id), []).append(batch)
    return changed


def _account(
    attempt: Attempt,
    judged: Judged,
    publication: StagedPublication,
    changed: Mapping[Slice, Sequence[BatchKey]],
    parts_of: Mapping[Slice, Mapping[BatchKey, BatchDay]],
    records: Mapping[Slice, SliceRecord],
    changes: Changes,
) -> Published:
    """The ledger's rows of the published slices, added to `changes`: a slice's digest is the sum of its batch days.

    `parts_of`, `records`: what is on record of these slices.
    """
    table, plan = attempt.table, judged.read.plan
    code = table.code_version(attempt.runtime.settings)
    digests: dict[Slice, Digest] = {}
    for key in sorted(changed):
        parts = dict(parts_of.get(key, {}))
        for batch, audited in changes.batch_days.items():
            if batch.project_id == key.project_id:
                parts[batch] = audited.get(key.event_date, BatchDay())
        digest = sum((part.digest for part in parts.values()), EMPTY)
        prior = records.get(key)
        before = prior.digest if prior else EMPTY
        digests[key] = digest
        changes.slices.append(
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
        plans = [plan.batches[batch] for batch in changed[key]]
        reasons = [
            batch_plan.accepted_reason
            for batch_plan in plans
            if batch_plan.accepted_reason is not None and batch_plan.ruled_out != set(batch_plan.withdrawn)
        ]
        reasons += [
            batch_plan.exclusion_reason
            for batch_plan in plans
            if batch_plan.ruled_out and batch_plan.exclusion_reason is not None
        ]
        cause = CauseKind.DELIVERY if digest != before else CauseKind.SAME_ROWS
        cause = CauseKind.EXCLUSION if any(batch_plan.ruled_out for batch_plan in plans) else cause
        cause = CauseKind.FILES_GONE if key in judged.brought_back else cause
        changes.publications.append(
            PublicationRecord(
                table.key,
                key,
                publication.snapshot_id,
                publication.parent_id,
                before,
                digest,
                Cause.of(cause),
                attempt.request.run_id,
                code_version=code,
                accepted_reason="; ".join(dict.fromkeys(reasons)) or None,
                seconds=round(time.monotonic() - attempt.started_at, 3),
                settings=table.recorded_settings(attempt.runtime.settings),
            )
        )
    changes.head = (table.key, publication.snapshot_id, publication.parent_id)
    return Published({**attempt.published_before, **digests}, changes)


def report(attempt: Attempt, judged: Judged, published: Published) -> TableReport:
    """One outcome per requested day and project, from its batch and its slice; and one per other day that changed."""
    request, table, settings = attempt.request, attempt.table, attempt.runtime.settings
    ledger = attempt.runtime.ledger
    records = ledger.slices(table.key, request.projects, request.days)
    arrived = ledger.batch_days(attempt.source, request.projects, request.first_day, request.last_day)
    outcomes = []
    for plan in (plan for plan in judged.read.plan.batches.values() if plan.is_requested):
        key = Slice(plan.key.arrival_date, plan.key.project_id)
        batch, evaluation = judged.verdicts[plan.key]
        verdict = DAY_VERDICTS[batch]
        if verdict is Verdict.UNCHANGED and key in published.slices:
            verdict = Verdict.PUBLISHED
        is_repeat = _is_repeat(attempt, plan, batch, evaluation)
        record = records.get(key)
        digest = record.digest if record else EMPTY
        full = plan.record(batch, evaluation, settings)
        outcomes.append(
            Outcome(
                table.key,
                key,
                verdict,
                evaluation.reason,
                evaluation.hint,
                is_repeat and not verdict.is_good,
                is_early=batch is BatchVerdict.WAITING and not plan.listed,
                digest=digest,
                evaluations=full.evaluations,
                figures={
                    "rows": digest.rows,
                    **evaluation.figures,
                    **_late(plan.key, arrived.get(plan.key, {}), settings),
                },
            )
        )
    outcomes = [_lost(attempt, one.key, published, one) or one for one in outcomes]
    told = {outcome.key for outcome in outcomes}
    beside = (_lost(attempt, key, published) for key in sorted(attempt.losses.found.keys() - told))
    outcomes.extend(one for one in beside if one is not None)
    outcomes.extend(_refused_in_reach(attempt, judged))
    outcomes.extend(_good_in_reach(attempt, judged, published))
    return TableReport(table.key, tuple(outcomes), seconds=time.monotonic() - attempt.started_at)


def _lost(attempt: Attempt, key: Slice, published: Published, told: Outcome | None = None) -> Outcome | None:
    """The outcome of a slice of which a data file is gone, in place of what its batch says; None for every other slice."""
    loss = attempt.losses.found.get(key)
    if loss is None or key in published.slices:
        return None
    told = told or Outcome(attempt.table.key, key, Verdict.REFUSED, is_requested=False)
    is_repeat = key in attempt.losses.before
    refused = replace(told, verdict=Verdict.REFUSED, reason=loss.reason, hint=loss.hint, evaluations=())
    return replace(refused, is_repeat=is_repeat, is_early=False)


def _late(batch: BatchKey, days: Mapping[date, BatchDay], settings: Settings) -> dict[str, float]:
    """Of the rows that arrived on a day: those after the window of their own day, and those no window is for."""
    arrivals = [(batch.project_id, batch.arrival_date, day, part.digest.rows) for day, part in days.items()]
    late = lateness(arrivals)[""]
    missed = {"rows_beyond_window": late.missed_beyond(settings.reprocessing_window_days)}
    return {**missed, **out_of_reach(arrivals, settings)}


def _refused_in_reach(attempt: Attempt, judged: Judged) -> list[Outcome]:
    """A batch outside the requested days that this run refused is new trouble too."""
    outcomes = []
    for key, plan in judged.read.plan.batches.items():
        verdict, evaluation = judged.verdicts[key]
        is_news = plan.needs_work or plan.missing or _is_of_this_run(attempt, plan)
        if plan.is_requested or verdict is not BatchVerdict.REFUSED or not is_news:
            continue
        outcomes.append(
            Outcome(
                attempt.table.key,
                Slice(key.arrival_date, key.project_id),
                Verdict.REFUSED,
                evaluation.reason,
                evaluation.hint,
                is_repeat=_is_repeat(attempt, plan, verdict, evaluation),
                is_requested=False,
                evaluations=plan.record(verdict, evaluation, attempt.runtime.settings).evaluations,
                figures=evaluation.figures,
            )
        )
    return outcomes


def _good_in_reach(attempt: Attempt, judged: Judged, published: Published) -> list[Outcome]:
    """Days outside the requested ones that late facts changed, or whose refused batch was accepted by this run.

    A late fact changes the slice of a day whose own batch may be refused or be unknown: such a day does not go green.
    """
    recovered = {
        Slice(key.arrival_date, key.project_id)
        for key, plan in judged.read.plan.batches.items()
        if judged.verdicts[key][0] is BatchVerdict.ACCEPTED
        and plan.prior is not None
        and plan.prior.verdict is not BatchVerdict.ACCEPTED
    }
    concerned = sorted(
        key for key in recovered | published.slices.keys() if key.event_date not in set(attempt.request.days)
    )
    days = {key.event_date for key in concerned}
    recorded = standing_outcomes(attempt.runtime.ledger, attempt.table.key, attempt.request.projects, days)
    standing = {outcome.key: outcome for outcome in recorded}
    return [
        replace(
            standing[key],
            verdict=Verdict.PUBLISHED if key in published.slices else Verdict.UNCHANGED,
            is_repeat=False,
            is_requested=False,
            was_good=key not in recovered,
        )
        for key in concerned
        if key in standing and standing[key].verdict.is_good
    ]


def _is_repeat(attempt: Attempt, plan: BatchPlan, verdict: BatchVerdict, evaluation: Evaluation) -> bool:
    prior = plan.prior
    is_same = prior is not None and prior.verdict is verdict and prior.reason == evaluation.reason
    return is_same and not _is_of_this_run(attempt, plan)


def _is_of_this_run(attempt: Attempt, plan: BatchPlan) -> bool:
    """Whether this run wrote the batch's record before it was tried again, so that nobody was told of it yet."""
    return plan.prior is not None and plan.prior.run_id == attempt.request.run_id
