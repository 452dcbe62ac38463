"""An operation as a job of one op, with the resources, the runtime and the failures that all of them share."""

# Dagster reads the op's annotations as types, so they are not postponed here.
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.runtime import op_runtime
from resources.iceberg.lake_identity import Purpose
from resources.landing.store import LandingStore

Work = Callable[[dg.OpExecutionContext, Runtime, Any, Clock], Iterator[Any] | None]
"""What an operation does; it may yield events. Dagster reads the op's config from the annotation of `config`."""


def operation_job(
    name: str,
    op_name: str,
    descriptions: tuple[str, str],
    *,
    is_told: bool = True,
    purpose: Purpose | None = None,
    pool: str | None = None,
) -> Callable[[Work], Callable[[Settings], dg.JobDefinition]]:
    """Turn the work of an operation into a function that returns its job for a deployment's settings.

    `descriptions`: of the job and of its op. `is_told`: whether receivers are sent notices, except after a dry run. `purpose`: as
    `op_runtime`.
    """

    def of_work(work: Work) -> Callable[[Settings], dg.JobDefinition]:
        config_type = work.__annotations__["config"]

        def of_settings(settings: Settings) -> dg.JobDefinition:
            @dg.op(name=op_name, description=descriptions[1], pool=pool)
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

            @dg.job(name=name, description=descriptions[0])
            def job() -> None:
                operation()

            return job

        return of_settings

    return of_work
