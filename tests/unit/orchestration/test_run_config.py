"""Run config from Dagster's page answers our ops, and brings no resource, executor or variable."""

# Dagster reads an asset's annotations as types, so they are not postponed here.
from collections.abc import Iterator
from datetime import date
from typing import Any

import dagster as dg
import pytest
from dagster._config import ConfigType
from pydantic import Field, field_validator

from pipeline_assets.definitions import build_defs, refusals
from pipeline_assets.domain.requests import Load, Maintenance, Rebuild, Reconcile, Recover, Release, Rollback
from pipeline_assets.domain.settings import Settings
from pipeline_assets.orchestration.operation_job import (
    MAINTENANCE_OP,
    REBUILD_OP,
    RECONCILE_OP,
    RECOVER_OP,
    RELEASE_OP,
    ROLLBACK_OP,
)

SETTINGS = Settings(projects=("10001",), calendar_start=date(2026, 1, 1), notify_urls=("https://bi.example/hook",))
JOBS = {job.name: job for job in build_defs(SETTINGS).get_repository_def().get_all_jobs()}
OPS = {"load": Load, MAINTENANCE_OP: Maintenance, REBUILD_OP: Rebuild, RECONCILE_OP: Reconcile, RECOVER_OP: Recover}
OPS |= {RELEASE_OP: Release, ROLLBACK_OP: Rollback}
OURS = {
    f"ops.{op}.config.{field.alias or name}"
    for op, request in OPS.items()
    for name, field in request.model_fields.items()
} | {"loggers.console.config.log_level"}
JDWP = {"spark_config": {"spark.driver.extraJavaOptions": "-agentlib:jdwp=transport=dt_socket,server=y,address=*:5055"}}
seen: list[str] = []


def _fields(kind: ConfigType, place: str = "") -> Iterator[str]:
    """A schema's places for values, `*` where any fits."""
    parts = getattr(kind, "fields", None)
    if parts is None:
        yield place
        return
    for name, part in parts.items():
        yield from _fields(part.config_type, f"{place}.{name}" if place else name)


def test_every_job_is_walked() -> None:
    started = {"__ASSET_JOB", "daily_load", "backfill_load", "heal_load", "dimension_load", "maintenance", "rollback"}
    assert started | {"release", "rebuild", "recover_exports", "reconcile", "health_report"} == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_the_schema_of_a_job_has_no_field_that_is_not_ours(name: str) -> None:
    assert set(_fields(JOBS[name].run_config_schema.config_type)) <= OURS


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "config",
    [
        {"resources": {"spark": {"config": JDWP}}},
        {"resources": {"landing": {"config": {"_place": "/"}}}},
        {"resources": {"io_manager": {"config": {"base_dir": "/tmp"}}}},
        {"execution": {"config": {"retries": {"disabled": {}}}}},
        {"loggers": {"console": {"config": {"name": "root"}}}},
        {"loggers": {"console": {"config": {"log_level": {"env": "HOME"}}}}},
    ],
    ids=str,
)
def test_a_launch_with_config_of_the_machinery_is_refused(name: str, config: dict[str, Any]) -> None:
    needed = {
        "rollback": (ROLLBACK_OP, "from", "to", "back_to", "reason"),
        "release": (RELEASE_OP, "from", "to", "reason"),
    }
    op, *words = needed.get(name, ("",))
    good = {"ops": {op: {"config": dict.fromkeys(words, "x")}}} if op else {}
    dg.validate_run_config(JOBS[name], good)
    with pytest.raises(dg.DagsterInvalidConfigError, match="config"):
        dg.validate_run_config(JOBS[name], {**good, **config})


class Named(dg.Config):
    """An operator's config class, which sees every value."""

    name: str = ""
    many: list[str] = Field(default_factory=list)

    @field_validator("name", "many")
    @classmethod
    def _never(cls, value: Any) -> Any:
        seen.append(value)
        raise ValueError(value)


@dg.asset
def of_an_operator(config: Named) -> None:
    """An asset beside ours."""


def _theirs() -> dg.JobDefinition:
    job = dg.define_asset_job("theirs", selection=[of_an_operator])
    both = dg.Definitions.merge(build_defs(SETTINGS), dg.Definitions([of_an_operator], jobs=[job]))
    return both.resolve_job_def("theirs")


def _run(config: dict[str, Any]) -> tuple[str, dg.DagsterRun]:
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.execute_job(dg.reconstructable(_theirs), instance=instance, run_config=config)
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        told = [event.job_failure_data.error for event in result.filter_events(lambda one: one.is_job_failure)]
        assert bool(result.filter_events(lambda one: one.event_type_value == "STEP_START")) is bool(seen)
        return "".join(error.message for error in told if error), run


@pytest.mark.parametrize(
    ("config", "place"),
    [({"name": {"env": "SECRET"}}, "config.name"), ({"many": ["a", {"env": "SECRET"}]}, "config.many.1")],
)
def test_a_variable_is_refused_before_a_class_of_config_sees_its_value(
    config: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: an operator's config names a server variable. Outcome: no step starts, nothing is read."""
    monkeypatch.setenv("SECRET", "never-to-be-seen")
    seen.clear()
    said, run = _run({"ops": {"of_an_operator": {"config": config}}})
    assert f"run config ops.of_an_operator.{place}: names a variable, and no run may read one" in said
    assert "never-to-be-seen" not in said
    assert not seen
    assert (run.status, run.tags["dagster/max_retries"]) == (dg.DagsterRunStatus.FAILURE, "0")


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"resources": {"of_nobody": {"config": {"x": 1}}}}, "resources.of_nobody.config.x"),
        ({"resources": {"of_nobody": [1]}}, "resources.of_nobody"),
        ({"execution": {"config": {"max_concurrent": {"env": "SECRET"}}}}, "execution.config.max_concurrent.env"),
        ({"ops": {"nobody": {"a": [{"b": {"env": "SECRET"}}]}}}, "ops.nobody.a.0.b"),
    ],
)
def test_what_the_job_of_all_assets_lets_pass_is_refused_all_the_same(config: dict[str, Any], place: str) -> None:
    assert [error.subject for error in refusals(config)][:1] == [f"run config {place}"]


def test_what_the_operator_writes_reaches_the_class() -> None:
    seen.clear()
    ops = {"of_an_operator": {"config": {"name": "plain"}}}
    _run({"ops": ops, "resources": {"spark": {"config": {}}}, "execution": {}})
    assert seen == ["plain"]


class Account(dg.ConfigurableResource[Any]):
    """An operator's resource with a field that the deployment sets."""

    name: str


@pytest.mark.parametrize("resource", [Account(name="theirs"), Account(name=dg.EnvVar("THEIRS")), "plain"])
def test_a_resource_that_replaces_ours_keeps_its_values_and_takes_no_others(
    resource: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIRS", "theirs")
    job = build_defs(SETTINGS, landing=resource).resolve_job_def("daily_load")
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(job, {"resources": {"landing": {"config": {"name": "other"}}}})
    with dg.build_resources({"landing": job.resource_defs["landing"]}) as made:
        assert getattr(made.landing, "name", "theirs") == "theirs"
