"""Rebuilds stale slices of a derived table: stages and audits them, and accepts those that pass and differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline_assets.domain.errors import PublishConflictError, UsageError, tries
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.load.build.aggregate import AggregateBuilder, AsOfBuilder
from pipeline_assets.load.build.builder import Builder, JudgedSlice, StagedSlices, TablePlan
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
"""Another run may publish between pins and records; outside the catalog's database it records a moment later."""


def rebuild_stale(runtime: LoadRuntime, request: LoadRequest, table: Table, facts: Facts) -> TableReport:
    """Bring candidate slices up to date with their inputs. Raises PublishConflictError if other writers keep changing these."""
    started_at = time.monotonic()
    base_id, pins, decisions = _pinned(runtime, request, table, facts)
    competing, unclear = None, {decision.key for decision in decisions if decision.todo is Todo.CHECK}
    if unclear:
        # Only neighbours that share a changed key are built.
        runtime.log(f"{table.key}: comparing the keys of {len(unclear)} slices with those of their neighbours")
        candidates = [one.key for one in decisions if one.todo in (Todo.CHECK, Todo.REBUILD)]
        competing = builder_of(table).competing_rows(runtime, pins, candidates)
        digests = competing.outcome.competing
        decisions = [
            resolve(runtime.settings, table, request.accepted, one, str(digests.get(one.key, EMPTY)))
            if one.key in unclear
            else one
            for one in decisions
        ]
    decisions = release_waits(decisions)
    failpoint(Failpoint.AFTER_PIN, table.key)
    plan = TablePlan(
        runtime, request, table, base_id, pins, runtime.draft.next_attempt(), decisions, started_at, competing
    )
    todo = plan.to_build
    runtime.log(f"{table.key}: {len(todo)} of {len(decisions)} slices to build")
    judged = [stand(plan, decision) for decision in decisions if decision.todo is not Todo.REBUILD]
    built, publication = _built(plan, runtime.draft) if todo else ({}, None)
    judged += built.values()
    changes = Changes(exclusions=None if facts.exclusions is None else versions_of(facts.exclusions))
    _account(plan, judged, publication, changes)
    built_from = {
        one.record.key: rests_on(table, runtime.settings, one.record.key, state, todo[one.record.key].months)
        for one in judged
        if one.is_changed and (state := one.record.input_state) is not None
    }
    runtime.draft.record(table, changes, built_from)
    outcomes = sorted((one.outcome for one in judged), key=lambda outcome: (not outcome.is_requested, outcome.key))
    seconds = time.monotonic() - started_at
    return TableReport(table.key, tuple(outcomes), None, seconds, tuple(sorted(todo)), pins)


def _pinned(
    runtime: LoadRuntime, request: LoadRequest, table: Table, facts: Facts
) -> tuple[int, dict[str, int], list[SlicePlan]]:
    """The pinned snapshots of the table and its upstream tables, and decisions from records of exactly these."""
    for _ in tries(_PIN_TRIES, _FIRST_PAUSE_SECONDS):
        own = {table.key: runtime.draft.pin(table)}
        pins = {name: runtime.draft.pin(table_by_key(name)) for name in table.upstream}
        lost = {name: runtime.draft.lost(table_by_key(name)) for name in (table.key, *table.upstream)}
        read = replace(facts.reading(runtime.ledger, [table]), lost=lost, is_read_again=request.is_read_again)
        requested, accepted, now = request.slices_of(table.kind), request.accepted, request.now
        decided = decide_with_neighbours(runtime.ledger, read, table, requested, accepted, now)
        decided = await_lost(read, table, decided)
        # Records are newer than the pins if another run published in between.
        if all(runtime.draft.still_pins(name, pin) for name, pin in (own | pins).items()):
            return own[table.key], pins, decided
    raise PublishConflictError(table.key, "what it is built from kept changing", "Load the days again later")


def _built(plan: TablePlan, draft: Draft) -> tuple[dict[Slice, JudgedSlice], Published | None]:
    builder, publication = builder_of(plan.table), None
    build = builder.build(plan)
    try:
        files = plan.runtime.lakehouse.stage(plan.table, plan.base_id, plan.attempt, build.write)
        try:
            staged = StagedSlices(files.snapshot_id, build.audit(files.snapshot_id), build.keys)
            failpoint(Failpoint.AFTER_AUDIT, plan.table.key)
            judged = judge(plan, builder, staged)
            changed = {key for key, one in judged.items() if one.is_changed}
            if changed:
                is_whole = all(one.outcome.verdict.is_good for one in judged.values())
                publication = draft.accept(files, changed, is_whole=is_whole)
        finally:
            draft.drop(files)
    finally:
        build.release()
    return judged, publication


def _account(plan: TablePlan, judged: Sequence[JudgedSlice], publication: Published | None, changes: Changes) -> None:
    table, settings = plan.table, plan.runtime.settings
    decisions = {decision.key: decision for decision in plan.slices}
    for one in sorted(judged, key=lambda one: one.record.key):
        record = one.record
        if publication is None or not one.is_changed:
            changes.slices.append(record)
            continue
        changes.slices.append(replace(record, file_hash=publication.files[record.key].file_hash))
        decision = decisions[record.key]
        changes.publications.append(
            PublicationRecord(
                table.key,
                record.key,
                publication.snapshot_id,
                publication.parent_id,
                digest_before=decision.record.digest if decision.record else EMPTY,
                digest_after=record.digest,
                cause=decision.cause,
                run_id=plan.request.run_id,
                input_state=record.input_state,
                code_version=record.code_version,
                accepted_reason=plan.request.accepted.get((table.key, record.key)),
                figures=record.figures,
                seconds=round(time.monotonic() - plan.started_at, 3),
                pins=plan.pins,
                settings=table.recorded_settings(settings),
            )
        )
    if publication is not None:
        changes.head = (table.key, publication.snapshot_id, publication.parent_id)
