"""Rebuild stale slices of a derived table: stage, audit in one pass, publish those that pass and differ.

Contains: the derived half of the load path (ARCHITECTURE, One load).
Add here: what every derived table goes through.
Does not contain: the build of any one table (tables/, build_*.py) and whether a slice is stale
(../standing.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from resources.failpoints import Failpoint, failpoint
from resources.iceberg.metadata import SliceFiles
from resources.ledger.records import Changes, PublicationRecord, SliceRecord

from pipeline_assets.domain.retry import tries
from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.build.audit import Build
from pipeline_assets.load.build.aggregate import build_aggregate
from pipeline_assets.load.build.refined import build_refined
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.build.verdicts import judge, stand
from pipeline_assets.load.build.step import DerivedStep
from pipeline_assets.load.build.refined_files import held_files
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.request import LoadRequest, TableReport
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.staleness.decide import (
    SlicePlan,
    Todo,
    decide,
    release_waits,
    resolve,
)
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import AggregateTable, Table

_PIN_TRIES, _FIRST_PAUSE_SECONDS = 8, 0.1
"""A run that is between its commit and its ledger entry needs a moment."""


def rebuild_stale(runtime: Runtime, request: LoadRequest, table: Table, facts: Facts) -> TableReport:
    """Bring the candidate slices of one table up to date with their inputs.

    Slices another writer changed meanwhile are rebuilt from freshly pinned inputs, a bounded number of times; raises
    PublishConflictError when it keeps winning. Slices that were not moved are published at once.
    """
    started_at = time.monotonic()
    for attempt in range(runtime.settings.publish_attempts):
        base_id, pins, decided = _pinned(runtime, request, table, facts)
        decisions, competing = _resolved(runtime, request, table, pins, decided)
        failpoint(Failpoint.AFTER_PIN, table.key)
        name = f"{request.attempt}_{attempt}"
        step = DerivedStep(runtime, request, table, base_id, pins, name, decisions, started_at, competing)
        try:
            _run(step)
        except PublishConflictError as conflict:
            runtime.log(f"{table.key}: {conflict.reason}; building it again")
            if attempt == runtime.settings.publish_attempts - 1:
                raise
            continue
        break
    outcomes = sorted(step.outcomes.values(), key=lambda outcome: (not outcome.is_requested, outcome.key))
    seconds = time.monotonic() - started_at
    return TableReport(table.key, tuple(outcomes), runtime.lakehouse.head(table), seconds, tuple(sorted(step.audits)))


def _pinned(
    runtime: Runtime, request: LoadRequest, table: Table, facts: Facts
) -> tuple[int, dict[str, int], list[SlicePlan]]:
    """The table's own snapshot and those of its upstream, and decisions made on records of exactly these."""
    for _ in tries(_PIN_TRIES, _FIRST_PAUSE_SECONDS):
        # Settled first: what a dead run or a foreign hand changed is stale by now.
        own = {table.key: sync_ledger(runtime, table, request.run_id)}
        pins = {name: sync_ledger(runtime, table_by_key(name), request.run_id) for name in table.upstream}
        decided = decide(runtime, request, table, facts)
        # The records that were read may be newer than the pins: written by a run whose commit came after them.
        if all(_is_head(runtime, name, pin) for name, pin in (own | pins).items()):
            return own[table.key], pins, decided
    raise PublishConflictError(table.key, "what it is built from kept changing", "Load the days again later")


def _is_head(runtime: Runtime, name: str, pin: int) -> bool:
    return runtime.ledger.head(name) == pin == runtime.lakehouse.head(table_by_key(name))


def _resolved(
    runtime: Runtime, request: LoadRequest, table: Table, pins: Mapping[str, int], decisions: Sequence[SlicePlan]
) -> tuple[list[SlicePlan], CompetingRows | None]:
    """The decisions with none left to CHECK: only slices that hold a changed key are built with those that changed.

    And the contested rows, where they were read for that.
    """
    unclear = [decision.key for decision in decisions if decision.todo is Todo.CHECK]
    if not unclear:
        return release_waits(decisions), None
    runtime.log(f"{table.key}: comparing the keys of {len(unclear)} slices with those of their neighbours")
    # With those of the slices to build, which are asked about next.
    competing = CompetingRows(
        runtime, pins, [decision.key for decision in decisions if decision.todo in (Todo.CHECK, Todo.REBUILD)]
    )
    competing_digests = competing.competing_digests(unclear)
    decisions = [
        resolve(runtime, request, table, decision, competing_digests[decision.key]) if decision.todo is Todo.CHECK else decision
        for decision in decisions
    ]
    return release_waits(decisions), competing


def _run(step: DerivedStep) -> None:
    todo = [decision for decision in step.decisions if decision.todo is Todo.REBUILD]
    step.runtime.log(f"{step.table.key}: {len(todo)} of {len(step.decisions)} slices to build")
    for decision in step.decisions:
        if decision.todo is not Todo.REBUILD:
            stand(step, decision)
    if todo:
        _rebuild(step, {decision.key: decision for decision in todo})
    else:
        if step.competing is not None:
            step.competing.release()
        _require_none_held_since(step)
        _record(step, [])


def _rebuild(step: DerivedStep, todo: Mapping[Slice, SlicePlan]) -> None:
    lakehouse, table = step.runtime.lakehouse, step.table
    build = _build(step, todo)
    try:
        staged = lakehouse.stage(
            table,
            step.base_id,
            step.attempt,
            lambda target: _write(step, build, target, todo.keys()),
        )
        try:
            step.audits, step.keys = build.audit(staged.snapshot_id), build.keys
            failpoint(Failpoint.AFTER_AUDIT, table.key)
            changed = judge(step, todo, staged.snapshot_id)
            _require_none_held_since(step)
            if changed:
                step.publication = lakehouse.publish(staged, changed, step.request.run_id)
        finally:
            lakehouse.drop(staged)
    finally:
        build.release()
    _record(step, sorted(changed))


def _write(step: DerivedStep, build: Build, target: str, slices: Collection[Slice]) -> None:
    lakehouse, table = step.runtime.lakehouse, step.table
    if build.write is None:
        lakehouse.replace_slices(table, target, slices, build.rows, is_shuffled=build.is_shuffled)
    else:
        lakehouse.files.replace(table, target, build.write())


def _require_none_held_since(step: DerivedStep) -> None:
    """A person may have held since what was decided on: without a newer commit of it no conflict would show."""
    held = step.runtime.ledger.interventions.holds(step.table.key, step.request.projects)
    if any(decision.key in held and decision.todo is not Todo.HOLD for decision in step.decisions):
        raise PublishConflictError(
            step.table.key, "a person held a day of it meanwhile", "The load looks at the table again"
        )


def _build(step: DerivedStep, todo: Mapping[Slice, SlicePlan]) -> Build:
    if isinstance(step.table, AggregateTable):
        return build_aggregate(step.runtime, step.table, step.pins[REFINED_EVENTS.key], sorted(todo))
    code = step.table.code_version(step.runtime.settings)
    # What other code made, or what was found in the table, is not built upon.
    known = [key for key, found in todo.items() if found.record and _is_as_built(found.record, code)]
    held = held_files(step.runtime, step.base_id, known)
    return build_refined(step.runtime, step.pins, sorted(todo), held, step.competing)


def _is_as_built(record: SliceRecord, code: str) -> bool:
    return record.knows_inputs and record.code_version == code and record.digest != EMPTY


def _record(step: DerivedStep, published: Sequence[Slice]) -> None:
    changes = Changes()
    decisions = {decision.key: decision for decision in step.decisions}
    files: Mapping[Slice, SliceFiles] = step.publication.files if step.publication else {}
    for key, record in sorted(step.records.items()):
        changes.slices.append(replace(record, file_hash=files[key].file_hash) if key in files else record)
    if step.publication is not None:
        code = step.table.code_version(step.runtime.settings)
        for key in published:
            prior = decisions[key].record
            before: Digest = prior.digest if prior else EMPTY
            changes.publications.append(
                PublicationRecord(
                    step.table.key, key, step.publication.snapshot_id, step.publication.parent_id,
                    digest_before=before, digest_after=step.records[key].digest, cause=decisions[key].cause,
                    run_id=step.request.run_id, input_state=step.records[key].input_state, code_version=code,
                    accepted_reason=step.request.accepted.change(step.table.key, key),
                    figures=step.records[key].figures,
                    seconds=round(time.monotonic() - step.started_at, 3),
                )
            )  # fmt: skip
        changes.head = (step.table.key, step.publication.snapshot_id, step.publication.parent_id)
    failpoint(Failpoint.BEFORE_LEDGER, step.table.key)
    step.runtime.ledger.record(changes, step.request.run_id)
