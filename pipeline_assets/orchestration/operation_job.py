"""Operations as jobs of one op, whose run config is the operator's request: maintain, roll back, release, reconcile, recover."""

# Dagster reads the op's annotations as types, so they are not postponed here.
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import create_model

from pipeline_assets.domain.checks import a_reason
from pipeline_assets.domain.days import parse_day, stretches
from pipeline_assets.domain.errors import TransientError, UsageError
from pipeline_assets.domain.plain_text import few, recordable
from pipeline_assets.domain.rebuilds import RebuiltSlice, measure_texts
from pipeline_assets.domain.report import Styled, Table
from pipeline_assets.domain.requests import (
    Maintenance,
    Rebuild,
    RebuildAction,
    Reconcile,
    Recover,
    Release,
    Request,
    Rollback,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.inspection.scratch import sweep_scratch
from pipeline_assets.load.golden import GOLDEN_TABLES, reconcile
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.decisions import Held, preview, release
from pipeline_assets.operations.maintenance import maintain, require_done, summary
from pipeline_assets.operations.notices import forget_notices
from pipeline_assets.operations.rebuild_build import GreenSlices, begin, build, claimed
from pipeline_assets.operations.rebuild_swap import abandon, swap, undo
from pipeline_assets.operations.recover import HourFate, HourOutcome, Recovery, in_lines, size_text, whole_days
from pipeline_assets.operations.recover_plan import (
    HourState,
    RecoveryPlan,
    hours_text,
    plan_recovery,
    plan_repairs,
    recovery_request,
)
from pipeline_assets.operations.rollback import RollbackRequest, SliceRestore, plan, roll_back
from pipeline_assets.orchestration.assets import OP_NAME, POOL, Clock
from pipeline_assets.orchestration.events import (
    description,
    golden_evaluations,
    markdown_list,
    markdown_table,
    standing_events,
)
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.orchestration.runtime import op_runtime
from pipeline_assets.orchestration.specs import range_tags
from resources.export_api import ExportApi
from resources.iceberg.lake_identity import Purpose
from resources.landing.store import LandingStore

Work = Callable[[dg.OpExecutionContext, Runtime, Any, Clock], Iterator[Any] | None]
"""An operation's work; it may yield events. Its third parameter's annotation is the request that it serves."""


def operation_job(
    name: str, op_name: str, *, is_told: bool = True, purpose: Purpose | None = None, pool: str | None = None
) -> Callable[[Work], Callable[[Settings], dg.JobDefinition]]:
    """Turn an operation's work into a function of settings that returns its job; the request is the run config.

    `is_told`: whether receivers get notices, except after a dry run. `purpose`: as `op_runtime`.
    """

    def of_work(work: Work) -> Callable[[Settings], dg.JobDefinition]:
        request: type[Request] = work.__annotations__["request"]
        config_type = run_config(request)
        description = (request.__doc__ or "").splitlines()[0]

        def of_settings(settings: Settings) -> dg.JobDefinition:
            @dg.op(name=op_name, description=description, pool=pool)
            def operation(
                context: dg.OpExecutionContext,
                config: config_type,  # type: ignore[valid-type]  # Dagster reads it
                spark: LazyPySparkResource,
                landing: dg.ResourceParam[LandingStore],
                clock: dg.ResourceParam[Clock],
            ) -> Iterator[Any]:
                is_dry = not is_told or getattr(config, "dry_run", False)
                with op_runtime(context, settings, spark, landing, is_dry_run=is_dry, purpose=purpose) as runtime:
                    yield from work(context, runtime, config, clock) or ()
                yield dg.Output(None)

            @dg.job(name=name, description=description)
            def job() -> None:
                operation()

            return job

        return of_settings

    return of_work


def run_config(request: type[Request]) -> type[dg.Config]:
    """The request as Dagster's run config."""
    bases: Any = (request, dg.Config)
    made: type[dg.Config] = create_model(f"{request.__name__}Config", __base__=bases, __doc__=request.__doc__)
    return made


MAINTENANCE_JOB, MAINTENANCE_OP = "maintenance", "maintain"


@operation_job(MAINTENANCE_JOB, MAINTENANCE_OP)
def maintenance_job(context: dg.OpExecutionContext, runtime: Runtime, request: Maintenance, clock: Clock) -> None:
    """Maintain all tables; it needs no pool, because it is safe beside a load."""
    is_dry_run = request.dry_run
    if not is_dry_run:
        read_back(runtime.ledger, runtime.log)
    is_live = liveness(context.instance, runtime.ledger, context.run_id)
    reports = list(maintain(runtime, context.run_id, clock.now(), is_live, is_dry_run=is_dry_run))
    forgotten = forget_notices(runtime.ledger, runtime.settings, clock.now(), is_dry_run=is_dry_run)
    if forgotten:
        would = "would go" if is_dry_run else "removed"
        runtime.log(f"ledger: {forgotten} old notices that every receiver was told of {would}")
    if not is_dry_run:
        sweep_scratch(runtime.spark, runtime.settings, runtime.ledger, runtime.log)
    rows = [(report.table, summary(report, is_dry_run=is_dry_run)) for report in reports]
    lists = {
        "Orphan files": [path for report in reports for path in report.orphans],
        "Old metadata files": [path for report in reports for path in report.metadata],
        "Files of others, which stay": [path for report in reports for path in report.others],
    }
    context.add_output_metadata({"what was done": markdown_table(("table", ""), rows, lists=lists)})
    require_done(reports)


ROLLBACK_JOB, RELEASE_JOB = "rollback", "release"
# An op and a job must not share a name within a code location.
ROLLBACK_OP, RELEASE_OP = "roll_back", "release_held"
_DIGITS_OF_A_LONG = 19


def moment_of(text: str) -> datetime | int:
    """Parse a time (without zone: UTC) or the number of a publication; raises UsageError."""
    if text.isdecimal() and len(text) < _DIGITS_OF_A_LONG:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"back to {text!r}",
            "is neither a time nor the number of a publication",
            "Write 2026-02-05T10:00, or a number that `tidemark history` shows",
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def rollback_request(request: Rollback, settings: Settings, run_id: str) -> RollbackRequest:
    """Parse the request; raises UsageError or SettingsError."""
    projects = settings.require_projects(tuple(request.projects))
    reason = a_reason("reason", request.reason)
    return RollbackRequest(
        tuple(request.tables), projects, *request.range(), moment_of(request.back_to), reason, run_id
    )


# A dry run also records its findings in the tables.
@operation_job(ROLLBACK_JOB, ROLLBACK_OP, purpose=Purpose.KEEP, pool=POOL)
def rollback_job(context: dg.OpExecutionContext, runtime: Runtime, request: Rollback, _: Clock) -> Iterator[Any]:
    """Roll back; runs in the pool of loads, although it is safe beside a load."""
    parsed = rollback_request(request, runtime.settings, context.run_id)
    if request.dry_run:
        restores = plan(runtime, parsed, is_preview=True)
    else:
        read_back(runtime.ledger, runtime.log)
        restores = roll_back(runtime, parsed)
        yield from standing_events(context.instance, runtime, {(one.table, one.key.event_date) for one in restores})
    context.add_output_metadata({"slices": markdown_table(*restores_table(restores))})


def restores_table(restores: Sequence[SliceRestore]) -> Table:
    """One row per slice of a rollback, with its state now and then."""
    rows = []
    for one in restores:
        published = f"{one.target.published_at[:16]} (no. {one.target.number})" if one.target else "never by then"
        what = Styled("only held", "dim") if one.is_there else Styled("rolled back", "magenta")
        place = one.table, one.key.event_date, one.key.project_id
        rows.append((*place, one.present.digest.rows, one.digest.rows, published, what))
    return Table(("table", "day", "project", "rows now", "rows then", "published", ""), rows)


@operation_job(RELEASE_JOB, RELEASE_OP)
def release_job(context: dg.OpExecutionContext, runtime: Runtime, request: Release, clock: Clock) -> None:
    """Release; the next load, or `heal_load`, builds the released slices again."""
    ledger, settings = runtime.ledger, runtime.settings
    if not request.dry_run:
        read_back(ledger, runtime.log)
    projects = settings.require_projects(tuple(request.projects))
    held = preview(ledger, settings, request.tables, projects, *request.range(), clock.now(), is_load_next=False)
    if not request.dry_run:
        release(ledger, held, a_reason("reason", request.reason), context.run_id)
    context.add_output_metadata({"slices": markdown_table(*held_table(held))})


def held_table(held: Sequence[Held]) -> Table:
    """One row per held slice: its state now, before the rollback, and after a release."""
    rows = [
        (
            one.table,
            one.key.event_date,
            one.key.project_id,
            one.reason,
            one.digest.rows,
            one.digest_before.rows,
            one.then,
        )
        for one in held
    ]
    return Table(("table", "day", "project", "held for", "rows now", "before", "once released"), rows)


RECONCILE_JOB, RECONCILE_OP = "reconcile", "compare_golden_totals"
_DAYS = timedelta(days=30)


@operation_job(RECONCILE_JOB, RECONCILE_OP, is_told=False)
def reconcile_job(
    context: dg.OpExecutionContext, runtime: Runtime, request: Reconcile, clock: Clock
) -> Iterator[dg.AssetCheckEvaluation]:
    """Compare; it needs no pool, because it writes only the totals that it read and the results of the comparison."""
    ledger, landing, settings = runtime.ledger, runtime.landing, runtime.settings
    last = parse_day(request.last) if request.last else clock.now().date()
    first, last = request.bounds(max(settings.calendar_start, last - _DAYS), last)
    found = reconcile(ledger, landing, settings, settings.require_projects(tuple(request.projects)), first, last)
    repairs = plan_repairs(ledger, landing, settings, found.lacking, clock.now())
    days = {one.total.key.event_date for one in found.comparisons}
    for table in GOLDEN_TABLES:
        yield from golden_evaluations(context.instance, ledger, settings, table, days)
    mismatches = [(str(one.total.key), one.total.measure.table, str(one), one.total.origin) for one in found.mismatches]
    proposals = [(one.kind.value, len(one.slices), one.reason, one.command) for one in repairs]
    context.add_output_metadata(
        {
            "golden_totals": len(found.comparisons),
            "mismatch_count": len(found.mismatches),
            "mismatches": markdown_table(("day", "table", "", "told by"), mismatches),
            "not compared": markdown_list([str(fault) for fault in found.faults]),
            "proposed": markdown_table(("what", "days", "why", "command"), proposals),
        }
    )
    told = [f"{day} {table}: {text}" for day, table, text, _ in mismatches]
    told += [f"not compared: {fault}" for fault in found.faults]
    if told:
        raise dg.Failure(description(told, "\n"), allow_retries=False)


RECOVER_JOB = "recover_exports"
RECOVER_OP = "recover"
_MOST_RETRIES, _RETRY_SECONDS = 2, 60
"""Beyond those of each request; a retry continues with the hours that lack their marker."""


def recover_job(settings: Settings, backfill_load: Callable[[], dg.JobDefinition]) -> dg.JobDefinition:
    """Return the job. It needs no pool: it only adds to landing. `backfill_load` returns the job that loads recovered days."""

    @operation_job(
        RECOVER_JOB,
        RECOVER_OP,
        is_told=False,
        purpose=Purpose.KEEP,
    )
    def job(context: dg.OpExecutionContext, runtime: Runtime, request: Recover, clock: Clock) -> None:
        parsed = recovery_request(settings, request)
        plan = plan_recovery(runtime.ledger, runtime.landing, settings, parsed, clock.now())
        for warning in plan.warnings:
            runtime.log(f"warning: {warning}")
        if request.dry_run:
            context.add_output_metadata({"hours": markdown_table(*plan_table(plan))})
            return
        api = ExportApi(settings, runtime.log)
        claims = runtime.ledger.recoveries
        outcomes = Recovery(api, runtime.landing, settings, claims, in_lines(plan, runtime.log)).run(plan)
        context.add_output_metadata({"hours": markdown_table(*outcome_table(outcomes))})
        if request.load:
            days, short = whole_days(outcomes)
            if short:
                runtime.log(f"not loaded, because hours of them are not recovered: {few(list(map(str, short)))}")
            _load(context, settings, backfill_load(), days)
        _require_whole(outcomes, context.retry_number)

    return job(settings)


def _load(
    context: dg.OpExecutionContext, settings: Settings, job: dg.JobDefinition, recovered: Sequence[Slice]
) -> None:
    projects = list(dict.fromkeys(key.project_id for key in recovered))
    failed = []
    for part in stretches(sorted({key.event_date for key in recovered}), settings.days_per_run):
        tags = range_tags(part[0], part[-1])
        context.log.info(f"loading {part[0]} to {part[-1]}")
        result = job.execute_in_process(
            run_config={"ops": {OP_NAME: {"config": {"projects": projects}}}},
            tags={**tags, "tidemark/recovered_by": context.run_id},
            instance=context.instance,
            raise_on_error=False,
        )
        if not result.success:
            failed.append(f"{part[0]} to {part[-1]} (run {result.run_id})")
    if failed:
        description = f"hours are recovered, but their load failed: {few(failed)}; the runs say why"
        raise dg.Failure(description, allow_retries=False)


def _require_whole(outcomes: Sequence[HourOutcome], retries: int) -> None:
    lacking = [one for one in outcomes if not one.fate.is_good]
    if lacking:
        errors = [one.error for one in lacking if one.error is not None]
        said = few(dict.fromkeys(map(str, errors)), separator="; ") or "the vendor has not exported them yet"
        description = f"{len(lacking):,} of {len(outcomes):,} hours are not recovered: {said}"
        failure = dg.Failure(description, allow_retries=False)
        if retries < _MOST_RETRIES and any(isinstance(error, TransientError) for error in errors):
            raise dg.RetryRequested(max_retries=_MOST_RETRIES, seconds_to_wait=_RETRY_SECONDS) from failure
        raise failure


_STATES = {HourState.REFUSED: "bold red", HourState.LOST: "bold red"}
_STATES |= dict.fromkeys((HourState.MISSING, HourState.UNFINISHED), "yellow")
_FATES = {HourFate.FAILED: "bold red", HourFate.NOT_EXPORTED: "yellow"}


def plan_table(plan: RecoveryPlan) -> Table:
    """One row for the hours of a day in the same state, and what becomes of them."""
    rows: dict[tuple[str, date, HourState, str, str], list[int]] = {}
    for one in plan.asked:
        then = "fetches them" if one.is_fetched else "waits for the vendor" if one.is_waited_for else "has them"
        rows.setdefault((one.project_id, one.hour.day, one.state, then, one.reason or ""), []).append(one.hour.hour)
    listed = [
        (project, day, hours_text(hours), Styled(state, _STATES.get(state, "")), then, reason)
        for (project, day, state, then, reason), hours in rows.items()
    ]
    return Table(("project", "day", "hours", "state", "a recovery", "reason"), listed)


def outcome_table(outcomes: Sequence[HourOutcome]) -> Table:
    """One row for the hours of a day with the same outcome."""
    groups: dict[tuple[str, date, HourFate, str], list[HourOutcome]] = {}
    for one in outcomes:
        groups.setdefault((one.project_id, one.hour.day, one.fate, str(one.error or "")), []).append(one)
    rows = []
    for (project, day, fate, error), found in groups.items():
        objects, size = sum(one.objects for one in found), size_text(sum(one.size_bytes for one in found))
        hours = hours_text(one.hour.hour for one in found)
        counted = (objects, size) if objects else ("", "")
        rows.append((project, day, hours, Styled(fate, _FATES.get(fate, "green")), *counted, error))
    return Table(("project", "day", "hours", "", "objects", "size", "reason"), rows)


REBUILD_JOB = "rebuild"
REBUILD_OP = "rebuild_slices"


@operation_job(REBUILD_JOB, REBUILD_OP)
def rebuild_job(context: dg.OpExecutionContext, runtime: Runtime, request: Rebuild, clock: Clock) -> Iterator[Any]:
    """Rebuild. It needs no pool: loads continue beside it, and the swap is refused where they changed its slices."""
    ledger, now = runtime.ledger, clock.now()
    read_back(ledger, runtime.log)
    is_live = liveness(context.instance, ledger, context.run_id)
    who = recordable(request.who or f"run {context.run_id}")
    if request.action not in list(RebuildAction):
        known = ", ".join(RebuildAction)
        raise UsageError(f"action {request.action!r}", "is nothing that can be done about a rebuild", known)
    action = RebuildAction(request.action)
    if action is RebuildAction.START:
        rebuild = begin(runtime, request, who, context.run_id, is_live)
        runtime.log(f"rebuild {rebuild.number}: {', '.join(rebuild.tables)}, {rebuild.first} to {rebuild.last}")
        rebuild = build(runtime, rebuild, now)
    else:
        rebuild = ledger.rebuilds.get(request.number)
        if action is not RebuildAction.SHOW:
            rebuild = claimed(ledger, rebuild, context.run_id, is_live)
    why = a_reason("reason", request.reason) if request.reason else None
    changed: set[tuple[str, date]] = set()
    if action is RebuildAction.ABANDON:
        rebuild = abandon(runtime, rebuild, who, why)
    elif action is RebuildAction.UNDO:
        rebuild, restores = undo(runtime, rebuild, who, why)
        changed = {(one.table, one.key.event_date) for one in restores}
    elif action is RebuildAction.SWAP or (action is RebuildAction.START and request.swap):
        rebuild = swap(runtime, rebuild, who, why, now)
        green = ledger.rebuilds.slices(rebuild)
        changed = {(name, key.event_date) for name in green for key, one in green[name].items() if one.goes}
    yield from standing_events(context.instance, runtime, changed, is_materialized=True)
    green = ledger.rebuilds.slices(rebuild)
    left_out = [f"{key} {name}: {one.why_not}" for name, key, one in in_order(green) if not one.goes]
    report = markdown_table(*rebuild_table(green), lists={"Left out": left_out})
    context.add_output_metadata({"rebuild": rebuild.number, "state": rebuild.state.value, "report": report})


def in_order(green: GreenSlices) -> list[tuple[str, Slice, RebuiltSlice]]:
    """Table, key and slice, by day."""
    listed = [(name, key, one) for name, of_table in green.items() for key, one in of_table.items()]
    return sorted(listed, key=lambda entry: entry[1])


def rebuild_table(green: GreenSlices) -> Table:
    """One row per slice that was built and differs, or is left out."""
    rows = []
    for name, key, one in in_order(green):
        if one.difference is not None and (one.is_changed or not one.goes):
            (old, new), keys = one.difference.rows, one.difference.keys
            parts = (keys.totals.get(part, 0) if keys else 0 for part in ("keys_added", "keys_removed", "keys_changed"))
            cells = (f"{old:,} -> {new:,}", ", ".join(measure_texts(one)), *parts)
            rows.append((key.event_date, name, key.project_id, *cells))
    headings = ("day", "table", "project", "rows", "measures", "keys only rebuilt", "only published", "different")
    return Table(headings, rows)
