"""Check staged rows against what was parsed, accept the event days that changed, and say what the ledger is to hold."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError, ReadTwiceError
from pipeline_assets.domain.input_state import InputState
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import BatchDay, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from pipeline_assets.load import file_tasks
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.read import Attempt
from pipeline_assets.load.deliveries.stage import Staged
from pipeline_assets.load.deliveries.verdicts import Judged
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.slice_change import Published as StagedPublication


@dataclass(frozen=True)
class Published:
    """What was accepted into the draft, and what the ledger is to say of it."""

    slices: Mapping[Slice, Digest]
    """Event days that this run accepted by now, its former attempts included."""
    batch_days: Mapping[BatchKey, Mapping[date, BatchDay]] = field(default_factory=dict)
    """Batch -> event day -> its rows, of all batches that were staged."""
    records: tuple[SliceRecord, ...] = ()
    publications: tuple[PublicationRecord, ...] = ()
    head: tuple[str, int, int | None] | None = None
    """(table, staged snapshot, the snapshot it follows); None where no day changed."""


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
    # As of the base: what others publish meanwhile is theirs to tell.
    standing = _standing(attempt, changed)
    publication = attempt.runtime.draft.accept(staged.snapshot, changed.keys(), is_whole=True) if changed else None
    if publication is None:
        return Published(attempt.published_before, days)
    return _account(attempt, judged, publication, changed, standing, days)


@dataclass(frozen=True)
class _Standing:
    """What is recorded of event days that a step changes."""

    parts: Mapping[Slice, Mapping[BatchKey, BatchDay]]
    slices: Mapping[Slice, SliceRecord]


def _standing(attempt: Attempt, changed: Collection[Slice]) -> _Standing:
    ledger = attempt.runtime.ledger
    parts: dict[Slice, Mapping[BatchKey, BatchDay]] = {}
    slices: dict[Slice, SliceRecord] = {}
    for project in {key.project_id for key in changed}:
        days = sorted(key.event_date for key in changed if key.project_id == project)
        for day, batches in ledger.batch_days_of(attempt.source, project, days).items():
            parts[Slice(day, project)] = batches
        slices |= ledger.slices(attempt.table.key, [project], days)
    return _Standing(parts, slices)


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
    standing: _Standing,
    days: Mapping[BatchKey, Mapping[date, BatchDay]],
) -> Published:
    """Ledger rows of the published slices: a slice's digest is the sum of its batch days."""
    table, plan = attempt.table, judged.read.plan
    code = table.code_version(attempt.runtime.settings)
    digests: dict[Slice, Digest] = {}
    records: list[SliceRecord] = []
    publications: list[PublicationRecord] = []
    for key in sorted(changed):
        parts = dict(standing.parts.get(key, {}))
        for batch, audited in days.items():
            if batch.project_id == key.project_id:
                parts[batch] = audited.get(key.event_date, BatchDay())
        digest = sum((part.digest for part in parts.values()), EMPTY)
        prior = standing.slices.get(key)
        before = prior.digest if prior else EMPTY
        digests[key] = digest
        records.append(
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
        publications.append(
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
    return Published(
        slices={**attempt.published_before, **digests},
        batch_days=days,
        records=tuple(records),
        publications=tuple(publications),
        head=(table.key, publication.snapshot_id, publication.parent_id),
    )
