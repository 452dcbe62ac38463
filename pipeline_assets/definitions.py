"""Wire everything together: the one `build_defs` that production, tests and scripts call; run a job of it in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg
from dagster._core.execution.build_resources import wrap_resource_for_execution
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.storage.tags import MAX_RETRIES_TAG
from dagster_aws.s3 import S3Resource

from pipeline_assets.config import dagster_home, load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.assets import Clock, health_asset, health_job, load_assets
from pipeline_assets.orchestration.live_runs import report_dead_runs
from pipeline_assets.orchestration.operation_job import operation_jobs
from pipeline_assets.orchestration.runtime import kept_connections
from pipeline_assets.orchestration.sensors import all_sensors
from pipeline_assets.orchestration.specs import JOB_OF_SOURCE, calendar, landing_assets, load_jobs, schedules
from pipeline_assets.tables.registry import require_known_bounds, require_known_dimensions
from resources.landing.store import LandingStore
from resources.ledger.processes import heartbeat
from resources.ledger.store import own_ledger
from resources.spark.session import spark_resource

_LEVEL = {"log_level": dg.Field(dg.String, default_value="INFO", is_required=False)}
CONSOLE = dg.colored_console_logger.configured(lambda level: level, config_schema=_LEVEL)


def closed(resource: Any) -> dg.ResourceDefinition:
    """The resource as configured here; its schema refuses any addition by a run."""
    made = wrap_resource_for_execution(resource)
    field = made.config_field
    return made.configured(field.default_value if field and field.default_provided else {}, config_schema={})


def refusals(config: Mapping[str, Any]) -> Iterator[UsageError]:
    """Refuse what schemas allow: resources unknown to the job of all assets, and a variable's name for a `dg.Config` text."""
    for part, values in config.items():
        for place, value in _values(values, f"run config {shown(part)}"):
            if part == "ops" and isinstance(value, Mapping) and [*value] == ["env"]:
                yield UsageError(place, "names a variable, and no run may read one", "Write the value itself")
            if part not in {"ops", "loggers"} and not isinstance(value, Mapping | None):
                yield UsageError(place, "is not for a run to set", "Leave it out; a deployment's settings set it")


def _values(value: object, place: str) -> Iterator[tuple[str, object]]:
    yield place, value
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from _values(part, f"{place}.{shown(name)}")


class _Guarded(InProcessExecutor):
    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[Any]:
        """Refuse config for anything but ops, before resources and config classes are made; then run the steps."""
        for error in refusals(plan_context.run_config):
            # A retry would be refused as well.
            plan_context.instance.add_run_tags(plan_context.run_id, {MAX_RETRIES_TAG: "0"})
            raise error
        yield from super().execute(plan_context, execution_plan)


@dg.executor(name="in_process", config_schema={})
def guarded_executor(_: dg.InitExecutorContext) -> dg.Executor:
    """Dagster's executor of one process, without its config, behind `refusals`."""
    return _Guarded(RetryMode.ENABLED)


def build_defs(
    settings: Settings | None = None, *, loggers: Mapping[str, dg.LoggerDefinition] | None = None, **resources: Any
) -> dg.Definitions:
    """The definitions for these settings (default: from file and environment); `resources` replace ours by name."""
    settings = settings or load_settings()
    require_known_bounds(settings)
    require_known_dimensions(settings)
    days = calendar(settings)
    own = {"landing": LandingStore.from_settings(settings, S3Resource()), "clock": Clock()}
    own |= {"spark": resources.pop("spark", None) or spark_resource(settings), "io_manager": dg.FilesystemIOManager()}
    jobs = operation_jobs(settings, lambda: definitions.resolve_job_def(JOB_OF_SOURCE[Source.BACKFILL]))
    definitions = dg.Definitions(
        assets=[*landing_assets(settings, days), load_assets(settings, days), health_asset(settings)],
        jobs=[*load_jobs(), *jobs, health_job()],
        schedules=schedules(settings),
        sensors=all_sensors(settings),
        resources={name: closed(resource) for name, resource in {**own, **resources}.items()},
        loggers=loggers or {"console": CONSOLE},
        executor=guarded_executor,
    )
    return definitions


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that Dagster loads; reads settings only when called."""
    return build_defs()


def run_job(
    settings: Settings,
    job_name: str,
    config: Mapping[str, Any],
    tags: Mapping[str, str],
    logger: dg.LoggerDefinition,
    log: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Report dead runs to Dagster, then run a job of one op; returns its failures other than verdicts in the ledger."""
    job = build_defs(settings, loggers={"console": logger}).resolve_job_def(job_name)
    (op,) = job.graph.nodes
    dagster_home()
    url, run_id = settings.ledger_database_url, str(uuid.uuid4())
    # Otherwise a monitor could not tell a dead process from one that has not started.
    with (
        dg.DagsterInstance.get() as instance,
        kept_connections(instance),
        own_ledger(settings) as ledger,
        heartbeat(url, run_id, job_name, 1),
    ):
        for dead in report_dead_runs(instance, ledger):
            log(str(dead))
        result = job.execute_in_process(
            run_config={"ops": {op.name: {"config": dict(config)}}, "loggers": {"console": {}}},
            tags=dict(tags),
            instance=instance,
            raise_on_error=False,
            run_id=run_id,
        )
    failures = []
    for event in result.all_events:
        if event.event_type is dg.DagsterEventType.STEP_FAILURE:
            data: Any = event.event_specific_data
            failure, error = data.user_failure_data, data.error.cause or data.error
            # The op itself raises one with the reasons of verdicts at its end.
            if failure is None or "reasons" not in failure.metadata:
                failures.append((failure and failure.description) or str(error.message).strip())
    return failures
