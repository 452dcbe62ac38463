"""Swap a rebuild in: catch up, then one commit per table, and what is recorded of it.

Contains: the swap and its conditions.
Add here: another condition of a swap.
Does not contain: building (green.py), the commit itself (resources/iceberg/swap.py), taking it back (answer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.change_rule import explain_change
from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.errors import PublishConflictError, UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import Slice, Verdict
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.operations.rebuild.choose import GreenSlices
from pipeline_assets.operations.rebuild.green import catch_up
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lakehouse import Staged
from resources.iceberg.metadata import SliceFiles
from resources.ledger.changes import Changes


@dataclass(frozen=True)
class Swapped:
    """What a swap did."""

    rebuild: RebuildRecord
    slices: GreenSlices
    published: Mapping[str, frozenset[Slice]]
    """Table -> slices that main shows since, of this run."""


def swap(runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None, now: datetime) -> Swapped:
    """Make main what the rebuild says, slice by slice that goes; the rest of main stays.

    A swap that was killed is completed by the same again. Raises UsageError where there is no report to accept, or where what
    main caught up with would change a reported slice beyond bounds; PublishConflictError where loads keep winning.
    """
    if rebuild.state not in (RebuildState.READY, RebuildState.SWAPPING):
        raise _not_to_be_swapped(rebuild)
    reported = runtime.ledger.rebuilds.slices(rebuild)
    published: dict[str, frozenset[Slice]] = {}
    for attempt in range(runtime.settings.publish_attempts):
        heads = catch_up(runtime, rebuild, now)
        green = runtime.ledger.rebuilds.slices(rebuild)
        _require_as_reported(runtime, rebuild, reported, green, now)
        if not any(one.goes for of_table in green.values() for one in of_table.values()):
            raise UsageError(
                f"rebuild {rebuild.number}",
                "has no slice that could go",
                f"See why: tidemark rebuild show {rebuild.number}",
            )
        rebuild = _begun(runtime, rebuild, who, why)
        try:
            for name in rebuild.tables:
                failpoint(Failpoint.BEFORE_SWAP, name)
                with lakehouse_failures(name):
                    done = _swap_table(runtime, rebuild, table_by_key(name), green[name], heads[name], now)
                published[name] = published.get(name, frozenset()) | done
                failpoint(Failpoint.BETWEEN_SWAPS, name)
        except PublishConflictError as conflict:
            runtime.log(f"rebuild {rebuild.number}: {conflict.subject}: {conflict.reason}; catching up")
            if attempt == runtime.settings.publish_attempts - 1:
                if not has_begun(runtime, rebuild):
                    runtime.ledger.rebuilds.change(rebuild, state=RebuildState.READY)
                raise
            continue
        break
    failpoint(Failpoint.AFTER_SWAPS)
    rebuild = runtime.ledger.rebuilds.change(rebuild, state=RebuildState.SWAPPED, finished_at=_now())
    drop_branches(runtime, rebuild)
    return Swapped(rebuild, green, published)


def drop_branches(runtime: Runtime, rebuild: RebuildRecord) -> None:
    """Let go of what was computed; files that main shows stay, the others go with maintenance."""
    for name in rebuild.tables:
        table = table_by_key(name)
        if runtime.lakehouse.branches.head(table, rebuild.branch) is not None:
            runtime.lakehouse.branches.drop(table, [runtime.lakehouse.branches.name(rebuild.branch)])


def _not_to_be_swapped(rebuild: RebuildRecord) -> UsageError:
    if rebuild.state is RebuildState.BUILDING:
        reason, hint = "has no report yet", "Go on with it first: tidemark rebuild start, with the same tables and days"
    else:
        reason, hint = f"is {rebuild.state.value}", "Start another one: tidemark rebuild start"
    return UsageError(f"rebuild {rebuild.number}", reason, hint)


def has_begun(runtime: Runtime, rebuild: RebuildRecord) -> bool:
    """Whether main shows anything of it already; of tables that are settled."""
    return rebuild.swap_after is not None and any(
        record.run_id in rebuild.swap_runs and record.number > rebuild.swap_after
        for name in rebuild.tables
        for record in runtime.ledger.publications(name)
    )


def _begun(runtime: Runtime, rebuild: RebuildRecord, who: str, why: str | None) -> RebuildRecord:
    """The swap is on record before main changes, with the state that an undo goes back to."""
    runs = (
        *rebuild.swap_runs,
        *([rebuild.run_id] if rebuild.run_id and rebuild.run_id not in rebuild.swap_runs else []),
    )
    after = rebuild.swap_after if has_begun(runtime, rebuild) else runtime.ledger.rebuilds.last_publication()
    return runtime.ledger.rebuilds.change(
        rebuild, state=RebuildState.SWAPPING, swap_after=after, swap_runs=runs, answered_by=who, answer=why
    )


def _require_as_reported(
    runtime: Runtime, rebuild: RebuildRecord, reported: GreenSlices, green: GreenSlices, now: datetime
) -> None:
    """What was caught up with since the report keeps within the bounds of any load; else a person looks again."""
    beyond = []
    for name, of_table in green.items():
        measures = table_by_key(name).measures
        for key, one in sorted(of_table.items()):
            before = reported[name].get(key)
            if before is None or not before.goes or not one.goes or one.record.digest == before.record.digest:
                continue
            after = {measure: one.record.figures[measure] for measure in measures if measure in one.record.figures}
            change = explain_change(
                name,
                Baseline(before.record.figures).of(after),
                after,
                None,
                content=str(one.record.digest),
                was_final=one.record.was_final(now),
                accepted_reason=None,
                cause="catching up",
                settings=runtime.settings,
            )
            if not change.is_passed:
                beyond.append(f"{name} {key}: {change.reason}")
    if beyond:
        raise UsageError(
            f"rebuild {rebuild.number}",
            f"is no longer what was reported, and nothing was swapped: {few(beyond, separator='; ')}",
            f"Look at the report, which is new: tidemark rebuild show {rebuild.number}; then swap it, or abandon it",
        )


def _swap_table(
    runtime: Runtime,
    rebuild: RebuildRecord,
    table: Table,
    rebuilt: Mapping[Slice, RebuiltSlice],
    base_id: int,
    now: datetime,
) -> frozenset[Slice]:
    """One commit, and its record; returns the slices that it published."""
    going = {key: one for key, one in rebuilt.items() if one.goes}
    if not going:
        return frozenset()
    held = runtime.ledger.interventions.holds(table.key, rebuild.projects)
    if held.keys() & going.keys():
        raise PublishConflictError(table.key, "a person held a day of it meanwhile", "The swap looks at it again")
    main = runtime.ledger.slices(table.key, rebuild.projects, {key.event_date for key in going})
    changed = frozenset(key for key, one in going.items() if key not in main or main[key].digest != one.record.digest)
    changes, files = Changes(), dict[Slice, SliceFiles]()
    if changed:
        head = runtime.lakehouse.branches.head(table, rebuild.branch)
        if head is None:
            raise PublishConflictError(table.key, "its green branch is gone", "The swap builds it again")
        staged = Staged(table, runtime.lakehouse.branches.name(rebuild.branch), base_id, head)
        publication = runtime.lakehouse.publish(staged, changed, rebuild.run_id or "")
        files = dict(publication.files)
        changes.head = (table.key, publication.snapshot_id, publication.parent_id)
        for key in sorted(changed):
            record, prior = going[key].record, main.get(key)
            changes.publications.append(
                PublicationRecord(
                    table.key,
                    key,
                    publication.snapshot_id,
                    publication.parent_id,
                    digest_before=prior.digest if prior is not None else going[key].published,
                    digest_after=record.digest,
                    cause=Cause.of(CauseKind.REBUILD),
                    run_id=rebuild.run_id,
                    input_state=record.input_state,
                    code_version=record.code_version,
                    accepted_reason=rebuild.acceptance,
                    figures=record.figures,
                    settings=table.recorded_settings(runtime.settings),
                )
            )
    facts = Facts.read(runtime.ledger, runtime.settings, going.keys(), [table], now)
    for plan in decide(facts, table, going.keys(), Acceptances(), now):
        one, prior = going[plan.key], main.get(plan.key)
        is_published, was_hash = plan.key in changed, prior.file_hash if prior is not None else None
        record = replace(
            one.record,
            verdict=Verdict.PUBLISHED if is_published else Verdict.UNCHANGED,
            is_final=plan.is_final,
            final_at=plan.final_at,
            file_hash=files[plan.key].file_hash if is_published else was_hash,
            read_hash=was_hash,
            baseline=_baseline(one, prior, plan.is_final),
        )
        changes.slices.append(record)
    failpoint(Failpoint.BEFORE_LEDGER, table.key)
    runtime.ledger.record(changes, rebuild.run_id or "")
    runtime.log(
        f"rebuild {rebuild.number}: {table.key}: {len(changed)} slices swapped in, {len(going) - len(changed)} as they were"
    )
    return changed


def _baseline(one: RebuiltSlice, prior: SliceRecord | None, is_final: bool) -> Baseline | None:
    """A person decided what a changed slice is, so later changes are measured against that."""
    if not is_final:
        return None
    if not one.is_changed and prior is not None and prior.baseline is not None:
        return prior.baseline
    return Baseline(one.record.figures, content=str(one.record.digest))


def _now() -> str:
    return datetime.now(UTC).isoformat()
