"""Operations as jobs of one op, whose run config is the operator's request: maintain, roll back, release, reconcile, recover."""

# Dagster reads the op's annotations as types, so they are not postponed here.
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import create_model

from pipeline_assets.domain import requests as ask
from pipeline_assets.domain.checks import a_reason
from pipeline_assets.domain.days import parse_day, stretches
from pipeline_assets.domain.errors import TransientError, UsageError
from pipeline_assets.domain.plain_text import few, recordable
from pipeline_assets.domain.rebuilds import RebuiltSlice, measure_texts
from pipeline_assets.domain.requests import Styled, Table
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.inspection.scratch import sweep_scratch
from pipeline_assets.load.golden import GOLDEN_TABLES, reconcile
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations import recover_plan as recovery
from pipeline_assets.operations.decisions import Held, preview, release
from pipeline_assets.operations.maintenance import maintain, require_done, summary
from pipeline_assets.operations.notices import forget_notices
from pipeline_assets.operations.rebuild_build import GreenSlices, begin, build, claimed
from pipeline_assets.operations.rebuild_swap import abandon, swap, undo
from pipeline_assets.operations.recover import HourFate, HourOutcome, Recovery, in_lines, size_text, whole_days
from pipeline_assets.operations.rollback import RollbackRequest, SliceRestore, plan, roll_back
from pipeline_assets.orchestration import events
from pipeline_assets.orchestration.assets import OP_NAME, POOL, Clock
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.orchestration.runtime import op_runtime
from pipeline_assets.orchestration.specs import range_tags
from resources.export_api import ExportApi
from resources.iceberg.lake_identity import Purpose
from resources.landing.store import LandingStore

# An op and a job must not share a name within a code location.
MAINTENANCE_JOB, MAINTENANCE_OP = "maintenance", "maintain"
ROLLBACK_JOB, ROLLBACK_OP = "rollback", "roll_back"
RELEASE_JOB, RELEASE_OP = "release", "release_held"
REBUILD_JOB, REBUILD_OP = "rebuild", "rebuild_slices"
RECOVER_JOB, RECOVER_OP = "recover_exports", "recover"
RECONCILE_JOB, RECONCILE_OP = "reconcile", "compare_golden_totals"
LoadJob = Callable[[], dg.JobDefinition]


def operation_jobs(settings: Settings, backfill_load: LoadJob) -> list[dg.JobDefinition]:
    """The jobs; `backfill_load` returns the job that loads recovered days."""

    def job(
        name: str,
        op_name: str,
        request: type[ask.Request],
        work: Callable[[dg.OpExecutionContext, Runtime, Any, datetime], Iterator[Any] | None],
        *,
        is_decision: bool = True,
        purpose: Purpose | None = None,
        pool: str | None = None,
    ) -> dg.JobDefinition:
        """A job of one op; `is_decision`: except in a dry run, lost decisions are read back and receivers get notices."""
        help_text = (request.__doc__ or "").splitlines()[0]
        bases: Any = (request, dg.Config)
        config_type = create_model(f"{request.__name__}Config", __base__=bases, __doc__=request.__doc__)

        @dg.op(name=op_name, description=help_text, pool=pool)
        def operation(
            context: dg.OpExecutionContext,
            config: config_type,  # type: ignore[valid-type]  # Dagster reads it
            spark: LazyPySparkResource,
            landing: dg.ResourceParam[LandingStore],
            clock: dg.ResourceParam[Clock],
        ) -> Iterator[Any]:
            is_dry = not is_decision or getattr(config, "dry_run", False)
            with op_runtime(context, settings, spark, landing, is_dry_run=is_dry, purpose=purpose) as runtime:
                if not is_dry:
                    read_back(runtime.ledger, runtime.log)
                yield from work(context, runtime, config, clock.now()) or ()
            yield dg.Output(None)

        return dg.GraphDefinition(name=name, node_defs=[operation]).to_job(description=help_text)

    recover = partial(_recover, backfill_load)
    return [
        job(MAINTENANCE_JOB, MAINTENANCE_OP, ask.Maintenance, _maintain),
        # A dry run also records its findings in the tables.
        job(ROLLBACK_JOB, ROLLBACK_OP, ask.Rollback, _roll_back, purpose=Purpose.KEEP, pool=POOL),
        job(RELEASE_JOB, RELEASE_OP, ask.Release, _release),
        job(REBUILD_JOB, REBUILD_OP, ask.Rebuild, _rebuild),
        job(RECONCILE_JOB, RECONCILE_OP, ask.Reconcile, _reconcile, is_decision=False),
        job(RECOVER_JOB, RECOVER_OP, ask.Recover, recover, is_decision=False, purpose=Purpose.KEEP),
    ]


def _maintain(context: dg.OpExecutionContext, runtime: Runtime, request: ask.Maintenance, now: datetime) -> None:
    """It needs no pool, because it is safe beside a load."""
    is_dry_run = request.dry_run
    is_live = liveness(context.instance, runtime.ledger, context.run_id)
    reports = list(maintain(runtime, context.run_id, now, is_live, is_dry_run=is_dry_run))
    forgotten = forget_notices(runtime.ledger, runtime.settings, now, is_dry_run=is_dry_run)
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
    context.add_output_metadata({"what was done": events.markdown_table(("table", ""), rows, lists=lists)})
    require_done(reports)


_DIGITS_OF_A_LONG = 19


def moment_of(text: str) -> datetime | int:
    """Parse a time (without zone: UTC) or the number of a publication; raises UsageError."""
    if text.isdecimal() and len(text) < _DIGITS_OF_A_LONG:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write 2026-02-05T10:00, or a number that `tidemark history` shows"
        raise UsageError(f"back to {text!r}", "is neither a time nor the number of a publication", hint) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def rollback_request(request: ask.Rollback, settings: Settings, run_id: str) -> RollbackRequest:
    """Parse the request; raises UsageError or SettingsError."""
    projects = settings.require_projects(tuple(request.projects))
    reason = a_reason("reason", request.reason)
    return RollbackRequest(
        tuple(request.tables), projects, *request.range(), moment_of(request.back_to), reason, run_id
    )


def _roll_back(context: dg.OpExecutionContext, runtime: Runtime, request: ask.Rollback, _: datetime) -> Iterator[Any]:
    """It runs in the pool of loads, although it is safe beside a load."""
    parsed = rollback_request(request, runtime.settings, context.run_id)
    if request.dry_run:
        restores = plan(runtime, parsed, is_preview=True)
    else:
        restores = roll_back(runtime, parsed)
        yield from events.standing_events(
            context.instance, runtime, {(one.table, one.key.event_date) for one in restores}
        )
    context.add_output_metadata({"slices": events.markdown_table(*restores_table(restores))})


def restores_table(restores: Sequence[SliceRestore]) -> Table:
    """One row per slice of a rollback, with its state now and then."""
    rows = []
    for one in restores:
        published = f"{one.target.published_at[:16]} (no. {one.target.number})" if one.target else "never by then"
        what = Styled("only held", "dim") if one.is_there else Styled("rolled back", "magenta")
        place = one.table, one.key.event_date, one.key.project_id
        rows.append((*place, one.present.digest.rows, one.digest.rows, published, what))
    return Table(("table", "day", "project", "rows now", "rows then", "published", ""), rows)


def _release(context: dg.OpExecutionContext, runtime: Runtime, request: ask.Release, now: datetime) -> None:
    """The next load, or `heal_load`, builds the released slices again."""
    ledger, settings = runtime.ledger, runtime.settings
    projects = settings.require_projects(tuple(request.projects))
    held = preview(ledger, settings, request.tables, projects, *request.range(), now, is_load_next=False)
    if not request.dry_run:
        release(ledger, held, a_reason("reason", request.reason), context.run_id)
    context.add_output_metadata({"slices": events.markdown_table(*held_table(held))})


def held_table(held: Sequence[Held]) -> Table:
    """One row per held slice: its state now, before the rollback, and after a release."""
    rows = []
    for one in held:
        place = one.table, one.key.event_date, one.key.project_id
        rows.append((*place, one.reason, one.digest.rows, one.digest_before.rows, one.then))
    return Table(("table", "day", "project", "held for", "rows now", "before", "once released"), rows)


_DAYS = timedelta(days=30)


def _reconcile(
    context: dg.OpExecutionContext, runtime: Runtime, request: ask.Reconcile, now: datetime
) -> Iterator[dg.AssetCheckEvaluation]:
    """It needs no pool, because it writes only the totals that it read and the results of the comparison."""
    ledger, landing, settings = runtime.ledger, runtime.landing, runtime.settings
    last = parse_day(request.last) if request.last else now.date()
    first, last = request.bounds(max(settings.calendar_start, last - _DAYS), last)
    found = reconcile(ledger, landing, settings, settings.require_projects(tuple(request.projects)), first, last)
    repairs = recovery.plan_repairs(ledger, landing, settings, found.lacking, now)
    days = {one.total.key.event_date for one in found.comparisons}
    for table in GOLDEN_TABLES:
        yield from events.golden_evaluations(context.instance, ledger, settings, table, days)
    mismatches = [(str(one.total.key), one.total.measure.table, str(one), one.total.origin) for one in found.mismatches]
    proposals = [(one.kind.value, len(one.slices), one.reason, one.command) for one in repairs]
    counts = {"golden_totals": len(found.comparisons), "mismatch_count": len(found.mismatches)}
    tables = {
        "mismatches": events.markdown_table(("day", "table", "", "told by"), mismatches),
        "not compared": events.markdown_list(map(str, found.faults)),
        "proposed": events.markdown_table(("what", "days", "why", "command"), proposals),
    }
    context.add_output_metadata({**counts, **tables})
    told = [f"{day} {table}: {text}" for day, table, text, _ in mismatches]
    told += [f"not compared: {fault}" for fault in found.faults]
    if told:
        raise dg.Failure(events.description(told, "\n"), allow_retries=False)


_MOST_RETRIES, _RETRY_SECONDS = 2, 60
"""Beyond those of each request; a retry continues with the hours that lack their marker."""


def _recover(
    load: LoadJob, context: dg.OpExecutionContext, runtime: Runtime, request: ask.Recover, now: datetime
) -> None:
    """It needs no pool: it only adds to landing."""
    ledger, settings = runtime.ledger, runtime.settings
    plan = recovery.plan_recovery(ledger, runtime.landing, settings, recovery.recovery_request(settings, request), now)
    for warning in plan.warnings:
        runtime.log(f"warning: {warning}")
    if request.dry_run:
        context.add_output_metadata({"hours": events.markdown_table(*plan_table(plan))})
        return
    api, progress = ExportApi(settings, runtime.log), in_lines(plan, runtime.log)
    outcomes = Recovery(api, runtime.landing, settings, ledger.recoveries, progress).run(plan)
    context.add_output_metadata({"hours": events.markdown_table(*outcome_table(outcomes))})
    if request.load:
        days, short = whole_days(outcomes)
        if short:
            runtime.log(f"not loaded, because hours of them are not recovered: {few(short)}")
        _load(context, settings, load(), days)
    if lacking := [one for one in outcomes if not one.fate.is_good]:
        errors = [one.error for one in lacking if one.error is not None]
        said = few(dict.fromkeys(map(str, errors)), separator="; ") or "the vendor has not exported them yet"
        failure = dg.Failure(
            f"{len(lacking):,} of {len(outcomes):,} hours are not recovered: {said}", allow_retries=False
        )
        if context.retry_number < _MOST_RETRIES and any(isinstance(error, TransientError) for error in errors):
            raise dg.RetryRequested(max_retries=_MOST_RETRIES, seconds_to_wait=_RETRY_SECONDS) from failure
        raise failure


def _load(
    context: dg.OpExecutionContext, settings: Settings, job: dg.JobDefinition, recovered: Sequence[Slice]
) -> None:
    projects = list(dict.fromkeys(key.project_id for key in recovered))
    failed = []
    for part in stretches(sorted({key.event_date for key in recovered}), settings.days_per_run):
        context.log.info(f"loading {part[0]} to {part[-1]}")
        result = job.execute_in_process(
            run_config={"ops": {OP_NAME: {"config": {"projects": projects}}}},
            tags={**range_tags(part[0], part[-1]), "tidemark/recovered_by": context.run_id},
            instance=context.instance,
            raise_on_error=False,
        )
        if not result.success:
            failed.append(f"{part[0]} to {part[-1]} (run {result.run_id})")
    if failed:
        why = f"hours are recovered, but their load failed: {few(failed)}; the runs say why"
        raise dg.Failure(why, allow_retries=False)


_STATES = {recovery.HourState.REFUSED: "bold red", recovery.HourState.LOST: "bold red"}
_STATES |= dict.fromkeys((recovery.HourState.MISSING, recovery.HourState.UNFINISHED), "yellow")
_FATES = {HourFate.FAILED: "bold red", HourFate.NOT_EXPORTED: "yellow"}


def plan_table(plan: recovery.RecoveryPlan) -> Table:
    """One row for the hours of a day in the same state, and what becomes of them."""
    rows: dict[tuple[str, date, recovery.HourState, str, str], list[int]] = {}
    for one in plan.asked:
        then = "fetches them" if one.is_fetched else "waits for the vendor" if one.is_waited_for else "has them"
        rows.setdefault((one.project_id, one.hour.day, one.state, then, one.reason or ""), []).append(one.hour.hour)
    listed = [
        (project, day, recovery.hours_text(hours), Styled(state, _STATES.get(state, "")), then, reason)
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
        hours = recovery.hours_text(one.hour.hour for one in found)
        counted = (objects, size) if objects else ("", "")
        rows.append((project, day, hours, Styled(fate, _FATES.get(fate, "green")), *counted, error))
    return Table(("project", "day", "hours", "", "objects", "size", "reason"), rows)


def _rebuild(context: dg.OpExecutionContext, runtime: Runtime, request: ask.Rebuild, now: datetime) -> Iterator[Any]:
    """It needs no pool: loads continue beside it, and the swap is refused where they changed its slices."""
    ledger = runtime.ledger
    is_live = liveness(context.instance, ledger, context.run_id)
    who = recordable(request.who or f"run {context.run_id}")
    if request.action not in list(ask.RebuildAction):
        known = ", ".join(ask.RebuildAction)
        raise UsageError(f"action {request.action!r}", "is nothing that can be done about a rebuild", known)
    action = ask.RebuildAction(request.action)
    if action is ask.RebuildAction.START:
        rebuild = begin(runtime, request, who, context.run_id, is_live)
        runtime.log(f"rebuild {rebuild.number}: {', '.join(rebuild.tables)}, {rebuild.first} to {rebuild.last}")
        rebuild = build(runtime, rebuild, now)
    else:
        rebuild = ledger.rebuilds.get(request.number)
        if action is not ask.RebuildAction.SHOW:
            rebuild = claimed(ledger, rebuild, context.run_id, is_live)
    why = a_reason("reason", request.reason) if request.reason else None
    changed: set[tuple[str, date]] = set()
    if action is ask.RebuildAction.ABANDON:
        rebuild = abandon(runtime, rebuild, who, why)
    elif action is ask.RebuildAction.UNDO:
        rebuild, restores = undo(runtime, rebuild, who, why)
        changed = {(one.table, one.key.event_date) for one in restores}
    elif action is ask.RebuildAction.SWAP or (action is ask.RebuildAction.START and request.swap):
        rebuild = swap(runtime, rebuild, who, why, now)
        green = ledger.rebuilds.slices(rebuild)
        changed = {(name, key.event_date) for name in green for key, one in green[name].items() if one.goes}
    yield from events.standing_events(context.instance, runtime, changed, is_materialized=True)
    green = ledger.rebuilds.slices(rebuild)
    left_out = [f"{key} {name}: {one.why_not}" for name, key, one in in_order(green) if not one.goes]
    report = events.markdown_table(*rebuild_table(green), lists={"Left out": left_out})
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
