"""An operation as a job of one op, with the resources, the runtime and the failures that all of them share."""

# Dagster reads the op's annotations as types, so they are not postponed here.
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.runtime import op_runtime
from resources.iceberg.lake_identity import Purpose
from resources.landing.store import LandingStore

_C = TypeVar("_C", bound=dg.Config)


def operation_job(
    settings: Settings,
    names: tuple[str, str],
    descriptions: tuple[str, str],
    config_type: type[_C],
    work: Callable[[dg.OpExecutionContext, Runtime, _C, Clock], Iterator[Any] | None],
    *,
    is_dry_run: Callable[[_C], bool],
    purpose: Purpose | None = None,
    pool: str | None = None,
) -> dg.JobDefinition:
    """Return a job of one op, which does `work`; names and descriptions are those of the job and of its op.

    `work` may yield events. `is_dry_run` of a config, and `purpose`: as `op_runtime`.
    """

    @dg.op(name=names[1], description=descriptions[1], pool=pool)
    def operation(
        context: dg.OpExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # Dagster reads it
        spark: LazyPySparkResource,
        landing: dg.ResourceParam[LandingStore],
        clock: dg.ResourceParam[Clock],
    ) -> Iterator[Any]:
        is_dry = is_dry_run(config)
        with op_runtime(context, settings, spark, landing, is_dry_run=is_dry, purpose=purpose) as runtime:
            yield from work(context, runtime, config, clock) or ()
        yield dg.Output(None)

    @dg.job(name=names[0], description=descriptions[0])
    def job() -> None:
        operation()

    return job
