"""Rebuild stale slices of a derived table: stage, audit in one pass, publish those that pass and differ.

Lives here: the derived half of the load path (DESIGN §5). Put here: what every derived table goes through. Keep out: the
build of any one table (tables/, load_path/builds.py) and whether a slice is stale (load_path/standing.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from resources.crash_points import CrashPoint, crash_point
from resources.lakehouse import Publication, SliceFiles
from resources.ledger_records import Changes, PublicationRecord, SliceRecord

from pipeline_assets.domain.checks import Evaluation, explain_change
from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from pipeline_assets.load_path.build import Audit, Build
from pipeline_assets.load_path.build_aggregate import build_aggregate
from pipeline_assets.load_path.build_refined import build_refined, exchanged_keys, rivals_now
from pipeline_assets.load_path.exchange import WAITING_CURE, held_back, links_of, waiting_reason, waits_for
from pipeline_assets.load_path.request import LoadRequest, Outcome, TableReport, Workbench
from pipeline_assets.load_path.settle import settle
from pipeline_assets.load_path.standing import (
    BLOCKED,
    CODE_KEY,
    RIVALS_KEY,
    WAITS_KEY,
    Decision,
    Ground,
    Todo,
    decide,
    release_waits,
    resolve,
)
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import AggregateTable, Table


@dataclass
class _Step:
    """One attempt at one table."""

    bench: Workbench
    request: LoadRequest
    table: Table
    base_id: int
    pins: Mapping[str, int]
    attempt: str
    decisions: Sequence[Decision]
    started_at: float
    audits: dict[Slice, Audit] = field(default_factory=dict)
    publication: Publication | None = None
    records: dict[Slice, SliceRecord] = field(default_factory=dict)
    outcomes: dict[Slice, Outcome] = field(default_factory=dict)


def rebuild_stale(bench: Workbench, request: LoadRequest, table: Table, ground: Ground) -> TableReport:
    """Bring the candidate slices of one table up to date with their inputs.

    Slices another writer changed meanwhile are rebuilt from freshly pinned inputs, a bounded number of times; raises
    PublishConflictError when it keeps winning. Slices that were not moved are published at once.
    """
    started_at = time.monotonic()
    for attempt in range(bench.settings.publish_attempts):
        pins = {name: settle(bench, table_by_key(name), request.run_id) for name in table.upstream}
        base_id = settle(bench, table, request.run_id)
        decisions = _resolved(bench, request, table, pins, decide(bench, request, table, ground))
        name = f"{request.attempt}_{attempt}"
        step = _Step(bench, request, table, base_id, pins, name, decisions, started_at)
        try:
            _run(step)
        except PublishConflictError as conflict:
            bench.say(f"{table.key}: {conflict.reason}; building it again")
            if attempt == bench.settings.publish_attempts - 1:
                raise
            continue
        break
    outcomes = sorted(step.outcomes.values(), key=lambda outcome: (not outcome.is_requested, outcome.key))
    seconds = time.monotonic() - started_at
    return TableReport(table.key, tuple(outcomes), bench.lakehouse.head(table), seconds, tuple(sorted(step.audits)))


def _resolved(
    bench: Workbench, request: LoadRequest, table: Table, pins: Mapping[str, int], decisions: Sequence[Decision]
) -> list[Decision]:
    """The decisions with none left to CHECK: only slices that hold a changed key are built with those that changed."""
    unclear = [decision.key for decision in decisions if decision.todo is Todo.CHECK]
    if unclear:
        bench.say(f"{table.key}: comparing the keys of {len(unclear)} slices with those of their neighbours")
        rivals, code = rivals_now(bench, pins, unclear), table.code_version(bench.settings)
        decisions = [
            resolve(decision, table, request, code, rivals[decision.key]) if decision.todo is Todo.CHECK else decision
            for decision in decisions
        ]
    return release_waits(decisions)


def _run(step: _Step) -> None:
    todo = [decision for decision in step.decisions if decision.todo is Todo.REBUILD]
    step.bench.say(f"{step.table.key}: {len(todo)} of {len(step.decisions)} slices to build")
    for decision in step.decisions:
        if decision.todo is not Todo.REBUILD:
            _stand(step, decision)
    if todo:
        _rebuild(step, {decision.key: decision for decision in todo})
    else:
        _record(step, [])


def _rebuild(step: _Step, todo: Mapping[Slice, Decision]) -> None:
    lakehouse, table = step.bench.lakehouse, step.table
    build = _build(step, sorted(todo))
    try:
        staged = lakehouse.stage(
            table,
            step.base_id,
            step.attempt,
            lambda target: lakehouse.replace_slices(table, target, todo.keys(), build.rows),
        )
        try:
            step.audits = build.audit(staged.snapshot_id)
            crash_point(CrashPoint.AFTER_AUDIT, table.key)
            changed = _judge(step, todo, staged.snapshot_id)
            if changed:
                step.publication = lakehouse.publish(staged, changed, step.request.run_id)
        finally:
            lakehouse.drop(staged)
    finally:
        build.release()
    _record(step, sorted(changed))


def _build(step: _Step, todo: Sequence[Slice]) -> Build:
    if isinstance(step.table, AggregateTable):
        return build_aggregate(step.bench, step.table, step.pins[REFINED_EVENTS.key], todo)
    return build_refined(step.bench, step.pins, todo)


def _judge(step: _Step, todo: Mapping[Slice, Decision], staged_id: int) -> set[Slice]:
    """Evaluate every check of every staged slice; returns the slices to publish."""
    evaluated = {key: (*step.audits[key].evaluations, _change(step, decision)) for key, decision in todo.items()}
    failed = {
        key: failure
        for key, evaluations in evaluated.items()
        if (failure := next((evaluation for evaluation in evaluations if not evaluation.is_passed), None))
    }
    waiting = _held_back(step, todo, staged_id, failed) if step.table.key == REFINED_EVENTS.key else {}
    code = step.table.code_version(step.bench.settings)
    changed: set[Slice] = set()
    for key, decision in todo.items():
        audit, evaluations = step.audits[key], evaluated[key]
        prior = decision.record or SliceRecord(step.table.key, key, Verdict.PUBLISHED)
        present = _present(decision, audit)
        figures = {**audit.figures, "rows_before": prior.digest.rows, "rows_after": audit.digest.rows}
        if key in waiting:
            days = waits_for(waiting[key])
            step.records[key] = replace(
                prior, verdict=Verdict.WAITING, reason=waiting_reason(days), cure=WAITING_CURE,
                refused_state={**present, CODE_KEY: code, WAITS_KEY: days}, refused_evaluations=evaluations,
            )  # fmt: skip
            evaluations = ()
        elif key in failed:
            failure = failed[key]
            step.records[key] = replace(
                prior, verdict=Verdict.REFUSED, reason=_reason(failure), cure=failure.cure,
                refused_state={**present, CODE_KEY: code}, refused_evaluations=evaluations,
            )  # fmt: skip
        else:
            is_same = audit.digest == prior.digest
            if not is_same:
                changed.add(key)
            step.records[key] = replace(
                prior, verdict=Verdict.UNCHANGED if is_same else Verdict.PUBLISHED, reason=None, cure=None,
                is_final=decision.is_final, digest=audit.digest, input_state=present, code_version=code,
                refused_state=None, figures=audit.figures, evaluations=evaluations, refused_evaluations=(),
            )  # fmt: skip
        step.outcomes[key] = _outcome(step, decision, step.records[key], evaluations, figures)
    return changed


def _change(step: _Step, decision: Decision) -> Evaluation:
    prior, measures = decision.record, step.audits[decision.key].measures
    # A measure that is not on record (the slice was settled from the table) has nothing to be compared with.
    known = prior.figures if prior is not None and prior.digest != EMPTY else {}
    return explain_change(
        {name: known[name] for name in measures if name in known},
        measures,
        was_final=prior is not None and prior.is_final,
        accepted_reason=step.request.accept_changes.get(f"{step.table.key}:{decision.key.event_date.isoformat()}"),
        cause=decision.cause,
        settings=step.bench.settings,
    )


def _held_back(
    step: _Step, todo: Mapping[Slice, Decision], staged_id: int, failed: Mapping[Slice, Evaluation]
) -> dict[Slice, tuple[Slice, ...]]:
    """Slice to build -> the blocked slices it shares events with; asked of the tables only where anything is blocked."""
    window = step.bench.settings.dedupe_window_days
    standing = {decision.key for decision in step.decisions if decision.todo is Todo.KEEP}
    blocked = {decision.key for decision in step.decisions if decision.todo in BLOCKED}
    is_near = any(
        one.project_id == other.project_id and abs((one.event_date - other.event_date).days) <= window
        for one in blocked
        for other in todo
    )
    # A key on two days is no fault of this slice where the other day is not built.
    shared = {key for key in failed if step.audits[key].is_on_two_days}
    if not failed and not is_near:
        return {}
    exchanged = exchanged_keys(step.bench, step.pins, step.base_id, staged_id, sorted(todo))
    foreign = {key for pair in exchanged for key in pair if key not in todo and key not in standing}
    blocked |= foreign | (failed.keys() - shared)
    waiting = held_back(links_of(exchanged, blocked, todo.keys()), blocked)
    if shared - waiting.keys():
        blocked |= shared - waiting.keys()
        waiting = held_back(links_of(exchanged, blocked, todo.keys()), blocked)
    return {key: tied for key, tied in waiting.items() if key in todo}


def _present(decision: Decision, audit: Audit) -> dict[str, str]:
    return {**decision.present, RIVALS_KEY: audit.rivals} if audit.rivals is not None else dict(decision.present)


def _reason(failure: Evaluation) -> str:
    return f"{failure.check.value}: {failure.reason}"


def _stand(step: _Step, decision: Decision) -> None:
    """A slice that is not built: its record keeps the published content and says why."""
    prior = decision.record or SliceRecord(step.table.key, decision.key, Verdict.UNCHANGED)
    if decision.todo is Todo.KEEP:
        record = replace(
            prior, verdict=Verdict.UNCHANGED, reason=None, cure=None, is_final=decision.is_final,
            input_state=decision.present, refused_state=None, refused_evaluations=(),
            code_version=prior.code_version or step.table.code_version(step.bench.settings),
        )  # fmt: skip
        step.records[decision.key] = record
        step.outcomes[decision.key] = _outcome(step, decision, record, record.evaluations, record.figures)
        return
    record = _blocked_record(prior, decision)
    # A decision without a reason rests on what an earlier run found in the same inputs, and told.
    is_standing = decision.reason is None or (prior.verdict, prior.reason) == (record.verdict, record.reason)
    evaluations = prior.refused_evaluations if record.verdict is Verdict.REFUSED else ()
    step.records[decision.key] = record
    step.outcomes[decision.key] = replace(
        _outcome(step, decision, record, evaluations, record.figures), is_standing=is_standing
    )


def _blocked_record(prior: SliceRecord, decision: Decision) -> SliceRecord:
    state = prior.refused_state or {}
    if decision.todo is Todo.HOLD:
        cure = "Release it when the rollback has served its purpose"
        return replace(prior, verdict=Verdict.HELD, reason=decision.reason, cure=cure)
    if decision.todo is Todo.WAIT and decision.reason is not None:
        cure = "It follows as soon as what it waits for is published; recover that first"
        return replace(prior, verdict=Verdict.WAITING, reason=decision.reason, cure=cure)
    # What other days hold may have changed beside the keys that matter; the next comparison is with what they hold now.
    kept = {name: value for name, value in state.items() if name in (CODE_KEY, WAITS_KEY)}
    prior = replace(prior, refused_state={**decision.present, **kept})
    if decision.todo is Todo.WAIT:
        reason = waiting_reason(state[WAITS_KEY])
        return replace(prior, verdict=Verdict.WAITING, reason=reason, cure=WAITING_CURE)
    failure = next(evaluation for evaluation in prior.refused_evaluations if not evaluation.is_passed)
    return replace(prior, verdict=Verdict.REFUSED, reason=_reason(failure), cure=failure.cure)


def _outcome(
    step: _Step,
    decision: Decision,
    record: SliceRecord,
    evaluations: tuple[Evaluation, ...],
    figures: Mapping[str, float],
) -> Outcome:
    return Outcome(
        step.table.key, decision.key, record.verdict, record.reason, record.cure, is_requested=decision.is_requested,
        digest=record.digest, figures={"rows": record.digest.rows, **figures}, evaluations=evaluations,
    )  # fmt: skip


def _record(step: _Step, published: Sequence[Slice]) -> None:
    changes = Changes()
    decisions = {decision.key: decision for decision in step.decisions}
    files: Mapping[Slice, SliceFiles] = step.publication.files if step.publication else {}
    for key, record in sorted(step.records.items()):
        changes.slices.append(replace(record, file_hash=files[key].file_hash) if key in files else record)
    if step.publication is not None:
        code = step.table.code_version(step.bench.settings)
        for key in published:
            prior = decisions[key].record
            before: Digest = prior.digest if prior else EMPTY
            accepted = step.request.accept_changes.get(f"{step.table.key}:{key.event_date.isoformat()}")
            changes.publications.append(
                PublicationRecord(
                    step.table.key,
                    key,
                    step.publication.snapshot_id,
                    step.publication.parent_id,
                    before,
                    step.records[key].digest,
                    decisions[key].cause,
                    step.request.run_id,
                    step.records[key].input_state,
                    code,
                    accepted,
                    round(time.monotonic() - step.started_at, 3),
                )
            )
        changes.head = (step.table.key, step.publication.snapshot_id, step.publication.parent_id)
    crash_point(CrashPoint.BEFORE_LEDGER, step.table.key)
    step.bench.ledger.record(changes, step.request.run_id)
