"""Rebuild stale slices of a derived table: stage, audit in one pass, publish those that pass and differ.

Contains: the derived half of the load path (ARCHITECTURE, One load).
Add here: what every derived table goes through.
Does not contain: the build of any kind of table (refined.py, aggregate.py) and whether a slice is stale
(staleness/decide.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.records import Head, PublicationRecord
from pipeline_assets.domain.retry import tries
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.load.build.audit import Build
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.build.step import JudgedSlice, StagedSlices, TablePlan
from pipeline_assets.load.build.verdicts import judge, stand
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.request import LoadRequest, TableReport
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, release_waits, resolve
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.neighbours import decide_with_neighbours
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.swap import Publication
from resources.ledger.changes import Changes

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
        plan = TablePlan(runtime, request, table, base_id, pins, name, decisions, started_at, competing)
        try:
            judged = _carry_out(plan)
        except PublishConflictError as conflict:
            runtime.log(f"{table.key}: {conflict.reason}; building it again")
            if attempt == runtime.settings.publish_attempts - 1:
                raise
            continue
        break
    outcomes = sorted(
        (judged_slice.outcome for judged_slice in judged), key=lambda outcome: (not outcome.is_requested, outcome.key)
    )
    seconds = time.monotonic() - started_at
    built = tuple(sorted(plan.to_build))
    return TableReport(table.key, tuple(outcomes), runtime.lakehouse.head(table), seconds, built, pins)


def _pinned(
    runtime: Runtime, request: LoadRequest, table: Table, facts: Facts
) -> tuple[int, dict[str, int], list[SlicePlan]]:
    """The table's own snapshot and those of its upstream, and decisions made on records of exactly these."""
    for _ in tries(_PIN_TRIES, _FIRST_PAUSE_SECONDS):
        # Settled first: what a dead run or a foreign hand changed is stale by now.
        own = {table.key: sync_ledger(runtime, table, request.run_id)}
        pins = {name: sync_ledger(runtime, table_by_key(name), request.run_id) for name in table.upstream}
        decided = decide_with_neighbours(
            runtime.ledger,
            facts.reading(runtime.ledger, [table]),
            table,
            request.slices_of(table.kind),
            request.accepted,
            request.now,
        )
        # The records that were read may be newer than the pins: written by a run whose commit came after them.
        if all(_is_head(runtime, name, pin) for name, pin in (own | pins).items()):
            return own[table.key], pins, decided
    raise PublishConflictError(table.key, "what it is built from kept changing", "Load the days again later")


def _is_head(runtime: Runtime, name: str, pin: int) -> bool:
    return runtime.ledger.head(name) == Head(pin) and runtime.lakehouse.head(table_by_key(name)) == pin


def _resolved(
    runtime: Runtime, request: LoadRequest, table: Table, pins: Mapping[str, int], decisions: Sequence[SlicePlan]
) -> tuple[list[SlicePlan], CompetingRows | None]:
    """The decisions with none left to CHECK: only slices that hold a changed key are built with those that changed.

    And the competing rows, where they were read for that.
    """
    unclear = [decision.key for decision in decisions if decision.todo is Todo.CHECK]
    if not unclear:
        return release_waits(decisions), None
    runtime.log(f"{table.key}: comparing the keys of {len(unclear)} slices with those of their neighbours")
    # With those of the slices to build, which are asked about next.
    competing = builder_of(table).competing_rows(
        runtime, pins, [decision.key for decision in decisions if decision.todo in (Todo.CHECK, Todo.REBUILD)]
    )
    competing_digests = competing.competing_digests(unclear)
    decisions = [
        resolve(runtime.settings, table, request.accepted, decision, competing_digests[decision.key])
        if decision.todo is Todo.CHECK
        else decision
        for decision in decisions
    ]
    return release_waits(decisions), competing


def _carry_out(plan: TablePlan) -> list[JudgedSlice]:
    """Build and publish what is to be built, and record every slice."""
    todo = plan.to_build
    plan.runtime.log(f"{plan.table.key}: {len(todo)} of {len(plan.slices)} slices to build")
    standing = [stand(plan, decision) for decision in plan.slices if decision.todo is not Todo.REBUILD]
    if todo:
        return _rebuild(plan, standing)
    if plan.competing is not None:
        plan.competing.release()
    _require_none_held_since(plan)
    _record(plan, standing, None)
    return standing


def _rebuild(plan: TablePlan, standing: Sequence[JudgedSlice]) -> list[JudgedSlice]:
    lakehouse, table, slices = plan.runtime.lakehouse, plan.table, plan.to_build.keys()
    publication: Publication | None = None
    build = builder_of(table).build(plan)
    try:
        files = lakehouse.stage(
            table, plan.base_id, plan.attempt, lambda target: write_build(plan, build, target, slices)
        )
        try:
            staged = StagedSlices(files.snapshot_id, build.audit(files.snapshot_id), build.keys)
            failpoint(Failpoint.AFTER_AUDIT, table.key)
            judged = judge(plan, staged)
            _require_none_held_since(plan)
            changed = {key for key, judged_slice in judged.items() if judged_slice.is_changed}
            if changed:
                publication = lakehouse.publish(files, changed, plan.request.run_id)
        finally:
            lakehouse.drop(files)
    finally:
        build.release()
    every = [*standing, *judged.values()]
    _record(plan, every, publication)
    return every


def write_build(plan: TablePlan, build: Build, target: str, slices: Collection[Slice]) -> None:
    """Write a build over exactly these slices of a branch, which is named as in SQL."""
    lakehouse, table = plan.runtime.lakehouse, plan.table
    if build.write is None:
        lakehouse.replace_slices(table, target, slices, build.rows, is_shuffled=build.is_shuffled)
    else:
        lakehouse.files.replace(table, target, build.write())


def _require_none_held_since(plan: TablePlan) -> None:
    """A person may have held since what was decided on: without a newer commit of it no conflict would show."""
    projects = plan.table.kind.projects(plan.request.projects)
    held = plan.runtime.ledger.interventions.holds(plan.table.key, projects)
    if any(decision.key in held and decision.todo is not Todo.HOLD for decision in plan.slices):
        raise PublishConflictError(
            plan.table.key, "a person held a day of it meanwhile", "The load looks at the table again"
        )


def _record(plan: TablePlan, judged: Sequence[JudgedSlice], publication: Publication | None) -> None:
    changes = Changes()
    files = publication.files if publication else {}
    for record in sorted((judged_slice.record for judged_slice in judged), key=lambda record: record.key):
        is_written = record.key in files
        changes.slices.append(replace(record, file_hash=files[record.key].file_hash) if is_written else record)
    if publication is not None:
        code = plan.table.code_version(plan.runtime.settings)
        decisions = {decision.key: decision for decision in plan.slices}
        published = sorted(
            (judged_slice.record for judged_slice in judged if judged_slice.is_changed), key=lambda record: record.key
        )
        for record in published:
            prior = decisions[record.key].record
            changes.publications.append(
                PublicationRecord(
                    plan.table.key,
                    record.key,
                    publication.snapshot_id,
                    publication.parent_id,
                    digest_before=prior.digest if prior else EMPTY,
                    digest_after=record.digest,
                    cause=decisions[record.key].cause,
                    run_id=plan.request.run_id,
                    input_state=record.input_state,
                    code_version=code,
                    accepted_reason=plan.request.accepted.change(plan.table.key, record.key),
                    figures=record.figures,
                    seconds=round(time.monotonic() - plan.started_at, 3),
                    pins=plan.pins,
                    settings=plan.table.recorded_settings(plan.runtime.settings),
                )
            )
        changes.head = (plan.table.key, publication.snapshot_id, publication.parent_id)
    failpoint(Failpoint.BEFORE_LEDGER, plan.table.key)
    plan.runtime.ledger.record(changes, plan.request.run_id)
