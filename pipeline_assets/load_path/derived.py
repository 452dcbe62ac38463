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
from pipeline_assets.load_path.builds import Audit, Build, build_for
from pipeline_assets.load_path.request import LoadRequest, Outcome, TableReport, Workbench
from pipeline_assets.load_path.settle import settle
from pipeline_assets.load_path.standing import CODE_KEY, Decision, Ground, Todo, decide
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table


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
        decisions = decide(bench, request, table, ground)
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
    return TableReport(table.key, tuple(outcomes), bench.lakehouse.head(table), time.monotonic() - started_at)


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
    build: Build = build_for(step.bench, table, step.pins, sorted(todo))
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
            changed = _judge(step, todo)
            if changed:
                step.publication = lakehouse.publish(staged, changed, step.request.run_id)
        finally:
            lakehouse.drop(staged)
    finally:
        build.release()
    _record(step, sorted(changed))


def _judge(step: _Step, todo: Mapping[Slice, Decision]) -> set[Slice]:
    """Evaluate every check of every staged slice; returns the slices to publish."""
    settings, request, table = step.bench.settings, step.request, step.table
    code = table.code_version(settings)
    changed: set[Slice] = set()
    for key, decision in todo.items():
        audit = step.audits[key]
        prior = decision.record or SliceRecord(table.key, key, Verdict.PUBLISHED)
        # A measure that is not on record (the slice was settled from the table) has nothing to be compared with.
        known = prior.figures if prior.digest != EMPTY else {}
        before = {name: known[name] for name in audit.measures if name in known}
        accepted = request.accept_changes.get(f"{table.key}:{key.event_date.isoformat()}")
        change = explain_change(
            before,
            audit.measures,
            was_final=prior.is_final,
            accepted_reason=accepted,
            cause=decision.cause,
            settings=settings,
        )
        evaluations = (*audit.evaluations, change)
        failed = next((evaluation for evaluation in evaluations if not evaluation.is_passed), None)
        figures = {**audit.figures, "rows_before": prior.digest.rows, "rows_after": audit.digest.rows}
        if failed is not None:
            step.records[key] = replace(
                prior, verdict=Verdict.REFUSED, reason=f"{failed.check.value}: {failed.reason}", cure=failed.cure,
                refused_state={**decision.present, CODE_KEY: code}, refused_evaluations=evaluations,
            )  # fmt: skip
            step.outcomes[key] = _outcome(step, decision, step.records[key], evaluations, figures)
            continue
        is_same = audit.digest == prior.digest
        if not is_same:
            changed.add(key)
        step.records[key] = replace(
            prior, verdict=Verdict.UNCHANGED if is_same else Verdict.PUBLISHED, reason=None, cure=None,
            is_final=decision.is_final, digest=audit.digest, input_state=decision.present, code_version=code,
            refused_state=None, figures=audit.figures, evaluations=evaluations, refused_evaluations=(),
        )  # fmt: skip
        step.outcomes[key] = _outcome(step, decision, step.records[key], evaluations, figures)
    return changed


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
    verdicts = {Todo.KEEP_REFUSED: Verdict.REFUSED, Todo.WAIT: Verdict.WAITING, Todo.HOLD: Verdict.HELD}
    verdict = verdicts[decision.todo]
    cure = {
        Verdict.REFUSED: prior.cure,
        Verdict.WAITING: "It follows as soon as what it waits for is published; recover that first",
        Verdict.HELD: "Release it when the rollback has served its purpose",
    }[verdict]
    record = replace(prior, verdict=verdict, reason=decision.reason, cure=cure)
    is_standing = decision.record is not None and (prior.verdict, prior.reason) == (verdict, decision.reason)
    evaluations = prior.refused_evaluations if verdict is Verdict.REFUSED else ()
    step.records[decision.key] = record
    step.outcomes[decision.key] = replace(
        _outcome(step, decision, record, evaluations, record.figures), is_standing=is_standing
    )


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
                    decisions[key].present,
                    code,
                    accepted,
                    round(time.monotonic() - step.started_at, 3),
                )
            )
        changes.head = (step.table.key, step.publication.snapshot_id, step.publication.parent_id)
    crash_point(CrashPoint.BEFORE_LEDGER, step.table.key)
    step.bench.ledger.record(changes, step.request.run_id)
