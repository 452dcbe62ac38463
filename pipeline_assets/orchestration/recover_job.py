"""The job `recover_exports`: download hours from the vendor again, and load them."""

from collections.abc import Callable, Sequence
from datetime import date

import dagster as dg

from pipeline_assets.domain.days import stretches
from pipeline_assets.domain.errors import TransientError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.report import Styled, Table
from pipeline_assets.domain.requests import Recover
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.recover import HourFate, HourOutcome, Recovery, grouped, in_lines, size_text, whole_days
from pipeline_assets.operations.recover_plan import HourState, RecoveryPlan, hours_text, plan_recovery, recovery_request
from pipeline_assets.orchestration.assets import OP_NAME, Clock
from pipeline_assets.orchestration.events import markdown_table
from pipeline_assets.orchestration.operation_job import operation_job
from pipeline_assets.orchestration.specs import range_tags
from resources.export_api import ExportApi
from resources.iceberg.lake_identity import Purpose

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
    rows = [
        (
            *(one.project_id, one.day, hours_text(one.hours), Styled(one.fate, _FATES.get(one.fate, "green"))),
            *((one.objects, size_text(one.size_bytes)) if one.objects else ("", "")),
            one.error or "",
        )
        for one in grouped(list(outcomes))
    ]
    return Table(("project", "day", "hours", "", "objects", "size", "reason"), rows)
