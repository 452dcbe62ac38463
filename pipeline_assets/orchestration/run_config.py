"""Run config configures our ops and nothing else, because anyone who reaches Dagster's page writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from dagster._core.execution.build_resources import wrap_resource_for_execution
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.storage.tags import MAX_RETRIES_TAG

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import shown

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
