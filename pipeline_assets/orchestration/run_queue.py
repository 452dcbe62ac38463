"""The length of Dagster's run queue, for monitoring."""

from __future__ import annotations

import dagster as dg

from pipeline_assets.inspection.metrics.compute import RunQueue
from pipeline_assets.orchestration.live_runs import WORKING

_WAITING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)


def run_queue(instance: dg.DagsterInstance) -> RunQueue | None:
    """Return how many runs are queued and how many are running; None where Dagster's storage does not answer."""
    try:
        waiting, working = (
            instance.get_runs_count(dg.RunsFilter(statuses=list(statuses))) for statuses in (_WAITING, WORKING)
        )
    except Exception:
        # None reports the failure by itself; the figures of the ledger must not be lost because of it.
        return None
    return RunQueue(waiting, working)
