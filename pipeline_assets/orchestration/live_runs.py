"""Find live runs by their processes in the ledger, else by Dagster; the sensor that reports dead ones; the run queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import dagster as dg
from dagster._core.events import JobFailureData, RunFailureReason

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.processes import Life
from pipeline_assets.domain.rebuilds import GREEN
from pipeline_assets.domain.settings import Settings
from pipeline_assets.orchestration.specs import PRIORITIES, asset_key
from pipeline_assets.tables.registry import GRAPH_TABLES
from resources.ledger.processes import sight
from resources.ledger.store import Ledger, own_ledger

OWN_TABLES = frozenset(asset_key(table) for table in GRAPH_TABLES)
WORKING = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING)
_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)


def under_way(instance: dg.DagsterInstance, ledger: Ledger, job_name: str | None = None) -> list[dg.DagsterRun]:
    """Return queued and running runs, without those whose process is dead, whatever their status in Dagster."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job_name, statuses=[*_WAITING, *WORKING]))
    processes = ((run, ledger.processes.find(run.run_id) if run.status not in _WAITING else None) for run in runs)
    return [run for run, one in processes if one is None or not one.has_died_with_its_run(sight(one.identity))]


def liveness(instance: dg.DagsterInstance, ledger: Ledger, own_run_id: str) -> Callable[[str], bool | None]:
    """Whether a branch's run is alive; None if neither ledger nor Dagster knows it. False for leftovers of this run."""

    def is_live(attempt: str) -> bool | None:
        run_id, _, rest = attempt.partition("_")
        if run_id == GREEN:
            # A rebuild's branch belongs to no run: it is needed until an operator answers the rebuild.
            rebuild = ledger.rebuilds.find(int(rest)) if rest.isdecimal() else None
            return None if rebuild is None else rebuild.state.is_open
        if run_id == own_run_id.replace("-", ""):
            return False
        process = ledger.processes.find(run_id)
        if process is not None and process.identity is not None:
            return process.life(sight(process.identity)) is Life.RUNNING
        parts = run_id[:8], run_id[8:12], run_id[12:16], run_id[16:20], run_id[20:]
        run = instance.get_run_by_id("-".join(parts))
        return None if run is None else run.status in WORKING

    return is_live


DIED_TAG = "tidemark/died"
"""A dead process is no evidence against the days it loaded."""
OWN_JOBS = frozenset(PRIORITIES) | {"maintenance", "rollback", "release", "recover_exports", "rebuild", "reconcile"}


class DeadRun(NamedTuple):
    """A run that was found dead."""

    run_id: str
    job: str
    what: str
    is_reported: bool
    """False where another Dagster knows the run, and learns of it from the ledger."""

    def __str__(self) -> str:
        """Describe the dead run in one sentence."""
        then = (
            "is reported as failed" if self.is_reported else "belongs to another Dagster home, which reports it there"
        )
        return f"run {self.run_id} ({self.job}) is dead: {self.what}; it {then}"


def quiet_sensor(
    settings: Settings, name: str, seconds: int, text: str, look: Callable[[dg.SensorEvaluationContext, Ledger], str]
) -> dg.SensorDefinition:
    """A sensor that is on by default, because it starts no run; `look` returns what it tells."""

    @dg.sensor(
        name=name,
        minimum_interval_seconds=seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=text,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            with own_ledger(settings) as ledger:
                return dg.SkipReason(look(context, ledger))
        except TidemarkError as error:
            return dg.SkipReason(str(error))

    return sensor


def dead_runs_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return the sensor. Without it, a dead run keeps the pool's slot."""

    def look(context: dg.SensorEvaluationContext, ledger: Ledger) -> str:
        origin = context.code_location_origin
        location = origin.location_name if origin else None
        dead = [str(one) for one in report_dead_runs(context.instance, ledger, location)]
        for text in dead:
            context.log.warning(text)
        return "; ".join(dead) or "no run is dead"

    text = (
        "Reports runs of Tidemark as failed whose process died with its code server, container or machine. "
        "Starts nothing by itself: Dagster's run retries and the other sensors do."
    )
    return quiet_sensor(settings, "dead_runs", 20, text, look)


def report_dead_runs(instance: dg.DagsterInstance, ledger: Ledger, location: str | None = None) -> list[DeadRun]:
    """Report dead runs to ledger and Dagster; a run of this code `location` without a recorded process counts as missing."""
    runs = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(statuses=list(WORKING)))}
    expected = {run_id: run.job_name for run_id, run in runs.items() if _is_expected(run, location)}
    processes = ledger.processes.look(runs.keys(), expected)
    dead = [process for process in processes.values() if process.has_died_with_its_run(sight(process.identity))]
    reported = []
    for process in dead:
        what, run = "its process ended before it began to work", instance.get_run_by_id(process.run_id)
        if (known := process.identity) is not None:
            what = f"process {known.pid} on {known.host} is gone, last heard from at {(process.beat_at or '')[:19]} UTC"
        if run is not None and not run.is_finished:
            _report(instance, run, what)
        # Another process may have reported a finished run, or its process could not reach the ledger.
        if run is None or not run.is_finished:
            reported.append(DeadRun(process.run_id, process.job, what, is_reported=run is not None))
    # Last: if this process dies before, the next check reports the run again.
    ledger.processes.lose([process.run_id for process in dead])
    return reported


def _is_expected(run: dg.DagsterRun, location: str | None) -> bool:
    # A starting run may wait for its machine as long as Dagster's own monitoring allows.
    if run.status is dg.DagsterRunStatus.STARTING:
        return False
    if location is None or run.remote_job_origin is None or run.remote_job_origin.location_name != location:
        return False
    chosen = run.asset_selection or frozenset()
    return run.job_name in OWN_JOBS or (bool(chosen) and chosen <= OWN_TABLES)


def _report(instance: dg.DagsterInstance, run: dg.DagsterRun, what: str) -> None:
    message = f"The run is dead: {what}."
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message)
    else:
        instance.add_run_tags(run.run_id, {DIED_TAG: "true"})
        reason = JobFailureData(error=None, failure_reason=RunFailureReason.UNEXPECTED_TERMINATION)
        instance.report_run_failed(run, message, reason)
    # If pools count ops, the end of a run does not free its slot.
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def run_queue(instance: dg.DagsterInstance) -> dict[str, int] | None:
    """The numbers of `queued` and `working` runs; None where Dagster's storage does not answer."""
    try:
        statuses = {"queued": _WAITING, "working": WORKING}
        return {name: instance.get_runs_count(dg.RunsFilter(statuses=[*of])) for name, of in statuses.items()}
    except Exception:
        # None reports the failure, and the ledger's figures must not be lost because of it.
        return None
