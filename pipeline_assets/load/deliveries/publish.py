"""Stage the rows of batches, check them against what was parsed, publish the event days that changed.

Contains: from parsed rows to a commit of a raw table and its ledger rows.
Add here: how raw is written.
Does not contain: which batches are accepted (read.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.read import Writing, require_unmoved, take_summaries, write_files
from pipeline_assets.load.deliveries.step import RawStep, delete_objects, in_batches
from pipeline_assets.transforms.digests import batch_day_digests, digest_of, lineage_of
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.lakehouse import Staged
from resources.iceberg.swap import Publication
from resources.ledger.records import BatchDay, PublicationRecord, SliceRecord


@dataclass(frozen=True)
class StagedRows:
    """A staged state of raw in which batches hold the rows of their present deliveries."""

    staged: Staged
    plans: tuple[BatchPlan, ...]
    present: Mapping[BatchKey, Mapping[str, int]]
    """Batch -> object -> rows of it in raw before."""


def stage(step: RawStep) -> StagedRows | None:
    """Read the changed objects and stage their rows in one pass, as if every batch were accepted; None where nothing is read.

    Fills `step.summaries`, on which the batches are judged.
    """
    plans = [plan for plan in step.work if step.replaced(plan)]
    if not plans:
        return None
    writing = _writing(step, plans)
    found = _stage(step, plans, writing)
    if writing is not None:
        try:
            take_summaries(step, writing)
        except BaseException:
            step.runtime.lakehouse.drop(found.staged)
            raise
    return found


def without_refused(step: RawStep, found: StagedRows) -> StagedRows | None:
    """The same with accepted batches only: staged once more where some are not, because files may hold rows of both."""
    plans = [plan for plan in step.batches(BatchVerdict.ACCEPTED) if step.replaced(plan)]
    if len(plans) == len(found.plans):
        return found
    step.runtime.lakehouse.drop(found.staged)
    if not plans:
        return None
    writing = _writing(step, plans)
    accepted = _stage(step, plans, writing)
    if writing is not None:
        try:
            require_unmoved(writing)
        except BaseException:
            step.runtime.lakehouse.drop(accepted.staged)
            raise
    return accepted


def _writing(step: RawStep, plans: Sequence[BatchPlan]) -> Writing | None:
    changed = [delivery for plan in plans for delivery in plan.changed if delivery.key not in step.touched]
    return write_files(step, changed) if changed else None


def _stage(step: RawStep, plans: Sequence[BatchPlan], writing: Writing | None) -> StagedRows:
    batches = [plan.key for plan in plans]
    replaced = {plan.key: set(step.replaced(plan)) for plan in plans}
    # Looked up in the table and not in the ledger: a dead run may have left rows that no ledger row tells of.
    present = _objects_in(step, batches)
    old = sorted({key for batch in batches for key in present[batch].keys() & replaced[batch]})
    reach = {Slice(batch.arrival_date, batch.project_id) for batch in batches}

    def write(target: str) -> None:
        if old:
            delete_objects(step.runtime, target, "_arrival_date", "_object_key", reach, old)
        if writing is not None:
            step.runtime.lakehouse.files.append(step.table, target, writing.run())

    step.runtime.log(f"{step.table.key}: staging {sum(map(len, replaced.values()))} objects of {len(plans)} batches")
    staged = step.runtime.lakehouse.stage(step.table, step.base_id, step.attempt, write)
    return StagedRows(staged, tuple(plans), present)


def publish(step: RawStep, found: StagedRows) -> None:
    """Audit the staged rows and publish the event days that they change."""
    lakehouse, table = step.runtime.lakehouse, step.table
    batches = [plan.key for plan in found.plans]
    before = _batch_days(step, batches)
    # Days that a batch held rows of stay on record as touched by it, so that what is derived from them follows.
    audited = _audit(step, found.staged.snapshot_id, batches)
    days = {batch: {**dict.fromkeys(before[batch], BatchDay()), **audited[batch]} for batch in batches}
    for plan in found.plans:
        _require_parsed_rows(step, plan, found.present[plan.key], days[plan.key])
    failpoint(Failpoint.AFTER_AUDIT, table.key)
    changed = _changed_slices(before, days)
    # As of the base: what others publish beside this commit, or on top of it, is theirs to tell.
    standing = _standing(step, changed)
    publication = lakehouse.publish(found.staged, changed.keys(), step.request.run_id) if changed else None
    if publication is not None and not publication.is_empty:
        _account(step, publication, changed, standing, days)
    step.changes.batch_days.update(days)


@dataclass(frozen=True)
class _Standing:
    """What is recorded of event days that a step changes."""

    parts: Mapping[Slice, Mapping[BatchKey, BatchDay]]
    slices: Mapping[Slice, SliceRecord]


def _standing(step: RawStep, changed: Collection[Slice]) -> _Standing:
    ledger = step.runtime.ledger
    parts: dict[Slice, Mapping[BatchKey, BatchDay]] = {}
    slices: dict[Slice, SliceRecord] = {}
    for project in {key.project_id for key in changed}:
        days = sorted(key.event_date for key in changed if key.project_id == project)
        for day, batches in ledger.batch_days_of(step.source, project, days).items():
            parts[Slice(day, project)] = batches
        slices |= ledger.slices(step.table.key, [project], days)
    return _Standing(parts, slices)


def _objects_in(step: RawStep, batches: Sequence[BatchKey]) -> dict[BatchKey, dict[str, int]]:
    """Batch -> object -> rows of it in raw now."""
    found: dict[BatchKey, dict[str, int]] = {batch: {} for batch in batches}
    arrivals = {Slice(batch.arrival_date, batch.project_id) for batch in batches}
    if not step.runtime.lakehouse.may_hold(step.table, step.base_id, "_arrival_date", arrivals):
        return found
    base = step.runtime.lakehouse.read(step.table, step.base_id)
    rows = base.where(in_batches(batches, None, "_arrival_date"))
    counted = rows.groupBy("project_id", "_arrival_date", "_object_key").count().collect()
    for row in counted:
        found[BatchKey(step.source, row["project_id"], row["_arrival_date"])][row["_object_key"]] = row["count"]
    return found


def _audit(step: RawStep, snapshot_id: int, batches: Sequence[BatchKey]) -> dict[BatchKey, dict[date, BatchDay]]:
    """Batch -> event day -> its staged rows."""
    staged = step.runtime.lakehouse.read(step.table, snapshot_id)
    measured = batch_day_digests(staged.where(in_batches(batches, None, "_arrival_date")), None)
    days: dict[BatchKey, dict[date, BatchDay]] = {batch: {} for batch in batches}
    for row in measured.collect():
        batch = BatchKey(step.source, row["project_id"], row["_arrival_date"])
        days[batch][row["event_date"]] = BatchDay(digest_of(row.asDict()), lineage_of(row.asDict()))
    return days


def _batch_days(step: RawStep, batches: Sequence[BatchKey]) -> dict[BatchKey, dict[date, BatchDay]]:
    """Batch -> event day -> its recorded rows."""
    arrivals = [batch.arrival_date for batch in batches]
    projects = sorted({batch.project_id for batch in batches})
    recorded = step.runtime.ledger.batch_days(step.source, projects, min(arrivals), max(arrivals))
    return {batch: recorded.get(batch, {}) for batch in batches}


def _require_parsed_rows(
    step: RawStep, plan: BatchPlan, present: Mapping[str, int], days: Mapping[date, BatchDay]
) -> None:
    """Staged rows must be those of the objects left alone and those parsed."""
    replaced = step.replaced(plan)
    expected = sum(rows for key, rows in present.items() if key not in replaced)
    expected += sum(step.summaries[key].rows for key in replaced if key in step.summaries)
    found = sum(part.digest.rows for part in days.values())
    if found != expected:
        reason = f"{found} rows are staged but {expected} were parsed"
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
    step: RawStep,
    publication: Publication,
    changed: Mapping[Slice, Sequence[BatchKey]],
    standing: _Standing,
    days: Mapping[BatchKey, Mapping[date, BatchDay]],
) -> None:
    """Ledger rows of the published slices: a slice's digest is the sum of its batch days."""
    table = step.table
    code = table.code_version(step.runtime.settings)
    for key in sorted(changed):
        parts = dict(standing.parts.get(key, {}))
        for batch, measured in days.items():
            if batch.project_id == key.project_id:
                parts[batch] = measured.get(key.event_date, BatchDay())
        digest = sum((part.digest for part in parts.values()), EMPTY)
        prior = standing.slices.get(key)
        before = prior.digest if prior else EMPTY
        step.published[key] = digest
        step.changes.slices.append(
            SliceRecord(
                table.key, key, Verdict.PUBLISHED, digest=digest, file_hash=publication.files[key].file_hash,
                input_state={}, code_version=code, figures={"rows": digest.rows},
                read_hash=prior.read_hash if prior else None,
            )
        )  # fmt: skip
        plans = [step.plans[batch] for batch in changed[key]]
        reasons = [
            plan.accepted_reason
            for plan in plans
            if plan.accepted_reason is not None and plan.ruled_out != set(plan.withdrawn)
        ]
        reasons += [plan.exclusion_reason for plan in plans if plan.ruled_out and plan.exclusion_reason is not None]
        cause = "delivery" if digest != before else "the same rows, in other objects or lines"
        cause = "exclusion" if any(plan.ruled_out for plan in plans) else cause
        step.changes.publications.append(
            PublicationRecord(
                table.key, key, publication.snapshot_id, publication.parent_id, before, digest, cause,
                step.request.run_id, code_version=code, accepted_reason="; ".join(dict.fromkeys(reasons)) or None,
                seconds=round(time.monotonic() - step.started_at, 3),
            )
        )  # fmt: skip
    step.changes.head = (table.key, publication.snapshot_id, publication.parent_id)
