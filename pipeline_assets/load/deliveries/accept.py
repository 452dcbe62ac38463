"""Accept deliveries into a raw table: read what changed, judge each batch, accept the event days it changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from pipeline_assets.domain.checks import lost_file
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import ReadTwiceError
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict, days_by_project
from pipeline_assets.load.deliveries.arrivals import plan_arrivals
from pipeline_assets.load.deliveries.publish import judge, publish, report
from pipeline_assets.load.deliveries.read import Attempt, Losses, hashes_of, quarantine, read_and_stage, stage_accepted
from pipeline_assets.load.deliveries.snapshots import versions_of
from pipeline_assets.load.draft import LoadRuntime
from pipeline_assets.load.runtime import LoadRequest, TableReport
from pipeline_assets.tables.events import QUARANTINE, RAW_TABLES
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.metadata import slices_condition
from resources.ledger.changes import BatchAsRead


def accept_deliveries(runtime: LoadRuntime, request: LoadRequest, source: Source) -> TableReport:
    """Load deliveries in reach of the requested days. Raises ReadTwiceError if objects keep changing between readings."""
    table = RAW_TABLES[source]
    started_at = time.monotonic()
    may_list_again, moves, losses = True, 0, Losses()
    published: dict[Slice, Digest] = {}
    while True:
        base_id = runtime.draft.pin(table)
        losses, again = _losses(runtime, request, source, losses if not may_list_again else None)
        name = runtime.draft.next_attempt()
        plans = plan_arrivals(runtime, request, source, again if request.is_read_again else {})
        attempt = Attempt(
            runtime, request, source, table, base_id, name, started_at, may_list_again, losses, plans, published
        )
        failpoint(Failpoint.AFTER_PIN, table.key)
        try:
            _skip_known_bytes(attempt)
            runtime.new_bytes.add(sum(delivery.size_bytes for delivery in attempt.to_parse(attempt.work)))
            read_and_stage(attempt)
            attempt.verdicts = judge(attempt.batches, attempt.summaries, attempt.details, runtime.settings)
            if attempt.staged is not None:
                if losses.found:
                    _wait_beside_lost(attempt)
                stage_accepted(attempt)
            quarantine(attempt)
            publish(attempt)
        except ReadTwiceError as moved:
            moves += 1
            if moves == runtime.settings.publish_attempts:
                raise
            runtime.log(f"{table.key}: {moved.subject} {moved.reason}; reading it again")
            continue
        finally:
            attempt.drop()
        published = attempt.published
        _record(attempt)
        if not (may_list_again and attempt.judged(BatchVerdict.MOVED)):
            return report(attempt)
        runtime.log(f"{table.key}: objects changed while they were read; listing again")
        may_list_again = False


def _losses(
    runtime: LoadRuntime, request: LoadRequest, source: Source, former: Losses | None
) -> tuple[Losses, dict[BatchKey, bool]]:
    """Slices of a raw table that lack files, and the batches to read again for them -> whether the files held their rows."""
    table, ledger = RAW_TABLES[source], runtime.ledger
    rows, lines = runtime.draft.lost(table), {}
    for key, path in runtime.draft.lost(QUARANTINE).items():
        day = key.event_date
        if BatchKey(source, key.project_id, day) in ledger.batches([key.project_id], day, day):
            lines[key] = path
    lost = {key: lost_file(table.key, key, path) for key, path in (lines | rows).items()}
    if not lost:
        return Losses(), {}
    before = former.before if former is not None else frozenset[Slice]()
    if former is None:
        known = ledger.slices(table.key, request.projects, {key.event_date for key in lost})
        before = frozenset(key for key, record in known.items() if record.loss == lost.get(key))
    holding = {
        Slice(day, project): {batch for batch, part in batches.items() if part.digest != EMPTY}
        for project, days in days_by_project(lost).items()
        for day, batches in ledger.batch_days_of(source, project, sorted(days)).items()
    }
    for key in lines:
        # Refused lines are filed under the arrival day of their batch.
        holding.setdefault(key, set()).add(BatchKey(source, key.project_id, key.event_date))
    of_rows = {batch for key in rows for batch in holding.get(key, ())}
    again = {batch: batch in of_rows for batches in holding.values() for batch in batches}
    return Losses(lost, before, frozenset(lines), holding), again


def _wait_beside_lost(attempt: Attempt) -> None:
    assert attempt.staged is not None
    table, lost = attempt.table, attempt.losses.found
    holding = {key: set(attempt.losses.holding.get(key, ())) for key in lost}
    known = {key for key, batches in holding.items() if batches}
    staged = attempt.runtime.lakehouse.read(table, attempt.staged.snapshot_id).where(slices_condition(table, lost))
    for row in staged.select(table.day_column, "project_id", "_arrival_date").distinct().collect():
        batch = BatchKey(attempt.source, row["project_id"], row["_arrival_date"])
        holding[Slice(row[table.day_column], row["project_id"])].add(batch)
    accepted = {plan.key for plan in attempt.judged(BatchVerdict.ACCEPTED)}
    # Rows of objects moved to the other prefix come back with that source's next load.
    able = {key for key in accepted if not attempt.batches[key].being_relocated}
    whole, waiting = brought_back(holding, able if attempt.request.is_read_again else set())
    for batch in waiting & accepted:
        key = min(key for key in holding.keys() - whole if batch in holding[key])
        loss, evaluation = lost[key], attempt.verdicts[batch][1]
        reason = f"brings rows to {table.key} {key}: {loss.reason}"
        waits = replace(evaluation, is_passed=False, reason=reason, hint=loss.hint)
        attempt.verdicts[batch] = BatchVerdict.WAITING, waits
    attempt.brought_back = {key: sorted(holding[key]) for key in whole & known}


def brought_back(
    holding: Mapping[Slice, AbstractSet[BatchKey]], able: AbstractSet[BatchKey]
) -> tuple[set[Slice], set[BatchKey]]:
    """The lost slices with all their batches in `able`, and the batches to refuse since a slice of theirs stays incomplete."""
    whole = {key for key, batches in holding.items() if batches}
    while broken := {key for key in whole if not holding[key] <= able}:
        whole -= broken
        able = able - {batch for key in broken for batch in holding[key]}
    return whole, {batch for key, batches in holding.items() if key not in whole for batch in batches}


def _record(attempt: Attempt) -> None:
    runtime, changes = attempt.runtime, attempt.changes
    for key, plan in attempt.batches.items():
        verdict, evaluation = attempt.verdicts[key]
        if attempt.may_list_again and verdict is BatchVerdict.MOVED:
            continue
        changes.batches.append(plan.record(verdict, evaluation, runtime.settings))
        prior, accepted = plan.prior, {name: one.etag for name, one in plan.recorded.items()}
        judgement = None if prior is None else (prior.verdict.value, prior.input_state)
        changes.read_batches[key] = BatchAsRead(accepted, judgement, versions_of(plan.exclusions))
        if not plan.needs_work or verdict is BatchVerdict.MOVED:
            continue
        if evaluation.figures.get("quarantined_lines"):
            runtime.log(f"{attempt.table.key}: {key}: {evaluation.reason}")
        is_accepted = verdict is BatchVerdict.ACCEPTED
        for delivery in plan.changed:
            is_held = is_accepted or delivery.key in attempt.touched
            changes.deliveries.append(replace(attempt.summaries[delivery.key], is_accepted=is_held))
        if is_accepted:
            changes.forgotten_deliveries.extend((key, gone) for gone in plan.withdrawn)
        replaced = plan.refused if is_accepted else plan.stale_refusals
        changes.forgotten_refusals.extend((key, gone) for gone in replaced)
    days = {*attempt.request.days, *(key.event_date for key in attempt.losses.found)}
    standing = runtime.ledger.slices(attempt.table.key, attempt.request.projects, days)
    for record in (record for key, record in standing.items() if key not in attempt.published):
        loss = attempt.losses.found.get(record.key)
        if loss is not None:
            refused = replace(record, verdict=Verdict.REFUSED, reason=loss.reason, hint=loss.hint)
            changes.slices.append(replace(refused, refused_evaluations=(loss,)))
        elif record.verdict is Verdict.PUBLISHED or record.loss is not None:
            changes.slices.append(
                replace(record, verdict=Verdict.UNCHANGED, reason=None, hint=None, refused_evaluations=())
            )
    runtime.draft.record(attempt.table, changes)


def _skip_known_bytes(attempt: Attempt) -> None:
    work, log = attempt.work, attempt.runtime.log
    changed = {delivery.key: (plan, delivery) for plan in work for delivery in plan.changed}
    excluded = {
        key: plan.exclusions[key]
        for key, (plan, _) in changed.items()
        if any(one.sha256 is not None for one in plan.exclusions.get(key, ()))
    }
    loaded = {
        key: sha256
        for plan in work
        for key, sha256 in plan.known_bytes.items()
        if changed[key][1].size_bytes == plan.recorded[key].size_bytes
    }
    if not (excluded or loaded):
        return
    again: list[Exclusion] = []
    for key, sha256 in hashes_of(attempt, [changed[key][1] for key in excluded.keys() | loaded.keys()]).items():
        plan, delivery = changed[key]
        same = [one for one in excluded.get(key, ()) if one.sha256 == sha256]
        if same:
            again.append(replace(same[-1], etag=delivery.etag))
            attempt.batches[plan.key] = attempt.batches[plan.key].without(again[-1])
        elif loaded.get(key) == sha256:
            attempt.touched[key] = replace(plan.recorded[key], etag=delivery.etag, size_bytes=delivery.size_bytes)
    if again:
        attempt.runtime.ledger.interventions.exclude(again, attempt.request.run_id)
        log(f"{attempt.table.key}: {len(again)} excluded objects came again with the same bytes")
    if attempt.touched:
        log(f"{attempt.table.key}: {len(attempt.touched)} objects have the bytes already loaded; only hashed")
