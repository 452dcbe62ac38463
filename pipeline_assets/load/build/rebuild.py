"""Rebuilds stale slices of a derived table: stages them, audits them in one pass, accepts those that pass and differ."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline_assets.domain.errors import PublishConflictError, UsageError
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.retry import tries
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.build.aggregate import AggregateBuilder, AsOfBuilder
from pipeline_assets.load.build.builder import Build, Builder, JudgedSlice, StagedSlices, TablePlan
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.build.refined import RefinedBuilder
from pipeline_assets.load.build.snapshot import SnapshotBuilder
from pipeline_assets.load.build.validity import ValidityBuilder
from pipeline_assets.load.build.verdicts import judge, stand
from pipeline_assets.load.deliveries.snapshots import versions_of
from pipeline_assets.load.draft import Draft, LoadRuntime
from pipeline_assets.load.runtime import LoadRequest, TableReport
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, await_lost, release_waits, resolve
from pipeline_assets.load.staleness.facts import Facts, rests_on
from pipeline_assets.load.staleness.scan import decide_with_neighbours
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import AGGREGATE, AS_OF, REFINED, SNAPSHOT, VALIDITY, Table, TableKind
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.slice_changes import Published
from resources.ledger.changes import Changes

BUILDERS: dict[TableKind, type[Builder[Any]]] = {
    REFINED: RefinedBuilder,
    AGGREGATE: AggregateBuilder,
    SNAPSHOT: SnapshotBuilder,
    VALIDITY: ValidityBuilder,
    AS_OF: AsOfBuilder,
}


def builder_of(table: Table) -> Builder[Any]:
    """The builder of a derived table; raises UsageError for a table of a kind without a builder."""
    builder = BUILDERS.get(table.kind)
    if builder is None:
        reason = f"is a {table.kind.name} table, which nothing builds"
        raise UsageError(table.key, reason, f"Built are {', '.join(kind.name for kind in BUILDERS)} tables")
    return builder(table)


_PIN_TRIES, _FIRST_PAUSE_SECONDS = 8, 0.1
"""Another run may publish between pins and records; with a ledger outside the catalog, it records its commit a moment later."""


def rebuild_stale(runtime: LoadRuntime, request: LoadRequest, table: Table, facts: Facts) -> TableReport:
    """Bring the candidate slices of one table up to date with their inputs, which include this load's own changes.

    Slices that pass are accepted into the load's draft. Raises PublishConflictError if other writers keep changing the inputs.
    """
    started_at = time.monotonic()
    base_id, pins, decided = _pinned(runtime, request, table, facts)
    decisions, competing = _resolved(runtime, request, table, pins, decided)
    failpoint(Failpoint.AFTER_PIN, table.key)
    name = runtime.draft.next_attempt()
    exclusions = None if facts.exclusions is None else versions_of(facts.exclusions)
    plan = TablePlan(
        runtime, request, table, base_id, pins, name, decisions, started_at, competing, exclusions=exclusions
    )
    judged = _carry_out(plan, runtime.draft)
    outcomes = sorted(
        (judged_slice.outcome for judged_slice in judged), key=lambda outcome: (not outcome.is_requested, outcome.key)
    )
    seconds = time.monotonic() - started_at
    built = tuple(sorted(plan.to_build))
    return TableReport(table.key, tuple(outcomes), None, seconds, built, pins)


def _pinned(
    runtime: LoadRuntime, request: LoadRequest, table: Table, facts: Facts
) -> tuple[int, dict[str, int], list[SlicePlan]]:
    """The snapshots of the table and of its upstream tables, and decisions based on records of exactly these snapshots."""
    for _ in tries(_PIN_TRIES, _FIRST_PAUSE_SECONDS):
        # Pinning syncs the ledger, so slices that another writer changed count as stale.
        own = {table.key: runtime.draft.pin(table)}
        pins = {name: runtime.draft.pin(table_by_key(name)) for name in table.upstream}
        lost = {name: runtime.draft.lost(table_by_key(name)) for name in (table.key, *table.upstream)}
        read = replace(facts.reading(runtime.ledger, [table]), lost=lost, is_read_again=request.is_read_again)
        requested, accepted, now = request.slices_of(table.kind), request.accepted, request.now
        decided = decide_with_neighbours(runtime.ledger, read, table, requested, accepted, now)
        decided = await_lost(read, table, decided)
        # The records may be newer than the pins, if another run published in between.
        if all(runtime.draft.still_pins(name, pin) for name, pin in (own | pins).items()):
            return own[table.key], pins, decided
    raise PublishConflictError(table.key, "what it is built from kept changing", "Load the days again later")


def _resolved(
    runtime: LoadRuntime, request: LoadRequest, table: Table, pins: Mapping[str, int], decisions: Sequence[SlicePlan]
) -> tuple[list[SlicePlan], CompetingRows | None]:
    """Resolve every CHECK: of the neighbours of changed slices, only those that share a changed key are built.

    Returns the decisions, and the competing rows if they were read for that.
    """
    unclear = [decision.key for decision in decisions if decision.todo is Todo.CHECK]
    if not unclear:
        return release_waits(decisions), None
    runtime.log(f"{table.key}: comparing the keys of {len(unclear)} slices with those of their neighbours")
    # The slices to build are included, because the build needs their competing rows next.
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


def _carry_out(plan: TablePlan, draft: Draft) -> list[JudgedSlice]:
    """Build and accept the slices to build, and record every slice."""
    todo = plan.to_build
    plan.runtime.log(f"{plan.table.key}: {len(todo)} of {len(plan.slices)} slices to build")
    standing = [stand(plan, decision) for decision in plan.slices if decision.todo is not Todo.REBUILD]
    if todo:
        return _rebuild(plan, standing, draft)
    draft.record(plan.table, _changes(plan, standing, None))
    return standing


def _rebuild(plan: TablePlan, standing: Sequence[JudgedSlice], draft: Draft) -> list[JudgedSlice]:
    lakehouse, table, slices = plan.runtime.lakehouse, plan.table, plan.to_build.keys()
    publication: Published | None = None
    builder = builder_of(table)
    build = builder.build(plan)
    try:
        files = lakehouse.stage(
            table, plan.base_id, plan.attempt, lambda target: write_build(plan, build, target, slices)
        )
        try:
            staged = StagedSlices(files.snapshot_id, build.audit(files.snapshot_id), build.keys)
            failpoint(Failpoint.AFTER_AUDIT, table.key)
            judged = judge(plan, builder, staged)
            changed = {key for key, judged_slice in judged.items() if judged_slice.is_changed}
            if changed:
                is_whole = all(judged_slice.outcome.verdict.is_good for judged_slice in judged.values())
                publication = draft.accept(files, changed, is_whole=is_whole)
        finally:
            draft.drop(files)
    finally:
        build.release()
    every = [*standing, *judged.values()]
    draft.record(table, _changes(plan, every, publication), _inputs_of_published(plan, every))
    return every


def write_build(plan: TablePlan, build: Build, target: str, slices: Collection[Slice]) -> None:
    """Replace exactly these slices of a branch by a build; `target` is the branch's name in SQL."""
    lakehouse, table = plan.runtime.lakehouse, plan.table
    if build.write is not None:
        lakehouse.files.replace(table, target, build.write())
        return
    assert build.rows is not None
    lakehouse.replace_slices(table, target, slices, build.rows)


def _inputs_of_published(
    plan: TablePlan, judged: Sequence[JudgedSlice]
) -> dict[Slice, dict[tuple[str, Slice], Digest]]:
    """Slice to publish -> its inputs: (table, slice) -> digest."""
    months = {decision.key: decision.months for decision in plan.slices}
    return {
        record.key: rests_on(plan.table, plan.runtime.settings, record.key, record.input_state, months[record.key])
        for record in (judged_slice.record for judged_slice in judged if judged_slice.is_changed)
        if record.input_state is not None
    }


def _changes(plan: TablePlan, judged: Sequence[JudgedSlice], publication: Published | None) -> Changes:
    changes = Changes(exclusions=plan.exclusions)
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
    return changes
