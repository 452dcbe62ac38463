"""Run a Dagster job in this process, as the CLI and the drill do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from pipeline_assets.config import dagster_home
from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.settings import Settings
from pipeline_assets.orchestration.live_runs import report_dead_runs
from pipeline_assets.orchestration.runtime import kept_connections
from resources.heartbeat import heartbeat
from resources.ledger.store import own_ledger


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
        return [] if result.success else _unexpected(result)


def _unexpected(result: dg.ExecuteInProcessResult) -> list[str]:
    """All failures but the one that an op itself raises at its end."""
    failures = []
    for event in result.all_events:
        if event.event_type is dg.DagsterEventType.STEP_FAILURE:
            data: Any = event.event_specific_data
            if data.user_failure_data is not None and "reasons" in data.user_failure_data.metadata:
                continue
            error = data.error.cause or data.error
            label = data.user_failure_data.description if data.user_failure_data is not None else None
            failures.append(label or str(error.message).strip())
    return failures
